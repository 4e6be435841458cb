"""Branches on values of tensors whose one side warns: no break, and every warning is given."""

import logging
import warnings
from warnings import warn

import pytest
import torch

import jit

log = logging.getLogger("test_warned_branches")


def by_module(x):
    y = x * 2
    if y.lt(0).any():
        warnings.warn(f"{int(y.lt(0).sum())} below zero", RuntimeWarning)
    return y + 1


def by_name(x):
    if (x < 0).any():
        warn("below zero")
    return x.clamp(min=0)


def by_log(x):
    if torch.isnan(x).any() or (x < 0).any():
        log.warning("strange %s", x.shape)
    return x.exp()


def mended(x):
    if not (x >= 0).all():
        warnings.warn("below zero")
        x = x.clamp(min=0)
    return x.sqrt()


def tried_again(x):
    y, info = torch.linalg.cholesky_ex(torch.diag(x))
    if not torch.any(info):
        return y
    for k in range(3):
        y, info = torch.linalg.cholesky_ex(torch.diag(x) + 10.0 ** k * torch.eye(3))
        warnings.warn(f"10 ** {k}")
        if not torch.any(info):
            return y
    raise ValueError("not positive")


def in_a_loop(x):
    for i in range(3):
        if x[i] < 0:
            warnings.warn(f"row {i}")
            x = x + 1
    return x


def seen(fn, x, caplog):
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = fn(x)
    return (out, [(str(w.message), w.category) for w in caught if "jit" not in str(w.message)],
            [r.getMessage() for r in caplog.records])


GOOD, BAD = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -2.0, -3.0])


@pytest.mark.parametrize("fn", [by_module, by_name, by_log, mended, tried_again, in_a_loop])
@pytest.mark.parametrize("calls", [[GOOD] * 5 + [BAD, GOOD] * 2, [BAD] * 6, [BAD, GOOD, BAD, BAD, GOOD]])
def test_every_warning_is_given(fn, calls, caplog):
    compiled = jit.compile(fn)
    for x in calls:
        want, got = seen(fn, x, caplog), seen(compiled, x, caplog)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]


@pytest.mark.parametrize("fn", [by_module, by_name, by_log, mended, tried_again, in_a_loop])
def test_whole(fn):
    assert jit.explain(jit.compile(fn))(GOOD).graph_break_count == 0


def test_a_warning_that_is_an_error():
    compiled = jit.compile(by_module)
    assert torch.equal(compiled(GOOD), GOOD * 2 + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="2 below zero"):
            compiled(BAD)
