"""What earlier captures of a function have seen, said by names, so that a later process goes on from there: it makes a
symbol of what has changed in this one. None of it is relied on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..runtime.names import Binding, Name, Naming, bind

if TYPE_CHECKING:
    from .dispatch import Missed
    from .dynamic import Dynamic

# Attributes of ``Dynamic`` that are tables by sources.
_TABLES = ("sizes", "strides", "learns", "positions", "integers", "floats", "facts")
_SETS = ("negative", "long", "mixed")


@dataclasses.dataclass(frozen=True)
class History:
    """Attributes:
        captures: how many there were.
        tables: (attribute, key, value) of each row of the tables of ``Dynamic``.
        sets: (attribute, element) of each element of its sets.
        replaced: sources where there were several objects.
        numbers: what ``Tried.numbers`` holds.
        vary: whether sizes were others at a later capture; ``sizes_vary`` and ``lengths``: see ``Settings``.
        told: what branches on data were found to do: (place, what).
        turned: those where that has changed.
        assuming: whether assumptions are made.
    """

    captures: int
    tables: tuple[tuple[str, Name, Name], ...]
    sets: tuple[tuple[str, Name], ...]
    replaced: tuple[Name, ...]
    numbers: tuple[Name, ...]
    vary: bool
    sizes_vary: bool
    lengths: tuple
    told: tuple
    turned: tuple
    assuming: bool


def history_of(missed: Missed, naming: Naming) -> History:
    """The history of a function. What has no name is left out."""
    dynamic = missed.dynamic

    def named(*parts: object) -> Iterator[tuple[Name, ...]]:
        found = tuple(map(naming.data, parts))
        if not any(name.why_not() for name in found):
            yield found

    tables = [(table, *names) for table in _TABLES
              for key, value in list(getattr(dynamic, table).items()) for names in named(key, _plain(value))]
    sets = [(table, *names) for table in _SETS for key in list(getattr(dynamic, table)) for names in named(key)]
    replaced = [names[0] for key, seen in list(dynamic.objects.items()) if seen is None for names in named(key)]
    numbers = [names[0] for key in list(dynamic.tried.numbers) for names in named(key)]
    settings = missed.settings
    return History(len(missed.captures), tuple(tables), tuple(sets), tuple(replaced), tuple(numbers),
                   dynamic.tried.vary, settings.sizes_vary, tuple(settings.lengths),
                   tuple(dynamic.told.found.items()), tuple(dynamic.told.turned), missed.assuming)


def _plain(value: Any) -> object:
    """A value of a table as what can be named: a set as a frozenset."""
    return frozenset(value) if isinstance(value, set) else value


def adopt(history: History, missed: Missed, given: Binding) -> None:
    """Know what the history tells, where nothing else is known yet. Raises Unbound."""
    dynamic: Dynamic = missed.dynamic
    for table, key, value in history.tables:
        found = bind(value, given)
        getattr(dynamic, table).setdefault(bind(key, given), set(found) if isinstance(found, frozenset) else found)
    for table, key in history.sets:
        getattr(dynamic, table).add(bind(key, given))
    dynamic.objects.update((bind(key, given), None) for key in history.replaced)
    dynamic.tried.numbers.update(bind(key, given) for key in history.numbers)
    dynamic.tried.vary |= history.vary
    settings = missed.settings
    settings.sizes_vary |= history.sizes_vary
    settings.lengths.update(history.lengths)
    for place, what in history.told:
        dynamic.told.found.setdefault(place, what)
    dynamic.told.turned.update(history.turned)
    missed.assuming &= history.assuming
