"""Drop nodes that nothing needs. Inputs and impure nodes stay, and so does what may raise: eager raises whether or not
anybody reads the result."""

from __future__ import annotations

from jit.graph.ir import CHECKED, Graph, Node
from jit.graph.prims import library_form
from jit.graph.registry import may_raise


def mark_checked(nodes):
    """Mark those of the nodes, which are the program's own, that may raise."""
    for node in nodes:
        if CHECKED not in node.attrs and not node.impure and may_raise(node):
            node.attrs = {**node.attrs, CHECKED: True}


def unmarked(attrs: dict) -> dict:
    """The attributes of a node that is computed again after it has been checked."""
    return {k: v for k, v in attrs.items() if k != CHECKED} if CHECKED in attrs else attrs


def as_check(node: Node, id: int | None = None) -> Node:
    """The library call that raises what ``node`` raises, done although nobody reads its result."""
    attrs = unmarked(node.attrs)
    if node.op != "aten_call":
        attrs = dict(zip(("target", "overload", "args"), library_form(node)))
    return Node(node.id if id is None else id, "aten_call", node.inputs,
                {**attrs, "impure": "raises"}, node.type, node.loc)


def eliminate_dead_nodes(graph: Graph) -> Graph:
    live = {o.node for o in graph.outputs}
    live.update(graph.inputs)
    kept = []
    for node in reversed(graph.nodes):
        if node not in live and CHECKED in node.attrs:
            node = as_check(node)
        if node in live or node.impure:
            live.add(node)
            live.update(node.inputs)
            kept.append(node)
    kept.reverse()
    graph.nodes = kept
    return graph
