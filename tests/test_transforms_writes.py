"""Changes in place inside of a gradient of ``torch.func``: of what its function was given they are changes of the
program's tensors, and of what it found outside they are an error."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vjp, vmap

import jit


def both(fn, backend="jit"):
    """What ``fn`` gives or raises, and its tensors behind it: in eager, and compiled at each of three calls."""
    def outcome(called):
        x, b = torch.arange(3.0), torch.arange(3.0) + 1
        try:
            result = called(x, b)
        except Exception as error:
            result = type(error), str(error)
        return repr((result, x, b))

    compiled = jit.compile(fn, backend=backend)
    return outcome(fn), [outcome(compiled) for _ in range(3)]


def add(t):
    t += 1


def third(t):
    t[2] = 1.0


CHANGES = {
    "add_": lambda t: t.add_(1),
    "augmented": add,
    "item": third,
    "view": lambda t: t[1:].mul_(2),
    "detached": lambda t: t.detach().zero_(),
    "copied": lambda t: t.copy_(t + 1),
}
TRANSFORMS = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x)[0],
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(3),)),
    "grad of grad": lambda f, x: grad(lambda y: (grad(f)(y) * y).sum())(x),
    "grad of vmap": lambda f, x: grad(lambda y: vmap(f)(y.expand(2, 3)).sum())(x),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_change_of_what_is_outside_is_refused(transform, change):
    def fn(x, b):
        try:
            return TRANSFORMS[transform](lambda y: (CHANGES[change](b), y.sum())[1], x)
        except RuntimeError as error:
            return str(error)

    expected, found = both(fn)
    assert "in-place operation" in expected
    assert found == [expected] * 3


@pytest.mark.parametrize("change", CHANGES)
def test_an_argument_is_changed(change):
    def fn(x, b):
        return grad(lambda y, c: (CHANGES[change](c), (y * c).sum())[1])(x, b), b * 2

    expected, found = both(fn)
    assert found == [expected] * 3
    assert jit.explain(fn)(torch.ones(3), torch.ones(3)).graph_break_count == 0


def returned(x, b):
    gradient, c = grad(lambda y, c: (y.sum(), c.add_(1)), has_aux=True)(x, b)
    return gradient, c is b


def raising(x, b):
    def inside(y, c):
        c.add_(1)
        raise ValueError("inside")

    try:
        grad(inside)(x, b)
    except ValueError:
        return b * 2


def read_beside(x, b):
    v = b[1]
    return grad(lambda y, c, d: (c.add_(1), (y * d * v * b).sum())[1])(x, b, b)


def with_a_gradient(x, b):
    w = torch.ones(3) * 2
    w.requires_grad_()
    return grad(lambda y, c: (c.add_(w), (y * c).sum())[1])(x, b), b.requires_grad


def nested(x, b):
    return grad(lambda y, c: (grad(lambda z, d: (d.add_(1), (z * d).sum())[1])(y, c) * y * c).sum())(x, b)


def in_a_map(x, b):
    return vmap(lambda p, q: grad(lambda y, c: (c.mul_(3), y * c)[1])(p, q))(x, b)


def statistics(x, b):
    return grad(lambda y: F.batch_norm(y.view(3, 1), b[:1], b[1:2], training=True).sin().sum())(x)


def given_statistics(x, b):
    return grad(lambda y, c: F.batch_norm(y.view(3, 1), c[:1], c[1:2], training=True).sin().sum())(x, b)


def out(x, b):
    return grad(lambda y: (torch.sin(y.detach(), out=b), y.sum())[1])(x)


def made_inside(x, b):
    return grad(lambda y: (torch.zeros(3).add_(y) * b.clone().add_(y) + (b * 1).mul_(y)).sum())(x)


@pytest.mark.parametrize("fn", [returned, raising, read_beside, with_a_gradient, nested, in_a_map, statistics,
                                given_statistics, out, made_inside])
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_changes_are_those_of_eager(fn, backend):
    expected, found = both(fn, backend)
    assert found == [expected] * 3


@pytest.mark.parametrize("fn", [
    lambda g, x: vmap(lambda r: g.sum().tanh().add_(r))(x), lambda g, x: vmap(lambda r: g.clone().mul_(r))(x),
    lambda g, x: vmap(lambda r: (g * 2).tanh().add_(r.sin()))(x), lambda g, x: vmap(lambda r: g.tanh().copy_(r))(x),
    lambda g, x: vmap(lambda r: (g * r).add_(g.sum()))(x), lambda g, x: vmap(lambda r: g.clone().add_(1) * r)(x)])
def test_what_is_made_of_outer_tensors_is_not_mapped(fn):
    def outcome(run):
        try:
            return run(torch.arange(3.0), torch.ones(3)).tolist()
        except RuntimeError as error:
            return str(error)

    assert outcome(jit.compile(fn)) == outcome(fn)
