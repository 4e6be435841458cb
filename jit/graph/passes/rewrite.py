"""What the passes share: ways to replace nodes in program order, and which nodes must keep their own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from jit.graph.build import Builder
from jit.graph.ir import Graph, Node, Transform
from jit.graph.prims import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable


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


def changed(graph: Graph, changes: dict) -> Graph:
    """The graph with another ``op``, ``inputs``, ``attrs`` or ``type`` (keys of ``changes[node]``) for some nodes; the
    same graph where there are none."""
    return _Changed(graph, changes).run() if changes else graph


class _Changed(Transform):
    def __init__(self, graph: Graph, changes: dict) -> None:
        super().__init__(graph)
        self.changes = changes

    def visit(self, n: Node) -> Node:
        change = self.changes.get(n)
        if change is None:
            return self.keep(n)
        inputs = change.get("inputs", n.inputs)
        return self.keep(n, **{**change, "inputs": tuple([self.new[i] for i in inputs])})


def rebuilt(graph: Graph, applies: Callable, rule: Callable, ops: Iterable[str] | None = None) -> Graph:
    """The graph in which ``rule(builder, n)`` gives the replacement of each node for which ``applies(node)``, or None
    to leave it: ``n`` is the node with its inputs replaced. The same graph where it applies to none. ``ops``: those of
    the nodes that it may apply to."""
    taken = {n for n in (graph.nodes if ops is None else graph.of_ops(ops)) if applies(n)}
    return Rewriter(graph, rule, set(graph.nodes) - taken).run() if taken else graph


class Rewriter(Transform):
    """Puts what a rule gives in the place of nodes; see ``rebuilt``. The nodes ``left`` are given to ``kept`` instead,
    which may make another of the same id of them."""

    def __init__(self, graph: Graph, rule: Callable, left: set, kept: Callable | None = None) -> None:
        super().__init__(graph, builder=Builder(graph.env))
        self.rule, self.left, self.kept = rule, left, kept

    def visit(self, n: Node) -> Node:
        new, node = self.new, n
        for i in n.inputs:
            if new[i] is not i:
                node = n.replace(inputs=self.operands(n))
                break
        if n not in self.left:
            made = self.rule(self.b, node)
            if made is not None:
                return made
        elif self.kept is not None:
            node = self.kept(node)
        self.nodes.append(node)
        return node


def value_rewritten(graph: Graph, rule: Callable, kept: Callable | None = None) -> Graph:
    """The graph after a rule that may put any node of the same value in the place of another. It is not asked for one
    whose memory is seen, nor for one that does more than give a value: these are given to ``kept``."""
    left = protected_nodes(graph) | {n for n in graph.nodes if n.impure}
    return Rewriter(graph, rule, left, kept).run()
