"""What earlier captures of a function have seen, said by names, so that a later process goes on from there: it makes a
symbol of what has changed in this one. None of it is relied on."""

from __future__ import annotations

import dataclasses
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import turns
from ..runtime.naming import Naming
from ..runtime.names import Binding, Name, Unbound, bind

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
        rows: what is kept about sources, packed: see ``_rows``. Only a capture asks for it.
        vary: whether sizes were others at a later capture; ``sizes_vary`` and ``lengths``: see ``Settings``.
        told: what branches on data were found to do: (place, what).
        turned: those where that has changed.
        assuming: whether assumptions are made.
    """

    captures: int
    rows: bytes
    vary: bool
    sizes_vary: bool
    lengths: tuple
    told: tuple
    turned: tuple
    assuming: bool


def history_of(missed: Missed, naming: Naming) -> History:
    """The history of a function."""
    dynamic, settings = missed.dynamic, missed.settings
    rows = zlib.compress(pickle.dumps(_rows(dynamic, naming), pickle.HIGHEST_PROTOCOL), 1)
    return History(len(missed.captures), rows, dynamic.tried.vary, settings.sizes_vary, tuple(settings.lengths),
                   tuple(dynamic.told.found.items()), tuple(dynamic.told.turned), missed.assuming)


def _rows(dynamic: Dynamic, naming: Naming) -> tuple:
    """(attribute, key, value) of each row of the tables of ``Dynamic``; (attribute, element) of each element of its
    sets; sources where there were several objects; what ``Tried.numbers`` holds. What has no name is left out."""

    def named(*parts: object) -> Iterator[tuple[Name, ...]]:
        turns.point()
        found = tuple(map(naming.data, parts))
        if not any(map(naming.why_not, found)):
            yield found

    tables = [(table, *names) for table in _TABLES
              for key, value in list(getattr(dynamic, table).items()) for names in named(key, _plain(value))]
    sets = [(table, *names) for table in _SETS for key in list(getattr(dynamic, table)) for names in named(key)]
    replaced = [names[0] for key, seen in list(dynamic.objects.items()) if seen is None for names in named(key)]
    numbers = [names[0] for key in list(dynamic.tried.numbers) for names in named(key)]
    return tuple(tables), tuple(sets), tuple(replaced), tuple(numbers)


def _plain(value: Any) -> object:
    """A value of a table as what can be named: a set as a frozenset."""
    return frozenset(value) if isinstance(value, set) else value


def adopt(history: History, missed: Missed) -> None:
    """Know what the history tells, where nothing else is known yet; of sources, from the next capture on
    (``recall``)."""
    dynamic: Dynamic = missed.dynamic
    missed.to_recall.append(history.rows)
    dynamic.tried.vary |= history.vary
    settings = missed.settings
    settings.sizes_vary |= history.sizes_vary
    settings.lengths.update(history.lengths)
    for place, what in history.told:
        dynamic.told.found.setdefault(place, what)
    dynamic.told.turned.update(history.turned)
    missed.assuming &= history.assuming


def recall(missed: Missed, given: Mapping[str, object]) -> None:
    """Know what the histories that were adopted tell of sources. What no name leads to any more is left out."""
    dynamic: Dynamic = missed.dynamic
    left, missed.to_recall = missed.to_recall, []
    for packed in left:
        binding = Binding(given)

        def found(names: Iterable[tuple], binding: Binding = binding) -> Iterator[tuple]:
            for attribute, *parts in names:
                try:
                    yield attribute, *[bind(part, binding) for part in parts]
                except Unbound:
                    pass

        tables, sets, replaced, numbers = pickle.loads(zlib.decompress(packed))
        for table, key, value in found(tables):
            getattr(dynamic, table).setdefault(key, set(value) if isinstance(value, frozenset) else value)
        for table, key in found(sets):
            getattr(dynamic, table).add(key)
        dynamic.objects.update((key, None) for _, key in found((None, name) for name in replaced))
        dynamic.tried.numbers.update(key for _, key in found((None, name) for name in numbers))
