"""Differential tests of capture: a program in eager against the same program compiled with ``backend="eager"``.

Programs are registered by ``Cases``; what is compared, over several calls, is the result, the arguments afterwards,
printed text and exceptions (type and text). Unless it says ``fullgraph=False`` a program must be captured whole.
"""

import collections
import contextlib
import copy
import gc
import io
import math
import random
import types
import weakref

import pytest
import torch

import jit


TRACKED = (list, dict, set, torch.Tensor, types.FunctionType, types.CellType, types.GeneratorType)


def same(a, b, path="result", seen=None, rtol=0.0, dense=False):
    """Raises AssertionError saying where two values differ: in type, value, or in which of their parts are one object.
    Tensors: type, dtype, shape, strides, requires_grad, values, and whether two share memory. ``rtol``: tolerance for
    floating point, relative and absolute; ``dense``: whether what is expanded in eager may be written out."""
    seen = {"memory": ({}, {}), "held": [], "dense": dense} if seen is None else seen
    seen["held"].append((a, b))  # what is made here keeps its id to itself
    # These may be of another builtin type when they are rebuilt
    iterators = hasattr(type(a), "__next__") and hasattr(type(b), "__next__")
    assert type(a).__name__ == type(b).__name__ or iterators, (
        f"{path}: {type(a).__name__} in eager, {type(b).__name__} compiled")
    if isinstance(a, TRACKED) or hasattr(a, "__dict__") and not isinstance(a, (type, types.ModuleType)):
        assert (id(a) in seen) == (id(b) in seen.values()), f"{path}: shared in one and not in the other"
        if id(a) in seen:
            assert seen[id(a)] == id(b), f"{path}: another object"
            return
        seen[id(a)] = id(b)

    def inner(p, q, step):
        same(p, q, path + step, seen, rtol)

    if isinstance(a, torch.Tensor):
        with torch._C.DisableTorchFunction():
            _same_tensors(a, b, path, seen, rtol)
        inner({**a.__dict__}, {**b.__dict__}, ".__dict__")
    elif isinstance(a, float):
        assert a == b or math.isnan(a) and math.isnan(b) or rtol and math.isclose(
            a, b, rel_tol=rtol, abs_tol=rtol), f"{path}: {a} in eager, {b} compiled"
    elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
        assert len(a) == len(b), f"{path}: {a!r} in eager, {b!r} compiled"
        for i, (p, q) in enumerate(zip(a, b, strict=True)):
            inner(p, q, f"[{i}]")
    elif isinstance(a, dict):
        assert list(map(repr, a)) == list(map(repr, b)), f"{path}: keys {list(a)} in eager, {list(b)} compiled"
        for (k, p), q in zip(a.items(), b.values(), strict=True):
            inner(p, q, f"[{k!r}]")
    elif isinstance(a, (set, frozenset)):  # their order says nothing, and tensors in them are equal by identity only
        p, q = (sorted(v, key=lambda e: (type(e).__name__, repr(e))) for v in (a, b))
        assert len(p) == len(q), f"{path}: {a!r} in eager, {b!r} compiled"
        for i, (u, v) in enumerate(zip(p, q, strict=True)):
            inner(u, v, f"{{{i}}}")
    elif isinstance(a, types.FunctionType):
        assert a.__qualname__ == b.__qualname__, f"{path}: {a} in eager, {b} compiled"
        for field in ("__defaults__", "__kwdefaults__", "__closure__", "__dict__"):
            inner(getattr(a, field), getattr(b, field), f".{field}")
    elif isinstance(a, types.CellType):
        contents = [[c.cell_contents] if c != types.CellType() else [] for c in (a, b)]
        inner(*contents, ".cell_contents")
    elif isinstance(a, types.MethodType):
        assert a.__qualname__ == b.__qualname__, f"{path}: {a} in eager, {b} compiled"
        inner(a.__self__, b.__self__, ".__self__")
    elif isinstance(a, (types.BuiltinFunctionType, type, types.ModuleType)):
        assert a.__name__ == b.__name__, f"{path}: {a} in eager, {b} compiled"
    elif isinstance(a, BaseException):
        inner(a.args, b.args, ".args")
        for field in ("__context__", "__cause__"):
            inner(getattr(a, field), getattr(b, field), f".{field}")
    elif iterators:
        inner(rest_of(a), rest_of(b), ".next")
    elif not isinstance(a, (int, str, float)) and (state_of(a) or state_of(b) or type(a) is not type(b)):
        inner(state_of(a), state_of(b), ".__dict__")
    elif type(a).__eq__ is not object.__eq__:
        assert a == b, f"{path}: {a!r} in eager, {b!r} compiled"


def _same_tensors(a, b, path, seen, rtol):
    """Tensors by what they are without the methods of their classes, and those inside of wrappers one by one."""
    assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad, (
        f"{path}: {a!r} in eager, {b!r} compiled")
    # Where a program may ask for gradients, an expanded one may be written out
    dense = seen.get("dense") and 0 in a.stride() and 0 not in b.stride()
    assert a.stride() == b.stride() or dense, f"{path}: strides {a.stride()} in eager, {b.stride()} compiled"
    if hasattr(a, "__tensor_flatten__"):
        (names, context), other = a.__tensor_flatten__(), b.__tensor_flatten__()
        assert (names, context) == other, f"{path}: made of {names, context} in eager, {other} compiled"
        for name in names:
            same(getattr(a, name), getattr(b, name), f"{path}.{name}", seen, rtol)
        return
    p, q = (t.detach().as_subclass(torch.Tensor) for t in (a, b))
    close = torch.equal(torch.nan_to_num(p), torch.nan_to_num(q))
    assert close or rtol and torch.allclose(p.double(), q.double(), rtol, rtol,
                                            equal_nan=True), f"{path}: {a} in eager, {b} compiled"
    if a.numel():
        numbers = [known.setdefault(t.untyped_storage().data_ptr(),
                                    len(known)) for known, t in zip(seen["memory"], (a, b))]
        assert numbers[0] == numbers[1], f"{path}: shares memory with other tensors in eager than compiled"


def state_of(obj) -> dict:
    """The attributes that an object itself has, in its ``__dict__`` and in slots of its Python classes."""
    slots = [k for cls in type(obj).__mro__
             for k, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType) and cls.__flags__ & (1 << 9)]
    state = {name: getattr(type(obj), name).__get__(obj) for name in slots if has_slot(obj, name)}
    return {**state, **getattr(obj, "__dict__", {})}


def has_slot(obj, name) -> bool:
    try:
        getattr(type(obj), name).__get__(obj)
        return True
    except AttributeError:
        return False


def rest_of(iterator, most=20):
    """What an iterator still gives, its return value, or the exception that ends it."""
    out = []
    try:
        for _ in range(most):
            out.append(next(iterator))
    except StopIteration as end:
        out.append(("returned", end.value))
    except Exception as error:
        out.append(("raised", type(error).__name__, str(error)))
    return out


def observe(fn, args):
    """(result | None, (exception type, text) | None, printed text, arguments afterwards)."""
    out = io.StringIO()
    result = error = None
    with contextlib.redirect_stdout(out):
        try:
            result = fn(*args)
        except Exception as e:
            error = (type(e).__name__, str(e))
    return result, error, out.getvalue(), args


def all_equal(a, b) -> bool:
    """Whether two sequences have as many tensors, and equal ones."""
    a, b = list(a), list(b)
    return len(a) == len(b) and all(map(torch.equal, a, b))


def said(call):
    """What a call raises, as (type, text), or its result."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


def refusal(fn, *args):
    """What a call raises, as (type, text), or None."""
    try:
        fn(*args)
    except Exception as error:
        return type(error), str(error)
    return None


def compiled(fn, **options):
    return jit.compile(fn, backend="eager", **options)


def check(make, arguments, calls=2, fullgraph=True, raises=None):
    """``make()`` gives the program afresh, ``arguments()`` a tuple of its arguments. ``raises``: whether the program
    has to raise."""
    jit.reset()
    eager, compiled = make(), jit.compile(make(), backend="eager", fullgraph=fullgraph)
    for call in range(calls):
        want, got = observe(eager, arguments()), observe(compiled, arguments())
        assert raises in (
            None,
            want[1] is not None), f"call {call}: raised {want[1]} in eager; a program that is to raise says raises=True"
        assert want[1] == got[1], f"call {call}: raised {want[1]} in eager, {got[1]} compiled"
        assert want[2] == got[2], f"call {call}: printed {want[2]!r} in eager, {got[2]!r} compiled"
        same((want[0], want[3]), (got[0], got[3]), f"call {call}")


def sequence(make, calls, fullgraph=False):
    """Runs a list of argument tuples, or functions that change something between calls, on the eager and the compiled
    program."""
    jit.reset()
    eager, compiled = make(), jit.compile(make(), backend="eager", fullgraph=fullgraph)
    for i, step in enumerate(calls):
        if callable(step):
            step()
            continue
        want, got = observe(eager, copy.deepcopy(step)), observe(compiled, copy.deepcopy(step))
        assert want[1] == got[1] and want[2] == got[2], f"step {i}: {want[1:3]} in eager, {got[1:3]} compiled"
        same((want[0], want[3]), (got[0], got[3]), f"step {i}")


def changes_in_order(text, changes, steps=20, backend="eager", argument=lambda: torch.ones(3)):
    """Runs ``f`` of a program text in eager and compiled, each in a module of its own, after each of ``changes``
    (Python text, run in the module) in order and then at random. ``X`` is the argument, which ``argument`` makes; a
    change may give another one. What the changes did to the namespaces that every test of the process shares is undone
    at the end."""
    jit.reset()
    shared = [(owner, dict(vars(owner))) for owner in (torch, torch.Tensor, torch.nn.Parameter, torch.nn.functional,
                                                       torch.nn.Module, torch.nn.Linear)]
    try:
        _changes_in_order(text, changes, steps, backend, argument)
    finally:
        for owner, before in shared:
            for name in {*vars(owner), *before}:
                if name not in before:
                    delattr(owner, name)
                elif vars(owner).get(name) is not before[name]:
                    setattr(owner, name, before[name])


def _changes_in_order(text, changes, steps, backend, argument):
    modules = [types.ModuleType("guarded") for _ in range(2)]
    for module in modules:
        module.__dict__.update(torch=torch, collections=collections, math=math)
        exec(text, module.__dict__)
    programs = modules[0].f, jit.compile(modules[1].f, backend=backend)
    rnd = random.Random(0)
    sequence = ["", *changes, *(rnd.choice(["", *changes]) for _ in range(steps))]
    for step, change in enumerate(sequence):
        for module in modules:
            module.X = argument()
            exec(change, module.__dict__)
        for _ in range(2):
            want, got = (observe(fn, (module.X,)) for fn, module in zip(programs, modules))
            assert want[1] == got[1], f"after {sequence[:step + 1]}: {want[1]} in eager, {got[1]} compiled"
            same((want[0], want[3]), (got[0], got[3]), f"after {sequence[:step + 1]}")


class Held:
    """An object that can be referred to weakly."""


def check_lets_go(call, times):
    """``call(x, held)`` keeps neither a tensor, nor an object, nor its result, once the caller has let go of them."""
    for _ in range(times):
        x, h = torch.ones(3), Held()
        refs = weakref.ref(x), weakref.ref(h)
        out = weakref.ref(call(x, h))
        del x, h
        gc.collect()
        assert refs[0]() is None and refs[1]() is None and out() is None


class Noisy:
    """An object that adds its name to ``log`` when it goes."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __del__(self):
        self.log.append(self.name)


class Cases:
    """A list of programs: ``@cases(arguments...)`` above a program, ``@cases.made(arguments...)`` above a function that
    makes one."""

    def __init__(self):
        self.rows = []

    def __call__(self, *arguments, **options):
        def register(fn):
            self.made(*arguments, name=fn.__name__, **options)(lambda: fn)
            return fn

        return register

    def made(self, *arguments, name=None, fullgraph=True, calls=2, raises=False):
        def register(make):
            fresh = lambda: copy.deepcopy(arguments or (torch.arange(4.0),))  # noqa: E731
            self.rows.append(pytest.param(make, fresh, calls, fullgraph, raises, id=name or make.__name__))
            return make

        return register

    def test(self):
        @pytest.mark.parametrize("make, arguments, calls, fullgraph, raises", self.rows)
        def run(make, arguments, calls, fullgraph, raises):
            check(make, arguments, calls, fullgraph, raises)

        return run
