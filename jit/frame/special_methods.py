"""The methods that ``with`` and ``async with`` call, as CPython finds them from 3.14 on: one by one, in the class."""

from __future__ import annotations

import inspect

from .messages import full_name

_PAIRS = {"with": ("__enter__", "__exit__"), "async with": ("__aenter__", "__aexit__")}
_PROTOCOLS = {"with": "the context manager protocol", "async with": "the asynchronous context manager protocol"}


def other_pair(name: str) -> tuple[str, str]:
    """The methods of the other statement than that of the method ``name``."""
    return _PAIRS["with" if name in _PAIRS["async with"] else "async with"]


def missing(cls: type, name: str, has_others: bool) -> str:
    """What CPython says where a class lacks a method. ``has_others``: it has those of the other statement."""
    statement, other = ("with", "async with") if name in _PAIRS["with"] else ("async with", "with")
    text = f"'{full_name(cls)}' object does not support {_PROTOCOLS[statement]} (missed {name} method)"
    return text + (f" but it supports {_PROTOCOLS[other]}. Did you mean to use '{other}'?" if has_others else "")


def bound(owner: object, name: str) -> object:
    """The method ``name`` of an object's class, bound to it.

    Raises:
        TypeError: where the class has none.
    """
    cls, absent = type(owner), object()
    raw = inspect.getattr_static(cls, name, absent)
    if raw is absent:
        others = (inspect.getattr_static(cls, n, absent) is not absent for n in other_pair(name))
        raise TypeError(missing(cls, name, all(others)))
    get = getattr(type(raw), "__get__", None)
    return raw if get is None else get(raw, owner, cls)
