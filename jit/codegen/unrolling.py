"""Sums over few places written out, for several neighbouring results at once.

A kernel whose rows are short and overlap, such as a convolution of each channel by itself, reads every element for many
results. Written out, with a tile of results for each point of the iteration space, what several of them need is loaded
and computed once: equal statements of a kernel are one. What is left has no reduction axis, so that emitters lay it out
as any pointwise kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..graph import dims
from . import loops
from .nest import without_ones

if TYPE_CHECKING:
    from .loops import Kernel, Statement

_ALWAYS = "always"  # in the place of the name of a condition that holds


def unrolled(kernel: Kernel, tiles: Mapping[str, int]) -> Kernel | None:
    """The kernel without reduction axes, and with so many results along the axes named in ``tiles`` for each point;
    None where a row is not short, is used again, checks an index or is not added up, and where a tile does not divide
    its axis."""
    if not all(type(a.extent) is int for a in kernel.raxes) or any(
            s.limit is not None or s.ordered or s.effect and kernel.is_element(s)
            or s.reduces and (s.op != "sum" or s.dtype is not kernel.dtypes[s.arg]) for s in kernel.body):
        return None
    if any(type(a.extent) is not int or a.extent % tiles[a.name] for a in kernel.axes if a.name in tiles):
        return None
    if any(not s.reduces and not s.effect and s.dst in kernel.element_values
           and any(kernel.definition[o].reduces for o in s.operands) for s in kernel.body):
        return None
    return without_ones(_Unrolling(kernel, tiles).run())


class _Unrolling:
    def __init__(self, kernel: Kernel, tiles: Mapping[str, int]) -> None:
        self.kernel, self.tiles = kernel, tiles
        self.b = loops.KernelBuilder(kernel.device)
        for buffer in kernel.buffers:
            self.b.buffer(buffer.dtype, buffer.role, buffer.name)
        self.index_of: dict = {}  # value -> the expression that it is

    def run(self) -> Kernel:
        b, kernel = self.b, self.kernel
        symbols = {a.name: b.axis(a.extent // self.tiles.get(a.name, 1)) for a in kernel.axes}
        stores = []
        for place in itertools.product(*(range(self.tiles.get(a.name, 1)) for a in kernel.axes)):
            values = {a.name: symbols[a.name] * self.tiles.get(a.name, 1) + i for a, i in zip(kernel.axes, place)}
            names: dict = {}
            for s in kernel.body:
                if s.effect:
                    stores.append((s.buffer, dims.subst(s.index, values), names[s.value], names.get(s.mask)))
                elif s.reduces:
                    names[s.dst] = self.row(s, values, names)
                elif not kernel.is_element(s):
                    names[s.dst] = self.statement(s, values, names)
        for buffer, index, value, mask in stores:
            b.store(buffer, index, value, None if mask == _ALWAYS else mask)
        return b.finish(kernel.name)

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
                if s.dst in self.kernel.element_values and not (s is product and fused and result):
                    inner[s.dst] = self.statement(s, at, inner)
            if result is None:
                result = inner[total.arg]
            elif fused:
                result = self.b.compute("fma", *(inner[a] for a in product.operands), result, dtype=total.dtype)
            else:
                result = self.b.compute("add", result, inner[total.arg], dtype=total.dtype)
        return result

    def statement(self, s: Statement, values: dict, names: dict) -> str:
        """The name of a statement's value."""
        b = self.b
        if s.loaded:
            mask = names.get(s.mask)
            return b.load(s.buffer, dims.subst(s.index, values), None if mask == _ALWAYS else mask, s.other)
        if s.constant is not None:
            return b.const(s.constant, s.dtype)
        if s.prim is None:
            e = dims.subst(s.expression, values)
            name = b.index(e, s.dtype)
            self.index_of[name] = e
            return name
        args = [names[a] for a in s.operands]
        if s.prim == "lt" and all(a in self.index_of for a in args):
            low, high = (self.index_of[a] for a in args)
            if dims.nonnegative(high - low - 1):
                return _ALWAYS
        if s.prim == "logical_and" and _ALWAYS in args:
            return args[1] if args[0] == _ALWAYS else args[0]
        if s.prim == "where" and args[0] == _ALWAYS:
            return args[1]
        args = [b.const(True, s.dtype) if a == _ALWAYS else a for a in args]
        return b.compute(s.prim, *args, dtype=s.dtype)
