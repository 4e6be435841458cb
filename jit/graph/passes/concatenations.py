"""Pointwise work behind a concatenation of many parts, done part by part.

A kernel then reads each part where it lies and writes its place in the result, and the concatenation by itself is never
in memory. Of few parts the reader selects what it needs itself (``codegen.fusion``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jit.graph.build import Builder
from jit.graph.ir import Graph, Node, Transform, contiguous_strides, same_ints
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.prims import POINTWISE

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr

FEW = 4  # parts from which a reader selects
_COMPUTED = POINTWISE | {"cast"}


def compute_parts(graph: Graph) -> Graph:
    """The graph with concatenations of many parts behind what is computed of them alone; the same graph where there is
    none."""
    if not any(n.op == "cat" and len(n.inputs) > FEW for n in graph.nodes):
        return graph
    found = _Parts(graph)
    made = found.run()
    return eliminate_dead_nodes(made) if found.changed else graph


class _Parts(Transform):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, builder=Builder(graph.env))
        self.readers = Counter(i for n in graph.nodes for i in n.inputs)
        self.readers.update(o.node for o in graph.outputs)
        self.changed = False

    def visit(self, n: Node) -> Node:
        if n.op in _COMPUTED and not n.several:
            for old, i in zip(n.inputs, self.operands(n)):
                if i.op == "cat" and len(i.inputs) > FEW and self.readers[old] == 1 and _plain(i) and same_ints(
                        i.type.shape, n.type.shape):
                    self.changed = True
                    return self._by_parts(n, i)
        return self.keep(n)

    def _by_parts(self, n: Node, whole: Node) -> Node:
        d, start, parts = whole.attrs["dim"], 0, []
        inputs = self.operands(n)
        for part in whole.inputs:
            length = part.type.shape[d]
            operands = tuple([part if x is whole else self._slice(x, n, d, start, length) for x in inputs])
            type_ = n.type.replace(shape=part.type.shape, strides=contiguous_strides(part.type.shape))
            parts.append(self.b.node(n.op, operands, n.attrs, type_))
            start = start + length
        return self.b.node("cat", tuple(parts), whole.attrs, n.type)

    def _slice(self, x: Node, n: Node, d: int, start: IntExpr, length: IntExpr) -> Node:
        """What a part reads of another operand."""
        at = d - (len(n.type.shape) - len(x.type.shape))
        if at < 0 or same_ints(x.type.shape[at : at + 1], (1,)):
            return x
        return self.b.piece(x, at, start, length)


def _plain(whole: Node) -> bool:
    """Whether all parts have the rank of the result, and elements."""
    return all(len(p.type.shape) == len(whole.type.shape) and not p.type.is_empty for p in whole.inputs)
