"""What is written into inputs is the value itself: views of it that change nothing, such as ``detach``, would hide
which kernel makes it."""

from __future__ import annotations

from jit.graph.ir import Graph, Output


def name_written_values(graph: Graph) -> Graph:
    """Change the outputs of ``graph`` that are written into inputs."""
    for k, o in enumerate(graph.outputs):
        node = o.node
        while o.mutates is not None and node.op == "alias" and node.inputs[0].op != "input":
            node = node.inputs[0]
        if node is not o.node:
            graph.outputs[k] = Output(node, o.mutates)
    return graph
