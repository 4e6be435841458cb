"""Sums over few places written out, for several neighbouring results at once.

A kernel whose rows are short and overlap, such as a convolution of each channel by itself, reads every element for many
results. Written out, with a tile of results for each point of the iteration space, what several of them need is loaded
and computed once: equal statements of a kernel are one. What is left has no reduction axis, so that emitters lay it out
as any pointwise kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ..graph import dims
from . import loops
from .comparisons import known
from .nest import period, without_ones

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from .loops import Axis, Kernel, Statement

# In the place of the name of a condition that holds, and of one that does not.
_ALWAYS, _NEVER = "always", "never"
LONGEST_BODY = 80  # statements of a kernel with neighbouring results written out
NEIGHBOURS = tuple(range(2, 9))  # how many of them
WRITTEN_OUT = frozenset((loops.Load, loops.Const, loops.IndexValue, loops.Compute, loops.Store))


def unrolled(kernel: Kernel, tiles: Mapping[str, int]) -> Kernel | None:
    """The kernel without reduction axes, and with so many results along the axes named in ``tiles`` for each point;
    None where a row is not short, is used again or is not added up, and where a tile does not divide its axis."""
    if _has_one_place(kernel) or not _only_stores(kernel):
        return None
    if not all(type(a.extent) is int for a in kernel.raxes) or any(
            s.ordered or s.effect and (not s.stored and s.limit is None or s.stored and kernel.is_element(s))
            or s.reduces and (s.op != "sum" or s.dtype is not kernel.dtypes[s.arg]) for s in kernel.body):
        return None
    if any(type(a.extent) is not int or a.extent % tiles[a.name] for a in kernel.axes if a.name in tiles):
        return None
    if any(not s.reduces and not s.effect and s.dst in kernel.element_values
           and any(kernel.definition[o].reduces for o in s.operands) for s in kernel.body):
        return None
    return without_ones(Unrolling(kernel, tiles).run())


def neighbours_written_out(kernel: Kernel, counts: Collection[int] = NEIGHBOURS,
                           axes: Sequence[Axis] | None = None) -> Kernel:
    """The kernel with a few neighbouring results for each point along an axis that its indices walk in periods of so
    few iterations. ``counts`` says how many there may be, ``axes`` along which ones (None: any).

    What is read at ``i // 2`` and chosen by ``i % 2``, as the halves of bytes are, or pairs put side by side, costs a
    division and a load with a position of its own for every result. Of two results that are written out, each knows
    its remainder, and both read at ``i``.
    """
    if kernel.raxes or not all(type(s) in WRITTEN_OUT and s.symbols.isdisjoint(kernel.definition) for s in kernel.body):
        return kernel
    for axis in kernel.axes if axes is None else axes:
        n = period(kernel, axis)
        if n in counts and n * len(kernel.body) <= LONGEST_BODY:
            kernel = unrolled(kernel, {axis.name: n}) or kernel
    return kernel


def several_results(kernel: Kernel, axis: str, count: int) -> Kernel | None:
    """The kernel, which has no reduction axes, with ``count`` neighbouring results along an axis for each point; where
    that does not divide the axis, the last points compute some results twice. None where it does more than to read,
    compute and store."""
    extent = next(a.extent for a in kernel.axes if a.name == axis)
    if kernel.raxes or type(extent) is not int or extent < count or _has_one_place(kernel) or any(
            s.effect and not s.stored for s in kernel.body) or not _only_stores(kernel):
        return None
    if any(b.role == "inout" for b in kernel.buffers):
        return None
    return without_ones(Unrolling(kernel, {axis: count}).run())


def _only_stores(kernel: Kernel) -> bool:
    """Whether memory is written by stores alone: additions at places that data decide are no stores, and the device
    does those of neighbouring threads together."""
    return all(type(s) in WRITTEN_OUT for s in kernel.body if s.stored)


def _has_one_place(kernel: Kernel) -> bool:
    """Whether an index is brought into a range of one place, where it is no value but 0."""
    return any(s.limit is not None and type(s.limit) is int and s.limit <= 1 for s in kernel.body)


class Unrolling:
    """Writes a kernel again with several places for each point, of which each knows what its comparisons say."""

    def __init__(self, kernel: Kernel, tiles: Mapping[str, int]) -> None:
        self.kernel, self.tiles = kernel, tiles
        self.b = loops.KernelBuilder(kernel.device)
        for buffer in kernel.buffers:
            self.b.buffer(buffer.dtype, buffer.role, buffer.name)
            self.b.buffers[-1] = buffer
        self.index_of: dict = {}  # value -> the expression that it is
        self.checked: dict = {}  # value, extent -> the bounded value

    def run(self) -> Kernel:
        b, kernel = self.b, self.kernel
        first = {a.name: self.first(a) for a in kernel.axes}
        stores = []
        for place in itertools.product(*(range(self.tiles.get(a.name, 1)) for a in kernel.axes)):
            values = {a.name: first[a.name] + i for a, i in zip(kernel.axes, place)}
            names: dict = {}
            for s in kernel.body:
                if s.stored:
                    stores.append((s.buffer, dims.subst(s.index, values), names[s.value], names.get(s.mask)))
                elif s.reduces:
                    names[s.dst] = self.row(s, values, names)
                elif not kernel.is_element(s):
                    self.define(s, values, names)
        self.write(stores)
        return b.finish(kernel.name)

    def write(self, stores: list[tuple]) -> None:
        """Write stores, as their buffer, index, and the names of a value and a condition, after all else."""
        for buffer, index, value, mask in stores:
            if mask != _NEVER:
                self.b.store(buffer, index, self.value(value), None if mask == _ALWAYS else mask)

    def first(self, a: Axis) -> IntExpr:
        """Where the tile of a point begins along an axis of the kernel."""
        count = self.tiles.get(a.name, 1)
        start = self.b.axis(dims.ceil_div(a.extent, count)) * count
        return start if count == 1 or a.extent % count == 0 else dims.Min(start, a.extent - count)

    def row(self, total: Statement, values: dict, names: dict) -> str:
        """The names of a row's values, put together one after the other."""
        result = None
        product = self.kernel.definition[total.arg]
        fused = product.prim == "mul" and product.dtype.is_floating_point
        for place in itertools.product(*(range(a.extent) for a in self.kernel.raxes)):
            at = {**values, **{a.name: i for a, i in zip(self.kernel.raxes, place)}}
            inner = dict(names)
            for s in self.kernel.body:
                if s is total:
                    break
                if self.kernel.is_element(s) and not (s is product and fused and result):
                    self.define(s, at, inner)
            if result is None:
                result = inner[total.arg]
            elif fused:
                result = self.b.compute("fma", *(inner[a] for a in product.operands), result, dtype=total.dtype)
            else:
                result = self.b.compute("add", result, inner[total.arg], dtype=total.dtype)
        return result

    def value(self, name: str) -> str:
        """The name of a value, where it may be a condition that is known."""
        return self.b.const(name == _ALWAYS, torch.bool) if name in (_ALWAYS, _NEVER) else name

    def define(self, s: Statement, values: dict, names: dict) -> None:
        """Write a statement that stores nothing, with its value in ``names``, and in ``values`` if an index may name
        it."""
        if s.limit is None:
            names[s.dst] = self.statement(s, values, names)
            return
        limit, mask = dims.subst(s.limit, values), names.get(s.mask) if s.effect else None
        if s.effect:  # which bounds the value too
            place = self.b.position(names[s.value], limit, s.buffer, s.code,
                                    None if mask in (None, _ALWAYS) else self.value(mask))
            self.checked[names[s.value], loops.index_key(limit)] = place
        else:
            place = self.checked[names[s.value], loops.index_key(limit)] if s.checked else self.b.clamped(
                names[s.value], limit)
            values[s.dst] = place
            (names[s.dst],) = dims.free_symbols(place)

    def statement(self, s: Statement, values: dict, names: dict) -> str:
        """The name of a statement's value."""
        b = self.b
        if s.loaded:
            mask = names.get(s.mask)
            if mask == _NEVER:
                return b.const(s.other, s.dtype_in(self.kernel))
            return b.load(s.buffer, dims.subst(s.index, values), None if mask == _ALWAYS else mask, s.other)
        if s.constant is not None:
            name = b.const(s.constant, s.dtype)
            if type(s.constant) is int:
                self.index_of[name] = s.constant
            return name
        if s.prim is None:
            e = dims.subst(s.expression, values)
            name = b.index(e, s.dtype)
            self.index_of[name] = e
            return name
        args = [names[a] for a in s.operands]
        if len(args) == 2 and all(a in self.index_of for a in args):
            holds = known(s.prim, *(self.index_of[a] for a in args))
            if holds is not None:
                return _ALWAYS if holds else _NEVER
        if s.prim == "logical_and" and not {_ALWAYS, _NEVER}.isdisjoint(args):
            return _NEVER if _NEVER in args else args[1] if args[0] == _ALWAYS else args[0]
        if s.prim == "where" and args[0] in (_ALWAYS, _NEVER):
            return args[1 if args[0] == _ALWAYS else 2]
        return b.compute(s.prim, *map(self.value, args), dtype=s.dtype)
