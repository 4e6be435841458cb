"""Loops whose number of rounds data or sizes decide, as steps of a plan: what does a round, by name.

``jit::run_loop`` (``native/rounds.cpp``) is given a name, whether there is a first round, what is carried from round to
round, the other tensors that a round reads, and integers; ``jit::run_scan`` the tensors of which each round has a part.
They call what stands in the native table under the name: at
first the round's graph as Python, once the graph around it is compiled a plan.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jit.runtime import native
from jit.runtime.names import Name, Naming, Unnameable, rule

LOOP, SCAN = "jit::run_loop", "jit::run_scan"

_numbers = itertools.count(1)


class RoundName(str):
    """The name of a round, which other processes do not have. ``graph``: what it computes; ``function``: that as
    Python; ``integers``: the symbols of the loop's integers; ``compiled``: whether there is a plan of it."""

    graph: Any
    function: Callable
    integers: tuple[str, ...]
    compiled = False


@rule(RoundName)
def _name_of_name(naming: Naming, name: RoundName) -> Name:
    return Unnameable("a loop whose rounds are compiled in this process")


def define(graph: Any, function: Callable, integers: Sequence[str]) -> RoundName:
    """A new name for a round, which ``function`` does as ``graph`` says: from tensors and ``integers`` it gives what is
    carried on, and whether there is another round or the round's results."""
    name = RoundName(f"round {next(_numbers)}")
    name.graph, name.integers = graph, tuple(integers)
    native().define_round(str(name), function, range_of(name.integers, name.integers))
    name.function = function
    return name


def compiled(name: RoundName, call: Callable, integers: Sequence[str]) -> None:
    """``call`` does the round from here on, as long as there is somebody who knows its name."""
    positions = range_of(name.integers, integers)
    native().define_round(str(name), call, positions)
    name.compiled = True
    # The text's function stays, for whoever has the name in a text; the kernels go.
    function, every = name.function, range_of(name.integers, name.integers)
    weakref.finalize(name, native().define_round, str(name), function, every).atexit = False


def range_of(given: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    """Where the integers that are wanted stand among those that are given."""
    return tuple([given.index(n) for n in wanted])
