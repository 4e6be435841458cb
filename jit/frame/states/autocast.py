"""The state behind ``torch.autocast``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import autocast
from ..tables import add_pure, on_call
from ..tracked_state import TrackedState
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

NONE = Constant(None)


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


# What a key of the state is in reality.
_REAL = {"enabled": torch.is_autocast_enabled, "dtype": torch.get_autocast_dtype,
         "cache": torch.is_autocast_cache_enabled, "nesting": _nesting}


def _tell_tracer(s: Session) -> None:
    now = s.states.peek
    enabled = {d: now(AUTOCAST, "dtype", d) for d in autocast.kinds() if now(AUTOCAST, "enabled", d)}
    if enabled != s.tracer.autocast:
        s.tracer.set_autocast(enabled)


def _rely(s: Session, what, *device: object) -> None:
    if what in ("dtype", "cache"):  # what is on is told by the thread's dispatch keys, and nothing by how deeply
        s.guards.state.read.add("autocast")


AUTOCAST = TrackedState("autocast", lambda what, *device: _REAL[what](*device), _rely, _tell_tracer)


def _setter(fn, key, new, of: type = bool) -> None:
    """The rule of a function that sets a key, both given by its arguments; it returns nothing and refuses what is not
    ``of`` a type."""
    @on_call(fn)
    def change(s: Session, args: list[Value], kwargs: dict[str, Value]):
        if kwargs or not args or args[-1].pytype(s) is not of:
            raise Unsupported(f"{fn.__name__} of something else than a {of.__name__}", kind="argument-error")
        s.states.set(AUTOCAST, new(s, args), fn, args, key(s, args))
        return NONE


def _getter(fn, *key: object) -> None:
    """The rule of a function that tells a key. The device is its argument where the key has none."""
    @on_call(fn)
    def ask(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        of_argument = (args[0].const(s),) if args else ("cuda",)
        return Constant(s.states.get(AUTOCAST, *key, *(of_argument if key in (("enabled",), ("dtype",)) else ())))


def _count(fn, step) -> None:
    @on_call(fn)
    def count(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
        depth = s.states.get(AUTOCAST, "nesting") + step
        s.states.set(AUTOCAST, depth, fn, args, ("nesting",))
        return Constant(depth)


_setter(torch.set_autocast_enabled, lambda s, args: ("enabled", args[0].const(s) if len(args) > 1 else "cuda"),
        lambda s, args: args[-1].truth(s))
_setter(torch.set_autocast_dtype, lambda s, args: ("dtype", args[0].const(s)), lambda s, args: args[1].const(s),
        torch.dtype)
_setter(torch.set_autocast_cache_enabled, lambda s, args: ("cache",), lambda s, args: args[0].truth(s))
_getter(torch.is_autocast_enabled, "enabled")
_getter(torch.is_autocast_cpu_enabled, "enabled", "cpu")
_getter(torch.get_autocast_dtype, "dtype")
_getter(torch.get_autocast_gpu_dtype, "dtype", "cuda")
_getter(torch.get_autocast_cpu_dtype, "dtype", "cpu")
_getter(torch.is_autocast_cache_enabled, "cache")
_count(torch.autocast_increment_nesting, 1)
_count(torch.autocast_decrement_nesting, -1)


@on_call(torch.clear_autocast_cache)
def clear(s: Session, args: list[Value], kwargs: dict[str, Value]):
    s.effects.add(torch.clear_autocast_cache, [], AUTOCAST)
    return NONE


add_pure(*torch_private.autocast_queries)
