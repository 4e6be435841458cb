"""When generators that a program leaves are closed: as soon as in eager, and with what their ``finally`` blocks do."""

import collections.abc
import gc

import pytest
import torch
from frame_harness import Cases, compiled, sequence

import jit

cases = Cases()
VECTOR = torch.arange(3.0)
ONES = torch.ones(3)


@cases([], fullgraph=False)
def a_generator_left_in_a_try_block(log):
    def numbers():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    first = next(numbers())
    log.append("after")
    return first


@jit.disable
def fails(x):
    raise KeyError(1)


@cases(VECTOR, [], fullgraph=False)
def a_generator_is_closed_when_an_exception_leaves_its_loop(x, log):
    def numbers(n):
        try:
            for i in range(n):
                yield i
        finally:
            log.append("closed")

    try:
        for _ in numbers(2):
            fails(x)
    except KeyError:
        log.append("after")


class Sequence(collections.abc.Sequence):
    """Its ``__iter__`` is a generator with an ``except IndexError`` around the yield."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return range(3)[i]


@cases([])
def a_generator_left_where_only_other_exceptions_are_caught(log):
    def nested():
        try:
            try:
                yield from Sequence()
            except IndexError:
                log.append("never")
        except KeyError:
            log.append("never")
        except ValueError:
            log.append("never")

    return next(iter(Sequence())), any(n == 1 for n in Sequence()), next(nested()), 1 in Sequence()


test_programs = cases.test()


def test_an_exception_that_leaves_the_program_keeps_nothing_alive():
    log = []

    def numbers():
        try:
            yield 1
        finally:
            log.append("closed")

    def f(x):
        for _ in numbers():
            x.tolist()[7]

    with pytest.raises(IndexError):
        jit.compile(f, backend="eager")(VECTOR)
    assert log == ["closed"]


def test_a_generator_is_closed_when_its_frame_raises():
    """What a break handed on must not keep the stack of a frame that has ended."""

    class Raising:
        def __enter__(self):
            pass

        def __exit__(self, *exception):
            issubclass()

    def numbers(log):
        try:
            yield from (1, 2)
        finally:
            log.append("closed")

    def raising(log):
        for _ in numbers(log):
            with Raising():
                abs()

    def f(log):
        try:
            raising(log)
        except TypeError:
            pass
        log.append("after")

    gc.collect()
    gc.disable()
    try:
        sequence(lambda: f, [([],), ([],)])
    finally:
        gc.enable()


def test_generators_leave_in_the_middle():
    def make(x):
        def gen():
            try:
                got = yield x
                yield got * 2
            finally:
                seen.append("closed")

        seen = []
        g, h = gen(), (v * i for i, v in enumerate([x, x]))
        first = next(g)
        return first, g, h, seen

    for fn in (make, compiled(make, fullgraph=True)):
        first, g, h, seen = fn(ONES)
        assert torch.equal(first, ONES) and torch.equal(g.send(ONES), ONES * 2)
        g.close()
        assert seen == ["closed"] and len(list(h)) == 2
