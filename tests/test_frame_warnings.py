"""Warnings of captured programs: the same texts, categories and places as in eager, after the graph; errors made of
them come from eager."""

import warnings

import pytest
import torch

import jit


def advise(x, text="in the callee"):
    warnings.warn(text)
    warnings.warn("at the caller", DeprecationWarning, stacklevel=2)
    return x + 1


def program(x):
    y = advise(x)
    warnings.warn("outer", category=FutureWarning, stacklevel=1)
    for k in range(3):
        warnings.warn(f"round {k}")
    return advise(y, text="again") * 2


def given(fn, how, times=3):
    found = []
    for _ in range(times):
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter(how)
            fn(torch.ones(2))
        found.append([(str(r.message), r.category, r.filename, r.lineno) for r in records])
    return found


@pytest.mark.parametrize("how", ["always", "default", "ignore"])
def test_warnings(how):
    want = given(program, how)
    globals().pop("__warningregistry__", None)
    assert given(jit.compile(program, fullgraph=True), how) == want
    assert len(want[0]) == (0 if how == "ignore" else 8)


def test_warnings_that_are_errors():
    compiled = jit.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="in the callee"):
            compiled(torch.ones(2))
