"""The undo of a capture. Following a program changes values, lists and tables of ours; a step that cannot be captured
is taken back as if it had not been tried, and so is one way of doing a thing when another one is taken.

This is the only mechanism for that. Each part of a capture (sizes, the tracer, the session) owns a ``Journal`` and says
to it once what it has: containers to which is only added, numbers and flags that change all the time, and the journals
of the parts below. All else that changes is changed through the journal.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT = _Absent()  # what a mapping held where there was no entry


class Journal:
    """Takes back what was changed since a checkpoint."""

    def __init__(self) -> None:
        self._changes: list[tuple] = []  # (holder, name or key, what was there, whether it is an entry)
        self._grown: list = []
        self._fields: list[tuple] = []  # (holder, names, what reads them)
        self._parts: list[Journal] = []

    # -- what is registered once --------------------------------------------------------------------------------------

    def grows(self, *containers: object) -> None:
        """Lists and dicts to which is only added: a rollback cuts them to the length that they had."""
        self._grown += containers

    def saves(self, holder, *names: object) -> None:
        """Attributes of one object that change too often to be noted one by one: each checkpoint keeps their values."""
        self._fields.append((holder, names, operator.attrgetter(*names)))

    def includes(self, journal: Journal) -> None:
        """A checkpoint of this journal is one of that part's too."""
        self._parts.append(journal)

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
        # Taken before each instruction: hence no Python code for each of the things.
        return (len(self._changes), list(map(len, self._grown)), [read(holder) for holder, _, read in self._fields],
                [part.checkpoint() for part in self._parts] if self._parts else ())

    def rollback(self, mark: tuple) -> None:
        """Return to the state at a checkpoint."""
        changes, lengths, values, parts = mark
        while len(self._changes) > changes:
            holder, key, old, is_entry = self._changes.pop()
            if not is_entry:
                setattr(holder, key, old)
            elif old is ABSENT:
                holder.pop(key, None)
            else:
                holder[key] = old
        for container, length in zip(self._grown, lengths):
            _cut(container, length)
        for (holder, names, _), known in zip(self._fields, values):
            for name, value in zip(names, known if len(names) > 1 else (known,)):
                setattr(holder, name, value)
        for part, before in zip(self._parts, parts):
            part.rollback(before)

    def changes_since(self, mark: tuple) -> list:
        """(holder, name or key, what was there) of each change that a rollback to ``mark`` would take back, the first
        one first."""
        return [change[:3] for change in self._changes[mark[0]:]]

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


def _cut(container, length: int) -> None:
    if isinstance(container, list):
        del container[length:]
    else:
        while len(container) > length:
            container.popitem()
