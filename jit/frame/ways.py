"""Branches on tensor values that always go the same way, such as ``if error == 0`` in a solver, or ``assert a or b``.

A branch on the values of a tensor breaks the graph. The code of the break notes which way the program goes. Once it
has gone one way ``CALLS`` times and never the other, the entry is taken back, and what is captured next goes on along
that way as an assumption (``assumptions.py``): the condition is checked behind the graph, and a call for which it does
not hold is done in eager. Where the program comes to go the other way after all, the entry is taken back once more, and
breaks at its branches until it is known again which of them go one way.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..runtime.naming import Naming
from ..runtime.names import Given, Name, Value, calling, rule
from .watching import Watching

if TYPE_CHECKING:
    import types

    from .canonical import Instr
    from .dispatch import Settings

CALLS = 32
BRANCHES = ("next", "jumped")
_MOST = 3


class Ways:
    """How often the program was seen to go each way at one branch, and how often an entry that assumed the usual way
    of it, among others perhaps, was taken back."""

    def __init__(self, place: tuple = ()) -> None:
        self.place = place
        self.seen = dict.fromkeys(BRANCHES, 0)
        self.failures = 0

    def forget(self) -> None:
        """An assumption has failed, of this branch or another one in the same entry: look again which it is."""
        self.seen = dict.fromkeys(BRANCHES, 0)
        self.failures += 1

    def usual(self) -> str | None:
        """The way that it always goes, or None."""
        there = [way for way in BRANCHES if self.seen[way]]
        return there[0] if len(there) == 1 and self.failures < _MOST and self.seen[there[0]] >= CALLS else None


class Known:
    """The branches of the functions of one ``jit.compile``: a branch is known by where its text stands, which what goes
    on after a break shares with the function."""

    def __init__(self) -> None:
        self.branches: dict[tuple, Ways] = {}
        # Place and grad mode -> why its ways cannot be followed both, and what to do about it (both_ways.py).
        self.apart: dict[tuple, tuple[str, str]] = {}

    def at(self, code: types.CodeType, instr: Instr) -> Ways:
        return self.of(place_of(code, instr))

    def of(self, place: tuple) -> Ways:
        return self.branches.setdefault(place, Ways(place))


def place_of(code: types.CodeType, instr: Instr) -> tuple:
    """What a branch is known by."""
    return code.co_filename, code.co_name, instr.op, instr.line, instr.positions


class Learner(Watching):
    """Of one entry that breaks at a branch: takes it back once it is known which way the program goes. ``missed`` and
    ``dispatcher`` are those of the entry."""

    def __init__(self, ways: Ways) -> None:
        self.ways, self.calls = ways, 0
        self.missed, self.dispatcher = None, None

    def watch(self, missed, dispatcher, entry) -> None:
        self.missed, self.dispatcher, entry.learner = weakref.ref(missed), weakref.ref(dispatcher), self

    def saw(self, way: str) -> None:
        self.ways.seen[way] += 1
        self.calls += 1
        if self.calls == CALLS and self.ways.usual() is not None:
            self.take_back()

    def take_back(self) -> None:
        missed, dispatcher = self.missed and self.missed(), self.dispatcher and self.dispatcher()
        if missed is None or dispatcher is None or not missed.may_take_back():
            return
        for entry in dispatcher.entries:
            if getattr(entry, "learner", None) is self:
                file, _, _, line = self.ways.place[:4]
                missed.takes_back(f"the branch at {file}:{line} has gone one way at all of {CALLS} calls: what is "
                                  "compiled now goes on along it", "nothing needs to be done")
                missed.retired = entry
                dispatcher.remove_entry(entry)


class Seen:
    """Called by the rewritten function where the program goes one of the ways."""

    def __init__(self, learner: Learner | None = None, way: str = "") -> None:
        self.learner, self.way = learner, way

    def __call__(self) -> None:
        if self.learner is not None:
            self.learner.saw(self.way)


def learner_of(settings: Settings, place: tuple) -> Learner:
    """A Learner of what it is written as."""
    return Learner(settings.ways.of(place))


@rule(Learner)
def _name_of_learner(naming: Naming, learner: Learner) -> Name:
    return calling(learner_of, Given("settings"), Value(learner.ways.place))  # what it has learned is its process's own


@rule(Seen)
def _name_of_seen(naming: Naming, seen: Seen) -> Name:
    return calling(Seen, naming.name(seen.learner), Value(seen.way))
