"""The seeds of several draws taken together: one library call where nothing else touches a generator in between."""

from __future__ import annotations

from jit.graph.ir import Graph, Node, TensorType
from jit.graph.philox import is_seed


def merge_seeds(graph: Graph) -> Graph:
    runs, open_runs = {}, {}  # first seed of a run -> all of the run; device -> the run that later seeds join
    for n in graph.nodes:
        if is_seed(n):
            run = open_runs.setdefault(n.device, [])
            run.append(n)
            runs.setdefault(run[0], run)
        elif n.impure:
            open_runs = {}
    next_id, nodes = max((n.id for n in graph.nodes), default=0) + 1, []
    for n in graph.nodes:
        run = runs.get(n, ())
        if len(run) > 1:
            low, high, _, *rest = n.attrs["args"]
            attrs = {**n.attrs, "args": (low, high, (len(run),), *rest)}
            whole = Node(next_id, n.op, (), attrs, TensorType.contiguous((len(run),), n.dtype, n.device))
            next_id += 1
            nodes.append(whole)
            for k, seed in enumerate(run):
                seed.op, seed.inputs, seed.attrs = "slice", (whole,), {"dim": 0, "start": k, "length": 1, "step": 1}
        nodes.append(n)
    graph.nodes = nodes
    return graph
