"""Generators of random numbers of Python and NumPy: a record for each class, what calls of one are going to give, and
the calls themselves, which rewritten functions make behind the graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .array_memory import memory_of

_LARGEST = 1 << 63
_STATES = frozenset(["getstate", "get_state"])  # methods that give a state, which is kept as it is


class Kind(NamedTuple):
    """A class of generators.

    Attributes:
        cls: the class.
        copied: a function that gives a copy of a generator.
        draws: names of methods that draw numbers.
        sets: names of methods that set the whole state, as ``seed``.
    """

    cls: type
    copied: Callable
    draws: frozenset
    sets: frozenset


KINDS: dict[type, Kind] = {}


def called(generator: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """What a method gives; of ``shuffle`` the list that it has put in order."""
    if name != "shuffle":
        return getattr(generator, name)(*args, **kwargs)
    shuffled: list = list(*args, **kwargs)
    generator.shuffle(shuffled)
    return shuffled


def call_again(generator: Any, name: str, args: tuple, kwargs: tuple) -> None:
    """The effect of a call."""
    called(generator, name, args, dict(kwargs))


def put_back(generator: Any, name: str, state: Any) -> None:
    """The effect of setting a state that was read before."""
    getattr(generator, name)(state)


def tensor_of(result: Any) -> torch.Tensor:
    """A result as a tensor on the CPU. Raises TypeError where there is none."""
    if isinstance(result, (np.ndarray, np.generic)):
        found = np.asarray(result)
        return memory_of(found if found.flags.writeable else found.copy())
    numbers = result if type(result) is list else [result]
    kinds = set(map(type, numbers))
    if kinds not in ({float}, {int}) or kinds == {int} and any(not -_LARGEST <= n < _LARGEST for n in numbers):
        raise TypeError
    return torch.tensor(result, dtype=torch.float64 if kinds == {float} else torch.int64, device="cpu")


def drawn_by(generator: Any, program: tuple) -> tuple:
    """What calls of a generator are going to give, as tensors."""
    shadow = KINDS[type(generator)].copied(generator)
    found: list = []
    for name, args, kwargs in program:
        if type(args) is int:  # a state from before is set
            getattr(shadow, name)(found[args])
            found.append(None)
            continue
        result = called(shadow, name, args, dict(kwargs))
        found.append(result if result is None or name in _STATES else tensor_of(result))
    return tuple(found)


def copied(generator: Any) -> Any:
    """A copy of a generator of any class."""
    return copy.deepcopy(generator)
