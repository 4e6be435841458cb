"""Sums of rows at places that data decide, by a kernel that adds up what each row gets.

Added in place they are an atomic addition for each element, of which a device does only so many, to rows in single
precision, which are made of zeros before and cast behind. Here the rows' names are counted, which gives each its number
among those of its row, and each row a range of positions, in which these names are noted. A row's values are then read
one after the other, added up on chip and written once, in the dtype of the result. Rows that get many values are first
summed in parts, so that none takes long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.build import HALF
from jit.graph.ir import Graph, Node, TensorType
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.rewrite import Rewriter
from jit.graph.prims import PART, VIEWS

if TYPE_CHECKING:
    from jit.graph.build import Builder

LEAST = 1 << 24  # additions: fewer take no longer than to find the positions
LEAST_WIDTH = 256  # of a row: a program has one, or a piece of it
MOST_PLACES = 1 << 30
SUMMED = (*HALF, torch.float32)


def group_rows(graph: Graph) -> Graph:
    """The graph with such sums where they pay."""
    long = set(filter(_is_long, graph.of_ops(("put",))))
    if not long:
        return graph
    readers: dict[Node, list] = {}
    for n in graph.nodes:
        for i in n.inputs:
            readers.setdefault(i, []).append(n)
    seen = {o.node for o in graph.outputs}

    def alone(n: Node) -> bool:
        """Whether a sum is only read to be rounded."""
        return n not in seen and [r.op for r in readers.get(n, ())] == ["cast"] and readers[n][0].type.dtype in SUMMED

    taken = {n for n in long if alone(n)}
    found = {n for n in graph.nodes if n.op == "cast" and n.inputs[0] in taken
             or n in long and n not in taken and (n in seen or n in readers)}
    return eliminate_dead_nodes(_Grouped(graph, found, taken).run()) if found else graph


class _Grouped(Rewriter):
    """With sums in the place of the nodes ``found``; ``taken`` are sums that these round."""

    def __init__(self, graph: Graph, found: set, taken: set) -> None:
        super().__init__(graph, _rewrite, {n for n in graph.nodes if n not in found})
        self.taken = taken

    def visit(self, n: Node) -> Node:
        return n.replace(inputs=self.operands(n)) if n in self.taken else super().visit(n)


def _is_long(n: Node) -> bool:
    if n.op != "put" or n.attrs["combine"] != "sum" or n.attrs["dims"] != (0,) or n.type.dtype is not torch.float32:
        return False
    x, values, index = n.inputs
    if not backend(n.type.device).groups_rows or not all(type(s) is int for t in (x, values) for s in t.type.shape):
        return False
    width, count = dims.product(x.type.shape[1:]), dims.product(index.type.shape)
    if not _is_zero(x) and x.type.shape[0] > count:
        return False  # most of it stays as it is
    return (width >= LEAST_WIDTH and PART <= count < MOST_PLACES and width * count >= LEAST
            and 0 < x.type.shape[0] < MOST_PLACES and x.type.is_contiguous and n.type.is_contiguous)


def _rewrite(b: Builder, n: Node) -> Node | None:
    put = n.inputs[0] if n.op == "cast" else n
    x, values, index = put.inputs
    rows, width, count = x.type.shape[0], dims.product(x.type.shape[1:]), dims.product(index.type.shape)
    device, wrap = n.type.device, put.attrs["wrap"]
    index = b.reshape(index, (count,))

    def ints(length: int) -> TensorType:
        return TensorType.contiguous((length,), torch.int32, device)

    values, skipped = _without_skipped(_unrounded(b, values), put.inputs[2])
    values, start = _unrounded(b, values), None if _is_zero(x) else _unrounded(b, x)
    counts, ranks, starts = b.aten("jit::place_ranks", "", (index, rows, wrap, skipped),
                                   (ints(rows + 1), ints(count), ints(rows)))
    order = b.aten("jit::place_order", "", (index, ranks, starts, wrap, skipped), ints(count))
    parts = b.aten("jit::part_sums", "", (values, order, index, starts, counts, wrap, width),
                   TensorType.contiguous((-(-count // PART), width), torch.float32, device))
    return b.aten("jit::row_sums", "", (start, values, order, starts, counts, parts, list(n.type.shape), n.type.dtype),
                  n.type)


def _is_zero(x: Node) -> bool:
    while x.op in VIEWS or x.op == "cast":
        x = x.inputs[0]
    return x.op == "full" and type(x.attrs["value"]) is not dims.Dim and x.attrs["value"] == 0


def _unrounded(b: Builder, x: Node) -> Node:
    """What is cast to the dtype in which it is added, as it lies in memory."""
    while True:
        found = _within(b, x)
        if found is None:
            return x
        x = found


def _within(b: Builder, x: Node) -> Node | None:
    """A half that is cast to single precision; also behind views of that which are cast back. What is repeated is
    rounded once. None for others."""
    if x.op == "cast" and x.type.dtype is torch.float32 and x.inputs[0].type.dtype in HALF:
        return x.inputs[0]
    if x.op != "cast" or x.type.dtype not in HALF:
        return None
    views, base = [], x.inputs[0]
    while base.op in VIEWS:
        views.append(base)
        base = base.inputs[0]
    if base.type.dtype is not torch.float32:
        return None
    given = base.inputs[0] if base.op == "cast" else None
    if given is None or given.type.dtype is not x.type.dtype or given.type.strides != base.type.strides:
        if not any(view.op == "expand" for view in views):
            return None
        given = b.node("cast", (base,), {}, base.type.replace(dtype=x.type.dtype))
    for view in reversed(views):
        given = b.node(view.op, (given,), view.attrs, view.type.replace(dtype=x.type.dtype))
    return given


def _without_skipped(values: Node, index: Node) -> tuple[Node, int | None]:
    """Values that are zeros where the index is a certain one, as where a row of a table pads: without these zeros, and
    that index, whose row gets nothing; None where there is none."""
    if values.op != "where" or not _is_number(values.inputs[1]) or values.inputs[1].attrs["value"] != 0:
        return values, None
    test = values.inputs[0]
    while test.op in VIEWS:
        test = test.inputs[0]
    if test.op != "eq" or not _is_number(test.inputs[1]) or _given(test.inputs[0]) is not _given(index):
        return values, None
    own = values.inputs[2]
    lead, rank = test.type.shape, index.type.rank
    shape = values.inputs[0].type.shape
    along = lead == index.type.shape and shape[:rank] == lead and all(n == 1 for n in shape[rank:])
    number = test.inputs[1].attrs["value"]
    return (own, number) if along and type(number) is int and own.type.shape == values.type.shape else (values, None)


def _is_number(n: Node) -> bool:
    return n.op == "scalar" and type(n.attrs["value"]) in (int, float)


def _given(index: Node) -> Node:
    return index.inputs[0] if index.op == "cast" else index
