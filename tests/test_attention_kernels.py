"""Attention as kernels of its own: which programs become one, what those compute, their special cases and gradients, by
Triton's interpreter; and that they compile for a GPU."""

import math
import warnings

import interpreter
import pytest
import torch
import torch.nn.functional as F

import jit

H, D = 2, 32


def causal_mask(q, k):
    i, j = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
    return i[:, None] >= j


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def in_float(q, k, v):
    s = torch.matmul(q, k.transpose(2, 3)) * 0.3
    return torch.matmul(F.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype), v)


def causal(q, k, v):
    s = (q @ k.transpose(-1, -2) * 0.2).masked_fill(~causal_mask(q, k), -math.inf)
    return torch.softmax(s, -1) @ v


def smallest(q, k, v):
    s = torch.where(causal_mask(q, k), q @ k.mT, torch.finfo(q.dtype).min)
    return torch.softmax(s.float(), -1).to(q.dtype) @ v


def far(q, k, v):
    s = torch.where(causal_mask(q, k) & (torch.arange(q.shape[-2], device=q.device) != 7)[:, None],
                    (q @ k.mT).float(), torch.finfo(torch.float32).min)
    return torch.softmax(s, -1).to(q.dtype) @ v


def capped(q, k, v):
    return torch.softmax(torch.tanh(q @ k.transpose(-1, -2) / 5) * 5, -1) @ v


def scaled_before(q, k, v):
    return torch.softmax((q * 0.1) @ k.transpose(-1, -2), -1) @ v


def by_einsum(q, k, v):
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.2, -1), v)


def heads_last(q, k, v):
    b, h, m, d = q.shape
    return plain(q, k, v).transpose(1, 2).reshape(b, m, h * v.shape[-1])


def grouped(q, k, v):
    def repeat(x):
        return x[:, :, None].expand(-1, -1, q.shape[1] // x.shape[1], -1, -1).reshape(x.shape[0], q.shape[1],
                                                                                   *x.shape[2:])
    return plain(q, repeat(k), repeat(v))


def flat(q, k, v):
    """Of one head."""
    return plain(q[:, 0], k[:, 0], v[:, 0])


def biased(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-1, -2) / 4 + bias, -1) @ v


def added(q, k, v, mask):
    return torch.softmax((q @ k.transpose(-1, -2)).float() + mask.float(), -1).to(q.dtype) @ v


def by_library(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, mask, scale=0.3)


def masked(q, k, v, mask):
    return torch.softmax((q @ k.transpose(-1, -2)).masked_fill(mask, -math.inf), -1) @ v


PROGRAMS = [plain, in_float, causal, smallest, far, capped, scaled_before, heads_last, flat]
SIZES = [(128, 128, 32, 32), (131, 150, 40, 24)]


def operands(m=128, n=128, d=D, dv=D, heads=H, kv=None, layout=False):
    def make(h, length, width):
        t = torch.randn(1, length, h, width).half().transpose(1, 2)
        return t if layout else t.contiguous()
    return make(heads, m, d), make(kv or heads, n, d), make(kv or heads, n, dv)


def error(got, expected):
    got, expected = got.double(), expected.double()
    assert torch.equal(got.isnan(), expected.isnan()) and got.shape == expected.shape
    kept = ~expected.isnan()
    return float((got[kept] - expected[kept]).norm() / expected[kept].norm())


def check(fn, args, wrt=(0, 1, 2), tolerance=1.5e-3):
    import attention_simulator as simulator

    exact = [t.double().requires_grad_(i in wrt) if t.is_floating_point() else t for i, t in enumerate(args)]
    reference = fn(*exact)
    (out,), kinds = simulator.forward(fn, *args)
    assert kinds.count("forward") == 1
    assert error(out, reference.detach()) < tolerance, fn.__name__
    assert out.stride() == fn(*args).stride()
    if not wrt:
        return
    tangent = torch.empty_like(fn(*args)).copy_(torch.randn(reference.shape))
    expected = torch.autograd.grad(reference, [exact[i] for i in wrt], tangent.double())
    (out, *found), kinds = simulator.gradients(fn, args, (tangent,), wrt)
    assert kinds.count("queries") == kinds.count("keys") == 1
    for g, e, i in zip(found, expected, wrt):
        assert error(g, e) < 3 * tolerance and g.dtype is args[i].dtype, (fn.__name__, i)


def interpret():
    """In a process of its own, since Triton is told to interpret when it is imported."""
    torch.manual_seed(0)
    for fn in PROGRAMS:
        for m, n, d, dv in SIZES:
            check(fn, operands(m, n, d, dv))
    check(plain, operands(layout=True))
    check(heads_last, operands(140, 140, layout=True))
    check(grouped, operands(heads=4, kv=2))
    q, k, v = operands(130, 140)
    check(biased, (q, k, v, torch.randn(1, 1, 130, 140).half()))
    check(biased, (q, k, v, torch.randn(1, H, 130, 1).half()))
    check(biased, (q, k, v, torch.randn(H, 130, 140).half()), (0, 1, 2, 3))  # a bias that is learned
    check(biased, (q, k, v, torch.randn(1, 1, 1, 140).half()), (0, 1, 2, 3))
    mask = torch.where(torch.rand(130, 140) < 0.5, 0.0, torch.finfo(torch.float32).min)
    mask[5] = torch.finfo(torch.float32).min
    check(added, (q, k, v, mask))
    check(masked, (q, k, v, torch.rand(130, 140) < 0.3))
    check(by_library, (q, k, v, torch.randn(1, 1, 130, 140).half()), (0, 1, 2, 3))
    hidden = torch.rand(130, 140) < 0.5
    hidden[7] = False
    check(by_library, (q, k, v, hidden))
    check(by_library, (*operands(49, 49, layout=True), torch.randn(1, H, 49, 49).half()))
    special(q, k, v)
    print("done")


def special(q, k, v):
    """Rows without anything, infinities and NaN."""
    mask = torch.rand(130, 140) < 0.3
    mask[7] = True
    check(masked, (q, k, v, mask), ())  # NaN
    check(lambda *a: torch.softmax(torch.where(a[3], -65504.0, a[0] @ a[1].mT), -1) @ a[2], (q, k, v, mask), ())
    q[0, 0, 3, 5] = math.nan
    check(plain, (q, k, v), ())
    k[0, 1, 4] = math.inf
    check(masked, (q, k, v, mask), ())


def test_interpreter_agrees_with_eager():
    assert "done" in interpreter.output(__name__)


# which programs are left as they are


def both(q, k, v):
    w = torch.softmax(q @ k.transpose(-1, -2), -1)
    return w @ v, w


def scores_too(q, k, v):
    s = q @ k.transpose(-1, -2)
    return torch.softmax(s, -1) @ v + s.sum()


def over_queries(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -2) @ v


def dropped(q, k, v):
    return F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.5) @ v


def shifted(q, k, v):
    s = q @ k.transpose(-1, -2)
    return torch.softmax(s + s.flip(-1), -1) @ v


def detached(q, k, v):
    return torch.softmax((q @ k.transpose(-1, -2)).detach(), -1) @ v


def moved_graph(fn, *args):
    from codegen_graphs import moved
    found = []

    def backend(graph, examples):
        found.append(graph)
        return lambda *tensors: [torch.empty_strided(o.node.type.shape, o.node.type.strides, dtype=o.node.dtype)
                                 for o in graph.outputs]

    jit.compile(fn, backend=backend, fullgraph=True)(*args)
    return moved(found[0], torch.device("cuda", 0))


def is_fused(graph):
    from jit.graph.passes.attention import fuse_attention
    fused = fuse_attention(graph)
    return any(n.op == "aten_call" and n.attrs["target"] == "jit::attention" for n in fused.nodes)


@pytest.mark.parametrize("fn", [both, scores_too, over_queries, dropped, shifted])
def test_weights_or_scores_that_others_read_are_left(fn):
    assert not is_fused(moved_graph(fn, *operands()))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_recognised(fn):
    assert is_fused(moved_graph(fn, *operands()))


def test_other_dtypes_are_left():
    assert not is_fused(moved_graph(plain, *(t.float() for t in operands())))


# kernels for a GPU


def flex(score, mask, m=256):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    block_mask = mask and create_block_mask(mask, None, None, m, m, device="cpu")
    return lambda q, k, v: flex_attention(q, k, v, score, block_mask)


SLOPES, IDS = torch.rand(H), torch.arange(256) // 70
FLEX = {
    "causal": (None, lambda b, h, q, k: q >= k), "window": (None, lambda b, h, q, k: (q >= k) & (q - k < 60)),
    "alibi": (lambda s, b, h, q, k: s + SLOPES[h] * (k - q), lambda b, h, q, k: q >= k),
    "documents": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), lambda b, h, q, k: IDS[q] == IDS[k]),
}


@pytest.mark.parametrize("name", FLEX)
@pytest.mark.parametrize("width", [64, 128, 80])
def test_kernels_compile_for_sm_90_without_a_gpu(name, width, tmp_path, monkeypatch):
    import dataclasses

    import torch.nn.attention.flex_attention as module

    from jit import config
    from jit.codegen.planner import Options, Planner
    from jit.codegen.triton.compile import compile_triton
    from jit.graph.autodiff import differentiate
    from jit.graph.passes import optimize
    from jit.graph.passes.attention import fuse_attention
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = moved_graph(flex(*FLEX[name]), *(t.bfloat16() for t in operands(256, 256, width, width)))
    graph = fuse_attention(graph)
    wrt = [n.attrs["index"] for n in graph.inputs if n.dtype is torch.bfloat16]
    planner = Planner(optimize(differentiate(graph, tuple(wrt), (0,)).graph), Options())
    planner.schedule()
    kernels = [dataclasses.replace(k, name=f"k{i}") for i, k in enumerate(planner.launches)]
    kinds = [k.layout.parts.kind for k in kernels if k.layout is not None]
    assert kinds == ["forward", "queries", "keys"]
    found = compile_triton(kernels)
    assert all(c.shared <= 227 << 10 for c in found.values())
