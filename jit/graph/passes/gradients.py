"""What a graph says about gradients, taken out of it when they have been made or are not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph.ir import Graph, Transform
from jit.graph.passes.rewrite import changed
from jit.graph.prim_info import info
from jit.graph.prims import VIEWS

if TYPE_CHECKING:
    from jit.graph.ir import Node



def without_gradients(graph: Graph) -> Graph:
    """A value is what it is, whatever its gradient would be."""
    changes = {}
    for node in graph.nodes:
        if node.op == "getitem" and node.inputs[0].op == "autograd_function":
            changes[node] = {"op": "alias", "inputs": (node.inputs[0].inputs[node.attrs["index"]],), "attrs": {}}
        elif (plain := info(node.op).plain) is not None:
            changes[node] = {"op": plain, "inputs": node.inputs[:1]}
    return changed(graph, changes)


def without_gates(graph: Graph) -> Graph:
    """All tangents are given."""
    return changed(graph, {n: {"op": "alias", "inputs": n.inputs[:1]} for n in graph.nodes if n.op == "gate"})


def with_copies(graph: Graph, positions: tuple[int, ...]) -> Graph:
    """The same graph computing from copies of the inputs at ``positions``; results that are views of them stay so."""
    return _WithCopies(graph, {graph.inputs[i] for i in positions}).run()


class _WithCopies(Transform):
    def __init__(self, graph: Graph, copied: set) -> None:
        super().__init__(graph)
        self.copied, self.copies = copied, {}
        self.shown: set = set()  # views of these inputs that are results
        for output in graph.outputs:
            path = [output.node]
            while path[-1].op in VIEWS:
                path.append(path[-1].inputs[0])
            if path.pop() in copied:
                self.shown.update(path)

    def entry(self, n: Node) -> Node | None:
        made = super().entry(n)
        if n in self.copied:
            self.copies[n] = self.node("clone", (made,), {}, n.type)
        return made

    def visit(self, n: Node) -> Node:
        inputs = self.operands(n)
        return self.keep(n, inputs if n in self.shown else tuple([self.copies.get(old, new)
                                                                  for old, new in zip(n.inputs, inputs)]))
