"""``Tensor.register_hook`` inside compiled functions."""

import pytest
import torch

import jit

SEEN = []


def scaled(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return (y * x).cos()


def clipped(x):
    y = x.exp() * 0.3
    bound = 0.5
    y.register_hook(lambda g: g.clamp(-bound, bound))
    z = y * x
    z.register_hook(lambda g: torch.nan_to_num(g) + 1)
    return z.tanh() + y


def looked_at(x):
    y = x.sin()
    y.register_hook(lambda g: None)
    return y * 3


def reversed_(x):
    y = x.exp() * 0.3
    strength = 0.5
    y.register_hook(lambda g: -g * strength)
    z = y * x
    z.register_hook(lambda g: g + g.mean())
    return z.tanh() + y


def twice(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: -g * y.detach())
    return y.exp()


def changed(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    y.mul_(x)
    return y.exp()


def viewed(x):
    y = x.sin()
    y.register_hook(lambda g: g.flip(0) / 3)
    return y[0] + y.sum(0)


def parts(fn, x, again=False):
    out = fn(x)
    first, = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out)).sum(), x, create_graph=again)
    return (out, first) if not again else (out, first, *torch.autograd.grad(first.square().sum(), x))


@pytest.mark.parametrize("fn", [scaled, looked_at, reversed_, twice, changed, viewed])
@pytest.mark.parametrize("again", [False, True])
def test_hooks_that_compute_are_in_the_graph(fn, again):
    compiled = jit.compile(fn, fullgraph=not again)
    for shape in ((3, 4), (5, 4), (2, 7)):
        x = torch.randn(shape)
        for x in (x, x.t(), torch.randn(6, 8)[1:4, ::2]):
            leaf, other = x.detach().requires_grad_(), x.detach().requires_grad_()
            torch.testing.assert_close(parts(compiled, other, again), parts(fn, leaf, again))
    with torch.no_grad():
        x = torch.randn(3, 4)
        if fn is scaled:
            with pytest.raises(RuntimeError, match="register a hook"):
                jit.compile(fn)(x)


@pytest.mark.parametrize("again", [False, True])
def test_hooks_that_are_not_linear_are_left_to_eager(again):
    compiled = jit.compile(clipped)
    for shape in ((3, 4), (5, 4)):
        x = torch.randn(shape)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(parts(compiled, other, again), parts(clipped, leaf, again))


def returned(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return y


def inside(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2)
    return torch.autograd.grad(y.exp().sum(), y)[0]


def late(x):
    y = x.sin()
    z = y.exp()
    y.register_hook(lambda g: g * 2)
    return z + y


def noted(x):
    y = x.sin()
    y.register_hook(lambda g: SEEN.append(g.sum().item()))
    return y.exp()


def removed(x):
    y = x.sin()
    handle = y.register_hook(lambda g: g * 2)
    handle.remove()
    return y.exp()


def counted(x):
    n = 0

    def hook(g):
        nonlocal n
        n += 1
        return g * n

    y = x.sin()
    y.register_hook(hook)
    return y.exp()


def of_argument(x):
    x.register_hook(lambda g: g * 2)
    return x.exp()


@pytest.mark.parametrize("fn", [returned, inside, late, noted, removed, counted, of_argument])
def test_others_are_left_to_eager(fn):
    compiled = jit.compile(fn)
    for _ in range(2):
        x, found = torch.randn(3, 4), []
        for f in (fn, compiled):
            SEEN.clear()
            leaf = x.clone().requires_grad_()
            out = f(leaf)
            made = [out.detach()]
            if out.requires_grad:
                if fn is returned:
                    made += torch.autograd.grad((out * 3).sum(), [out, leaf], retain_graph=True)
                for _ in range(2):
                    out.sum().backward(retain_graph=True)
                made.append(leaf.grad)
            found.append((made, list(SEEN)))
        torch.testing.assert_close(found[1], found[0])
