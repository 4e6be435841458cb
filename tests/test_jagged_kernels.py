"""Attention of jagged tensors by the kernels that GPUs have for all sequences at once. A CPU has none: they are given
to PyTorch here, computed sequence by sequence, with the results and arguments of the real ones."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nested._internal import sdpa
from torch.nn.attention import SDPBackend

import jit

BATCHES = ((3, 4, 5), (2, 7, 3), (6, 6, 2, 4), (9, 2), (5, 3, 8), (33, 7))
CALLS = []


def _each(q, k, v, offsets, causal, scale, grad=None):
    """Of each sequence, the result, or the gradients of q, k and v."""
    scale, parts = scale or 1 / math.sqrt(q.shape[-1]), []
    for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        x, y, z = [t[a:b].transpose(0, 1) for t in (q, k, v)]
        scores = x @ y.transpose(1, 2) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(b - a, b - a, dtype=torch.bool).triu(1), float("-inf"))
        weights = scores.softmax(-1)
        if grad is None:
            parts.append([weights @ z])
            continue
        g = grad[a:b].transpose(0, 1)
        toward = g @ z.transpose(1, 2)
        toward = weights * (toward - (toward * weights).sum(-1, keepdim=True)) * scale
        parts.append([toward @ y, toward.transpose(1, 2) @ x, weights.transpose(1, 2) @ g])
    made = [torch.cat([p.transpose(0, 1) for p in of_each]) for of_each in zip(*parts)]
    return made[0] if grad is None else made


def _efficient(q, k, v, bias, q_offsets, k_offsets, q_longest, k_longest, dropout_p, mask_kind,
               compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None):
    CALLS.append("efficient")
    assert q_offsets.dtype == torch.int32 and q_longest == (q_offsets[1:] - q_offsets[:-1]).max()
    out = _each(q[0], k[0], v[0], q_offsets, mask_kind == 1, scale)[None]
    room = -(-q_longest // 32) * 32 if compute_log_sumexp else 0
    sums = torch.full((q_offsets.shape[0] - 1, q.shape[2], room), 3.0)
    return out.contiguous(), sums, torch.tensor(7), torch.tensor(9), q_longest, k_longest


def _efficient_backward(grad, q, k, v, bias, out, q_offsets, k_offsets, q_longest, k_longest, sums, dropout_p, seed,
                        offset, mask_kind, bias_requires_grad, *, scale=None, num_splits_key=None, window_size=None,
                        shared_storage_dqdkdv=False):
    CALLS.append("efficient backward")
    assert (sums == 3).all() and sums.numel() and seed == 7 and offset == 9 and bias is None and q_longest == k_longest
    torch.testing.assert_close(out[0], _each(q[0], k[0], v[0], q_offsets, mask_kind == 1, scale))
    found = _each(q[0], k[0], v[0], q_offsets, mask_kind == 1, scale, grad[0])
    return (*[g[None].contiguous() for g in found], torch.empty(0))


def _flash(q, k, v, q_offsets, k_offsets, q_longest, k_longest, dropout_p, is_causal, debug, *, scale=None,
           window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None,
           num_splits=None):
    CALLS.append("flash")
    out = _each(q, k, v, q_offsets, is_causal, scale)
    return (out.contiguous(), torch.full((q.shape[1], q.shape[0]), 3.0), torch.ones(2, dtype=torch.uint64),
            torch.zeros((), dtype=torch.uint64), q.new_empty(0))


def _flash_backward(grad, q, k, v, out, sums, q_offsets, k_offsets, q_longest, k_longest, dropout_p, is_causal, state,
                    unused, *, scale=None, window_size_left=None, window_size_right=None):
    CALLS.append("flash backward")
    assert (sums == 3).all() and q_longest == (q_offsets[1:] - q_offsets[:-1]).max()
    assert state.tolist() == [1, 1] and unused.item() == 0
    torch.testing.assert_close(out, _each(q, k, v, q_offsets, is_causal, scale))
    return tuple(g.contiguous() for g in _each(q, k, v, q_offsets, is_causal, scale, grad))


@pytest.fixture
def kernels():
    library = torch.library.Library("aten", "IMPL")
    for name, fn in (("_efficient_attention_forward", _efficient), ("_flash_attention_forward", _flash),
                     ("_efficient_attention_backward", _efficient_backward),
                     ("_flash_attention_backward", _flash_backward)):
        library.impl(name, fn, "CPU")
    CALLS.clear()
    yield
    library._destroy()


def attend(x, project, causal):
    q, k, v = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in project(x).chunk(3, -1)]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


def batch(lengths):
    return torch.nested.nested_tensor([torch.randn(n, 16) for n in lengths], layout=torch.jagged)


@pytest.mark.parametrize("kind", [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_kernel_for_all_sequences(kernels, monkeypatch, kind, causal, grad):
    monkeypatch.setattr(sdpa, "_select_sdp_backend", lambda *args: kind)
    torch.manual_seed(3)
    project = torch.nn.Linear(16, 48)
    compiled = jit.compile(attend, fullgraph=True)
    for lengths in BATCHES:
        x = batch(lengths)
        results = []
        for fn in (attend, compiled):
            CALLS.clear()
            project.zero_grad()
            with torch.set_grad_enabled(grad):
                out = fn(x, project, causal)
            if grad:
                out.values().square().sum().backward()
            made = [] if not grad else [p.grad.clone() for p in project.parameters()]
            results.append(([out.values().detach(), out.offsets(), *made], list(CALLS)))
        (eager, calls), (ours, own) = results
        torch.testing.assert_close(ours, eager)
        name = "flash" if kind is SDPBackend.FLASH_ATTENTION else "efficient"
        assert own == calls == [name, *([name + " backward"] if grad else [])]
