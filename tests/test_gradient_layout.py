"""Gradients that a program asks for have the strides that eager's formulas give them."""

import pytest
import torch
from torch.func import grad, vjp

import jit


def asked(y):
    x = y.detach().requires_grad_()
    z = x.softmax(-1)
    return torch.autograd.grad((z * z + x).sum(), x)[0]


def expanded(y):
    g = grad(lambda x: x.sum())(y)
    return g, g + 1, g[0]


def expanded_in_part(y):
    return grad(lambda x: x[:, 1].sum() + x.mean(0).sum())(y), grad(lambda x: x.sum(0).tanh().sum())(y)


def of_a_gradient(y):
    return grad(lambda x: grad(lambda z: (z.softmax(-1) ** 2).sum())(x).sum())(y)


def changed_inside(y):
    def f(x):
        x = x * 1
        x[..., 1:].add_(2)
        return (x.sin().sum(-1, keepdim=True) * x).sum()

    return grad(f)(y)


def of_views(y):
    return vjp(lambda x: (x.sum(0), x.t()), y)[1]((torch.ones(y.shape[1]), torch.ones(y.t().shape)))


def read(y):
    g = grad(lambda x: torch.softmax(x, -1).sum())(y)
    return torch.full((2,), sum(g.stride()))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k, x.t()

    @staticmethod
    def backward(ctx, grad, other):
        x, = ctx.saved_tensors
        return grad * ctx.k + x.detach() * 0 + other.t() * 0, None


def of_a_function(y):
    x = y.detach().clone().requires_grad_()
    return torch.autograd.grad(Scaled.apply(x, 3)[0].sum(), x)[0], torch.autograd.grad(
        Scaled.apply(x.sin(), 2)[0].sum(), x)[0], torch.autograd.grad(
        (Scaled.apply(x.t(), 2)[0] * 2).sum() + Scaled.apply(x, 2)[1].sum(), x)[0]


LAYOUTS = {
    "rows": torch.arange(6.0).view(2, 3) / 4,
    "columns": torch.arange(6.0).view(3, 2).t() / 4,
    "other columns": torch.arange(8.0).view(4, 2).t() / 4,
    "sliced": torch.arange(24.0).view(4, 6)[::2, ::2] / 9,
    "expanded": torch.arange(3.0).expand(2, 3),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [asked, expanded, expanded_in_part, of_a_gradient, changed_inside, of_views, read,
                                of_a_function])
def test_strides_are_those_of_eager(fn, dynamic):
    compiled = jit.compile(fn, dynamic=dynamic)
    for x in LAYOUTS.values():
        wanted, found = fn(x), compiled(x)
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (wanted, found)), strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b)


def test_leaves_keep_their_layout():
    def fn(x):
        x = x.detach().requires_grad_()
        x.softmax(-1).square().sum().backward()
        return x.grad

    for x in LAYOUTS.values():
        assert fn(x).stride() == jit.compile(fn)(x).stride()


def test_an_expanded_gradient_cannot_be_written():
    def fn(x):
        g = grad(lambda x: x.sum())(x)
        try:
            g.add_(1)
        except RuntimeError as error:
            return str(error)

    assert fn(torch.ones(2, 3)) == jit.compile(fn)(torch.ones(2, 3))
