"""``warnings.catch_warnings`` in compiled functions."""

import contextlib
import warnings

import torch

import jit


def silent(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.sin()


def recorded(x):
    with warnings.catch_warnings(record=True):
        y = x + 1
    return y


def warns(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not seen")
        y = x + 1
    warnings.warn("seen")
    return y


def test_filters_are_put_back():
    for fn in (silent, recorded):
        compiled = jit.compile(fn, fullgraph=True)
        before = list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(2)), fn(torch.ones(2)))
        assert (list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl) == before


def test_filters_of_the_program_hold():
    compiled = jit.compile(warns)
    for f in (warns, compiled, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            f(torch.ones(2))
        assert [str(w.message) for w in caught] == ["seen"]


def test_a_break_inside():
    def fn(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x + 1
            jit.graph_break()
            warnings.warn("not seen")
            y = y * 2
        return y

    compiled = jit.compile(fn)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught, contextlib.suppress(ZeroDivisionError):
            warnings.simplefilter("always")
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
        assert not caught
