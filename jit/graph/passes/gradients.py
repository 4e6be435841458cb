"""What a graph says about gradients, taken out of it when they have been made or are not needed."""

from __future__ import annotations

from jit.graph.ir import Graph, Node, Output
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
    shown, copies, new = set(), {graph.inputs[i]: None for i in positions}, {}
    for output in graph.outputs:
        node = output.node
        while node.op in VIEWS:
            node = node.inputs[0]
        if node in copies:
            node = output.node
            while node.op in VIEWS:
                shown.add(node)
                node = node.inputs[0]
    nodes: list = []

    def node(op, inputs, attrs, type, loc):
        nodes.append(Node(len(nodes), op, inputs, attrs, type, loc))
        return nodes[-1]

    for n in graph.nodes:
        inputs = [new[i] if n in shown else copies.get(i) or new[i] for i in n.inputs]
        new[n] = node(n.op, tuple(inputs), n.attrs, n.type, n.loc)
        if n in copies:
            copies[n] = node("clone", (new[n],), {}, n.type, None)
    return Graph([new[i] for i in graph.inputs], nodes, [Output(new[o.node], o.mutates) for o in graph.outputs], graph.env)
