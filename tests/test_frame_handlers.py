"""Breaks inside ``except`` and ``finally`` bodies: what follows is captured, and the handled exception stays the
current one."""

import contextlib
import io
import sys

import pytest
import torch

import jit
from breaking import print  # noqa: A004
from frame_harness import check


def nested_handlers(x):
    y = x + 1
    try:
        y = y * 2
        raise ValueError("a")
    except ValueError as e:
        y = y + 3
        print("in handler", e.args, sys.exc_info()[1] is e)
        y = y * 4
        try:
            raise KeyError("inner")
        except KeyError as k:
            print("nested", k.__context__ is e)
            y = y - 1
        z = y + 5
    finally:
        y = y + 7
        print("finally")
        y = y + 8
    return y + z


def finally_then_except(x):
    try:
        try:
            x = x + 1
            {}["k"]
        finally:
            x = x * 2
            print("fin")
            x = x * 3
    except KeyError as e:
        print("caught", e)
        x = x + 10
    return x * 2


def inner(x):
    try:
        raise ValueError("q")
    except ValueError:
        x = x + 1
        print("inner")
        x = x + 2
        raise


def callee(x):
    try:
        x = inner(x)
    except ValueError as e:
        print("outer", e)
        x = helper(x)
        x = x * 5
    return x


def helper(x):
    x = x + 1
    print("helper", sys.exc_info()[0])
    return x * 2


def loop(x):
    for i in range(3):
        try:
            if i == 1:
                raise IndexError(i)
            x = x + i
        except IndexError as e:
            print("i", e)
            x = x * 2
            continue
        x = x + 1
    return x


def reraised(x):
    try:
        raise ValueError("x")
    except ValueError as e:
        print("h")
        try:
            raise TypeError("y") from e
        except TypeError as t:
            print(t.__cause__ is e, t.__context__ is e)
        x = x + 1
        try:
            raise
        except ValueError as again:
            print(again is e)
            x = x * 3
    return x


class CM:
    def __enter__(self):
        print("enter")
        return self

    def __exit__(self, *a):
        print("exit", a[0])
        return True


def with_block(x):
    with CM():
        x = x + 1
        print("a")
        x = x * 2
        raise ValueError
    return x + 3


def raised_by_the_break(x):
    try:
        raise ValueError("first")
    except ValueError as first:
        x = x + 1
        try:
            int(print("p") or "no number")
        except ValueError as second:
            print(second.__context__ is first)
            x = x * 2
    return x + 1


def closure_over_the_exception(x):
    try:
        raise ValueError("kept")
    except ValueError as e:
        kept = e

        def show():
            return kept.args[0], y

        y = x * 2
        print(show()[0])
        y = y + 1
        return show()


PROGRAMS = {nested_handlers: 4, finally_then_except: 3, callee: 4, loop: 2, reraised: 2, with_block: 3,
            raised_by_the_break: 2, closure_over_the_exception: 2}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_goes_on_after_a_break_in_a_handler(program):
    check(lambda: program, lambda: (torch.arange(3.0),), calls=3, fullgraph=False)
    with contextlib.redirect_stdout(io.StringIO()):
        explained = jit.explain(program)(torch.arange(3.0))
    assert explained.graph_count == PROGRAMS[program]
    assert not [r for r in explained.break_reasons if r.whole_frame and r.kind != "raises"]
