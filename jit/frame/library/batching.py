"""``torch.vmap``: see ``transforms``, and, for elementwise functions under an index mode, ``values.batched``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ..states.index_modes import modes
from ..tables import on_code, on_function
from ..values import batched
from ..values.containers import TupleValue
from .transforms import transformed

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

@on_function(torch.vmap)
def vmap(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return transformed(s, s.wrap_raw(torch.vmap), args, kwargs)


@on_function(torch_private.check_vmap_randomness)
def check_randomness(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.inline(s.wrap_raw(torch_private.check_vmap_randomness), args, kwargs)


@on_code(torch_private.mapped_code())
def mapped(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of what ``torch.vmap`` returned. Under an index mode, where mapped scalars may index tensors, the
    function's operations are lined up as they come."""
    if not modes(s):
        return s.inline(fn, args, kwargs)
    given = {name: cell.get(s) for name, cell in zip(fn.code.co_freevars, fn.cells(s))}
    axes, out, chunk = (given[name] for name in ("in_dims", "out_dims", "chunk_size"))
    if kwargs or not all(v.is_const() for v in (axes, out, chunk)) or out.const(s) != 0 or chunk.const(s) is not None:
        batched.refuse("this kind of map")
    level, sizes = len(s.maps), []
    inner = batched.enter(s, TupleValue(list(args)), axes.const(s), level, sizes).items_list(s)
    if not sizes or any(size != sizes[0] for size in sizes):
        batched.refuse("a map over axes of these sizes")
    with s.journal.temporarily(s, "maps", (*s.maps, level)):
        return batched.leave(s, given["func"].call(s, inner, {}), level, sizes[0])
