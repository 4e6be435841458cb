"""What the program has set of an object's attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .base import births

if TYPE_CHECKING:
    from ..session import Session
    from .base import Value

DELETED = object()


class Overlay(dict):
    """What the program has set of an object's attributes, by name, in the order in which the object's dictionary has
    them; DELETED for what it has deleted.

    Attributes:
        deleted: what was deleted at some time, also where it was set anew: it has lost its place.
    """

    deleted: frozenset = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.born = births()

    def put(self, s: Session, name: str, value: Value) -> None:
        if self.get(name) is DELETED:
            s.journal.drop_entry(self, name)
        s.set_entry(self, name, value)

    def delete(self, s: Session, name: str) -> None:
        s.set_field(self, "deleted", self.deleted | {name})
        s.set_entry(self, name, DELETED)

    def names(self, real: Iterable[str]) -> list[str]:
        """The names of all attributes, in order, of an object that has had these before."""
        kept = [n for n in real if n not in self.deleted]
        return kept + [n for n, v in self.items() if v is not DELETED and n not in kept]
