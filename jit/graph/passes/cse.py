"""Merge nodes that compute the same thing from the same inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph.dims import Dim
from jit.graph.ir import CHECKED, Graph, Node
from jit.graph.passes.rewrite import value_rewritten, changed

if TYPE_CHECKING:
    from jit.graph.build import Builder


def _hashable(v: object) -> object:
    """A key in which 1, 1.0 and True, and 0.0 and -0.0, differ."""
    if isinstance(v, tuple):
        return tuple([_hashable(e) for e in v])
    if type(v) is float:
        return ("float", v.hex() if v == v else "nan")
    if type(v) is Dim or v is None or type(v) is str:
        return v
    if type(v) is Graph:
        return _structure(v)
    return (type(v), v)


def _structure(graph: Graph) -> tuple:
    """What tells a graph that a node has, such as the scores of an attention, from another."""
    places = {n: k for k, n in enumerate(graph.nodes)}
    nodes = tuple([(n.op, tuple([places[i] for i in n.inputs]), attributes_key(n), n.type) for n in graph.nodes])
    return Graph, nodes, tuple([places[n] for n in graph.inputs]), tuple([(places[o.node], o.mutates)
                                                                          for o in graph.outputs])


def node_key(node: Node) -> tuple:
    attrs = tuple([(k, _hashable(v)) for k, v in node.attrs.items() if k not in (CHECKED, "precise")])
    return node.op, tuple([i.id for i in node.inputs]), attrs, node.type


def attributes_key(node: Node) -> tuple:
    """A key for all attributes of a node."""
    return tuple([(k, _hashable(v)) for k, v in node.attrs.items()])


def merge_equal_nodes(graph: Graph) -> Graph:
    found: dict = {}   # key -> the first node with it
    precise: dict = {}  # first nodes that are to be precise for the sake of another

    def rule(b: Builder, node: Node) -> Node | None:
        first = found.setdefault(node_key(node), node)
        if node.attrs.get("precise") and not first.attrs.get("precise"):
            precise[first] = {"attrs": {**first.attrs, "precise": True}}
        return None if first is node else first

    def seen(node: Node) -> Node:
        if not node.impure:
            found.setdefault(node_key(node), node)
        return node

    return changed(value_rewritten(graph, rule, seen), precise)
