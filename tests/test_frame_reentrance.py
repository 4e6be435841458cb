"""Compiled functions that are called by compiled functions, while compiling, by backends, and by finalizers."""

import gc

import pytest
import torch
from frame_harness import compiled, same

import jit

ONES = torch.ones(3)


def test_compiled_calls_itself_and_others():
    @jit.compile(backend="eager")
    def fact(x, n):
        return x if n == 0 else fact(x, n - 1) * n

    @jit.compile(backend="eager")
    def other(x):
        return fact(x, 4) + inner(x)

    @jit.compile(backend="eager")
    def inner(x):
        print("in eager")
        return x * 2

    assert torch.equal(other(ONES), ONES * 26)
    assert torch.equal(other(ONES), ONES * 26)


def test_runaway_recursion():
    def f(x):
        return f(x) + 1

    with pytest.raises(RecursionError):
        compiled(f)(ONES)

    def g(x, n):
        return x if n == 0 else g(x, n - 1) + 1

    assert torch.equal(compiled(g)(ONES, 300), ONES + 300)


def test_compiled_functions_are_called_while_compiling():
    """A backend that runs compiled functions, the one that is being compiled among them."""
    def backend(graph, examples):
        assert torch.equal(other(ONES), ONES * 3) and torch.equal(c(ONES), ONES * 2)
        return lambda *tensors: (tensors[0] * 2,)

    other = compiled(lambda x: x * 3)
    c = jit.compile(lambda x: x * 2, backend=backend)
    for _ in range(2):
        assert torch.equal(c(ONES), ONES * 2)
    assert len(c.entries) == 1 and torch.equal(other(ONES), ONES * 3)


def test_finalizers_and_hooks_call_compiled_functions():
    seen = []
    inner = compiled(lambda x: x * 5)

    class Calls:
        def __del__(self):
            seen.append(inner(ONES))

    def f(x, k):
        held = Calls()
        y = x + k
        del held
        print(end="")
        return inner(y) + y

    c = compiled(f)
    for k in (1, 2):
        same(f(ONES, k), c(ONES, k))
    gc.collect()
    assert len(seen) == 4 and all(torch.equal(v, ONES * 5) for v in seen)
