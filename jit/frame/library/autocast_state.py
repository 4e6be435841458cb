"""The state behind ``torch.autocast``: its setters are followed while capturing, and replayed only if the region leaves
it changed."""

from __future__ import annotations

import torch

from ... import torch_private
from ...graph import autocast
from ..tables import add_pure, on_call
from ..values.constant import Constant

NONE = Constant(None)


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


# What a key of the state is in reality.
REAL = {"enabled": torch.is_autocast_enabled, "dtype": torch.get_autocast_dtype,
        "cache": torch.is_autocast_cache_enabled, "nesting": _nesting}
SETTERS = frozenset((torch.set_autocast_enabled, torch.set_autocast_dtype,
                     torch.set_autocast_cache_enabled, torch.autocast_increment_nesting,
                     torch.autocast_decrement_nesting, torch.clear_autocast_cache))


def value(s, *key):
    """The state under ``(what, *device)`` at this point of the program."""
    return s.autocast[key] if key in s.autocast else REAL[key[0]](*key[1:])


def _change(s, key, new, fn, args):
    s.set_entry(s.autocast, key, new)
    s.effect(fn, args)
    if key[0] in ("enabled", "dtype"):
        s.tracer.set_autocast({d: value(s, "dtype", d) for d in autocast.kinds() if value(s, "enabled", d)})


def reduced(s, effects):
    """The effects without those on this state, when it is in the end what it was."""
    if any(now != REAL[key[0]](*key[1:]) for key, now in s.autocast.items()):
        return effects
    return [e for e in effects if e[0] not in SETTERS]


@on_call(torch.set_autocast_enabled)
def set_enabled(s, args, kwargs):
    device = args[0].const(s) if len(args) > 1 else "cuda"
    _change(s, ("enabled", device), args[-1].truth(s), torch.set_autocast_enabled, args)
    return NONE


@on_call(torch.set_autocast_dtype)
def set_dtype(s, args, kwargs):
    _change(s, ("dtype", args[0].const(s)), args[1].const(s), torch.set_autocast_dtype, args)
    return NONE


@on_call(torch.set_autocast_cache_enabled)
def set_cache(s, args, kwargs):
    _change(s, ("cache",), args[0].truth(s), torch.set_autocast_cache_enabled, args)
    return NONE


@on_call(torch.autocast_increment_nesting)
def increment(s, args, kwargs):
    _change(s, ("nesting",), value(s, "nesting") + 1, torch.autocast_increment_nesting, args)
    return Constant(value(s, "nesting"))


@on_call(torch.autocast_decrement_nesting)
def decrement(s, args, kwargs):
    _change(s, ("nesting",), value(s, "nesting") - 1, torch.autocast_decrement_nesting, args)
    return Constant(value(s, "nesting"))


@on_call(torch.clear_autocast_cache)
def clear(s, args, kwargs):
    s.effect(torch.clear_autocast_cache, [])
    return NONE


@on_call(torch.is_autocast_enabled)
def is_enabled(s, args, kwargs):
    return Constant(value(s, "enabled", args[0].const(s) if args else "cuda"))


@on_call(torch.is_autocast_cpu_enabled)
def is_cpu_enabled(s, args, kwargs):
    return Constant(value(s, "enabled", "cpu"))


@on_call(torch.get_autocast_dtype)
def get_dtype(s, args, kwargs):
    return Constant(value(s, "dtype", args[0].const(s)))


@on_call(torch.get_autocast_gpu_dtype)
def get_gpu_dtype(s, args, kwargs):
    return Constant(value(s, "dtype", "cuda"))


@on_call(torch.get_autocast_cpu_dtype)
def get_cpu_dtype(s, args, kwargs):
    return Constant(value(s, "dtype", "cpu"))


@on_call(torch.is_autocast_cache_enabled)
def is_cache_enabled(s, args, kwargs):
    return Constant(value(s, "cache"))


add_pure(*torch_private.autocast_queries)
