"""Iterators say what they are, in ``type()`` and in errors, as Python's own do."""

import collections
import itertools

import pytest
import torch

import jit

V, D = [1, 2], {"a": 1}
MAKERS = {
    "takewhile": lambda: itertools.takewhile(abs, V), "dropwhile": lambda: itertools.dropwhile(abs, V),
    "filterfalse": lambda: itertools.filterfalse(abs, V), "filter": lambda: filter(abs, V),
    "repeat": lambda: itertools.repeat(1, 2), "product": lambda: itertools.product(V, V),
    "permutations": lambda: itertools.permutations(V), "combinations": lambda: itertools.combinations(V, 1),
    "groupby": lambda: itertools.groupby(V), "group": lambda: next(itertools.groupby(V))[1],
    "zip_longest": lambda: itertools.zip_longest(V, V), "keys": lambda: iter(D), "values": lambda: iter(D.values()),
    "items": lambda: iter(D.items()), "reversed dict": lambda: reversed(D), "text": lambda: iter("ab"),
    "bytes": lambda: iter(b"ab"), "ordered": lambda: iter(collections.OrderedDict(a=1)),
    "deque": lambda: iter(collections.deque(V)), "tensor": lambda: iter(torch.ones(2)), "list": lambda: iter(V),
    "reversed list": lambda: reversed(V), "tuple": lambda: iter((1, 2)), "sentinel": lambda: iter(lambda: 1, 1)}
USES = [lambda o: o & 1, lambda o: o + "a", lambda o: o[0:1], lambda o: -o, lambda o: o < 1, lambda o: o.foo, len,
        float, lambda o: type(o).__name__, lambda o: o(), lambda o: [1][o]]


@pytest.mark.parametrize("name", MAKERS)
def test_types_of_iterators(name):
    def fn(x):
        seen = []
        for use in USES:
            try:
                seen.append(use(MAKERS[name]()))
            except (TypeError, AttributeError) as error:
                seen.append(repr(error))
        return x + 1, seen

    assert jit.compile(fn)(torch.ones(2))[1] == fn(torch.ones(2))[1]


def test_iterators_of_a_deque_leave():
    def fn(x, q):
        forward, backward = iter(q), reversed(q)
        next(forward), next(backward)
        return x + 1, forward, backward

    for run in (fn, jit.compile(fn)):
        _, forward, backward = run(torch.ones(2), collections.deque([1, 2, 3, 4]))
        assert list(forward) == [2, 3, 4] and list(backward) == [3, 2, 1]
