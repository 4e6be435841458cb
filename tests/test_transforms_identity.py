"""What transforms give back is what eager gives: the program's own tensor where a function returns what it was given, a
number of each slice where a map reduces numbers, and gradients that outlive a level of dual numbers."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, grad_and_value, jacrev, jvp, vjp, vmap

import jit

GIVEN_BACK = {
    "map": lambda y: vmap(lambda x: x)(y),
    "map that changes it": lambda y: vmap(lambda x: x.add_(1))(y),
    "others of grad": lambda y: grad(lambda x: (x.sum(), x), has_aux=True)(y)[1],
    "others of a value": lambda y: grad_and_value(lambda x: (x.sum(), y), has_aux=True)(y)[1][1],
    "others of jacrev": lambda y: jacrev(lambda x: (x.sum(), x), has_aux=True)(y)[1],
    "vjp": lambda y: vjp(lambda x: x, y)[0],
    "jvp": lambda y: jvp(lambda x: x, (y,), (y + 1,))[0],
    "others of jvp": lambda y: jvp(lambda x: (x * 1, x), (y,), (y,), has_aux=True)[2],
}


@pytest.mark.parametrize("name", GIVEN_BACK)
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_what_was_given_comes_back(name, backend):
    def described(fn):
        y = torch.arange(3.0)
        result = fn(y)
        return result is y, result.data_ptr() == y.data_ptr(), result.tolist(), y.tolist()

    fn = GIVEN_BACK[name]
    assert described(jit.compile(fn, backend=backend, fullgraph=True)) == described(fn)


OF_NUMBERS = {
    "sum": torch.sum, "mean": torch.mean, "mean of a dimension": lambda x: x.mean(0), "any": torch.any,
    "kept": lambda x: x.mean(-1, keepdim=True), "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "var": lambda x: x.var(0, unbiased=False), "largest": torch.amax, "product": torch.prod, "norm": torch.norm,
    "count": torch.count_nonzero, "position": torch.argmax,
}


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_maps_of_numbers(name, backend):
    fn = vmap(OF_NUMBERS[name])
    for x in (torch.arange(3.0), torch.ones(1)):
        expected, found = fn(x), jit.compile(lambda x: fn(x), backend=backend)(x)
        assert expected.shape == found.shape
        torch.testing.assert_close(found, expected)


def test_gradients_outlive_dual_numbers():
    def fn(x):
        p = x.detach().clone().requires_grad_()
        with forward_ad.dual_level():
            q = x.detach().clone().requires_grad_()
            a = forward_ad.make_dual(p, x)
            b = forward_ad.make_dual(q, x)
            out = a.sin() * b
            tangent = forward_ad.unpack_dual(out).tangent
        return out, tangent, torch.autograd.grad(out.sum() + tangent.sum(), (p, q))

    x = torch.arange(3.0)
    expected, found = fn(x), jit.compile(fn)(x)
    assert [t.requires_grad for t in expected[:2]] == [t.requires_grad for t in found[:2]]
    for a, b in zip([*expected[:2], *expected[2]], [*found[:2], *found[2]]):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("fn", [lambda x: forward_ad.make_dual(x, 1.0), lambda x: forward_ad.unpack_dual(2)])
def test_what_is_no_tensor_is_refused_as_in_eager(fn):
    def program(x):
        with forward_ad.dual_level():
            return fn(x)

    for run in (program, jit.compile(program)):
        with pytest.raises((TypeError, AttributeError, RuntimeError)):
            run(torch.ones(3))


def _grads(fn, asked=1):
    def of(x, c):
        leaves = [x.clone().requires_grad_() for _ in range(asked)]
        return torch.autograd.grad(fn(*leaves), leaves, c)

    return of


TANGENTS = {
    "itself": _grads(lambda x: x), "a sum": _grads(lambda x, y: x + y, 2), "a number added": _grads(lambda x: x + 1),
    "a product": _grads(lambda x: x * 2), "a copy": _grads(lambda x: x.clone()), "twice": _grads(lambda x: x + x),
    "vjp": lambda x, c: vjp(lambda x: x, x)[1](c), "vjp of a sum": lambda x, c: vjp(lambda x, y: x + y, x, x)[1](c),
    "vjp of a product": lambda x, c: vjp(lambda x: x * 2, x)[1](c)}


@pytest.mark.parametrize("name", TANGENTS)
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_gradient_may_be_its_tangent(name, backend):
    def described(fn):
        x, c = torch.arange(3.0), torch.ones(3)
        found = fn(x, c)
        found[0].mul_(3)
        return [(g is c, g.data_ptr() == c.data_ptr(), g.tolist()) for g in found], c.tolist(), x.tolist()

    fn = TANGENTS[name]
    assert described(jit.compile(fn, backend=backend, fullgraph=True)) == described(fn)
