"""``torch.vmap`` of elementwise functions, and the mode in which mapped scalars index; what is recorded is in
``values.batched``."""

from __future__ import annotations

import torch

from ... import torch_private
from ...errors import Unsupported
from ..tables import on_call, on_code, on_function
from ..values import batched
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.objects import ObjectValue

PUSH, POP = torch_private.push_mode, torch_private.pop_mode


@on_function(torch.vmap)
def vmap(s, args, kwargs):
    return s.inline(s.wrap_raw(torch.vmap), args, kwargs)


@on_function(torch_private.check_vmap_randomness)
def check_randomness(s, args, kwargs):
    return s.inline(s.wrap_raw(torch_private.check_vmap_randomness), args, kwargs)


@on_code(torch_private.mapped_code())
def mapped(s, fn, args, kwargs):
    """A call of what ``torch.vmap`` returned."""
    given = {name: cell.get(s) for name, cell in zip(fn.code.co_freevars, fn.cells(s))}
    axes, out, chunk = (given[name] for name in ("in_dims", "out_dims", "chunk_size"))
    if kwargs or not all(v.is_const() for v in (axes, out, chunk)) or out.const(s) != 0 or chunk.const(s) is not None:
        batched.refuse("this kind of map")
    level, sizes = len(s.maps), []
    inner = batched.enter(s, TupleValue(list(args)), axes.const(s), level, sizes).items_list(s)
    if not sizes or any(size != sizes[0] for size in sizes):
        batched.refuse("a map over axes of these sizes")
    outer = s.maps
    s.set_field(s, "maps", (*outer, level))
    try:
        result = given["func"].call(s, inner, {})
        return batched.leave(s, result, level, sizes[0])
    finally:
        s.set_field(s, "maps", outer)


@on_call(PUSH)
def push(s, args, kwargs):
    mode = args[0]
    if not isinstance(mode, ObjectValue) or (mode.cls.__module__, mode.cls.__qualname__) != torch_private.INDEX_MODE:
        raise Unsupported(f"entering {mode.describe()}, which sees every operation",
                          "compile without it", kind="torch-mode")
    s.set_field(s, "modes", (*s.modes, mode))
    s.effect(PUSH, [mode])
    return Constant(None)


@on_call(POP)
def pop(s, args, kwargs):
    if not s.modes:
        raise Unsupported("leaving a mode that was entered before", kind="torch-mode")
    mode = s.modes[-1]
    s.set_field(s, "modes", s.modes[:-1])
    s.effect(POP, [])
    return mode


@on_call(torch_private.in_function_mode)
def in_mode(s, args, kwargs):
    return Constant(bool(s.modes))  # capturing is refused under all others but the default device's


def reduced(s, effects):
    """The effects without entering and leaving modes, when all that were entered have been left."""
    return effects if s.modes else [e for e in effects if e[0] not in (PUSH, POP)]
