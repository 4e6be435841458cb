"""The guards of one capture: facts about sources, recorded when they are used, translated to the native guard
program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import turns
from ..runtime.facts import Dims, Fact, GlobalState, Present
from .source import Source

if TYPE_CHECKING:
    from .size_facts import SizeFacts


class Guards:
    """All that one capture relies on: an append-only list of (source, ``jit.runtime.facts.Fact``) without repeats. What
    a step that was taken back has relied on stays: it has decided that.

    Attributes:
        sizes: what is relied on of symbols, a ``SizeFacts``.
        state: the fact about torch's own state; a part that few programs read is added to ``state.read`` where it is.
        fresh: slots whose contents are replaced all the time.
    """

    def __init__(self, sizes: SizeFacts) -> None:
        self.sizes = sizes
        self.state = GlobalState()
        self.fresh: set[Source] = set()
        self._rows: list[tuple] = []  # (source, fact)
        self._seen: set = set()
        self._kinds: set = set()
        self._reached: set = set()
        self._present: dict = {}

    def add(self, source: Source | None, fact: Fact) -> None:
        """Record a fact; a value without a source (made while capturing) needs none."""
        if source is None:
            return
        key = (source, type(fact), fact.key)
        if key not in self._seen:
            self._seen.add(key)
            self._kinds.add(key[:2])
            self._reached.add(source)
            self._rows.append((source, fact))

    def add_presence(self, source: Source | None) -> None:
        """Record that there is something at a source, such as an entry of a dict."""
        if source is not None:
            self._present[source] = True

    def has(self, source: Source, *kinds: type) -> bool:
        """Whether a fact of one of these classes is recorded for ``source``."""
        return any((source, kind) in self._kinds for kind in kinds)

    def reaches(self, source: Source) -> bool:
        """Whether any fact is recorded for ``source``, whose object is there if it holds."""
        return source in self._reached

    def __len__(self) -> int:
        return len(self._rows)

    def recorded(self) -> list[tuple]:
        """(source, fact) in the order of recording."""
        return [row for row in self._rows if row[0] is None or not getattr(row[0].root, "made", False)]

    def rows(self) -> list[tuple]:
        """What is recorded; last what follows from all of it."""
        rows = self.recorded()
        if self._present:
            reached: set[Source] = set()
            for source in self._reached:
                turns.point()
                for step in source.chain():
                    if step in reached:
                        break  # and so is what it is read from
                    reached.add(step)
            # Nothing else reaches these.
            rows += [(source, Present()) for source in self._present if source not in reached]
        return rows if self.sizes.is_empty else [*rows, (None, Dims(self.sizes))]

    def texts(self) -> list[str]:
        """The facts in words."""
        return [str(fact) if not fact.of_object else f"{source}: {fact}" for source, fact in self.rows()]

    def program(self) -> tuple[list, list]:
        """-> (accessors, checks), what the native guard program is made of: see ``jit.runtime.guards``."""
        index: dict[Source, int] = {}
        accessors: list[tuple] = []

        def locate(source: Source) -> int:
            at = index.get(source)
            if at is None:
                turns.point()
                parent = -1 if source.base is None else locate(source.base)
                kind, payload = source.step()
                if source in self.fresh:
                    kind = f"fresh_{kind}"
                at = index[source] = len(accessors)
                accessors.append((parent, kind, payload, source))
            return at

        shared: dict[tuple, Fact] = {}  # most facts are said of many sources

        checks = [(locate(source) if fact.of_object else -1, fact.kind, fact.payload(locate),
                   shared.setdefault(fact.identity, fact))
                  for source, fact in self.rows()]
        locate = None  # type: ignore[assignment]  # it refers to itself, and so to the program's objects
        return accessors, checks
