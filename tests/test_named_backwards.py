"""Gradients of softmax and dropout that a program calls by their own names, and others that are compositions."""

import pytest
import torch

import jit

aten = torch.ops.aten
CALLS = {
    "softmax": lambda g, y, d: aten._softmax_backward_data(g, torch.softmax(y, d), d, g.dtype),
    "log_softmax": lambda g, y, d: aten._log_softmax_backward_data(g, torch.log_softmax(y, d), d, g.dtype),
    "safe_softmax": lambda g, y, d: aten._safe_softmax(torch.where(y > 0, y, -float("inf")), d),
    "dropout": lambda g, y, d: aten.native_dropout_backward(g, y > 0, 1.25),
    "xlog1py": lambda g, y, d: torch.special.xlog1py(g, y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values(name, dtype):
    fn = CALLS[name]
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for shape, d in (((3, 7), 1), ((3, 7), 0), ((2, 5, 4), -2), ((1, 1), 0), ((6,), 0), ((3, 0), 1)):
        g, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        compiled = jit.compile(lambda g, y, d: fn(g, y, d), fullgraph=True)
        if y.numel() > 3:
            y[..., 0] = -1.0
            g[0] = 0
        for a, b in ((g, y), (g.movedim(-1, 0).contiguous().movedim(0, -1), y)):
            got, want = compiled(a, b, d), fn(a, b, d)
            assert got.dtype is want.dtype and got.stride() == want.stride(), (shape, d)
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_gradients():
    for x, y in ((0.0, 0.5), (0.7, -0.5), (0.0, -1.0), (1.0, -1.0)):
        a, b = (torch.full((20,), v, requires_grad=True) for v in (x, y))
        got, want = (torch.autograd.grad(f(a, b).sum(), (a, b))
                     for f in (jit.compile(torch.special.xlog1py, fullgraph=True), torch.special.xlog1py))
        for p, q in zip(got, want, strict=True):
            torch.testing.assert_close(p, q, equal_nan=True)


def test_errors():
    g = torch.randn(3, 4)
    for call in (lambda g: aten._softmax_backward_data(g, g[:, :2], 1, g.dtype), lambda g: aten._safe_softmax(g, 5)):
        with pytest.raises((RuntimeError, IndexError)):
            call(g)
        with pytest.raises((RuntimeError, IndexError)):
            jit.compile(call)(g)
