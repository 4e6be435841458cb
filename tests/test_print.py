"""``print`` in compiled functions: exact output, in order, in one graph."""

import contextlib
import dataclasses
import io
import sys

import numpy as np
import pytest
import torch

import jit


@dataclasses.dataclass
class Point:
    x: int
    name: str = "p"


class Shown:
    def __init__(self, v):
        self.v = v

    def __str__(self):
        return f"<{self.v}>"


POINT, KEPT = Point(3), [1, "a", None]


def simple(x):
    print("hello", 1, 2.5, None, True, sep=", ", end="!\n")
    print()
    return x + 1


def tensors(x):
    print(x)
    y = x * 2
    print("y is", y, y.sum().item())
    y.add_(1)
    print(y, end="")
    return y


def sizes(x):
    print(x.shape, x.shape[0], x.size(), len(x), x.dtype, x.device)
    print(f"{x.shape[0]} rows of {x.dtype}", x.stride())
    return x.sum(0)


def containers(x):
    found = [1, x[:1], {"a": (x.sum(), 2)}, "text", [None]]
    print(found)
    found.append(3)
    print(found, {"k": found[0]}, (x[0],))
    return found


def objects(x):
    print(POINT, [POINT], KEPT, Shown(4), int, [print])
    KEPT.append(len(KEPT))
    print(KEPT)
    del KEPT[-1]
    return x


def changed_input(x):
    print(x)
    x.mul_(2)
    print(x)
    return x.sum()


def to_stderr(x):
    print("error", file=sys.stderr)
    print("fine", flush=True)
    return x


def in_a_loop(x):
    for i in range(3):
        print(i, "of", 3)
        x = x + i
    return x


PROGRAMS = [simple, tensors, sizes, containers, objects, changed_input, to_stderr, in_a_loop]


def output(fn, x):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        fn(x)
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize("fn", PROGRAMS)
def test_output_is_eagers(fn):
    compiled = jit.compile(fn, fullgraph=True)
    for shape in ((2, 3), (2, 3), (3, 3), (4, 3), (5, 3)):
        x = torch.arange(float(np.prod(shape))).view(shape)
        assert output(fn, x.clone()) == output(compiled, x.clone())


def test_what_shows_history_breaks_and_is_right():
    def fn(x):
        y = x * 2
        print(y)
        return y.sum()

    compiled = jit.compile(fn)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        assert output(fn, x)[0].split("grad_fn")[0] == output(compiled, x)[0].split("grad_fn")[0]


def test_a_call_that_raises_prints_once():
    def fn(x):
        print("before")
        if x.sum() > 10:
            raise ValueError
        print("after")
        return x

    compiled = jit.compile(fn)
    for value in (1.0, 2.0, 20.0, 1.0):
        seen = []
        for f in (fn, compiled):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(ValueError):
                f(torch.full((2,), value))
            seen.append(out.getvalue())
        assert seen[0] == seen[1]


def test_errors():
    def fn(x):
        print(x, sep=3)

    for f in (fn, jit.compile(fn)):
        with pytest.raises(TypeError):
            f(torch.ones(2))
