"""Inputs that share memory, one of which is changed: every view of it sees the change, and later calls with other
relations are not confused."""

import pytest
import torch
from inplace_harness import check, observe, same_record

import jit

CASES = {}


def case(make):
    def register(fn):
        CASES[fn.__name__] = fn, make
        return fn

    return register


def views(*takes, shape=(4, 4)):
    """Views of one tensor, which is looked at too."""
    def make():
        base = torch.randn(shape)
        return [take(base) for take in takes], [base]

    return make


def whole(b):
    return b


@case(views(lambda b: b[:3], lambda b: b[1:], shape=(4,)))
def overlapping_views(a, b):
    a.mul_(2)
    b.add_(1)
    return a + b


@case(views(whole, lambda b: b.view(2, 8)))
def one_is_a_reshape(x, y):
    x.add_(1)
    return y * 2


@case(views(whole, lambda b: b.t()))
def one_is_transposed(x, y):
    y[0] = 7
    x.mul_(y[1, 1] + 1)
    return x + y


@case(views(lambda b: b[:, :3], lambda b: b[:, 1:]))
def columns(x, y):
    x.mul_(2)
    y.add_(1)
    return x, y * 2


@case(views(lambda b: b[::2], lambda b: b[1]))
def rows_that_lie_apart(x, y):
    x.add_(1)
    y.mul_(3)
    return x.sum() + y.sum()


@case(views(lambda b: b[:, 0], lambda b: b[:, 1]))
def interleaved(x, y):
    x.add_(y)
    return y - x


@case(views(lambda b: b[1:3, 1:3], whole))
def the_inner_part(x, y):
    y.zero_()
    x.add_(1)
    return y.sum(0)


@case(views(whole, lambda b: b[1:]))
def views_returned(x, y):
    x.mul_(2)
    return x[1], y[0], y.view(-1)[2:], x


@case(views(whole, lambda b: b.data))
def through_data(x, y):
    y.mul_(2)
    return x + 1


@case(views(whole, lambda b: b.detach()))
def a_detached_name(x, y):
    y.mul_(2)
    x.add_(1)
    return y.detach(), x


@case(views(whole, lambda b: b[1:], lambda b: b.t(), lambda b: torch.ones(4)))
def three_names(x, y, z, other):
    other.add_(x[0])
    y.add_(1)
    z[1] = other
    return x, y * 1, z * other


@case(views(whole, lambda b: b[0]))
def copied_from_itself(x, y):
    x[1].copy_(y)
    y.copy_(x[2])
    return y


@case(views(whole, lambda b: b[2, 3]))
def a_single_element(x, y):
    y.fill_(5)
    return x.sum()


@case(views(whole, whole))
def the_same_tensor(x, y):
    x.add_(1)
    return y * 2, x is y


@case(views(lambda b: b[:2], lambda b: b[2:]))
def parts_of_one_storage(x, y):
    x.add_(y)
    y.mul_(2)
    return x, y


@case(views(whole, lambda b: b[1:], lambda b: b[None, 1:, :2]))
def new_axes(x, y, z):
    z.add_(1)
    return y.sum(), x.sum()


@case(lambda: (lambda m: ([m[0]], m[1]))(views(whole, lambda b: b[1:])()))
def in_a_list(tensors):
    for i, t in enumerate(tensors):
        t.add_(i + 1)
    return tensors[0] + 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["eager", "jit"])
def test_as_eager(name, backend):
    fn, make = CASES[name]
    jit.reset()
    check(fn, make, jit.compile(fn, backend=backend, fullgraph=True))


RELATIONS = {
    "apart": lambda b: torch.randn(4),
    "the same": lambda b: b,
    "the rest": lambda b: b[1:],
    "a square": lambda b: b.view(2, 2),
    "the start": lambda b: b[:3],
    "every other one": lambda b: b[::2],
    "the last": lambda b: b[3:],
    "a view": lambda b: b.view(4),
}


@pytest.mark.parametrize("order", [list(RELATIONS), list(RELATIONS)[::-1],
                                   ["apart", "the rest", "the last", "the rest", "apart", "the start", "the rest"]])
def test_the_relation_changes_between_calls(order):
    def f(x, y):
        x.add_(1)
        return y * 2

    jit.reset()
    compiled = jit.compile(f)
    for name in order * 2:
        def make(take=RELATIONS[name]):
            base = torch.arange(4.0)
            return [base, take(base)], []

        same_record(observe(f, make), observe(compiled, make))


def test_the_place_in_the_storage_may_change():
    def f(x, y):
        x.add_(1)
        return y * 2

    jit.reset()
    compiled = jit.compile(f, fullgraph=True)
    for start in (0, 3, 1):
        def make(start=start):
            base = torch.arange(12.0)[start:]
            return [base[:4], base[2:6]], [base]

        same_record(observe(f, make), observe(compiled, make))


def test_memory_that_lies_apart_is_no_reason_to_capture_again():
    def f(x, y):
        x.add_(1)
        return y * 2

    jit.reset()
    compiled = jit.compile(f)
    flat = torch.arange(8.0)
    compiled(torch.arange(4.0), torch.arange(4.0))
    compiled(flat[:4], flat[4:])
    assert len(compiled.entries) == 1
    compiled(flat[:4], flat[2:6])
    assert len(compiled.entries) == 2


def test_not_describable_is_a_break():
    def f(x, y):
        x.add_(1)
        return y * 2

    def make():
        base = torch.randn(20)
        return [base[:10], base.as_strided((3, 2), (3, 2), 1)], [base]

    jit.reset()
    check(f, make, jit.compile(f))


def test_of_another_dtype_is_a_break():
    def f(x, y):
        x.add_(1)
        return y * 2

    def make():
        base = torch.randn(8)
        return [base, base.view(torch.int32)], []

    jit.reset()
    check(f, make, jit.compile(f))


@pytest.mark.parametrize("in_mode", [torch.no_grad, torch.enable_grad])
def test_one_of_them_requires_grad(in_mode):
    def f(x, y):
        y.add_(1)
        return x * 2

    def make():
        w = torch.randn(4, requires_grad=True)
        return [w, w.detach()], []

    jit.reset()
    with in_mode():
        check(f, make, jit.compile(f))
