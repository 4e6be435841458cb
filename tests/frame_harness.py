"""Differential tests of capture: a program in eager against the same program compiled with ``backend="eager"``.

Programs are registered by ``Cases``; what is compared, over several calls, is the result, the arguments afterwards, printed text and
exceptions (type and text). Unless it says ``fullgraph=False`` a program must be captured whole.
"""

import contextlib
import copy
import io
import math
import types

import pytest
import torch

import jit


def same(a, b, path="result", seen=None):
    """Raises AssertionError saying where two values differ. Tensors: type, dtype, shape, requires_grad, values."""
    seen = {} if seen is None else seen
    assert type(a).__name__ == type(b).__name__, f"{path}: {type(a).__name__} in eager, {type(b).__name__} compiled"
    if isinstance(a, (list, dict, set, torch.Tensor)) or hasattr(a, "__dict__") and not isinstance(a, type):
        assert (id(a) in seen) == (id(b) in seen.values()), f"{path}: shared in one and not in the other"
        if id(a) in seen:
            assert seen[id(a)] == id(b), f"{path}: another object"
            return
        seen[id(a)] = id(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad, f"{path}: {a} in eager, {b} compiled"
        assert torch.equal(torch.nan_to_num(a.detach()), torch.nan_to_num(b.detach())), f"{path}: {a} in eager, {b} compiled"
    elif isinstance(a, float):
        assert a == b or math.isnan(a) and math.isnan(b), f"{path}: {a} in eager, {b} compiled"
    elif isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
        assert len(a) == len(b), f"{path}: {a!r} in eager, {b!r} compiled"
        for i, (p, q) in enumerate(zip(a, b)):
            same(p, q, f"{path}[{i}]", seen)
    elif isinstance(a, dict):
        assert list(map(repr, a)) == list(map(repr, b)), f"{path}: keys {list(a)} in eager, {list(b)} compiled"
        for (k, p), q in zip(a.items(), b.values()):
            same(p, q, f"{path}[{k!r}]", seen)
    elif isinstance(a, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)):
        assert a.__qualname__ == b.__qualname__, f"{path}: {a} in eager, {b} compiled"
    elif isinstance(a, BaseException):
        same(a.args, b.args, f"{path}.args", seen)
    elif hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__:
        same(dict(vars(a)), dict(vars(b)), f"vars({path})", seen)
    elif type(a).__eq__ is not object.__eq__:
        assert a == b, f"{path}: {a!r} in eager, {b!r} compiled"


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


def check(make, arguments, calls=2, fullgraph=True):
    """``make()`` gives the program afresh, ``arguments()`` a tuple of its arguments."""
    jit.reset()
    eager, compiled = make(), jit.compile(make(), backend="eager", fullgraph=fullgraph)
    for call in range(calls):
        want, got = observe(eager, arguments()), observe(compiled, arguments())
        assert want[1] == got[1], f"call {call}: raised {want[1]} in eager, {got[1]} compiled"
        assert want[2] == got[2], f"call {call}: printed {want[2]!r} in eager, {got[2]!r} compiled"
        same((want[0], want[3]), (got[0], got[3]), f"call {call}")


def sequence(make, calls, fullgraph=False):
    """Runs a list of argument tuples, or functions that change something between calls, on the eager and the compiled program."""
    jit.reset()
    eager, compiled = make(), jit.compile(make(), backend="eager", fullgraph=fullgraph)
    for i, step in enumerate(calls):
        if callable(step):
            step()
            continue
        want, got = observe(eager, copy.deepcopy(step)), observe(compiled, copy.deepcopy(step))
        assert want[1] == got[1] and want[2] == got[2], f"step {i}: {want[1:3]} in eager, {got[1:3]} compiled"
        same((want[0], want[3]), (got[0], got[3]), f"step {i}")


class Cases:
    """A list of programs: ``@cases(x=...)`` above a function that takes tensors; ``@cases.made`` above one that makes a program."""

    def __init__(self):
        self.rows = []

    def __call__(self, *arguments, fullgraph=True, calls=2):
        def register(fn):
            self.rows.append(pytest.param(lambda: fn, lambda: copy.deepcopy(arguments or (torch.arange(4.0),)), fullgraph, calls, id=fn.__name__))
            return fn

        return register

    def made(self, *arguments, fullgraph=True, calls=2):
        def register(make):
            self.rows.append(pytest.param(make, lambda: copy.deepcopy(arguments or (torch.arange(4.0),)), fullgraph, calls, id=make.__name__))
            return make

        return register

    def test(self):
        @pytest.mark.parametrize("make, arguments, fullgraph, calls", self.rows)
        def run(make, arguments, fullgraph, calls):
            check(make, arguments, calls, fullgraph)

        return run
