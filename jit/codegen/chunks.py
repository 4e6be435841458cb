"""Into which pieces a reduction of few rows is cut: a kernel makes a part of the result from each, and a second one
puts the parts together (``lower``)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .. import devices
from ..graph.prims import info
from . import indexing
from .indexing import FIXED

if TYPE_CHECKING:
    from .groups import Group, Root


def chunk_plan(group: Group) -> tuple[tuple[int, ...], int]:
    """(dimensions, chunk length) by which a split reduction is cut: one dimension, or, where rows lie across the
    memory, as many of the leading ones as are needed, as one range."""
    reduced = sorted(group.reduced)
    size = {d: indexing.size_hint(group.dims[d]) for d in reduced}
    total = 1
    for d in reduced:
        total *= size[d]
    backend = devices.backend(group.device)
    rows = indexing.numel_hint([d for k, d in enumerate(group.dims) if k not in group.reduced])
    wanted = backend.chunks(rows, total, group.split == "rows", _is_plain(group))
    if group.split == "columns" and backend.cuts_several:
        count = next(k for k in range(1, len(reduced) + 1) if math.prod(size[d] for d in reduced[:k]) >= wanted
                     or k == len(reduced))
        cut = tuple(reduced[:count])
    else:
        cut = (next((d for d in reduced if size[d] >= wanted), max(reduced, key=lambda d: size[d])),)
    extent = math.prod(size[d] for d in cut)
    length = max(-(-extent // wanted), 1)
    if all(type(group.dims[d]) is int for d in cut):
        for candidate in range(length, min(2 * length, extent) + 1):
            if extent % candidate == 0:
                length = candidate
                break
    return cut, length


def _is_plain(group: Group) -> bool:
    """Whether a group makes one number for each row and does nothing else with the elements."""
    numbers = [m.node.op for m in group.members if m.needs_row]
    elements = any(not m.needs_row and not m.after and any(p in group.reduced for p in m.out_place())
                   for m in group.members)
    return len(numbers) == 1 and not elements and numbers[0] != "squares" and not info(numbers[0]).gives_position


def few_columns(group: Group) -> tuple[tuple[int, ...], int] | None:
    """(dimensions, chunk length) for a reduction over columns that are too few for a CPU's vectors, or None: positions
    of the dimension around them, which lies as they do, are dealt out to chunks, so that chunks and columns are one
    line of memory."""
    columns = [d for d in range(len(group.dims)) if d not in group.reduced]
    full = devices.backend(group.device).full_vector
    if not full or group.split != "columns" or any(type(s) is not int for s in group.dims):
        return None
    count = math.prod(group.dims[d] for d in columns)
    around = {_around(m, group, columns, count) for m in group.members if m.needs_row}
    if count > full // 2 or len(around) != 1 or None in around:
        return None
    (d,) = around
    chunks = max(k for k in range(1, full // count + 1) if group.dims[d] % k == 0)
    return ((d,), group.dims[d] // chunks) if chunks > 1 else None


def _around(root: Root, group: Group, columns: list[int], count: int) -> int | None:
    """The reduced dimension of a group along which one row of columns follows the other in the largest tensor that a
    root reads, or None."""
    node, aligns = max(root.reads.items(), key=lambda r: 0 if r[0].several
                       else indexing.numel_hint(r[0].type.shape))
    if node.several or len(aligns) != 1 or None in aligns:
        return None
    stride = {root.place[d]: s for s, d in zip(node.type.strides, next(iter(aligns))) if d != FIXED}
    inside = math.prod(group.dims[d] for d in columns if stride.get(d, count) < count)
    return next((d for d in group.reduced if stride.get(d) == count == inside), None)
