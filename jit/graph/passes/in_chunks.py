"""Reductions that wait for another one, cut into chunks.

Where there are too few rows for the device, a reduction is cut into chunks, and a second kernel takes these together
(``codegen.lower``). For ``sum(exp(x - max(x)))`` that would be two reductions behind each other, each with a pass
over the memory, and positions of extrema cannot be cut so at all. Here both are written as a reduction over each chunk,
an ordinary one with many rows, and a small one over the chunks:

- the sum about each chunk's own maximum ``m``, times ``exp(m - max)`` (Milakov, Gimelshein, "Online normalizer
  calculation for softmax", 2018);
- of the chunks whose extreme is the one of all, or NaN, the first position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph.build import Builder
from jit.graph.ir import Graph, Transform
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.ir import Node

LAST = torch.iinfo(torch.int64).max
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def cut_what_waits(graph: Graph) -> Graph:
    """The graph with such reductions over chunks where the device wants it, or the same graph where there are none."""
    sums, positions, extrema = {}, {}, {}
    for n in graph.nodes:
        if n.op != "sum" and not _is_position(n) or not backend(n.type.device).cuts_what_waits:
            continue
        cut = _cut(n)
        if cut is None:
            continue
        if _is_position(n):
            positions[n] = cut
            extrema[(_extreme(n), n.inputs[0], n.attrs["dims"])] = cut
        else:
            top = _top_of_exponents(n)
            if top is not None:
                sums[n], extrema[("amax", top.inputs[0], top.attrs["dims"])] = (top, cut), cut
    found = {n: extrema[key] for n in graph.nodes if info(n.op).kind == "reduction"
             for key in [(n.op, n.inputs[0], n.attrs["dims"])] if key in extrema}
    return _InChunks(graph, sums, positions, found).run() if sums or positions else graph


def _is_position(n: Node) -> bool:
    return info(n.op).kind == "reduction" and info(n.op).gives_position


def _extreme(n: Node) -> str:
    """The reduction that gives the value at the position which ``n`` gives."""
    return "a" + n.op.removeprefix("arg")


@dataclass(frozen=True)
class Cut:
    """The dimensions ``first`` to ``last`` of an operand, as one range of ``total`` elements, in ``count`` chunks."""

    first: int
    last: int
    total: int
    count: int

    @property
    def length(self) -> int:
        return self.total // self.count

    def shape(self, shape: tuple) -> tuple:
        """``shape`` with the chunks as dimension ``first``, and what lies in a chunk behind it."""
        return (*shape[:self.first], self.count, self.length, *shape[self.last + 1:])

    def inside(self, dims: tuple[int, ...]) -> list[int]:
        """The dimensions of a chunk that are reduced."""
        more = self.last - self.first - 1
        return sorted({k if k < self.first else max(k - more, self.first + 1) for k in dims})


def _cut(n: Node) -> Cut | None:
    """How a reduction that has too few rows is cut, None for any other."""
    x = n.inputs[0].type
    if x.dtype not in DTYPES or not all(type(s) is int for s in (*x.shape, *x.strides)) or not n.attrs["dims"]:
        return None
    wide = [d for d in range(x.rank) if x.shape[d] != 1]
    reduced = [d for d in wide if d in n.attrs["dims"]]
    inner = min(wide, key=lambda d: (x.strides[d] or math.inf), default=None)
    if not reduced:
        return None
    inside = inner in reduced
    total = math.prod(x.shape[d] for d in reduced)
    rows = math.prod(x.shape) // max(total, 1)
    if not backend(x.device).splits(rows, total, inside):
        return None
    first, last = reduced[0], reduced[-1]
    if set(range(first, last + 1)) <= set(n.attrs["dims"]) and all(
            x.strides[d] == x.strides[e] * x.shape[e] for d, e in zip(reduced, reduced[1:])):
        extent = math.prod(x.shape[d] for d in reduced)
    elif _is_position(n):  # a position is one in all that is reduced
        return None
    else:
        first = last = max(reduced, key=lambda d: x.shape[d])
        extent = x.shape[first]
    wanted = backend(x.device).chunks(rows, total, inside)
    count = next((c for c in range(wanted, 4 * wanted + 1) if extent % c == 0), None)
    return Cut(first, last, extent, count) if count is not None and 1 < count < extent else None


def _top_of_exponents(n: Node) -> Node | None:
    """The maximum of ``x`` in ``sum(exp(x - max(x)))``, with zero in the place of infinities or without."""
    exp = n.inputs[0]
    if exp.op != "exp" or exp.inputs[0].op != "sub" or n.type.dtype is not torch.float32:
        return None
    x, top = exp.inputs[0].inputs
    if top.op == "where" and top.inputs[0].op == "isinf" and top.inputs[0].inputs[0] is top.inputs[2]:
        zero, top = top.inputs[1:]
        if zero.op != "scalar" or zero.attrs["value"] != 0:
            return None
    same = top.op == "amax" and top.inputs[0] is x and top.attrs["keepdim"] and top.attrs["dims"] == n.attrs["dims"]
    return top if same and x.type.dtype is torch.float32 else None


class _InChunks(Transform):
    def __init__(self, graph: Graph, sums: dict, positions: dict, extrema: dict) -> None:
        super().__init__(graph, builder=Builder(graph.env))
        self.sums, self.positions, self.extrema = sums, positions, extrema
        self.chunks: dict = {}  # (operand, cut) -> the operand with the chunks as a dimension of their own
        self.parts: dict = {}  # (extreme, operand, dimensions) -> the extrema of the chunks
        self.places: dict = {}  # the same -> where these are
        # Extrema whose places are wanted too are looked up there, which reads the operand once.
        self.placed = {(_extreme(n), n.inputs[0], n.attrs["dims"]) for n in positions}

    def visit(self, n: Node) -> Node:
        if n in self.sums:
            return self._sum(n, *self.sums[n])
        if n in self.positions:
            return self._position(n, self.positions[n])
        if n in self.extrema:
            return self._over_chunks(n.op, n, self._part(n.op, n, self.extrema[n]), self.extrema[n])
        return self.keep(n)

    def _chunked(self, x: Node, cut: Cut) -> Node:
        if (x, cut) not in self.chunks:
            self.chunks[x, cut] = self.b.reshape(self.new[x], cut.shape(x.type.shape))
        return self.chunks[x, cut]

    def _part(self, op: str, n: Node, cut: Cut) -> Node:
        """The extrema of the chunks, with all dimensions kept."""
        key = (op, n.inputs[0], n.attrs["dims"])
        if key not in self.parts:
            x = self._chunked(n.inputs[0], cut)
            self.parts[key] = (self.b.gather(x, cut.first + 1, self._place(op, n, cut)) if key in self.placed
                               else self.b.reduce(op, x, cut.inside(n.attrs["dims"]), True))
        return self.parts[key]

    def _place(self, op: str, n: Node, cut: Cut) -> Node:
        """Where the extrema of the chunks are, each in its own, with all dimensions kept."""
        key = (op, n.inputs[0], n.attrs["dims"])
        if key not in self.places:
            self.places[key] = self.b.reduce("arg" + op[1:], self._chunked(n.inputs[0], cut),
                                             cut.inside(n.attrs["dims"]), True)
        return self.places[key]

    def _over_chunks(self, op: str, n: Node, values: Node, cut: Cut) -> Node:
        return self.b.reshape(self.b.reduce(op, values, (cut.first,), False, n.type.dtype), n.type.shape)

    def _sum(self, n: Node, top: Node, cut: Cut) -> Node:
        b, part = self.b, self._part("amax", top, cut)
        safe = b.where(b.isinf(part), 0.0, part)
        sums = b.reduce("sum", b.exp(b.sub(self._chunked(top.inputs[0], cut), safe)), cut.inside(n.attrs["dims"]), True)
        about = self.new[n.inputs[0].inputs[0].inputs[1]]  # with the dimensions that are reduced kept
        shape = about.type.shape
        about = b.reshape(about, (*shape[:cut.first], 1, 1, *shape[cut.last + 1:]))
        return self._over_chunks("sum", n, b.mul(sums, b.exp(b.sub(part, about))), cut)

    def _position(self, n: Node, cut: Cut) -> Node:
        b, op = self.b, _extreme(n)
        part, inside = self._part(op, n, cut), self._place(op, n, cut)
        hit = b.eq(part, b.reduce(op, part, (cut.first,), True))
        if part.type.dtype.is_floating_point:
            hit = b.logical_or(hit, b.isnan(part))
        start = b.reshape(b.iota(cut.count, 0, cut.length, torch.int64, n.type.device),
                          tuple([cut.count if k == cut.first else 1 for k in range(part.type.rank)]))
        return self._over_chunks("amin", n, b.where(hit, b.add(inside, start), LAST), cut)
