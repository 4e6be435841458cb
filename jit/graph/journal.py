"""The undo of a capture. Following a program changes values, lists and tables of ours; a step that cannot be captured
is taken back as if it had not been tried, and so is one way of doing a thing when another one is taken.

This is the only mechanism for that. Each part of a capture (sizes, the tracer, the session) owns a ``Journal`` and says
to it once what it has: containers to which is only added, numbers and flags that change all the time, and the journals
of the parts below. All else that changes is changed through the journal.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterator


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT = _Absent()  # what a mapping held where there was no entry
_registrations = itertools.count(1)


class _Changes(list):
    """What was changed. ``cuts``: the lengths to which a rollback has cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[int] = []


class Journal:
    """Takes back what was changed since a checkpoint."""

    _latest = 0  # the number of the last registration of any journal

    def __init__(self) -> None:
        self._changes = _Changes()  # (holder, name or key, what was there, whether it is an entry)
        self._grown: list = []
        self._fields: list[tuple] = []  # (holder, names, what reads them)
        self._parts: list[Journal] = []
        self._all: tuple = ()  # of itself and its parts, as ``_collected`` gives it
        self._as_of = -1

    # -- what is registered once --------------------------------------------------------------------------------------

    def grows(self, *containers: object) -> None:
        """Lists and dicts to which is only added: a rollback cuts them to the length that they had."""
        self._grown += containers
        self._registered()

    def saves(self, holder, *names: object) -> None:
        """Attributes of one object that change too often to be noted one by one: each checkpoint keeps their values."""
        self._fields.append((holder, names, operator.attrgetter(*names)))
        self._registered()

    def includes(self, journal: Journal) -> None:
        """A checkpoint of this journal is one of that part's too."""
        self._parts.append(journal)
        self._registered()

    @staticmethod
    def _registered() -> None:
        """What checkpoints keep is another from here on. Parts know nothing of what includes them, so all are told."""
        Journal._latest = next(_registrations)

    def _collected(self) -> tuple[list, list, list]:
        """The changes, containers and fields of this journal and of its parts, its own first."""
        changes, grown, fields = [self._changes], list(self._grown), list(self._fields)
        for part in self._parts:
            for held, more in zip((changes, grown, fields), part._collected()):
                held += more
        return changes, grown, fields

    # -- what is changed ----------------------------------------------------------------------------------------------

    def set_field(self, holder, name: str, value):
        """Assign an attribute. Returns the new value."""
        self._changes.append((holder, name, getattr(holder, name), False))
        setattr(holder, name, value)
        return value

    def set_entry(self, mapping, key, value) -> None:
        """Assign an entry of a dict or list."""
        old = mapping.get(key, ABSENT) if isinstance(mapping, dict) else mapping[key]
        self._changes.append((mapping, key, old, True))
        mapping[key] = value

    def drop_entry(self, mapping: dict, key) -> None:
        """Delete an entry of a dict."""
        self._changes.append((mapping, key, mapping.pop(key, ABSENT), True))

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> tuple:
        """A mark for ``rollback``."""
        # Taken before each instruction: hence no call for each part, and no Python code for each of the things.
        if self._as_of != self._latest:
            self._all, self._as_of = self._collected(), self._latest
        changes, grown, fields = self._all
        return (self._all, list(map(len, changes)), list(map(len, grown)),
                [read(holder) for holder, _, read in fields])

    def rollback(self, mark: tuple) -> None:
        """Return to the state at a checkpoint."""
        (all_changes, grown, fields), counts, lengths, values = mark
        for changes, count in zip(all_changes, counts):
            if len(changes) > count:
                changes.cuts.append(count)
            while len(changes) > count:
                holder, key, old, is_entry = changes.pop()
                if not is_entry:
                    setattr(holder, key, old)
                elif old is ABSENT:
                    holder.pop(key, None)
                else:
                    holder[key] = old
        for container, length in zip(grown, lengths):
            _cut(container, length)
        for (holder, names, _), known in zip(fields, values):
            for name, value in zip(names, known if len(names) > 1 else (known,)):
                setattr(holder, name, value)

    def watch(self) -> Watch:
        """What is noted from here on."""
        return Watch(self._changes)

    def changes_since(self, mark: tuple) -> list:
        """(holder, name or key, what was there) of each change that a rollback to ``mark`` would take back, the first
        one first."""
        return [change[:3] for change in self._changes[mark[1][0]:]]

    @contextlib.contextmanager
    def trial(self):
        """What is changed inside is taken back at the end."""
        mark = self.checkpoint()
        try:
            yield mark
        finally:
            self.rollback(mark)

    @contextlib.contextmanager
    def temporarily(self, holder, name: str, value) -> Iterator[None]:
        """An attribute has another value inside."""
        before = getattr(holder, name)
        self.set_field(holder, name, value)
        try:
            yield
        finally:
            self.set_field(holder, name, before)

    def clear(self) -> None:
        """Let go of all objects; there is no way back any more."""
        for held in (self._changes, self._grown, self._fields, self._parts):
            held.clear()
        self._all, self._as_of = (), -1


class Watch:
    """What a journal, without its parts, notes from some point on."""

    def __init__(self, changes: _Changes) -> None:
        self._changes, self._start, self._at, self._cuts = changes, len(changes), len(changes), len(changes.cuts)
        self._gone = False

    def new(self) -> list[tuple] | None:
        """(holder, name or key, what was there, whether it is an entry) of each change since this was last asked. None
        where what was noted before that point has been taken back since."""
        cuts = self._changes.cuts[self._cuts:]
        if cuts:
            self._cuts += len(cuts)
            self._at = min(self._at, *cuts)
            self._gone |= self._at < self._start
        if self._gone:
            return None
        found = self._changes[self._at:]
        self._at = len(self._changes)
        return found


def _cut(container, length: int) -> None:
    if isinstance(container, list):
        del container[length:]
    else:
        while len(container) > length:
            container.popitem()
