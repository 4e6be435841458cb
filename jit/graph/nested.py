"""Walks over the arguments and results of calls: what lies in lists, tuples, dictionaries and slices, however deep.

Everything else is a leaf, also a tensor and a text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Callable

Kind = type | tuple[type, ...]


def _parts(v: Any) -> Iterable | None:
    """What lies in a container; None of a leaf."""
    if isinstance(v, (list, tuple)):
        return v
    if type(v) is slice:  # which no class is derived from
        return v.start, v.stop, v.step
    return v.values() if isinstance(v, dict) else None


def _like(v: Any, parts: list) -> Any:
    """A container such as ``v`` of other parts. Named tuples have ``_make`` for that."""
    kind = type(v)
    if kind is tuple or kind is list:
        return kind(parts)
    if isinstance(v, dict):
        return dict(zip(v, parts))
    return slice(*parts) if kind is slice else getattr(v, "_make", kind)(parts)


def mapped(fn: Callable, v: Any) -> Any:
    """The same containers with ``fn(leaf)`` for each leaf."""
    parts = _parts(v)
    return fn(v) if parts is None else _like(v, [mapped(fn, e) for e in parts])


def replaced(kind: Kind, fn: Callable, v: Any) -> Any:
    """The same containers with ``fn(e)`` for each ``e`` of a type in them."""
    if isinstance(v, kind):
        return fn(v)
    parts = _parts(v)
    return v if parts is None else _like(v, [replaced(kind, fn, e) for e in parts])


def frozen(kind: Kind, fn: Callable, v: Any) -> Any:
    """As ``replaced``, with tuples in the place of lists."""
    return tuple([frozen(kind, fn, e) for e in v]) if several(v) is v else replaced(kind, fn, v)


def key(fn: Callable, v: Any) -> Hashable:
    """What tells one value from another, where ``fn(leaf)`` does so for leaves."""
    parts = _parts(v)
    if parts is None:
        return fn(v)
    return (type(v), *[key(fn, e) for e in parts], *(v if isinstance(v, dict) else ()))


def of_kind(kind: Kind, v: Any) -> Iterator:
    """What is of a type, in order."""
    found: list = []
    _collect(kind, v, found)
    return iter(found)


def _collect(kind: Kind, v: Any, found: list) -> None:
    if isinstance(v, kind):
        found.append(v)
    else:
        for e in _parts(v) or ():
            _collect(kind, e, found)


def holds(kind: Kind, v: Any) -> bool:
    """Whether there is something of a type."""
    found: list = []
    _collect(kind, v, found)
    return bool(found)


def several(v: Any) -> list | tuple:
    """A list or tuple as it is, anything else as a tuple of one."""
    return v if isinstance(v, (list, tuple)) else (v,)


def unpacked(given: tuple) -> list | tuple:
    """Arguments of which PyTorch takes one by one what it also takes as one list: ``f(2, 3)`` and ``f([2, 3])``."""
    return several(given[0]) if len(given) == 1 else given


def refilled(v: Any, parts: list) -> Any:
    """What ``several`` gives ``parts`` of: the one that it is, or a container such as ``v``."""
    return _like(v, parts) if several(v) is v else parts[0]
