"""Attention kernels on a GPU: values and gradients against doubles, and no worse than eager's."""

import math
import warnings

import pytest
import torch
import torch.nn.attention.flex_attention as module
from test_attention_kernels import PROGRAMS, added, biased, by_library, grouped, masked
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
H, DEVICE = 4, "cuda" if torch.cuda.is_available() else "cpu"
IDS = torch.arange(512, device=DEVICE) // 70
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=DEVICE)
TABLE = torch.linspace(-2, 2, 1024, device=DEVICE)
MASKS = {"none": None, "causal": lambda b, h, q, k: q >= k, "window": lambda b, h, q, k: (q >= k) & (q - k <= 100),
         "documents": lambda b, h, q, k: IDS[q] == IDS[k], "padding": lambda b, h, q, k: k < 100 * b}
SCORES = {"none": None, "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
          "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
          "relative": lambda s, b, h, q, k: s + TABLE[q - k + 512]}


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def operands(m, n, d, dtype=torch.bfloat16, kv=H, heads_last=False):
    def make(h, length):
        t = torch.randn(2, length, h, d, device="cuda", dtype=dtype)
        return t.transpose(1, 2) if heads_last else t.transpose(1, 2).contiguous()
    return make(H, m), make(kv, n), make(kv, n)


def distance(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def check(fn, exact, args, dtype):
    """``exact`` is ``fn`` in doubles. What eager rounds between its operators counts for it: no worse than that."""
    wrt = [i for i, t in enumerate(args) if t.dtype is dtype]
    inner = [t.detach().clone().requires_grad_(i in wrt) for i, t in enumerate(args)]
    double = [t.double().detach().requires_grad_() if i in wrt else t for i, t in enumerate(args)]
    compiled = jit.compile(fn, fullgraph=True)
    with torch.no_grad():
        plain, eager = compiled(*args), fn(*args)
    out, expected = compiled(*inner), exact(*double)
    tangent = torch.randn_like(out)
    limit = max(6e-3 if dtype is torch.bfloat16 else 1.5e-3, 1.1 * distance(eager, expected))
    assert distance(plain, expected) < limit and distance(out, expected) < limit
    found = torch.autograd.grad(out, [inner[i] for i in wrt], tangent)
    wanted = torch.autograd.grad(expected, [double[i] for i in wrt], tangent.double())
    by_eager = torch.autograd.grad(fn(*inner), [inner[i] for i in wrt], tangent)
    for f, w, e in zip(found, wanted, by_eager):
        assert distance(f, w) < max(2 * limit, 1.1 * distance(e, w)) and f.shape == w.shape


def spelled(score, mask):
    def exact(q, k, v):
        groups = q.shape[1] // k.shape[1]
        s = q @ k.repeat_interleave(groups, 1).mT / math.sqrt(q.shape[-1])
        b, h, i, j = (torch.arange(n, device=q.device).view([-1 if d == at else 1 for d in range(4)])
                      for at, n in enumerate(s.shape))
        s = s if score is None else score(s, b, h, i, j)
        s = s if mask is None else torch.where(mask(b, h, i, j), s, -math.inf)
        empty = (s == -math.inf).all(-1, True)
        return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, s), -1)) @ v.repeat_interleave(groups, 1)
    return exact


@pytest.mark.parametrize("score, mask, m, n, d, kv", [
    ("none", "causal", 384, 384, 64, H), ("alibi", "window", 300, 300, 128, 2),
    ("softcap", "documents", 257, 400, 80, 1),
    ("relative", "padding", 200, 129, 64, H), ("none", "none", 512, 131, 32, H)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flex_attention(score, mask, m, n, d, kv, dtype):
    block_mask = MASKS[mask] and create_block_mask(MASKS[mask], 2, None, m, n, device="cuda")
    fn = lambda q, k, v: flex_attention(q, k, v, SCORES[score], block_mask, enable_gqa=kv != H)
    check(fn, spelled(SCORES[score], MASKS[mask]), operands(m, n, d, dtype, kv, mask == "window"), dtype)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_spelled_out(fn):
    if fn.__name__ != "smallest":
        check(fn, fn, operands(200, 200, 64), torch.bfloat16)


def test_masks_that_are_given():
    check(grouped, grouped, operands(160, 160, 64, kv=2), torch.bfloat16)
    q, k, v = operands(200, 140, 64)
    check(biased, biased, (q, k, v, torch.randn(1, 1, 200, 140, device="cuda").bfloat16()), torch.bfloat16)
    check(by_library, by_library, (q, k, v, torch.randn(1, 1, 200, 140, device="cuda").bfloat16()), torch.bfloat16)
    far = torch.where(torch.rand(200, 140, device="cuda") < 0.5, 0.0, torch.finfo(torch.float32).min)
    far[5] = torch.finfo(torch.float32).min
    check(added, added, (q, k, v, far), torch.bfloat16)
    mask = torch.rand(200, 140, device="cuda") < 0.3
    check(masked, masked, (q, k, v, mask), torch.bfloat16)


def test_a_step_that_goes_backward_by_itself():
    q, k, v = operands(256, 256, 64)
    block_mask = create_block_mask(MASKS["causal"], None, None, 256, 256, device="cuda")
    w = torch.nn.Parameter(torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) / 8)

    def step(w, q, k, v):
        loss = flex_attention(q @ w, k @ w, v @ w, block_mask=block_mask).float().square().mean()
        (g,) = torch.autograd.grad(loss, w)
        return loss, g

    loss, g = jit.compile(step)(w, q, k, v)
    exact = spelled(None, MASKS["causal"])
    d = w.double().detach().requires_grad_()
    expected = exact(*(t.double() @ d for t in (q, k, v))).square().mean()
    assert distance(loss, expected) < 1e-2
    assert distance(g, torch.autograd.grad(expected, d)[0]) < 3e-2


@pytest.mark.parametrize("kind", ["numbers", "nothing kept in a row", "kept or not", "one for all", "numbers, float32"])
def test_attention_of_the_library_with_a_mask(kind):
    q, k, v = operands(136, 72, 64)
    mask = torch.randn(2, H, 136, 72, device="cuda", dtype=torch.bfloat16)
    if kind == "nothing kept in a row":
        mask[:, :, 3] = -math.inf
        mask[:, :, 4:, 5] = -math.inf
    mask = {"kept or not": mask > 0, "one for all": mask[:1, :1, :1]}.get(kind, mask)
    if kind.endswith("float32"):
        q, k, v, mask = (t.float() for t in (q, k, v, mask))

    def fn(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    tensors = [t.detach().requires_grad_() for t in (q, k, v)]
    got, expected = jit.compile(fn, fullgraph=True)(*tensors), fn(*tensors)
    tangent = torch.randn_like(expected)
    results = [(o, *torch.autograd.grad(o, tensors, tangent)) for o in (got, expected)]
    for ours, theirs in zip(*results):
        assert ours.isfinite().equal(theirs.isfinite())
        assert distance(ours.nan_to_num(), theirs.nan_to_num()) < 1e-2 and ours.stride() == theirs.stride()
