"""The order in which a set gives objects whose class has a hash of its own is that of Python's set."""

from random import Random

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


CHANGES = (
    "a.add({0})", "a.discard({0})", "a |= {{{0}, {1}, 40}}", "a &= set(range({0}, 90))", "a -= {{{0}, 17}}",
    "a ^= {{{1}, 33, 64}}", "a.update([{1}, {0}, 80])", "b = a | b", "b = a & {{{0}, 8, 16, 24, 32}}", "b = b - a",
    "a = a.copy()", "b = b.copy()", "a = set(b)", "b = set(sorted(a))", "a = set(b).union([{0}, 64, 32])",
    "b = b.intersection([{1}, 8, 7, 64, *a])", "b = a ^ {{72, {1}}}", "a.update(b)", "b = {{*a, {0}}}",
    "a = set(range({0}))", "b = frozenset(a) | {{{1}}}", "b = set(b)", "a.symmetric_difference_update(list(b))",
    "a.intersection_update([*b, 8, 64])", "b = a.difference([{0}])", "a = {{v for v in b}}")


def changing(seed):
    """The source of a function that makes two sets of ints by several changes."""
    random = Random(seed)
    lines = [f"    a, b = {{{random.randrange(70)}, 8, 64}}, set(given)"]
    lines += ["    " + random.choice(CHANGES).format(random.randrange(90), random.randrange(90)) for _ in range(7)]
    return "\n".join(["def program(x, given):", *lines, "    return x + sum(a), list(a), list(b), a, b", ""])


@pytest.mark.parametrize("seed", range(24))
def test_sets_that_came_about_by_several_changes(seed):
    place = {}
    exec(compile(changing(seed), f"<sets {seed}>", "exec"), place)
    compiled = jit.compile(place["program"], fullgraph=True)
    for elements in ({32, 1, 65}, {5}):
        expected, found = place["program"](torch.zeros(2), set(elements)), compiled(torch.zeros(2), set(elements))
        assert torch.equal(found[0], expected[0])
        assert found[1:3] == expected[1:3], changing(seed)
        assert [list(s) for s in found[3:]] == [list(s) for s in expected[3:]]
        assert [type(s) for s in found[3:]] == [type(s) for s in expected[3:]]


def frozen(x):
    fs = frozenset([9, 1, 2])
    made = fs | {3}, fs.union([4]), fs & {1, 9}, fs - {1}, fs ^ {19}, frozenset(fs), fs.copy(), {1} | fs, set(fs)
    return x + 1, *made


def test_frozen_sets_stay_frozen():
    found, expected = jit.compile(frozen)(torch.ones(2))[1:], frozen(torch.ones(2))[1:]
    assert [(type(s), list(s)) for s in found] == [(type(s), list(s)) for s in expected]


def kept_twice(x):
    made = {5, 1} | {32, 7}
    both = [made, made]
    jit.graph_break()
    made.add(64)
    return x + 1, both, made


def test_a_set_that_two_names_hold_is_one_behind_a_break():
    _, (first, second), made = jit.compile(kept_twice)(torch.ones(2))
    assert first is second is made and list(made) == list(kept_twice(0)[2])
