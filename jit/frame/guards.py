"""The guards of one capture: facts about sources, recorded when they are used, translated to the native guard
program."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import turns
from ..runtime.facts import Dims, Fact, GlobalState, Is, Present, identity
from .source import Source

if TYPE_CHECKING:
    from .size_facts import SizeFacts
    from .values.base import Value


class Compared(NamedTuple):
    """A number from outside was compared with another one, which is no number from outside."""

    operator: Callable[[Any, Any], bool]
    other: int
    on_the_right: bool
    found: bool

    def holds(self, number: object) -> bool:
        """Whether this number is one for which the same is found."""
        operands = (self.other, number) if self.on_the_right else (number, self.other)
        return type(number) is int and bool(self.operator(*operands)) == self.found


class Element(NamedTuple):
    """Which object it is was asked only to tell it from the other keys or elements of a dict or set, ``holder``, which
    was made while capturing. None: which was made in the call that asked."""

    holder: Value | None


class Heard:
    """What was asked of objects from outside, in the order of asking, with repeats.

    Attributes:
        facts: (source, fact).
        wrapped: (source, object) of those that have become values, or were met again.
        present: sources at which there was seen to be something.
        lengths: (source, number of elements).
        read_from: sources of which any other one was derived that is among these.
        asked_as: the number of a fact -> what it was asked for, if for no more: a list or dict, of which it says what
            is meant there, a ``Compared``, or an ``Element``.
    """

    def __init__(self) -> None:
        self.facts: list[tuple[Source, Fact]] = []
        self.wrapped: list[tuple[Source, Any]] = []
        self.present: list[Source] = []
        self.lengths: list[tuple[Source, int]] = []
        self.read_from: set[Source] = set()
        self.asked_as: dict[int, Any] = {}

    def hears(self, source: Source) -> None:
        """Something is asked about what is at a source."""
        known, base = self.read_from, source.base
        while base is not None and base not in known:
            known.add(base)
            base = base.base

    def counts(self) -> tuple[int, ...]:
        return len(self.facts), len(self.wrapped), len(self.present), len(self.lengths)


class _About(set):
    """What is recorded about one source: (class of the fact, its key). ``noted``: the facts, where they are
    remembered."""

    noted: list[Fact] | None = None


class Guards:
    """All that one capture relies on: an append-only list of (source, ``jit.runtime.facts.Fact``) without repeats. What
    a step that was taken back has relied on stays: it has decided that.

    Attributes:
        sizes: what is relied on of symbols, a ``SizeFacts``.
        state: the fact about torch's own state; a part that few programs read is added to ``state.read`` where it is.
        fresh: slots whose contents are replaced all the time.
        heard: what all that is recorded is added to, as often as it is; None while nothing is.
        makes_some: whether anything is said of what is made while capturing, as each call of the program makes it.
    """

    makes_some = False

    def __init__(self, sizes: SizeFacts) -> None:
        self.sizes = sizes
        self.state = GlobalState()
        self.fresh: set[Source] = set()
        self._rows: list[tuple] = []  # (source, fact)
        self._about: dict[Source, _About] = {}
        self._present: dict = {}
        self._pins: dict[int, Is] = {}  # id of an object -> the fact that it is this one
        self.heard: Heard | None = Heard()
        self._begun: _Program | None = None

    def add(self, source: Source | None, fact: Fact) -> None:
        """Record a fact; a value without a source (made while capturing) needs none."""
        if source is None:
            return
        if self.heard is not None:
            self.heard.facts.append((source, fact))
            self.heard.hears(source)
        self._record(self._about_source(source), source, fact, (type(fact), fact.key))

    def pin(self, source: Source | None, obj: object) -> None:
        """Record that it is this object. Functions, classes and modules are asked for again and again."""
        if source is None:
            return
        known = self._pins.get(id(obj))
        fact = identity(obj) if known is None or known.object is not obj else known
        if isinstance(fact, Is):
            self._pins[id(obj)] = fact
        self.add(source, fact)

    def _about_source(self, source: Source) -> _About:
        about = self._about.get(source)
        if about is None:
            about = self._about[source] = _About()
        return about

    def _record(self, about: _About, source: Source, fact: Fact, key: tuple) -> None:
        if key not in about:
            about.add(key)
            self._rows.append((source, fact))
            if about.noted is not None:
                about.noted.append(fact)

    def add_all(self, groups: list[tuple[Source, list[Fact], list[tuple]]], read_from: list[Source]) -> None:
        """``add``, of many: (source, different facts, the class and the key of each). ``read_from``: what the sources
        are read from."""
        heard, known, recorded = self.heard, self._about, self._rows
        if heard is not None:
            heard.read_from.update(read_from)
        for source, found, keys in groups:
            rows = [(source, fact) for fact in found]
            if heard is not None:
                heard.facts += rows
            about = known.get(source)
            if about is None:
                known[source] = _About(keys)
                recorded += rows
                continue
            for fact, key in zip(found, keys):
                self._record(about, source, fact, key)

    def add_presence(self, source: Source | None) -> None:
        """Record that there is something at a source, such as an entry of a dict."""
        if source is not None:
            self._present[source] = True
            if self.heard is not None:
                self.heard.present.append(source)
                self.heard.hears(source)

    def note(self, source: Source) -> None:
        """Remember the facts about what is at a source, of which none is recorded so far."""
        about = self._about_source(source)
        if not about:
            about.noted = []

    def noted(self, source: Source) -> list[Fact] | None:
        """The facts about what is at a source; None where they are not remembered."""
        about = self._about.get(source)
        return None if about is None else about.noted

    def known(self, source: Source, fact: Fact) -> bool:
        """Whether this fact is recorded."""
        return (type(fact), fact.key) in self._about.get(source, ())

    @contextlib.contextmanager
    def asked_as(self, use: Any) -> Iterator[None]:
        """What is asked inside is asked for no more than this: see ``Heard``."""
        start = 0 if self.heard is None else len(self.heard.facts)
        yield
        if self.heard is not None:
            self.heard.asked_as.update(dict.fromkeys(range(start, len(self.heard.facts)), use))

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Nothing is added to ``heard`` inside."""
        heard, self.heard = self.heard, None
        try:
            yield
        finally:
            self.heard = heard

    def has(self, source: Source, *kinds: type) -> bool:
        """Whether a fact of one of these classes is recorded for ``source``."""
        return any(kind in kinds for kind, _ in self._about.get(source, ()))

    def reaches(self, source: Source) -> bool:
        """Whether any fact is recorded for ``source``, whose object is there if it holds."""
        return bool(self._about.get(source))

    def __len__(self) -> int:
        return len(self._rows)

    def recorded(self) -> list[tuple]:
        """(source, fact) in the order of recording."""
        if not self.makes_some:
            return list(self._rows)
        return [row for row in self._rows if row[0] is None or not getattr(row[0].root, "made", False)]

    def rows(self) -> list[tuple]:
        """What is recorded; last what follows from all of it."""
        rows = self.recorded()
        if self._present:
            reached: set[Source] = set()
            seen: set[int] = set()
            for source in [source for source, about in self._about.items() if about]:
                turns.point()
                step: Source | None = source
                while step is not None and id(step) not in seen:  # else what it is read from has been seen as well
                    seen.add(id(step))
                    reached.add(step)
                    step = step.base
            # Nothing else reaches these.
            rows += [(source, Present()) for source in self._present if source not in reached]
        return rows if self.sizes.is_empty else [*rows, (None, Dims(self.sizes))]

    def of_kinds(self, *kinds: type) -> list[tuple]:
        """(source, fact) of the facts of these classes alone."""
        return [row for row in self._rows if type(row[1]) in kinds]

    def texts(self) -> list[str]:
        """The facts in words."""
        return [str(fact) if not fact.of_object else f"{source}: {fact}" for source, fact in self.rows()]

    def prepare(self) -> None:
        """Do now what ``program`` does for the facts so far."""
        self._begun = _Program(self.fresh)
        self._begun.add(self.recorded())

    def program(self) -> tuple[list, list]:
        """-> (accessors, checks), what the native guard program is made of: see ``jit.runtime.guards``."""
        begun, self._begun = self._begun, None
        rows = self.rows()
        if begun is None or not begun.goes_on(rows, self.fresh):
            begun = _Program(self.fresh)
        begun.add(rows[len(begun.rows):])
        begun.end()
        return begun.accessors, begun.checks


class _Program:
    """A guard program that is being written."""

    def __init__(self, fresh: set[Source]) -> None:
        self.fresh = frozenset(fresh)
        self.index: dict[Source, int] = {}
        self.known: dict[int, tuple[int, Source]] = {}  # the same by id, which needs no hash of a chain
        self.shared: dict[tuple, Fact] = {}  # most facts are said of many sources
        self.same: dict[int, Fact] = {}  # the one that stands for a fact, by its id
        self.rows: list[tuple] = []
        self.accessors: list[tuple] = []
        self.checks: list[tuple] = []

    def goes_on(self, rows: list[tuple], fresh: set[Source]) -> bool:
        """Whether what is written so far is how a program of these rows begins."""
        return len(fresh) == len(self.fresh) and all(map(operator.is_, self.rows, rows)) and len(rows) >= len(self.rows)

    def add(self, rows: list[tuple]) -> None:
        locate, known, same = self.locate, self.known, self.same
        self.rows += rows  # which keeps all of them
        for source, fact in rows:
            if not fact.of_object:
                self.checks.append(())
                continue
            at = known.get(id(source))
            stands_for = same.get(id(fact))
            if stands_for is None:
                stands_for = same[id(fact)] = self.shared.setdefault(fact.identity, fact)
            self.checks.append((locate(source) if at is None else at[0], fact.kind, fact.payload(locate), stands_for))

    def end(self) -> None:
        """Add what is said of no object: of the state that all share, which is read now, and of sizes."""
        for k, (_, fact) in enumerate(self.rows):
            if not fact.of_object:
                self.checks[k] = -1, fact.kind, fact.payload(self.locate), self.shared.setdefault(fact.identity, fact)

    def locate(self, source: Source) -> int:
        """The place of the accessor that reads a source."""
        found = self.known.get(id(source))
        if found is not None:
            return found[0]
        at = self.index.get(source)
        if at is None:
            turns.point()
            parent = -1 if source.base is None else self.locate(source.base)
            kind, payload = source.step()
            if source in self.fresh:
                kind = f"fresh_{kind}"
            at = self.index[source] = len(self.accessors)
            self.accessors.append((parent, kind, payload, source))
        self.known[id(source)] = at, source
        return at
