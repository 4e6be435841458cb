"""Operators of containers whose classes do not answer: what the right operand's builtin class makes of both."""

import collections
import operator

import pytest
import torch

import jit


class Silent(set):
    def __or__(self, other):
        return NotImplemented

    def __sub__(self, other):
        return NotImplemented


class SilentDict(dict):
    def __or__(self, other):
        return NotImplemented


SIDES = [
    (lambda: collections.Counter("zaz"), lambda: {"a": 5, "b": 2}), (lambda: collections.Counter(), lambda: {}),
    (lambda: SilentDict(a=3, c=1), lambda: {"a": 5}), (lambda: Silent([1, 2]), lambda: {2, 3}),
    (lambda: Silent([1]), lambda: Silent([2])), (lambda: {2, 3}, lambda: Silent([2])),
    (lambda: collections.Counter("a"), lambda: collections.Counter("b")), (lambda: collections.Counter("a"), lambda: 3)]


@pytest.mark.parametrize("op", [operator.or_, operator.sub])
@pytest.mark.parametrize("sides", range(len(SIDES)))
def test_the_right_side_answers(sides, op):
    def fn(x, left, right):
        try:
            found = op(left, right)
        except TypeError as error:
            return x + 1, str(error)
        return x + 1, type(found).__name__, found

    made = [[make() for make in SIDES[sides]] for _ in range(2)]
    compiled = jit.compile(fn)
    for _ in range(2):
        assert compiled(torch.ones(2), *made[0])[1:] == fn(torch.ones(2), *made[1])[1:]


def test_both_sides_are_one():
    fn = jit.compile(lambda d, e, c: (d | d, e | e, e - e, c | c, c & c), fullgraph=True)
    d, e, c = {"a": 1}, {1, 2}, collections.Counter("ab")
    assert fn(d, e, c) == (d, e, set(), c, c)


class A:
    k = 7


@pytest.mark.parametrize("make", [
    lambda: operator.attrgetter(), lambda: operator.itemgetter(), lambda: operator.methodcaller(),
    lambda: operator.attrgetter(1), lambda: operator.attrgetter("k", 2.0), lambda: operator.methodcaller(3),
    lambda: operator.itemgetter(1, a=2), lambda: operator.attrgetter(a=2), lambda: operator.attrgetter("k")(A())])
def test_getters_refuse_at_once(make):
    def fn(x, seen):
        try:
            return x * 2, make()
        except TypeError as error:
            seen.append(str(error))
        return x + 1, None

    seen = [], []
    results = [f(torch.ones(2), log) for f, log in zip((fn, jit.compile(fn, fullgraph=True)), seen)]
    assert seen[0] == seen[1] and results[0][1] == results[1][1] and torch.equal(results[0][0], results[1][0])
