"""The order in which a set gives objects whose class has a hash of its own is that of Python's set."""

import pytest
import torch

import jit


class Pair:
    def __init__(self, a=0, b=0):
        self.a, self.b = a, b

    def __eq__(self, other):
        return isinstance(other, Pair) and (self.a, self.b) == (other.a, other.b)

    def __hash__(self):
        return hash((self.a, self.b))


class Far(Pair):
    """With hashes that differ only where a hash of the hash has lost it, at both ends of what fits, and beyond."""

    def __hash__(self):
        return [(1 << 61) + 5, (1 << 62) + 3, -(1 << 63), (1 << 63) - 1, -1, (1 << 64) + 2][self.a % 6]


def given(values):
    return [(v.a, v.b) for v in values]


PROGRAMS = {
    "two": lambda x: given({Pair(1.0), Pair()}), "several": lambda x: given({Pair(3), Pair(), Pair(7), Pair(2, 5)}),
    "many": lambda x: given({Pair(n, n * n) for n in range(20)}), "far": lambda x: given({Far(n) for n in range(6)}),
    "frozen": lambda x: given(frozenset([Pair(3), Pair(9), Pair(1, 4)])),
    "of a list": lambda x: given(set([Pair(n, -n) for n in range(11)])),
    "without one": lambda x: given({Pair(n) for n in range(9)} - {Pair(4)})}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sets_of_objects(name):
    compiled = jit.compile(lambda x: (PROGRAMS[name](x), x + 1))
    for _ in range(2):
        assert compiled(torch.ones(2))[0] == PROGRAMS[name](None)
