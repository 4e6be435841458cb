"""Drop nodes that nothing needs. Inputs and impure nodes stay, and so does what may raise: eager raises whether or not
anybody reads the result."""

from __future__ import annotations

from jit.graph.ir import CHECKED, Graph, Node
from jit.graph.passes.rewrite import changed
from jit.graph.prims import library_form
from jit.graph.registry import may_raise


def mark_checked(nodes: list[Node]) -> None:
    """Mark those of the nodes, which are the program's own, that may raise."""
    for node in nodes:
        if CHECKED not in node.attrs and not node.impure and may_raise(node):
            node.attrs = {**node.attrs, CHECKED: True}


def unmarked(attrs: dict) -> dict:
    """The attributes of a node that is computed again after it has been checked."""
    return {k: v for k, v in attrs.items() if k != CHECKED} if CHECKED in attrs else attrs


def as_check(node: Node) -> dict:
    """The attributes of the library call that raises what ``node`` raises, done although nobody reads its result."""
    attrs = unmarked(node.attrs)
    if node.op != "aten_call":
        attrs = dict(zip(("target", "overload", "args"), library_form(node)))
    return {**attrs, "impure": "raises"}


def _of_backwards(nodes: list[Node]) -> set[Node]:
    """What depends on a tangent: the backward of a function of the program's, which is not run here, whatever it raises
    or does, but where something needs it. What the function itself gives does not."""
    found: set[Node] = set()
    for node in nodes:
        inputs = node.inputs
        if node.op == "autograd_function":
            inputs = inputs[:node.attrs["results"] + node.attrs["arguments"]]
        if node.op == "tangent" or not found.isdisjoint(inputs):
            found.add(node)
    return found


def eliminate_dead_nodes(graph: Graph) -> Graph:
    live = {o.node for o in graph.outputs}
    live.update(graph.inputs)
    checks = {}
    later = _of_backwards(graph.nodes)
    for node in reversed(graph.nodes):
        if node not in live and CHECKED in node.attrs and node not in later:
            checks[node] = {"op": "aten_call", "attrs": as_check(node)}
        if node in live or node.impure and node not in later or node in checks:
            live.add(node)
            live.update(node.inputs)
    if len(live) < len(graph.nodes):
        graph = graph.replace([n for n in graph.nodes if n in live])
    return changed(graph, checks)
