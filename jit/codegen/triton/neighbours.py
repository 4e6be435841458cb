"""Several neighbouring results of a row for each point of a kernel, whose reads and writes are then vectors.

A window that moves by less than its width reads each element for several results. A thread that computes one result
reads them one by one, and so do its neighbours. With a few results for each point of the iteration space, written out
(``unrolling``), equal reads are one, and those that lie side by side are one aligned vector, which is taken apart in
registers; results that lie side by side are put together and stored as one (``vectors``).

Which accesses these are is read off their indices: one is a constant away from an expression that is a multiple of a
vector's length.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...graph import dims
from .. import loops, unrolling
from ..indexing import size_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..loops import Kernel, Statement

BYTES = 16  # of the widest access of a thread
LENGTHS = (2, 4, 8, 16)
# The share of ``cost`` from which neighbours pay; points that a kernel keeps, so that all of a device is busy; results
# for a point beside which images are of no more use; the share of statements for a result from which images pay.
LEAST_SAVED, FEWEST_POINTS, MOST_RESULTS, LEAST_SHARED = 0.75, 1 << 16, 20, 0.9


class Access:
    """Loads or stores, ``members`` by their place, that are one vector of ``length`` from ``start`` on."""

    def __init__(self, members: dict[int, Statement], start: dims.IntExpr, length: int) -> None:
        self.members, self.start, self.length = members, start, length


def accesses(kernel: Kernel) -> Iterator[Access]:
    """The vectors that a kernel reads and writes; of one element where there is no other."""
    found: dict = {}
    for s in kernel.body:
        if s.loaded or s.stored:
            constant = s.index if type(s.index) is int else s.index.const
            rest = s.index - constant
            key = (s.stored or "", s.buffer, loops.index_key(rest), s.mask, getattr(s, "other", None))
            found.setdefault(key, (rest, []))[1].append((constant, s))
    for (stored, buffer, *_), (rest, members) in found.items():
        dtype = kernel.buffer_of[buffer].dtype
        length = next((n for n in reversed(LENGTHS) if n * dtype.itemsize <= BYTES and dtype is not torch.bool
                       and type(rest) is not int and dims.divisible(rest, n)), 1)
        blocks: dict = {}
        for constant, s in members:
            blocks.setdefault(constant // length, {}).setdefault(constant % length, []).append(s)
        for block, places in blocks.items():
            if any(len(same) > 1 for same in places.values()) or stored and len(places) < length:
                for place, same in places.items():
                    for s in same:
                        yield Access({0: s}, rest + (block * length + place), 1)
                continue
            low, size = 0, length  # the least part of the vector that has all of them
            while size > 1:
                half = {p * 2 // size for p in (q - low for q in places)}
                if len(half) > 1:
                    break
                size //= 2
                low += size * half.pop()
            yield Access({p - low: same[0] for p, same in places.items()}, rest + (block * length + low), size)


def cost(kernel: Kernel, step: int = 1) -> int:
    """About how long a warp is busy with what a point reads and writes, in instructions and in pieces of 128 bytes
    that these walk through, where neighbouring threads' points are ``step`` elements apart."""
    total = 0
    for access in accesses(kernel):
        (s, *_) = access.members.values()
        size = kernel.buffer_of[s.buffer].dtype.itemsize
        total += 1 + max(1, min(32, max(access.length, step) * size // 4))
    return total


def reads_vectors(kernel: Kernel) -> bool:
    """Whether most of what is read lies side by side along the innermost axis, and begins where vectors begin."""
    inner = kernel.axes[-1].name
    loads = [s for s in kernel.body if s.loaded and inner in kernel.along(s)]
    return sum(dims.structurally_equal(dims.coefficient(s.index, inner) or 0, 1)
               and dims.divisible(dims.subst(s.index, {inner: 0}), 4) for s in loads) * 2 > len(loads)


def cost_of_store(kernel: Kernel) -> float:
    """``cost`` for a result, of a kernel with neighbours, with a share of its arithmetic, which goes on beside."""
    step = max(a.length for a in accesses(kernel) if any(s.stored for s in a.members.values()))
    return (cost(kernel, step) + len(kernel.body) / 4) / sum(bool(s.stored) for s in kernel.body)


def neighbours(kernel: Kernel, most: int) -> list[Kernel]:
    """The kernel with 2, 4 and more results along its innermost axis for each point, at most ``most`` statements long,
    where these divide the axis and take less time for a result."""
    inner = kernel.axes[-1]
    accessed = [s for s in kernel.body if s.loaded or s.stored]
    if type(inner.extent) is not int or reads_vectors(kernel):
        return []
    own, points, found = cost(kernel), _points(kernel), []
    steps = [dims.coefficient(s.index, inner.name) for s in accessed]
    strided = any(type(c) is int and abs(c) > 1 for c in steps)
    narrowest = min(kernel.buffer_of[s.buffer].dtype.itemsize for s in accessed)
    # Bytes from a point's results to the next one's, where they lie side by side: threads write vectors without gaps.
    written = max(c * kernel.buffer_of[s.buffer].dtype.itemsize if type(c) is int and s.stored else 0
                  for c, s in zip(steps, accessed))
    written = written if written <= BYTES else 0
    for count in LENGTHS:
        if (count * narrowest > BYTES or count > 2 and count * written > BYTES or inner.extent % count
                or inner.extent < 2 * count or points < count * FEWEST_POINTS and count > 2):
            continue
        made = unrolling.several_results(kernel, inner.name, count)
        if made is None or len(made.body) > most or cost(made, count) >= LEAST_SAVED * count * own:
            continue
        if strided or any(a.length != count for a in accesses(made)):  # else all are vectors anyway
            found.append(made)
    return found


def images(kernel: Kernel, most: int, results: int) -> Kernel:
    """The kernel with a few places along an outer axis for each point, where all accesses move by a fixed number of
    elements there, and nothing else depends on it: places and weights are computed once for a few images or channels,
    whose addresses are constants apart. ``results``: how many a point has already; beside one or two, finding addresses
    is most of the work."""
    best, least = kernel, (LEAST_SHARED if results > 2 else 1.1) * len(kernel.body)
    for axis in kernel.axes[:-1]:
        if type(axis.extent) is not int or any(_bends(kernel, s, axis.name) for s in kernel.body):
            continue
        for count in (8, 4, 2):
            if axis.extent % count or count * results > MOST_RESULTS or _points(kernel) < count * FEWEST_POINTS:
                continue
            made = unrolling.several_results(kernel, axis.name, count)
            if made is not None and len(made.body) <= most:
                if len(made.body) < least * count:
                    best, least = made, len(made.body) / count
                break
    return best


def _bends(kernel: Kernel, s: Statement, axis: str) -> bool:
    """Whether a statement depends on an axis otherwise than by moving a fixed number of elements along it, or by what
    is read so."""
    if axis not in s.symbols:
        return False
    return not (s.loaded or s.stored) or type(dims.coefficient(s.index, axis)) is not int


def _points(kernel: Kernel) -> int:
    return math.prod(size_hint(a.extent) for a in kernel.axes)
