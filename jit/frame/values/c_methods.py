"""Methods of builtin containers that are written in C: the table of those that are followed, and how many arguments
each takes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Callable

from .base import Raised

if TYPE_CHECKING:
    from ..session import Session
    from .base import Value

METHODS: dict = {}


def method(cls, *names: str) -> Callable:
    """Register the implementation of C methods of a builtin class: ``fn(value, s, args, kwargs) -> Value``."""

    def register(fn: Callable) -> Callable:
        for name in names:
            METHODS[cls, name] = fn
        return fn

    return register


_ARITIES = {**dict.fromkeys(("items", "keys", "values", "popitem", "copy", "clear"), (0, 0)),
            **dict.fromkeys(("add", "discard", "remove", "isdisjoint", "issubset", "issuperset"), (1, 1))}


@functools.lru_cache(1024)
def arity(raw: object) -> tuple:
    """The least and the most positional arguments of a C method that takes no others; (0, None) where it may, or does
    not say."""
    known = _ARITIES.get(raw.__name__)
    if raw is set.pop:
        return 0, 0
    if known is not None and raw.__objclass__ in (dict, set, frozenset):
        return known
    try:
        parameters = list(inspect.signature(raw).parameters.values())[1:]
    except ValueError:
        return 0, None
    if any(p.kind is not p.POSITIONAL_ONLY for p in parameters):
        return 0, None
    return sum(p.default is p.empty for p in parameters), len(parameters)


def refuse_arguments(s: Session, raw: object, given: int, kwargs: dict[str, Value]) -> None:
    """Raise the program's TypeError about the number of arguments: an empty object of the class says it."""
    try:
        raw(raw.__objclass__(), *[None] * given, **dict.fromkeys(kwargs))
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    except Exception:  # of the values
        pass
