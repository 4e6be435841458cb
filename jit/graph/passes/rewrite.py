"""What the passes share: a walk that replaces nodes in program order, and which nodes must keep their own memory."""

from __future__ import annotations

from typing import Callable

from jit.graph.build import Builder
from jit.graph.ir import Graph, Node, Output, Transform
from jit.graph.prims import VIEWS


def protected_nodes(graph: Graph) -> set[Node]:
    """Outputs and the view chains below them, down to the node that owns the memory; and so for what ``as_strided``
    reads.

    An output is a tensor object of its own, and two outputs share memory only where the program said so. ``as_strided``
    reads at places of the memory itself, where others of the same value have something else. These nodes may not be
    replaced by others.
    """
    protected: set[Node] = set()
    for node in [o.node for o in graph.outputs] + [n.inputs[0] for n in graph.nodes if n.op == "as_strided"]:
        protected.add(node)
        while node.op in VIEWS or node.op == "getitem":
            node = node.inputs[0]
            protected.add(node)
    return protected


def rebuilt(graph: Graph, applies: Callable, rule: Callable) -> Graph:
    """A copy of ``graph`` in which ``rule(builder, node, new inputs)`` gives the replacement of each node for which
    ``applies(node)``, or None to leave it; the same graph where it applies to none."""
    return _Rebuilt(graph, applies, rule).run() if any(applies(n) for n in graph.nodes) else graph


class _Rebuilt(Transform):
    def __init__(self, graph, applies, rule):
        super().__init__(graph, builder=Builder(graph.env))
        self.applies, self.rule = applies, rule

    def visit(self, n):
        made = self.rule(self.b, n, self.operands(n)) if self.applies(n) else None
        return self.keep(n) if made is None else made


class Rewriter:
    """Rebuilds a graph's node list. ``rule(rewriter, node)`` gives a replacement for a node (whose inputs are already
    replaced), or None."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.protected = protected_nodes(graph)
        self.nodes: list[Node] = []
        self.replaced: dict[Node, Node] = {}
        self.first = self.next_id = max(graph.next_id, max((n.id for n in graph.nodes), default=-1) + 1)

    def node(self, op: str, inputs: tuple, attrs: dict, type, loc=None) -> Node:
        """A new node at the present place."""
        n = Node(self.next_id, op, inputs, attrs, type, loc)
        self.next_id += 1
        self.nodes.append(n)
        return n

    def run(self, rule: Callable, observe: Callable | None = None) -> Graph:
        """Apply ``rule`` everywhere; ``observe(node)`` is called for the nodes that may not be replaced."""
        replaced = self.replaced
        for node in self.graph.nodes:
            if replaced and any(i in replaced for i in node.inputs):
                node.inputs = tuple([replaced.get(i, i) for i in node.inputs])
            if node not in self.protected and node.op != "input" and not node.impure:
                new = rule(self, node)
                if new is not None and new is not node:
                    replaced[node] = new
                    if new.id >= self.first:
                        self.graph.origins.setdefault(new.id, node.id)
                    continue
            elif observe is not None:
                observe(node)
            self.nodes.append(node)
        self.graph.nodes, self.graph.next_id = self.nodes, self.next_id
        self.graph.outputs = [Output(replaced.get(o.node, o.node), o.mutates) for o in self.graph.outputs]
        return self.graph
