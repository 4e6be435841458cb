"""Positions of extremes in few long rows, in two steps: of the parts of each row, and among these.

A reduction that tells a position goes along its row in order, and is not cut by the code generator. The parts are rows
of their own here; the first of the parts that have the row's extreme has its first place, and NaN counts as an extreme
in both steps, so that the result is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.ir import Graph, Node
from jit.graph.passes.rewrite import rebuilt
from jit.graph.prims import names

if TYPE_CHECKING:
    from jit.graph.build import Builder

POSITIONS = names(gives_position=True, kind="reduction")
LENGTH = 1024  # of a part, about


def cut_long_positions(graph: Graph) -> Graph:
    """The graph with ``argmax`` and ``argmin`` of long rows in two steps, where the device would be idle else."""
    return rebuilt(graph, _is_long, _rewrite, POSITIONS)


def _is_long(n: Node) -> bool:
    if n.op not in POSITIONS or n.type.dtype is not torch.int64:
        return False
    x, along = n.inputs[0].type, n.attrs["dims"]
    if x.dtype is torch.bool or not all(type(s) is int for s in x.shape) or not x.rank:
        return False
    row = dims.product([x.shape[d] for d in along])
    whole = sorted(along) == list(range(x.rank - len(along), x.rank))
    return whole and row > 0 and backend(x.device).splits(dims.product(x.shape) // row, row, True) and _parts(row) > 1


def _parts(row: int) -> int:
    """Into how many equal parts a row is cut: of about ``LENGTH`` elements; 1 where there is no such number."""
    found = [c for c in range(max(row // (4 * LENGTH), 2), 2 * row // LENGTH + 1) if row % c == 0]
    return min(found, key=lambda c: abs(row // c - LENGTH), default=1)


def _rewrite(b: Builder, n: Node) -> Node | None:
    x, along = n.inputs[0], n.attrs["dims"]
    outer = x.type.shape[: x.type.rank - len(along)]
    row = dims.product([x.type.shape[d] for d in along])
    parts = _parts(row)
    cut = b.try_view(x, (*outer, parts, row // parts))
    if cut is None:
        return None
    last = len(outer)
    places = b.reduce(n.op, cut, (last + 1,), True)
    extremes = b.reshape(b.gather(cut, last + 1, places), (*outer, parts))
    first = b.reduce(n.op, extremes, (last,), True)
    places = b.add(b.reshape(places, (*outer, parts)), b.mul(b.iota(parts, device=x.type.device), row // parts))
    mine = b.where(b.eq(b.iota(parts, device=x.type.device), first), places, 0)
    found = b.reduce("sum", mine, (last,), n.attrs["keepdim"] and len(along) == 1, torch.int64)
    found = b.reshape(found, n.type.shape)
    return found if found.type == n.type else None
