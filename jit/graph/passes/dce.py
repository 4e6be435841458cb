"""Drop nodes that nothing needs. Inputs and impure nodes stay."""

from __future__ import annotations

from jit.graph.ir import Graph


def eliminate_dead_nodes(graph: Graph) -> Graph:
    live = {o.node for o in graph.outputs}
    live.update(graph.inputs)
    kept = []
    for node in reversed(graph.nodes):
        if node in live or node.impure:
            live.add(node)
            live.update(node.inputs)
            kept.append(node)
    kept.reverse()
    graph.nodes = kept
    return graph
