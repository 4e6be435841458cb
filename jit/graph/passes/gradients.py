"""What a graph says about gradients, taken out of it when they have been made or are not needed."""

from __future__ import annotations

from jit.graph.ir import Graph

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
