"""Graph-to-graph transformations. ``optimize`` runs the standard ones, each of which keeps every value that eager would give."""

from __future__ import annotations

from jit.graph.ir import Graph
from jit.graph.passes.cse import merge_equal_nodes
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.empty import compute_empty
from jit.graph.passes.fold import fold_constants
from jit.graph.passes.seeds import merge_seeds
from jit.graph.passes.simplify import simplify
from jit.graph.passes.writes import name_written_values

# In order; each takes a Graph, changes it in place and returns it.
PASSES = (name_written_values, eliminate_dead_nodes, merge_seeds, compute_empty, fold_constants, simplify, merge_equal_nodes, eliminate_dead_nodes)


def optimize(graph: Graph) -> Graph:
    """Fold, simplify and deduplicate ``graph`` in place; returns it."""
    for run in PASSES:
        run(graph)
    return graph
