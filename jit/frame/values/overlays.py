"""What the program has set of an object's attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .base import births

if TYPE_CHECKING:
    from ..given import Given
    from ..session import Session
    from .base import Value

DELETED = object()


class Overlay(dict):
    """What the program has set of an object's attributes, by name, in the order in which the object's dictionary has
    them; DELETED for what it has deleted.

    Attributes:
        outside: whether the object was there before.
        deleted: what was deleted at some time, also where it was set anew: it has lost its place.
        watched: by whom each reading is noted.
    """

    deleted: frozenset = frozenset()
    watched: tuple[Given, ...] = ()

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.born, self.outside = births(), outside

    def get(self, name: str, default: object = None) -> Any:
        found = dict.get(self, name, default)
        for given in self.watched:
            given.reads(self, "attribute", name, found)
        return found

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> Any:
        self.get(name)
        return dict.__getitem__(self, name)

    def outline(self) -> tuple:
        """The names, and which of them are deleted."""
        found = tuple([(name, v is DELETED) for name, v in dict.items(self)])
        for given in self.watched:
            given.reads(self, "names", None, found)
        return found

    def __iter__(self) -> Iterator[str]:
        self.outline()
        return dict.__iter__(self)

    def __len__(self) -> int:
        self.outline()
        return dict.__len__(self)

    def keys(self) -> Any:
        self.outline()
        return dict.keys(self)

    def items(self) -> Any:
        return {name: self[name] for name in self.keys()}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self.keys()}.values()

    def put(self, s: Session, name: str, value: Value) -> None:
        for given in self.watched:
            given.writes(self, name)
        if dict.get(self, name) is DELETED:
            s.journal.drop_entry(self, name)
        s.set_entry(self, name, value)

    def delete(self, s: Session, name: str) -> None:
        for given in self.watched:
            given.writes(self, name)
        s.set_field(self, "deleted", self.deleted | {name})
        s.set_entry(self, name, DELETED)

    def names(self, real: Iterable[str]) -> list[str]:
        """The names of all attributes, in order, of an object that has had these before."""
        kept = [n for n in real if n not in self.deleted]
        return kept + [n for n, is_deleted in self.outline() if not is_deleted and n not in kept]
