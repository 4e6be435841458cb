"""float8: conversions in both directions as eager rounds them, and what moves such values, in kernels of ours."""

import pytest
import torch

import jit
from gpu_texts import compiled_for_gpu, library_calls

TYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def same(got, want):
    """Equal codes, where NaN is NaN."""
    assert got.dtype is want.dtype and got.shape == want.shape and got.stride() == want.stride()
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    differ = (got.view(torch.uint8) != want.view(torch.uint8)) & ~nan
    assert not differ.any(), differ.nonzero()[:5]


def floats(low):
    """A float for each of its upper 16 bits, with these lower ones: halfway cases and their neighbours."""
    return ((torch.arange(1 << 16) << 16) + low).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: str(d)[13:])
def test_conversions(dtype):
    narrow = jit.compile(lambda x: x.to(dtype))
    for low in (0, 1, 0x8000, 0x7FFF, 0xFFFF):
        same(narrow(floats(low)), floats(low).to(dtype))
    codes = torch.arange(256).to(torch.uint8).view(dtype)
    for wide in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        back = jit.compile(lambda x: x.to(wide))
        torch.testing.assert_close(back(codes), codes.to(wide), rtol=0, atol=0, equal_nan=True)
        values = floats(0x8000).to(wide)
        same(narrow(values), values.to(dtype))
    for other in (torch.bool, torch.int8, torch.int64):
        values = torch.arange(-20, 20).to(other)
        same(narrow(values), values.to(dtype))
        held = (torch.randn(100) * 20).clamp(-100, 100).to(dtype)
        torch.testing.assert_close(jit.compile(lambda x: x.to(other))(held), held.to(other))
    for other in TYPES:
        kept = codes.float().nan_to_num(0, 0, 0).clamp(-200, 200).to(dtype)
        same(jit.compile(lambda x: x.to(other))(kept), kept.to(other))


@pytest.mark.parametrize("dtype", TYPES[:2], ids=lambda d: str(d)[13:])
def test_what_moves(dtype):
    def fn(x, mask, at):
        return (torch.cat([x, x], 1), torch.where(mask, x, x[0]), x.t().contiguous(), x[at],
                torch.nn.functional.pad(x, (1, 2)), x.index_select(0, at))

    for rows in (7, 9, 1):
        x = torch.randn(rows, 5).to(dtype)
        args = x, torch.randn(rows, 5) > 0, torch.randint(0, min(rows, 5), (rows,))
        for view in (lambda t: t, lambda t: t.t().contiguous().t()):
            compiled = jit.compile(fn)
            for got, want in zip(compiled(view(x), *args[1:]), fn(view(x), *args[1:]), strict=True):
                same(got, want)


def quantised(x, dtype):
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x.float() / scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype), scale


@pytest.mark.parametrize("dtype", TYPES[:2], ids=lambda d: str(d)[13:])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_quantisation_is_one_kernel(dtype, source):
    compiled = jit.compile(quantised)
    for shape in ((64, 256), (3, 17), (5, 1), (2, 3, 40)):
        x = torch.randn(shape).to(source)
        (codes, scale), (want, wanted) = compiled(x, dtype), quantised(x, dtype)
        same(codes, want)
        torch.testing.assert_close(scale, wanted, rtol=0, atol=0)
    assert jit.explain(quantised)(x, dtype).launch_count == 1


def test_gradients_pass_through():
    def fn(x):
        return (x.to(torch.float8_e5m2).to(torch.float32) * x).sum()

    x = torch.randn(33, requires_grad=True)
    want, = torch.autograd.grad(fn(x), x)
    got, = torch.autograd.grad(jit.compile(fn)(x), x)
    torch.testing.assert_close(got, want)


def test_arithmetic_is_refused_as_in_eager():
    x = torch.randn(4).to(torch.float8_e4m3fn)
    for fn in (lambda x: x + x, lambda x: x * 2.0, lambda x: x.sum()):
        with pytest.raises(NotImplementedError):
            fn(x)
        with pytest.raises(NotImplementedError):
            jit.compile(fn)(x)


@pytest.mark.parametrize("dtype", TYPES[:2], ids=lambda d: str(d)[13:])
def test_kernels_for_the_gpu(dtype):
    x = torch.randn(8, 256, dtype=torch.bfloat16)
    assert not library_calls(compiled_for_gpu(lambda x: quantised(x, dtype), x))
    assert not library_calls(compiled_for_gpu(lambda c, s: c.to(torch.bfloat16) * s, *quantised(x, dtype)))
