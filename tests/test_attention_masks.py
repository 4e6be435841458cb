"""Masks of the library's memory-efficient attention, whose rows have to be aligned: one program for all widths. The
operator is a GPU's; here it is one that asks the same of its mask and computes by matrix products."""

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import check_grad, compiled, halves

from jit.graph.autodiff import attention
from jit.graph.dims import env_of
from jit.graph.interpret import evaluate


def by_products(q, k, v, mask, dropout_p=0.0, is_causal=False, scale=None):
    if mask is not None:
        assert mask.shape == (*q.shape[:-1], k.shape[-2])
        assert mask.stride(-1) == 1 and all(s % 8 == 0 for s in mask.stride()[:-1]), mask.stride()
    out = torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask, dropout_p, is_causal, scale=scale)[0]
    return out.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.fixture
def efficient(monkeypatch):
    monkeypatch.setattr(attention, "_choice", lambda *args: attention.EFFICIENT)
    library = torch.library.Library("aten", "IMPL")

    def forward(q, k, v, mask, sums, dropout_p=0.0, is_causal=False, *, scale=None):
        n, h, length, _ = q.shape
        state = torch.zeros((), dtype=torch.int64)
        rows = torch.zeros(n, h, (length + 31) // 32 * 32)
        return by_products(q, k, v, mask, dropout_p, is_causal, scale), rows, state, state.clone()

    def backward(g, q, k, v, mask, out, sums, seed, offset, dropout_p, wanted, is_causal=False, *, scale=None):
        by_products(q, k, v, mask)
        factor = q.shape[-1] ** -0.5
        weights = (q @ k.mT * factor + mask).softmax(-1)
        of_weights = g @ v.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * factor
        grads = of_scores @ k, of_scores.mT @ q, weights.mT @ g
        return (*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in grads), None)

    library.impl("_scaled_dot_product_efficient_attention", forward, "CPU")
    library.impl("_scaled_dot_product_efficient_attention_backward", backward, "CPU")
    yield
    library._destroy()


def leaves(keys, n=2, h=3, rows=5):
    return [torch.randn(n, h, length, 8).requires_grad_() for length in (rows, keys, keys)]


MASKS = {
    "keys": lambda n, h, rows, keys: torch.rand(n, 1, 1, keys) > 0.3,
    "whole": lambda n, h, rows, keys: torch.randn(n, h, rows, keys),
    "shared": lambda n, h, rows, keys: torch.randn(rows, keys),
    "a row's number": lambda n, h, rows, keys: torch.randn(n, 1, rows, 1),
    "cut off": lambda n, h, rows, keys: torch.randn(n, 1, rows, 50)[..., :keys],
    "across": lambda n, h, rows, keys: torch.randn(n, 1, keys, rows).transpose(2, 3),
    "heads last": lambda n, h, rows, keys: torch.randn(n, rows, keys, h).permute(0, 3, 1, 2),
}


@pytest.mark.parametrize("run", [evaluate, compiled], ids=["evaluated", "compiled"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_any_width(efficient, mask, dynamic, run):
    for keys in (6, 8, 16, 21):
        given = MASKS[mask](2, 3, 5, keys)
        check_grad(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *leaves(keys), given,
                   dynamic=dynamic, rtol=1e-4, atol=1e-5, run=run)


@pytest.mark.parametrize("keys", [16, 21])
def test_a_width_is_no_fact_of_a_program(efficient, keys):
    """Nor its remainder: what is relied on says the same for each width."""
    graph, *_ = halves(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *leaves(keys),
                       torch.randn(2, 1, 1, keys), dynamic=True)
    env = next(s for n in graph.inputs for s in n.type.shape if not isinstance(s, int))
    facts = [str(g) for g in env_of(env).guards]
    assert not [f for f in facts if "%" in f], facts


def test_an_aligned_mask_is_not_copied(efficient):
    *_, result, _ = halves(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *leaves(16),
                           torch.randn(2, 1, 1, 16))
    assert not [n for n in result.forward.nodes if n.op == "constant_pad"]
