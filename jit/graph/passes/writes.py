"""What is written into inputs is the value itself: views of it that change nothing, such as ``detach``, would hide
which kernel makes it."""

from __future__ import annotations

from jit.graph.ir import Graph, Node, Output


def name_written_values(graph: Graph) -> Graph:
    outputs = [o if o.mutates is None else Output(_named(o.node), o.mutates) for o in graph.outputs]
    return graph if outputs == graph.outputs else graph.replace(outputs=outputs)


def _named(node: Node) -> Node:
    while node.op == "alias" and node.inputs[0].op != "input":
        node = node.inputs[0]
    return node
