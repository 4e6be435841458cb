"""Results that share memory: which are one object, whose ``_base`` and version counter they share, and what gradients
changes in place afterwards have."""

import pytest
import torch

import jit

PROGRAMS = {
    "all_of_it": lambda y: (y, y[:5]),
    "all_of_it_first": lambda y: (y[:5], y),
    "squeeze": lambda y: (y.squeeze(), y),
    "unsqueezed": lambda y: (y.unsqueeze(0).squeeze(), y.unsqueeze(0)),
    "twice": lambda y: (y, y),
    "view_twice": lambda y: [y[:3]] * 2,
    "two_of_all": lambda y: (y.view(5), y[:5]),
    "overlapping": lambda y: (y[:3], y[2:]),
    "overlapping_parts": lambda y: (y[:3], y[2:], y),
    "crossing": lambda y: (y[::2], y[1:4]),
    "detached": lambda y: (y[:], y.view(-1), y.detach(), y),
    "detached_parts": lambda y: (y.detach()[:4], y[1:]),
    "product": lambda y: (torch.mm(y[:, None], y[None])[:5], y),
    "library": lambda y: (lambda s: (s[:5], s[:], s))(y.sort()[0]),
    "beside_a_copy": lambda y: (torch.empty(5).copy_(y), y[1:], y),
    "beside_what_holds_the_same": lambda y: (lambda z: (z.copy_(y), y[1:], y.detach(), y))(y * 3),
    "nested": lambda y: {"a": [y[:4]], "b": (y[1:], y)},
}
BACKENDS = ["jit", "eager"]


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in (value.values() if isinstance(value, dict) else value) for t in tensors(v)]


def facts(results):
    """Which of the results are one object, whose base each is, and what a change of one does to the values and versions
    of the others."""
    found = tensors(results)
    same = [[a is b for b in found] for a in found]
    bases = [[a._base is b for b in found] for a in found]
    shared = [[a is not b and a._base is not None and a._base is b._base for b in found] for a in found]
    changes = []
    with torch.no_grad():
        for k, t in enumerate(found):
            before = [u._version for u in found]
            t.fill_(k + 1.0)
            changes.append([(u._version - v, u.tolist()) for u, v in zip(found, before)])
    layouts = [(t.shape, t.stride(), t.storage_offset(), t.requires_grad) for t in found]
    return same, bases, shared, changes, layouts


def program(name):
    def run(x):
        return PROGRAMS[name](x * 2)

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_objects(name, grad, backend):
    jit.reset()
    want, got = (facts(f(torch.ones(5, requires_grad=grad)))
                 for f in (program(name), jit.compile(program(name), backend=backend)))
    assert got == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["all_of_it", "squeeze", "two_of_all", "overlapping", "overlapping_parts", "crossing",
                                  "nested"])
def test_change_afterwards_is_differentiated(name, backend):
    jit.reset()

    def gradient(f):
        x = torch.arange(5.0, requires_grad=True)
        first, second, *_ = tensors(f(x))
        first.mul_(3)
        (first.sum() + (second * second).sum()).backward()
        return x.grad

    assert torch.equal(gradient(jit.compile(program(name), backend=backend)), gradient(program(name)))


@pytest.mark.parametrize("grad", [False, True])
def test_parts_that_do_not_meet_stay_apart(grad):
    """What ``chunk`` gives has nothing in common, and the memory that it came from is not made a result for it."""
    jit.reset()

    def heads(x):
        q, k, v = (x * 2).chunk(3, -1)
        return q, k.transpose(0, 1), v

    compiled = jit.compile(heads)
    x = torch.arange(24.0).view(4, 6).requires_grad_(grad)
    for got, want in zip(compiled(x), heads(x), strict=True):
        assert torch.equal(got, want) and got.stride() == want.stride()
        assert got._base is None or got._base.shape == got.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_where_a_symbolic_size_is_one(backend):
    jit.reset()

    def scaled(x, h, w):
        return x.view(h, w, -1) * torch.arange(h)[:, None, None]

    compiled = jit.compile(scaled, backend=backend)
    for h, w in ((2, 3), (3, 2), (1, 2), (2, 1), (4, 1), (1, 12), (1, 1), (2, 2), (12, 1), (1, 4)):
        want, got = scaled(torch.arange(12.0), h, w), compiled(torch.arange(12.0), h, w)
        assert torch.equal(got, want) and got.stride() == want.stride(), (h, w)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("divide", [lambda x, y: x // y, lambda x, y: torch.floor_divide(y, x) + x, lambda x, y: 3 // x,
                                    lambda x, y: x // 2.0, lambda x, y: torch.div(x, y, rounding_mode="floor"),
                                    lambda x, y: (x // y).detach() * x])
def test_floor_divide_has_no_derivative(divide, backend):
    jit.reset()

    def gradient(f):
        x = torch.tensor([1.0, 2, 5], requires_grad=True)
        y = f(x, torch.tensor([2.0, 2, 2]))
        try:
            y.sum().backward()
        except RuntimeError as error:
            return y.tolist(), str(error)
        return y.tolist(), x.grad.tolist()

    assert gradient(jit.compile(divide, backend=backend)) == gradient(divide)


@pytest.mark.parametrize("returned", [(0, 1, 2), (1, 2), (2, 1), (0, 2), (1, 2, 3), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("write", ["places", "product", "part", "row"])
def test_views_of_memory_in_the_layout_of_one_of_them(write, returned):
    """After a write through the transposed view, the memory is laid out as that one: all results are views of it with
    the gradient all the same."""

    def f(x, i):
        whole = x * 2
        views = whole, whole.t(), whole.narrow(-1, 0, 1), whole[1:]
        if write == "places":
            views[1][i] = 2
        elif write == "product":
            views[1].mul_(x)
        elif write == "part":
            views[1][:, :2] = 3
        else:
            views[1][1] = x[0]
        return tuple(views[k] for k in returned)

    for dynamic in (None, True):
        compiled = jit.compile(f, dynamic=dynamic)
        for n in (3, 6, 5):
            x, i, found = torch.randn(n, n), torch.tensor([1]), []
            for run in (f, compiled):
                leaf = x.clone().requires_grad_()
                results = run(leaf, i)
                (gradient,) = torch.autograd.grad(sum((r * (k + 1)).exp().sum() for k, r in enumerate(results)), leaf)
                found.append(([(r.requires_grad, r.stride()) for r in results], [r.detach() for r in results],
                              gradient))
            (kinds, values, gradient), (ours, our_values, our_gradient) = found
            assert ours == kinds
            torch.testing.assert_close(our_values, values)
            torch.testing.assert_close(our_gradient, gradient)


@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_view_that_a_break_leaves_keeps_its_strides(backend):
    def fn(y):
        row = (torch.ones(2, 3) + y)[::2]
        jit.graph_break()
        return row, row.t()

    for y in (torch.ones(3, requires_grad=True), torch.ones(3)):
        assert [t.stride() for t in jit.compile(fn, backend=backend)(y)] == [t.stride() for t in fn(y)]
