"""``threading.local`` and ``warnings.catch_warnings`` in compiled functions."""

import contextlib
import threading
import warnings

import torch

import jit


def test_attributes_are_those_of_the_thread():
    local = threading.local()

    def fn(x):
        local.count = local.count + 1
        local.last = x
        return x * local.scale + local.bias

    compiled = jit.compile(fn)
    wrong = []

    def run(scale):
        local.scale, local.bias, local.count = scale, torch.full((2,), float(scale)), 0
        for k in range(3):
            x = torch.ones(2) * k
            if not torch.equal(compiled(x), x * scale + scale) or local.last is not x:
                wrong.append(scale)
        if local.count != 3:
            wrong.append("count")

    for scale in (2, 3, 4):
        thread = threading.Thread(target=run, args=(scale,))
        thread.start(), thread.join()
    run(5)
    assert not wrong


def test_a_local_of_a_class_with_methods():
    class Local(threading.local):
        factor = 2

        def scaled(self, x):
            return x * self.factor + self.offset

    local = Local()
    local.offset = 1
    compiled = jit.compile(lambda x: local.scaled(x), fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    local.offset = 4
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 6.0))


def test_an_attribute_that_is_missing():
    local = threading.local()
    compiled = jit.compile(lambda x: x + (local.v if hasattr(local, "v") else 1))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    local.v = 5
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 6.0))


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
