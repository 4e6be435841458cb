"""Walks over the arguments of calls keep what they walk over, and miss nothing."""

import collections

import pytest
import torch

from jit.graph import nested
from jit.graph.handles import NamedResult, SymSize

Pair = collections.namedtuple("Pair", "a b")
ARGUMENTS = [1, (2.5, [3, {"k": 4}]), slice(5, None, 6), Pair(7, "text"), SymSize((8,)),
             NamedResult(torch.return_types.max, ("values", "indices"), (9, 10))]


def test_containers_stay_what_they_are():
    made = nested.replaced(int, lambda n: -n, ARGUMENTS)
    assert made == [-1, (2.5, [-3, {"k": -4}]), slice(-5, None, -6), (-7, "text"), (-8,), (-9, -10)]
    assert [type(v) for v in made] == [type(v) for v in ARGUMENTS]
    assert made[5].values == -9 and made[5].cls is torch.return_types.max
    assert nested.mapped(lambda v: v, ARGUMENTS) == ARGUMENTS


def test_what_is_of_a_type_comes_in_order():
    assert list(nested.of_kind(int, ARGUMENTS)) == [*range(1, 2), *range(3, 11)]
    assert list(nested.of_kind(dict, ARGUMENTS)) == [{"k": 4}]
    assert nested.holds(float, ARGUMENTS) and not nested.holds(complex, ARGUMENTS)
    assert not list(nested.of_kind(str, []))


@pytest.mark.parametrize("a, b", [([1, 2], (1, 2)), ([1, [2]], [[1], 2]), ({"a": 1}, {"b": 1}), (slice(1), (None, 1))])
def test_keys_tell_values_apart(a, b):
    of = lambda v: nested.key(lambda leaf: leaf, v)  # noqa: E731
    assert of(a) == of(a) != of(b)
    hash(of([a, b]))


def test_one_or_several():
    assert nested.several(3) == (3,) and nested.several([3]) == [3]
    assert nested.unpacked((2, 3)) == (2, 3) and nested.unpacked(([2, 3],)) == [2, 3] and nested.unpacked((2,)) == (2,)
    assert nested.frozen(int, str, [1, (2, [3.5])]) == ("1", ("2", (3.5,)))
