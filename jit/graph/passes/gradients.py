"""What a graph says about gradients, taken out of it when they have been made or are not needed."""

from __future__ import annotations

from jit.graph.ir import Graph, Transform
from jit.graph.prims import VIEWS

_PLAIN = {"detach": "alias", "custom_gradient": "cast"}


def without_gradients(graph: Graph) -> Graph:
    """Change ``graph``: a value is what it is, whatever its gradient would be."""
    for node in graph.nodes:
        if node.op == "getitem" and node.inputs[0].op == "autograd_function":
            node.op, node.inputs, node.attrs = "alias", (node.inputs[0].inputs[node.attrs["index"]],), {}
        plain = _PLAIN.get(node.op)
        if plain is not None:
            node.op, node.inputs = plain, node.inputs[:1]
    return graph


def without_gates(graph: Graph) -> Graph:
    """Change ``graph``: all tangents are given."""
    for node in graph.nodes:
        if node.op == "gate":
            node.op, node.inputs = "alias", node.inputs[:1]
    return graph


def with_copies(graph: Graph, positions) -> Graph:
    """The same graph computing from copies of the inputs at ``positions``; results that are views of them stay so."""
    return _WithCopies(graph, {graph.inputs[i] for i in positions}).run()


class _WithCopies(Transform):
    def __init__(self, graph, copied: set):
        super().__init__(graph)
        self.copied, self.copies = copied, {}
        self.shown: set = set()  # views of these inputs that are results
        for output in graph.outputs:
            path = [output.node]
            while path[-1].op in VIEWS:
                path.append(path[-1].inputs[0])
            if path.pop() in copied:
                self.shown.update(path)

    def entry(self, n):
        made = super().entry(n)
        if n in self.copied:
            self.copies[n] = self.node("clone", (made,), {}, n.type)
        return made

    def visit(self, n):
        inputs = self.operands(n)
        return self.keep(n, inputs if n in self.shown else tuple([self.copies.get(old, new)
                                                                  for old, new in zip(n.inputs, inputs)]))
