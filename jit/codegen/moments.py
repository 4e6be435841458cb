"""Variances of split reductions in one pass over the memory.

``sum((x - mean(x))**2)`` waits for the mean of everything, and would read ``x`` again. Where the reduction is cut into
chunks, each chunk of n values takes the sums of ``x - first`` and of its square, ``first`` being its first value, and
from these the squares about its own mean. ``(first - mean)**2`` is at most n times the chunk's variance, so the
cancellation costs a factor of n roundings at worst, and a few in practice. The chunks are combined by their counts,
totals and squares (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979). Such a sum becomes a node of its own, ``squares``, which reads ``x`` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import devices
from ..graph.ir import Graph, Transform
from . import fusion
from .indexing import is_one, size_hint
from .prepare import live_nodes

if TYPE_CHECKING:
    from ..graph.ir import Node


def _source(n: Node) -> Node | None:
    """``x`` when ``n`` is the sum of the squares of ``x - mean(x)``, else None."""
    if n.op != "sum" or n.inputs[0].op != "mul" or n.inputs[0].inputs[0] is not n.inputs[0].inputs[1]:
        return None
    centred = n.inputs[0].inputs[0]
    if centred.op != "sub" or centred.inputs[1].op != "div":
        return None
    x, mean = centred.inputs
    total, count = mean.inputs
    if total.op != "sum" or total.inputs[0] is not x or total.attrs["dims"] != n.attrs["dims"] or count.op != "scalar":
        return None
    return x if count.attrs["value"] == _count(n) else None


def _count(n: Node) -> int:
    """How many values a reduction of constant sizes takes together; 0 for other sizes."""
    count = 1
    for d in n.attrs["dims"]:
        size = n.inputs[0].type.shape[d]
        count *= size if type(size) is int else 0
    return count


def _is_split(n: Node) -> bool:
    shape, strides = n.inputs[0].type.shape, n.inputs[0].inputs[0].type.strides
    wide = [d for d, s in enumerate(shape) if not is_one(s)]
    inner = min(wide, key=lambda d: size_hint(strides[d]), default=None)
    extents = [shape[d] for d in wide]
    reduced = {k for k, d in enumerate(wide) if d in n.attrs["dims"]}
    return fusion.wants_split(n.type.device, extents, reduced, inner in n.attrs["dims"]) is not None


def one_pass(graph: Graph) -> Graph:
    """The graph with ``squares`` in the place of such sums where the device wants it, or the same graph where there is
    none."""
    found = {}
    for n in graph.of_ops(("sum",)):
        x = _source(n) if devices.backend(n.type.device).one_pass_moments else None
        if x is not None and n.type.dtype.is_floating_point and _is_split(n):
            found[n] = x
    if not found:
        return graph
    made = _OnePass(graph, found).run()
    live = live_nodes(made)
    return made.replace([n for n in made.nodes if n in live])


class _OnePass(Transform):
    def __init__(self, graph: Graph, found: dict) -> None:
        super().__init__(graph)
        self.found = found

    def visit(self, n: Node) -> Node:
        if n not in self.found:
            return self.keep(n)
        return self.node("squares", (self.new[self.found[n]],), {**n.attrs, "count": _count(n)}, n.type)
