"""The modified Bessel function of order zero, ``torch.i0``: a prim, so that kernels compute it with what stands around
it."""

import math

import pytest
import torch
import triton_kernels as zoo

import jit
from jit.codegen.triton import compile as triton_compile
from jit.codegen.triton import emit as triton_emit

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NAMES = {"torch": torch.i0, "special": torch.special.i0, "method": torch.Tensor.i0}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6, torch.float64: 1e-14}


def points(dtype):
    """Small, around the border of the two formulas, to where it overflows, and beyond; both signs, nothing left out."""
    ends = [0.0, -0.0, 1e-30, 1.0, -1.0, 7.999, 8.0, -8.0, 8.001, 88.0, 91.5, -92.0, 700.0, 713.0, 716.0, 1e30,
            math.inf, -math.inf, math.nan]
    return torch.cat([torch.tensor(ends, dtype=torch.float64), torch.linspace(-95, 95, 1901, dtype=torch.float64)]).to(
        dtype)


def agree(got, want):
    assert got.dtype is want.dtype and got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=TOLERANCE[want.dtype], atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values(name, dtype):
    fn, x = NAMES[name], points(dtype)
    agree(jit.compile(lambda x: fn(x), fullgraph=True)(x), fn(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_as_exact_as_eagers(dtype):
    x = points(torch.float64)[19:].to(dtype)
    x = x[x.abs() < 88]
    exact = torch.i0(x.double()) if dtype is torch.float32 else None
    got, want = jit.compile(lambda x: torch.i0(x), fullgraph=True)(x), torch.i0(x)
    if exact is not None:
        assert ((got.double() - exact).abs() / exact).max() <= 1.5 * max(
            ((want.double() - exact).abs() / exact).max(), 2e-7)
    assert ((got - want).abs() / want).max() <= 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_integers_become_floats(dtype):
    x = torch.arange(12).to(dtype)
    agree(jit.compile(lambda x: torch.i0(x), fullgraph=True)(x), torch.i0(x))


def test_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        agree(jit.compile(lambda x: torch.i0(x), fullgraph=True)(torch.arange(5)), torch.i0(torch.arange(5)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_in_place_and_into_memory():
    def fn(x, y):
        torch.i0(x, out=y)
        return x.clone().i0_(), y * 2

    x = torch.randn(3, 5)
    for got, want in zip(jit.compile(fn, fullgraph=True)(x, torch.empty(3, 5)), fn(x, torch.empty(3, 5))):
        agree(got, want)


@pytest.mark.parametrize("x", [torch.randn(6, 8)[::2, 1::3], torch.randn(4, 5).t(), torch.randn(1, 3).expand(4, 3),
                               torch.empty(0, 3), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
                               torch.tensor(2.5), torch.randn(37)[3:]],
                         ids=["sliced", "transposed", "expanded", "empty", "channels_last", "0-dim", "offset"])
def test_layouts(x):
    agree(jit.compile(lambda x: torch.i0(x), fullgraph=True)(x), torch.i0(x))
    agree(jit.compile(lambda x: torch.i0(x), fullgraph=True, dynamic=True)(x), torch.i0(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(dtype):
    x = torch.tensor([0.0, 0.5, -0.5, 3.0, -7.9, 8.1, 11.0], dtype=dtype)
    grads = []
    for fn in (lambda x: torch.i0(x) * 2, jit.compile(lambda x: torch.i0(x) * 2, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        fn(leaf).backward(torch.linspace(0.5, 1.5, 7, dtype=dtype))
        grads.append(leaf.grad)
    agree(*reversed(grads))


def test_gradients_of_gradients():
    x = torch.tensor([0.5, -0.5, 3.0, -7.9], dtype=torch.float64)
    found = []
    for fn in (torch.i0, jit.compile(lambda x: torch.i0(x), fullgraph=True)):
        leaf = x.clone().requires_grad_()
        g, = torch.autograd.grad(fn(leaf).sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(g.sum(), leaf)[0])
    agree(*reversed(found))


def test_what_eager_refuses():
    with pytest.raises(RuntimeError):
        jit.compile(lambda x: torch.i0(x))(torch.tensor([1j]))


def test_a_window_is_one_kernel():
    """It fuses with what is before and behind, as in a Kaiser window."""
    def kaiser(n, beta):
        return torch.i0(beta * torch.sqrt(1 - (2 * n / 255 - 1) ** 2)) * 0.5

    n, beta = torch.arange(256.0), torch.tensor(12.0)
    told = jit.explain(kaiser)(n, beta)
    assert len(told.kernels) == 1 and "i0_f32" in told.kernels[0]
    torch.testing.assert_close(jit.compile(kaiser, fullgraph=True)(n, beta), kaiser(n, beta), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_gpu_kernel_is_compiled(dtype, tmp_path, monkeypatch):
    """To a cubin for sm_90, without a GPU. What it computes is seen by the interpreter (test_triton_emit.py)."""
    pytest.importorskip("triton")
    monkeypatch.setattr(jit.config, "cache_dir", str(tmp_path))
    b = zoo.B()
    i, x, y = b.axis(300), b.buffer(dtype), b.buffer(dtype, "out")
    b.put(y, i, b.do("i0", b.wide(x, i)))
    source = triton_emit.emit(b.finish("bessel"))
    name = {torch.float64: "_i0_f64", torch.float32: "_i0_f32"}.get(dtype, "_i0_fast")
    assert name in source.text
    assert triton_compile.build_sources({"bessel": source}, 90)["bessel"]
