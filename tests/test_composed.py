"""Operations that are made of prims: values and gradients in several layouts, and that no library call is left."""

import math

import pytest
import torch

import jit
from gpu_texts import compiled_for_gpu, library_calls
from jit.devices import backend

A, B, V = torch.randn(4, 3, 6), torch.randn(4, 3, 6), torch.randn(3)
PROGRAMS = {
    "cross": lambda x, y: torch.linalg.cross(x, y, dim=1), "dist": lambda x, y: torch.dist(x, y, 3),
    "trapezoid": lambda x, y: torch.trapezoid(x, dim=-1) + torch.trapezoid(x, y, dim=-1),
    "cumulative_trapezoid": lambda x, y: torch.cumulative_trapezoid(x, y, dim=1),
    "addr": lambda x, y: torch.addr(x[0], y[0, :, 0], x[1, 0], beta=0.5, alpha=2),
    "float_power": lambda x, y: torch.float_power(x.abs(), 1.5) + torch.float_power(x.abs() + 1, y),
    "ldexp": lambda x, y: torch.ldexp(x, (y * 3).int()), "angle": lambda x, y: torch.angle(x) * y,
    "entr": lambda x, y: torch.special.entr(x.abs()), "ndtr": lambda x, y: torch.special.ndtr(x * 3),
    "kron": lambda x, y: torch.kron(x[0], y[1]), "round": lambda x, y: torch.round(x, decimals=2) * y,
    "sum_to_size": lambda x, y: (x * y).sum_to_size(3, 1), "flip": lambda x, y: torch.flip(x, dims=(0, 2)) * y,
    "fake_quantize": lambda x, y: torch.fake_quantize_per_tensor_affine(x * y, 0.1, 3, -8, 7),
    "fake_quantize_channels": lambda x, y: torch.fake_quantize_per_channel_affine(
        x, y[0, :, 0].detach().abs() + 0.1, torch.zeros(3, dtype=torch.int32), 1, -8, 7),
}


def layouts(t):
    yield t
    yield t.transpose(0, 2).contiguous().transpose(0, 2)
    yield torch.cat([t, t], -1)[..., ::2][..., : t.shape[-1]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn = PROGRAMS[name]
    compiled = jit.compile(fn)
    for x, y in zip(layouts(A), layouts(B)):
        got, want = compiled(x, y), fn(x, y)
        assert got.dtype is want.dtype and got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    leaves = [A.clone().requires_grad_(), B.clone().requires_grad_()]
    want = torch.autograd.grad(fn(*leaves).square().sum(), leaves, allow_unused=True)
    got = torch.autograd.grad(jit.compile(fn)(*leaves).square().sum(), leaves, allow_unused=True)
    for p, q in zip(got, want, strict=True):
        assert (p is None) == (q is None)
        if q is not None:
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert not library_calls(compiled_for_gpu(fn, A, B))


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, -0.0])
def test_what_cannot_be_quantised(special):
    x = torch.full((70,), special)
    for fn in (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, -5, -128, 127),
               lambda x: torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.3), torch.tensor(2), 0, 255)):
        torch.testing.assert_close(jit.compile(fn)(x), fn(x), rtol=0, atol=0)


@pytest.fixture
def searching(monkeypatch):
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(type(backend(torch.device(device))), "searches", True)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33, 100, 511])
def test_searches(count, searching):
    bounds = torch.randn(count).round(decimals=1).sort().values
    bounds[-1] = math.inf
    x = torch.cat([torch.randn(50, 6).round(decimals=1), bounds[torch.randint(0, count, (6, 6))],
                   torch.tensor([math.nan, math.inf, -math.inf, 9.0, -9.0, 0.0]).expand(2, 6)])
    for right in (False, True):
        for int32 in (False, True):
            for fn in (lambda x, v: torch.bucketize(x, v, right=right, out_int32=int32),
                       lambda x, v: torch.searchsorted(v, x, side="right" if right else "left", out_int32=int32)):
                for view in (x, x.t().contiguous().t()):
                    got, want = jit.compile(fn)(view, bounds), fn(view, bounds)
                    assert got.dtype is want.dtype and got.stride() == want.stride() and torch.equal(got, want)
                whole = (x * 10).nan_to_num(0, 0, 0).long(), (bounds * 10).nan_to_num(0, 99, 0).long()
                assert torch.equal(jit.compile(fn)(*whole), fn(*whole))
    compiled = compiled_for_gpu(lambda x, v: torch.bucketize(x, v), x, bounds)
    assert not library_calls(compiled) and sum(len(c.launches) for c in compiled) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("count", [1, 33, 511])
def test_searches_on_a_gpu(count, searching):
    bounds, x = torch.randn(count).sort().values, torch.randn(1000, 33)
    for right in (False, True):
        got = jit.compile(lambda x, v: torch.bucketize(x, v, right=right))(x.cuda(), bounds.cuda())
        assert torch.equal(got.cpu(), torch.bucketize(x, bounds, right=right))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_division_by_numbers_on_a_gpu():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(10000, device="cuda").to(dtype)
        for number in (3, 448.0, 0.1, 0, 1e-40):
            torch.testing.assert_close(jit.compile(lambda x: x / number)(x), x / number, rtol=0, atol=0,
                                       equal_nan=True)
