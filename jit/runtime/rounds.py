"""Loops whose number of rounds data or sizes decide, and branches, as steps of a plan: what does a round, or one way of
a branch, by name.

``jit::run_loop`` (``native/rounds.cpp``) is given a name, whether there is a first round, what is carried from round to
round, the other tensors that a round reads, and integers; ``jit::run_scan`` the tensors of which each round has a part;
``jit::run_branch`` the names of its two ways, which of them is taken, the tensors that they read, and integers. They
call what stands in the native table under the name: at first the round's graph as Python, once the graph around it is
compiled a plan.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jit.runtime import native
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Unnameable, rule

LOOP, SCAN, BRANCH = "jit::run_loop", "jit::run_scan", "jit::run_branch"

_numbers = itertools.count(1)


class RoundName(str):
    """The name of a round, which other processes do not have. ``graph``: what it computes; ``function``: that as
    Python; ``integers``: the symbols of the operator's integers; ``wanted``: those that ``function`` takes;
    ``compiled``: whether there is a plan of it."""

    graph: Any
    function: Callable
    integers: tuple[str, ...]
    wanted: tuple[str, ...]
    compiled = False


@rule(RoundName)
def _name_of_name(naming: Naming, name: RoundName) -> Name:
    return Unnameable("a loop whose rounds are compiled in this process")


def define(graph: Any, function: Callable, wanted: Sequence[str], integers: Sequence[str]) -> RoundName:
    """A new name for a round, which ``function`` does as ``graph`` says: from tensors and those of the operator's
    ``integers`` that are ``wanted`` it gives what is carried on, and whether there is another round or the round's
    results."""
    name = RoundName(f"round {next(_numbers)}")
    name.graph, name.integers, name.wanted, name.function = graph, tuple(integers), tuple(wanted), function
    native().define_round(str(name), function, range_of(name.integers, wanted))
    return name


def compiled(name: RoundName, call: Callable, integers: Sequence[str]) -> None:
    """``call`` does the round from here on, as long as there is somebody who knows its name."""
    positions = range_of(name.integers, integers)
    native().define_round(str(name), call, positions)
    name.compiled = True
    # The text's function stays, for whoever has the name in a text; the kernels go.
    function, wanted = name.function, range_of(name.integers, name.wanted)
    weakref.finalize(name, native().define_round, str(name), function, wanted).atexit = False


def range_of(given: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    """Where the integers that are wanted stand among those that are given."""
    return tuple([given.index(n) for n in wanted])
