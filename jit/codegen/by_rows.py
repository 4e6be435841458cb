"""Sums over everything, by way of rows.

A loss such as ``sum(p * (log_softmax(a) - log_softmax(b)))`` reads results of whole rows, and adds up over all of them.
As a sum over each row, and one over these, its first part shares the loops, and the reads, of those reductions. So do
the gradients of the weights of a norm whose rows are images: what they add up is read for the rows' own sums. Where
rows are groups of channels, such a gradient is a sum over the batch, which the rows' kernel takes along, and one over
each image.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .. import devices
from ..graph.ir import Graph, Transform
from ..graph.prim_info import BESIDE_ROWS
from ..graph.prims import POINTWISE, REDUCTIONS
from .indexing import VIEWS, is_one, numel_hint, same

if TYPE_CHECKING:
    from ..graph.ir import Node

COMPUTED = POINTWISE | {"cast"}
MOST = 64  # nodes of a tree that are looked at


def summed_by_rows(graph: Graph) -> Graph:
    """The graph with such sums as two, where the device wants it, or the same graph where there is none."""
    found, beside = {}, None
    for n in graph.of_ops(("sum",)):
        if devices.backend(n.type.device).sums_by_rows:
            if beside is None:
                beside = [n for n in graph.nodes if n.op in REDUCTIONS]
            rows = _rows(n) or _rows_beside(n, beside)
            if rows is not None:
                found[n] = rows, {}
            elif devices.backend(n.type.device).adds_columns_beside_rows:
                batch = _batch_beside(n, beside)
                if batch is not None:
                    found[n] = batch, {BESIDE_ROWS: True}
    return _ByRows(graph, found).run() if found else graph


def _rows(n: Node) -> tuple[int, ...] | None:
    """The dimensions of the rows whose results are read where ``n`` adds up over these and others, or None."""
    x, seen = n.inputs[0], set()
    if n.type.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    stack = [x]
    while stack and len(seen) < MOST:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        shape = node.inputs[0].type.shape if node.op in REDUCTIONS else ()
        if node.op in REDUCTIONS:
            reduced = set(node.attrs["dims"])
            others = [d for d in n.attrs["dims"] if d not in reduced and not is_one(x.type.shape[d])]
            if (len(shape) == len(x.type.shape) and all(map(same, shape, x.type.shape))
                and reduced < set(n.attrs["dims"]) and others):
                return tuple(sorted(reduced))
        elif node.op in COMPUTED or node.op in VIEWS:
            stack.extend(node.inputs)
    return None


SHORTEST = 64  # elements of a row, so that the sums over rows are little to write and to read


def _rows_beside(n: Node, others: list[Node]) -> tuple[int, ...] | None:
    """The dimensions of the rows of another sum, where ``n`` adds up over these and others and reads nothing that this
    one does not read, or None."""
    x, reads = n.inputs[0], None
    if n.type.dtype is not torch.float32:
        return None
    for other in others:
        rows, shape = set(other.attrs["dims"]), other.inputs[0].type.shape
        if other.op != "sum" or not rows < set(n.attrs["dims"]) or len(shape) != len(x.type.shape) or not all(
                map(same, shape, x.type.shape)):
            continue
        wide = [d for d in n.attrs["dims"] if d not in rows and not is_one(shape[d])]
        if not wide or numel_hint([shape[d] for d in rows]) < SHORTEST:
            continue
        reads = _read(n) if reads is None else reads
        if reads and reads <= _read(other):
            return tuple(sorted(rows))
    return None


LONGEST, FEWEST = 8192, 4096  # elements of a row that a kernel holds beside sums, rows for which that pays


def _batch_beside(n: Node, others: list[Node]) -> tuple[int, ...] | None:
    """The dimensions over which ``n`` adds up that are not those of the rows of another sum, of which it reads nothing
    else, where it adds up over a part of these rows too; or None."""
    x, over = n.inputs[0], set(n.attrs["dims"])
    if n.type.dtype is not torch.float32 or not all(type(s) is int for s in x.type.shape):
        return None
    for other in others:
        rows, shape = set(other.attrs["dims"]), other.inputs[0].type.shape
        batch = tuple(sorted(d for d in over - rows if d < len(shape) and shape[d] != 1))
        if other.op != "sum" or shape != x.type.shape or not rows & over or rows <= over or not batch:
            continue
        length = math.prod(shape[d] for d in rows)
        if (SHORTEST <= length <= LONGEST and math.prod(shape) >= FEWEST * length
                and all(d in rows for d in range(min(rows), len(shape))) and _read(n) <= _read(other)):
            return batch
    return None


def _read(n: Node) -> set[Node]:
    """The tensors as large as what ``n`` reduces of which that is made."""
    size, seen, found, stack = numel_hint(n.inputs[0].type.shape), set(), set(), [n.inputs[0]]
    while stack and len(seen) < MOST:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in COMPUTED or node.op in VIEWS:
            stack.extend(node.inputs)
        elif not node.several and numel_hint(node.type.shape) * 4 > size:
            found.add(node)
    return found


class _ByRows(Transform):
    def __init__(self, graph: Graph, found: dict[Node, tuple[tuple[int, ...], dict]]) -> None:
        super().__init__(graph)
        self.found = found

    def visit(self, n: Node) -> Node:
        if n not in self.found:
            return self.keep(n)
        (rows, more), x = self.found[n], self.new[n.inputs[0]]
        t = type(n.type).contiguous(tuple([1 if d in rows else s for d, s in enumerate(x.type.shape)]), torch.float32,
                                    n.type.device)
        inner = self.node("sum", (x,), {**n.attrs, "dims": rows, "keepdim": True, **more}, t)
        return self.keep(n, (inner,))
