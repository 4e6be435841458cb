"""Sizes and integers that are read for the first time once sizes vary, by what goes on after a break or by a later
kind of call: symbols at once. Results are eager's at each call."""

import pytest
import torch

import jit
from jit.frame import dispatch

SIZES = (6, 7, 8, 9, 12, 5)


def captures(name=None):
    """How often each function was compiled, of those named so or of all."""
    return [len(d.on_miss.captures) for d in list(dispatch._dispatchers) if hasattr(d.on_miss, "captures")
            and len(d.on_miss.captures) and name in (None, dispatch.user_code(dispatch.wrapped_function(d)).co_name)]


@pytest.fixture(autouse=True)
def none_before():
    jit.reset()
    yield
    jit.reset()


class Batch:
    """Tensors, and how much there is in them."""

    def __init__(self, data, count):
        self.data, self.count = data, count


def read_late(x, batch=None):
    y = x * 2
    if batch is not None:
        y = y + batch.data.sum() + torch.ones(batch.count).cumsum(0)[-1] / batch.count
    return y


def test_an_integer_that_is_a_size_is_one_from_the_first():
    compiled = jit.compile(read_late)
    for n in SIZES[:3]:
        torch.testing.assert_close(compiled(torch.ones(n)), read_late(torch.ones(n)))
    before = len(compiled.on_miss.captures)
    for n in SIZES:
        x, batch = torch.randn(n), Batch(torch.randn(n), n)
        torch.testing.assert_close(compiled(x, batch), read_late(x, batch))
    assert len(compiled.on_miss.captures) == before + 1
    for count in (3, 11):  # nor is it taken to be that size
        x, batch = torch.randn(6), Batch(torch.randn(6), count)
        torch.testing.assert_close(compiled(x, batch), read_late(x, batch))


def held(x, batch=None):
    y = x * 2
    if batch is not None:
        y = y.sum() + (batch.data.new_ones(3, batch.count) @ batch.data.new_ones(4, 2)).sum()
    return y


def test_an_integer_that_the_program_holds_is_a_number():
    compiled = jit.compile(held)
    for n in (6, 7, 4):
        compiled(torch.ones(n))
    x, batch = torch.randn(4), Batch(torch.randn(2), 4)
    torch.testing.assert_close(compiled(x, batch), held(x, batch))
    assert "int" in {what for _, what in compiled.on_miss.dynamic.tried.numbers}
    for n in (4, 5, 9):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x, batch), held(x, batch))
    for bad in (3, 5):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(5), Batch(torch.randn(2), bad))


def deep(x, weight, way):
    y = x @ weight
    jit.graph_break()
    if way:
        z = y.relu().sum(0)
        jit.graph_break()
        return z + (y @ weight.t()).mean()
    return y


def test_what_goes_on_after_a_break_that_comes_late():
    compiled, weight = jit.compile(deep), torch.randn(4, 3)
    for n in SIZES[:3]:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x, weight, False), deep(x, weight, False))
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x, weight, True), deep(x, weight, True))
    counts = captures("deep")
    assert max(counts) <= 3 and counts.count(1) >= 1, counts  # the last part is compiled once, for any size
