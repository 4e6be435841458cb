"""An axis in parts of one length, side by side: a point for the same place in each of them.

What is concatenated of equal parts, or turns the halves of a row as rotary embeddings do, chooses by comparisons of the
position what it reads and computes, and reads most of it once for each part. With a point that has a place in each part
the comparisons are known, and what several places read is read once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph import dims
from . import loops
from .comparisons import below_zero
from .nest import without_ones
from .unrolling import WRITTEN_OUT, Unrolling

if TYPE_CHECKING:
    from .loops import Axis, Kernel, Reduce

MOST = 4  # parts
SHORTEST = 8  # places of one
LONGEST_BODY = 240  # statements of a kernel in parts
_KINDS = WRITTEN_OUT | {loops.Reduce, loops.Check, loops.Bounded, loops.Clamped}


def in_parts(kernel: Kernel) -> Kernel:
    """The kernel with such an axis in parts, where that saves reads; else the same kernel. The axis is the innermost
    one, or, of a kernel that adds up rows, that of the rows."""
    axis = (kernel.raxes or kernel.axes)[-1:]
    if len(kernel.raxes) > 1 or not axis or not all(type(s) in _KINDS for s in kernel.body) or not any(
            s.accessed and s.mask is not None for s in kernel.body):
        return kernel
    if any(s.reduces and (s.op != "sum" or s.precise or s.dtype is not kernel.dtypes[s.arg]) for s in kernel.body):
        return kernel
    count = _count(kernel, axis[0])
    if not count or count * len(kernel.body) > LONGEST_BODY:
        return kernel
    made = _Parts(kernel, axis[0], count).run()
    return made if _reads(made) < count * _reads(kernel) else kernel


def _reads(kernel: Kernel) -> int:
    return sum(bool(s.loaded) for s in kernel.body)


def _count(kernel: Kernel, axis: Axis) -> int | None:
    """The number of equal parts of an axis in each of which comparisons of positions are known; None without any."""
    if type(axis.extent) is not int:
        return None
    places = {p for s in kernel.body if s.prim and (p := _turns(kernel, s, axis)) is not None}
    length = math.gcd(axis.extent, *places)
    return axis.extent // length if places and axis.extent <= MOST * length and length >= SHORTEST else None


def _turns(kernel: Kernel, s: loops.Compute, axis: Axis) -> int | None:
    """The position inside an axis from which on a comparison of positions along it is another; None where it does not
    change, or also depends on others."""
    order = below_zero(s.prim) if len(s.operands) == 2 else None
    if order is None:
        return None
    sides = [_position(kernel, n) for n in s.operands]
    if None in sides:
        return None
    e = (sides[0] - sides[1]) * order[0] + order[1]
    slope, start = dims.coefficient(e, axis.name), dims.subst(e, {axis.name: 0})
    if type(slope) is not int or abs(slope) != 1 or type(start) is not int:
        return None
    place = -start if slope == 1 else start + 1
    return place if 0 < place < axis.extent else None


def _position(kernel: Kernel, value: str) -> dims.IntExpr | None:
    s = kernel.definition[value]
    if s.constant is not None:
        return s.constant if type(s.constant) is int else None
    return None if s.prim or s.accessed or s.combine or s.limit is not None else s.expression


class _Parts(Unrolling):
    def __init__(self, kernel: Kernel, axis: Axis, count: int) -> None:
        super().__init__(kernel, {})
        self.axis, self.count = axis, count

    def run(self) -> Kernel:
        b, kernel, axis = self.b, self.kernel, self.axis
        length = axis.extent // self.count
        first = {a.name: b.axis(length if a is axis else a.extent, a.kind) for a in kernel.axes + kernel.raxes}
        places = [{**first, axis.name: first[axis.name] + k * length} for k in range(self.count)]
        names: list[dict] = [{} for _ in places]
        stores = []
        for s in kernel.body:
            whole = bool(kernel.raxes) and not kernel.is_element(s)
            for at, known in list(zip(places, names))[: 1 if whole else None]:
                if s.stored:
                    stores.append((s.buffer, dims.subst(s.index, at), known[s.value], known.get(s.mask)))
                elif s.reduces:
                    known[s.dst] = self.total(s, names)
                else:
                    self.define(s, at, known)
            if whole and s.dst:
                for at, known in zip(places[1:], names[1:]):
                    known[s.dst] = names[0][s.dst]
                    if s.dst in places[0]:
                        at[s.dst] = places[0][s.dst]
        self.write(stores)
        return without_ones(b.finish(kernel.name))

    def total(self, s: Reduce, names: list[dict]) -> str:
        """A sum over a row, of the sums of its parts."""
        value = None
        for known in names:
            part = self.value(known[s.arg])
            value = part if value is None else self.b.compute("add", value, part, dtype=s.dtype)
        return self.b.reduce(s.op, value, s.dtype)
