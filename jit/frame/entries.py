"""What compiled functions have: their entries, and why they were compiled again."""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple

from . import dispatch


def why_again(fn: Any) -> list[tuple[str, dispatch.Again]]:
    """(name of a function, why it was compiled again) of a compiled function or module, and of what goes on behind its
    graph breaks."""
    _, missed = dispatch.known(fn)
    return why_again_under(missed.settings) if missed else []


def why_again_under(settings: dispatch.Settings) -> list[tuple[str, dispatch.Again]]:
    """The same of all that is compiled with these settings."""
    return [(_name(d), again) for d, m in dispatch.under(settings) for again in m.again]


def _name(dispatcher: Any) -> str:
    return dispatch.user_code(dispatch.wrapped_function(dispatcher)).co_qualname


class Held(NamedTuple):
    """An entry that a compiled function has: the calls that it has served, and what differs from it in a given call
    ("": it would serve that; None: what goes on behind a graph break is not asked)."""

    function: str
    number: int
    calls: int
    differs: str | None


def held_by(fn: Any, args: tuple, kwargs: dict[str, object]) -> list[Held]:
    """The entries of a compiled function or module, and of what goes on behind its breaks, asked for a call with these
    arguments."""
    dispatcher, missed = dispatch.known(fn)
    if not missed:
        return []
    own = () if dispatcher is fn else (fn.__self__ if isinstance(fn, types.MethodType) else fn,)
    values = _locals_of(dispatch.wrapped_function(dispatcher), (*own, *args), kwargs)
    found = []
    for d, _ in dispatch.under(missed.settings):
        for number, entry in enumerate(d.entries):
            differs = None
            if d is dispatcher and values is not None:
                differs = "" if entry.guards.check(values) else dispatch.differences((entry,), values)[0]
            found.append(Held(_name(d), number, entry.hits, differs))
    return found


def _locals_of(fn: types.FunctionType, args: tuple, kwargs: dict[str, object]) -> tuple | None:
    """The parameters of a call, in the order of a frame's locals; None where it cannot be made."""
    try:
        bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    count = fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount
    flags = bool(fn.__code__.co_flags & inspect.CO_VARARGS) + bool(fn.__code__.co_flags & inspect.CO_VARKEYWORDS)
    return tuple(bound.arguments[name] for name in fn.__code__.co_varnames[:count + flags])
