"""Graph-to-graph transformations. Each keeps every value that eager would give.

A pass is a function of a Graph that returns it, changed, or another. ``run_passes`` runs some in order, and is the one
place that times, prints and checks them.
"""

from __future__ import annotations

from jit import config, logs
from jit.graph.ir import Graph
from jit.graph.passes.checks import keep_checks
from jit.graph.passes.contractions import rewrite_contractions
from jit.graph.passes.cse import merge_equal_nodes
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.empty import compute_empty
from jit.graph.passes.fold import fold_constants
from jit.graph.passes.seeds import merge_seeds
from jit.graph.passes.simplify import simplify
from jit.graph.passes.writes import name_written_values
from jit.graph.verify import InvalidGraph, verify

STANDARD = (name_written_values, eliminate_dead_nodes, merge_seeds, compute_empty,
            fold_constants, simplify, merge_equal_nodes, eliminate_dead_nodes)
SCHEDULED = (keep_checks, rewrite_contractions)  # of a graph for which kernels are made next

_log = logs.channel("passes")


def run_passes(graph: Graph, passes) -> Graph:
    """The graph after ``passes``, in this order. With ``config.verify_graphs`` each result is checked, and InvalidGraph
    names the pass that made it."""
    for run in passes:
        before = len(graph.nodes)
        with logs.timed(f"pass {run.__name__}"):
            graph = run(graph)
        if config.verify_graphs:
            try:
                verify(graph)
            except InvalidGraph as error:
                raise InvalidGraph(f"{error}, after {run.__name__}") from None
        if _log and len(graph.nodes) != before:
            _log(f"{run.__name__}: {before} nodes, then {len(graph.nodes)}")
    return graph


def optimize(graph: Graph) -> Graph:
    """Fold, simplify and deduplicate ``graph`` in place; returns it."""
    return run_passes(graph, STANDARD)
