"""What a capture with tensor subclasses relies on is guarded: classes, what they say, attributes, tensors inside; and
nothing of the program's is kept alive or called for it."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from frame_harness import same
from subclass_programs import Doubling, Named, Pair, Plain, Quantized, StraightThrough, weights
from test_subclasses_programs import taken_apart

import jit


def agrees(fn, fast, *args):
    same(taken_apart(fn(*args)), taken_apart(fast(*args)), rtol=1e-5)


def compiled(fn):
    jit.reset()
    return jit.compile(fn, fullgraph=True)


def with_function(**body):
    return type("Made", (torch.Tensor,), {"__torch_function__": classmethod(answer(**body))})


def answer(plus):
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) + plus if func is torch.sin else func(*args, **(kwargs or {}))
    return __torch_function__


def answer_seven(plus):
    return lambda cls, func, types, args=(), kwargs=None: 7 if plus is None else 8


def test_the_class_of_a_tensor():
    fn = lambda x: torch.sin(x)
    fast = compiled(fn)
    classes = [with_function(plus=1), with_function(plus=2), Plain]
    for cls in (*classes, torch.Tensor, *classes):
        agrees(fn, fast, torch.randn(3).as_subclass(cls))


def test_torch_function_of_a_class_is_replaced():
    fn, cls = lambda x: torch.sin(x), with_function(plus=1)
    fast, x = compiled(fn), torch.randn(3).as_subclass(cls)
    agrees(fn, fast, x)
    cls.__torch_function__ = classmethod(answer(5))
    agrees(fn, fast, x)
    del cls.__torch_function__
    agrees(fn, fast, x)


def test_torch_function_of_a_base_is_replaced():
    fn, base = lambda x: torch.sin(x), with_function(plus=1)
    fast, x = compiled(fn), torch.randn(3).as_subclass(type("Derived", (base,), {}))
    agrees(fn, fast, x)
    base.__torch_function__ = classmethod(answer(5))
    agrees(fn, fast, x)


def test_code_of_a_torch_function_is_replaced():
    fn, cls = lambda x: torch.sin(x), with_function(plus=1)
    fast, x = compiled(fn), torch.randn(3).as_subclass(cls)
    agrees(fn, fast, x)
    cls.__torch_function__.__func__.__code__ = answer_seven(None).__code__
    assert fn(x) == fast(x) == 8


def other_dispatch(cls, func, types, args=(), kwargs=None):
    return torch.full((2, 3), 3.0) if func is not torch.ops.aten.t.default else args[0].inner.t()


def test_torch_dispatch_is_replaced():
    cls = type("Other", (StraightThrough,), {})
    fn = lambda x, w: F.linear(x, w)
    fast, x, w = compiled(fn), torch.randn(2, 4), cls(torch.randn(3, 4), 2)
    agrees(fn, fast, x, w)
    cls.__torch_dispatch__ = classmethod(other_dispatch)
    agrees(fn, fast, x, w)
    del cls.__torch_dispatch__
    agrees(fn, fast, x, w)


def test_a_table_of_operators():
    fn = lambda x, w: x @ w
    fast, x, w = compiled(fn), torch.randn(5, 6), weights(Quantized)
    agrees(fn, fast, x, w)
    before = Quantized.TABLE[torch.ops.aten.mm.default]
    try:
        Quantized.TABLE[torch.ops.aten.mm.default] = lambda func, types, args, kwargs: args[0] * 2
        agrees(fn, fast, x, w)
    finally:
        Quantized.TABLE[torch.ops.aten.mm.default] = before
    agrees(fn, fast, x, w)


def test_context():
    fn = lambda x, w: F.linear(x, w)
    fast, x, inner = compiled(fn), torch.randn(2, 4), torch.randn(3, 4)
    for bits in (2, 3, 2, 5):
        agrees(fn, fast, x, StraightThrough(inner, bits))
    w = StraightThrough(inner, 2)
    agrees(fn, fast, x, w)
    w.bits = 1
    agrees(fn, fast, x, w)


def test_tensors_inside():
    fn = lambda p: p * 2 + 1
    fast = compiled(fn)
    a, b = torch.randn(3), torch.randn(3)
    p = Pair(a, b)
    agrees(fn, fast, p)
    for a, b in ((torch.randn(3), b), (a, torch.randn(3).double()), (a, torch.randn(2)), (a, torch.randn(6)[::2]),
                 (a, a)):
        p.b, p.a = b, a
        agrees(fn, fast, p)


@pytest.mark.parametrize("change", ["shape", "dtype", "strides", "requires_grad"])
def test_what_the_outer_tensor_says(change):
    class Outer(StraightThrough):
        @staticmethod
        def __new__(cls, inner, bits, shape=(3, 4), strides=(4, 1), dtype=torch.float32, requires_grad=False):
            return torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype,
                                                       requires_grad=requires_grad)

        def __init__(self, inner, bits, **said):
            super().__init__(inner, bits)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return args[0].inner * 2

    def fn(x):
        return x.detach(), x.shape, x.dtype, x.stride(), x.requires_grad

    said = {"shape": (2, 6), "dtype": torch.float64, "strides": (1, 3), "requires_grad": True}
    fast, inner = compiled(fn), torch.randn(3, 4)
    with torch.no_grad():
        for kwargs in ({}, {change: said[change]}, {}):
            agrees(fn, fast, Outer(inner, 1, **kwargs))


def test_attributes_of_a_tensor_with_data():
    fn = lambda x: (x * 2).label
    fast, x = compiled(fn), Named(torch.randn(3), "a")
    assert fast(x) == "a"
    x.label = "b"
    assert fast(x) == "b"


def test_torch_function_switched_off_around_the_call():
    fn, cls = lambda x: torch.sin(x), with_function(plus=1)
    fast, x = jit.compile(fn), torch.randn(3).as_subclass(cls)
    agrees(fn, fast, x)
    with torch._C.DisableTorchFunctionSubclass():
        agrees(fn, fast, x)
    agrees(fn, fast, x)


def test_modes_around_the_call():
    fn = lambda x: x.sum() + 1
    fast, x = jit.compile(fn), torch.randn(3)
    agrees(fn, fast, x)
    with Doubling():
        agrees(fn, fast, x)
    agrees(fn, fast, x)


def test_an_object_that_is_no_tensor():
    class Said:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return 5

    class Plus:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return args[0].by + 1

        def __init__(self, by):
            self.by = by

    fn = lambda d, x: torch.add(d, x)
    fast, x = compiled(fn), torch.randn(3)
    assert [fast(d, x) for d in (Said(), Plus(2), Plus(4), Said())] == [5, 3, 5, 5]


def test_no_code_of_the_program_runs_to_look_at_its_tensors():
    seen = []

    class Seen(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs)

    fn = lambda x: ((x + 1).view(-1), x.t(), x.shape[0], x.mul_(2))
    x = torch.randn(2, 3).as_subclass(Seen)
    fn(x)
    expected = seen.copy()
    fast = compiled(fn)
    for _ in range(3):
        seen.clear()
        fast(x)
        assert seen == expected


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("factor", [2, 2.5])
def test_sizes_of_a_wrapper_as_numbers(backend, factor):
    """Symbols that the plan is given as integers, beside a symbolic float too."""
    fn = lambda x, k: torch.ones(3) * (x.size(0) + 10 * x.stride(0)) + k
    jit.reset()
    fast = jit.compile(fn, dynamic=True, **({} if backend is None else {"backend": backend}))
    for sizes in ((2, 3), (4, 5), (6, 7)):
        factor *= 1.5
        x = Pair(torch.zeros(sizes), torch.ones(sizes))
        assert torch.equal(fn(x, factor), fast(x, factor))


class Refusing(Pair):
    """Takes no operator but detach."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise TypeError("by the class")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [
    lambda x: Refusing(x, x) * x, lambda x: x + Refusing(x, x), lambda x: -Refusing(x, x), lambda x: x < Refusing(x, x),
    lambda x: torch.ones(2, 7) == Pair(x, x), lambda x: torch.ones(2, 7) < torch.nn.Parameter(x),
    lambda x: torch.add(x, Refusing(x, x)), lambda x: torch.where(True, Plain(x), 0.5),
    lambda x: torch.einsum("i,i->", x, Pair(torch.ones(8), torch.ones(8)))])
def test_what_errors_say(fn, dynamic):
    jit.reset()
    fast = jit.compile(fn, dynamic=dynamic)
    for n in (2, 3, 4):
        with pytest.raises(Exception) as expected:
            fn(torch.ones(n))
        with pytest.raises(type(expected.value)) as found:
            fast(torch.ones(n))
        assert str(found.value) == str(expected.value)


def test_nothing_is_kept_alive():
    def run():
        p, w, x = Pair(torch.randn(3), torch.randn(3)), weights(Quantized), Named(torch.randn(4), "a")
        fast(p, w, x)
        return [weakref.ref(t) for t in (p, p.a, p.b, w, w.data_int8, w.scale, x)]

    fast = compiled(lambda p, w, x: (p * 2, F.linear(x.as_subclass(torch.Tensor), w), (x + 1).label))
    dead = run()
    gc.collect()
    assert [r() for r in dead] == [None] * len(dead)
    assert all(r() is None for r in run())
