"""What is done for None is not done for another value at the next call, and the other way round."""

import itertools

import pytest
import torch

import jit


def steps():
    got = yield 1
    yield got


class Numbers:
    def __init__(self):
        self.rest = iter([1, 2, 3])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.rest)


def delegated(k):
    def through():
        yield from Numbers()

    generator = through()
    next(generator)
    return generator.send(k)


def returned(k):
    def generator():
        return k
        yield

    try:
        next(generator())
    except StopIteration as end:
        return end.args


def cause(k):
    try:
        raise KeyError from k
    except KeyError as error:
        return type(error.__cause__)


def cause_while_handling(k):
    try:
        raise ValueError
    except ValueError:
        try:
            raise KeyError from k
        except TypeError as error:
            return type(error.__context__)
        except KeyError as error:
            return type(error.__cause__)


PROGRAMS = {
    "send": lambda k: steps().send(k), "yield from": delegated, "return of a generator": returned, "cause": cause,
    "cause while handling": cause_while_handling, "get": lambda k: type(steps.__get__(k)),
    "get of a class": lambda k: type(steps.__get__(k, int)), "key": lambda k: sorted([3, -4, 1], key=k),
    "filter": lambda k: list(filter(k, [0, 1, -2])), "islice": lambda k: list(itertools.islice([1, 2, 3, 4], k)),
    "groupby": lambda k: [a for a, _ in itertools.groupby([1, -1, 2], k)], "slice": lambda k: [1, 2, 3, 4][k:],
    "throw": lambda k: steps().throw(ValueError, k), "initial": lambda k: list(itertools.accumulate([1], initial=k)),
    "spec": lambda k: format(3, k), "default": lambda k: max([], key=abs, default=k)}


@pytest.mark.parametrize("order", [(2, None, abs, None), (None, 2, None, abs), (abs, None, ValueError, None)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_none_is_told_from_others(name, order):
    def fn(x, k):
        try:
            return x + 1, PROGRAMS[name](k)
        except (TypeError, ValueError, AttributeError) as error:
            return x - 1, repr(error)

    compiled = jit.compile(fn)
    for k in order:
        (a, want), (b, got) = (f(torch.ones(2), k) for f in (fn, compiled))
        assert torch.equal(a, b) and repr(want) == repr(got)
