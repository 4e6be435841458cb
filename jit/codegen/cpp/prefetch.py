"""What a C++ kernel prefetches, beyond what the hardware does by itself: the row after the present one, and large
operands some way ahead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jit.codegen.cpp.layout import COST, hint, stream_bytes
from jit.graph import dims

if TYPE_CHECKING:
    from .emission import KernelText

ROW_BYTES = 256 << 10  # rows up to this size are prefetched while the one before is worked on
MIN_COST = 14  # cost per element from which large operands are prefetched


def next_row(text: KernelText) -> list:
    """(pointer, bytes per element) of what the first pass will load for the next row.

    The second pass prefetches it when it computes much or stores, so that reading overlaps with that: softmax gains a
    quarter.
    """
    lay, body, found = text.layout, text.kernel.body, {}
    if lay.column or lay.loops or not lay.rows or text.cooperate:
        return []
    if not any(body[i].stored or COST.get(body[i].prim, 1) >= MIN_COST for i in lay.bodies[1]):
        return []
    row = lay.rows[-1]
    for i in lay.bodies[0]:
        s = text.kernel.body[i]
        if not s.loaded or not text.unit(s) or any(n in lay.definition for n in s.symbols):
            continue
        size = hint(lay.vector.extent) * text.dtypes[s.dst].itemsize
        if 2048 <= size <= ROW_BYTES and row.name in s.symbols:
            base = text.expr(dims.subst(s.index, {lay.vector.name: 0, row.name: row.sym + 1}))
            found.setdefault((s.buffer, base), (f"{text.pointer(s)} + ({base})", text.dtypes[s.dst].itemsize))
    return list(found.values())


def stream(text: KernelText, statements: list[int], access: dict[int, str]) -> list:
    """(pointer, bytes per element) some way ahead of each large operand, where the arithmetic is long enough to hide
    the loads from the hardware's own prefetching."""
    body, found = text.kernel.body, {}
    if sum(COST.get(body[i].prim, 1) for i in statements if body[i].prim) < MIN_COST:
        return []
    for i in statements:
        s = body[i]
        if s.loaded and i in access and i not in text.tiled and text.unit(s):
            count = math.prod(hint(a.extent) for a in text.kernel.axes + text.kernel.raxes
                              if a.name in s.symbols)
            if count * text.dtypes[s.dst].itemsize >= stream_bytes(text.kernel) // 2:
                found[access[i]] = (f"{access[i]} + 512", text.dtypes[s.dst].itemsize)
    return list(found.values())
