"""Scans along few long rows, taken over pieces of them: on the real kernels of this machine, and for a GPU."""

import pytest
import torch
from gpu_texts import compiled_for_gpu, library_calls

import jit
from jit.devices.cpu import Cpu

SCANS = {
    "cumsum": lambda x, d: x.cumsum(d),
    "cumprod": lambda x, d: (x * 0.05 + 1).cumprod(d),
    "cummax": lambda x, d: tuple(x.cummax(d)),
    "cummin": lambda x, d: tuple(x.cummin(d)),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d),
    "chain": lambda x, d: (x.tanh().cumsum(d) * 0.02).exp() * 2,
}
SHAPES = [((48,), 0), ((50,), 0), ((3, 64), 1), ((37, 5), 0), ((2, 40, 3), 1), ((2, 1, 33), -1), ((4, 0), 1)]


@pytest.fixture
def pieces(monkeypatch):
    """Whoever scans on the CPU does it in pieces of 8."""
    asked = []
    monkeypatch.setattr(Cpu, "splits_scans", True)
    monkeypatch.setattr(Cpu, "scan_pieces", lambda self, *sizes: asked.append(sizes) or (8 if sizes[1] > 8 else 0))
    jit.reset()
    yield asked
    jit.reset()


def same(got, want):
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype and g.stride() == w.stride()
        if w.is_floating_point():
            tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(w.dtype, 2e-2)
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert torch.equal(g, w)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values(pieces, name, dtype):
    for shape, d in SHAPES:
        x = torch.randn(shape).to(dtype)
        compiled = jit.compile(lambda x, d: SCANS[name](x, d), fullgraph=True)
        same(compiled(x, d), SCANS[name](x, d))
        if x.dim() == 2:
            same(compiled(x.t(), 1 - d), SCANS[name](x.t(), 1 - d))
    assert pieces


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumsum"])
def test_integers(pieces, name):
    compiled = jit.compile(SCANS[name], fullgraph=True)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        x = torch.randint(0, 5, (3, 50)).to(dtype)  # equal ones: the last counts
        same(compiled(x, 1), SCANS[name](x, 1))
    lowest = torch.full((20,), torch.iinfo(torch.int32).min, dtype=torch.int32)
    same(compiled(lowest, 0), SCANS[name](lowest, 0))


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumsum", "logcumsumexp"])
def test_values_that_are_no_numbers(pieces, name):
    compiled = jit.compile(SCANS[name], fullgraph=True)
    for at in (0, 7, 8, 20):
        for value in (float("nan"), float("inf"), -float("inf")):
            x = torch.randn(33)
            x[at] = value
            same(compiled(x, 0), SCANS[name](x, 0))
    x[:] = -float("inf")
    x[25] = 1.0
    same(compiled(x, 0), SCANS[name](x, 0))


def test_gradients(pieces):
    compiled = jit.compile(lambda x: x.sin().cumsum(0), fullgraph=True)
    x = torch.randn(50, 3, requires_grad=True)
    g = torch.randn(50, 3)
    (got,), (want,) = (torch.autograd.grad(f(x), x, g) for f in (compiled, lambda x: x.sin().cumsum(0)))
    same(got, want)


@pytest.mark.parametrize("name", ["cumsum", "chain"])
@pytest.mark.parametrize("shape, d", [((1 << 16,), 0), ((600, 300), 0), ((100003,), 0)])
def test_for_a_gpu(name, shape, d):
    compiled = compiled_for_gpu(lambda x: SCANS[name](x, d), torch.randn(shape).to(torch.bfloat16))
    assert not library_calls(compiled)
    assert sum(len(c.plan.kernels) if hasattr(c.plan, "kernels") else 3 for c in compiled) >= 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("shape, d", [((1 << 18,), 0), ((3, 70001), 1), ((3000, 256), 0), ((2, 1000, 40), 1)])
def test_on_a_gpu(name, shape, d):
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(shape, device="cuda").to(dtype)
        got, want = jit.compile(SCANS[name], fullgraph=True)(x, d), SCANS[name](x.double(), d)
        for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
            torch.testing.assert_close(g.double(), w.double(), rtol=1e-3 if dtype is torch.float32 else 1e-9, atol=1e-3)
