"""Graph-to-graph transformations. Each keeps every value that eager would give.

A pass is a function of a Graph that returns another, or the same where it has nothing to do; it never changes what it
is given. ``run_passes`` runs some in order, and is the one place that times, prints and checks them.
"""

from __future__ import annotations

from typing import Callable

from jit import config, logs
from jit.graph.ir import Graph
from jit.graph.passes.checks import keep_checks
from jit.graph.passes.concatenations import compute_parts
from jit.graph.passes.contractions import rewrite_contractions
from jit.graph.passes.cse import merge_equal_nodes
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.empty import compute_empty
from jit.graph.passes.fold import fold_constants
from jit.graph.passes.grouped import group_rows
from jit.graph.passes.in_chunks import cut_what_waits
from jit.graph.passes.long_positions import cut_long_positions
from jit.graph.passes.long_scans import split_long_scans
from jit.graph.passes.seeds import merge_seeds
from jit.graph.passes.short_runs import without_short_runs
from jit.graph.passes.simplify import simplify
from jit.graph.passes.thin_products import sum_thin_products
from jit.graph.passes.writes import name_written_values
from jit.graph.verify import InvalidGraph, Known, verify
from jit.turns import point

STANDARD = (name_written_values, eliminate_dead_nodes, merge_seeds, compute_empty,
            fold_constants, simplify, merge_equal_nodes, eliminate_dead_nodes)
# Of a graph for which kernels are made next.
SCHEDULED = (keep_checks, group_rows, compute_parts, split_long_scans, cut_long_positions, cut_what_waits,
             sum_thin_products, rewrite_contractions, without_short_runs)

_log = logs.channel("passes")


def run_passes(graph: Graph, passes: tuple[Callable, ...]) -> Graph:
    """The graph after ``passes``, in this order. With ``config.verify_graphs`` each result is checked, and InvalidGraph
    names the pass that made it."""
    known = Known()
    for run in passes:
        point()
        given, before = graph, _state(graph) if config.verify_graphs else None
        with logs.timed(f"pass {run.__name__}"):
            graph = run(given)
        if config.verify_graphs:
            if _state(given) != before:
                raise InvalidGraph(f"the pass {run.__name__} changes the graph that it is given")
            try:
                verify(graph, known)
            except InvalidGraph as error:
                raise InvalidGraph(f"{error}, after {run.__name__}") from None
        if _log and len(graph.nodes) != len(given.nodes):
            _log(f"{run.__name__}: {len(given.nodes)} nodes, then {len(graph.nodes)}")
    return graph


def _state(graph: Graph) -> tuple:
    """What a graph is, for comparisons."""
    return (tuple(graph.inputs), tuple(graph.outputs), graph.next_id, dict(graph.origins),
            [(n, n.id, n.op, n.inputs, dict(n.attrs), n.type, n.loc) for n in graph.nodes])


def optimize(graph: Graph) -> Graph:
    """``graph`` folded, simplified and without duplicates."""
    return run_passes(graph, STANDARD)
