"""Where intermediate buffers lie: one arena per plan, with offsets assigned by lifetime.

Buffers are visited in order of their first use and take the smallest free gap that fits. Sizes that hold symbols cannot
be compared for all values, so such a buffer only takes the place of a dead one of the very same size; they lie behind
the buffers of constant size.
"""

from __future__ import annotations

import bisect
import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph import dims
from .loops import index_key

if TYPE_CHECKING:
    from ..graph.dims import Dim, IntExpr
    from ..graph.ir import TensorType


@dataclass
class Span:
    """A buffer's size in bytes (IntExpr) and its lifetime in step numbers, both ends included."""

    key: object
    nbytes: object
    first: int
    last: int


def align_up(nbytes: IntExpr, alignment: int) -> IntExpr:
    """The next multiple of ``alignment``; symbolic sizes give a symbolic result."""
    return dims.ceil_div(nbytes, alignment) * alignment


@dataclass
class Arena:
    """Offsets (bytes, IntExpr) of buffers in one allocation of ``nbytes`` bytes."""

    nbytes: object = 0
    offsets: dict = field(default_factory=dict)


def plan_arena(spans: list[Span], alignment: int = 64) -> Arena:
    """Assign offsets, multiples of ``alignment`` bytes, so that buffers with overlapping lifetimes do not overlap in
    memory."""
    arena = Arena()
    fixed, symbolic = [], []
    for s in spans:
        size = align_up(s.nbytes, alignment)
        (fixed if type(size) is int else symbolic).append((s, size))
    arena.nbytes = _fixed(fixed, arena.offsets)
    _symbolic(symbolic, arena)
    return arena


def _fixed(spans: list[tuple[Span, int]], offsets: dict) -> int:
    top, live, gaps = 0, [], []  # live: a heap of (last, offset, size); gaps: sorted (offset, size)
    for s, size in sorted(spans, key=lambda x: (x[0].first, x[0].last)):
        while live and live[0][0] < s.first:
            _release(gaps, *heapq.heappop(live)[1:])
        best = min((g for g in gaps if g[1] >= size), key=lambda g: g[1], default=None)
        if size == 0:
            offsets[s.key] = 0
            continue
        if best is not None:
            gaps.remove(best)
            if best[1] > size:
                bisect.insort(gaps, (best[0] + size, best[1] - size))
            offset = best[0]
        elif gaps and gaps[-1][0] + gaps[-1][1] == top:
            offset = gaps.pop()[0]  # grow the last gap
            top = offset + size
        else:
            offset, top = top, top + size
        offsets[s.key] = offset
        heapq.heappush(live, (s.last, offset, size))
    return top


def _release(gaps: list[tuple[int, ...]], offset: int, size: int) -> None:
    i = bisect.bisect(gaps, (offset, size))
    if i < len(gaps) and offset + size == gaps[i][0]:
        size += gaps.pop(i)[1]
    if i and gaps[i - 1][0] + gaps[i - 1][1] == offset:
        offset, n = gaps.pop(i - 1)
        size, i = size + n, i - 1
    gaps.insert(i, (offset, size))


def _symbolic(spans: list[tuple[Span, Dim]], arena: Arena) -> None:
    live, free = [], {}
    for s, size in sorted(spans, key=lambda x: (x[0].first, x[0].last)):
        for x in [x for x in live if x[0] < s.first]:
            live.remove(x)
            free.setdefault(x[2], []).append(x[1])
        kind = index_key(size)
        if free.get(kind):
            offset = free[kind].pop()
        else:
            offset, arena.nbytes = arena.nbytes, arena.nbytes + size
        arena.offsets[s.key] = offset
        live.append((s.last, offset, kind))


def storage_numel(t: TensorType) -> object:
    """The number of elements that a tensor type spans in memory: 1 + sum((size - 1) * stride), or 0 without
    elements."""
    if t.is_empty:
        return 0
    if t.is_contiguous:
        return t.numel
    total = 1
    for n, s in zip(t.shape, t.strides):
        total = total + (n - 1) * s
    return total
