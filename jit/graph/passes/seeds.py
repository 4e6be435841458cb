"""The seeds of several draws taken together: one library call where nothing else touches a generator in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph.ir import Graph, TensorType, Transform
from jit.graph.philox import is_seed

if TYPE_CHECKING:
    from jit.graph.ir import Node


def merge_seeds(graph: Graph) -> Graph:
    runs, open_runs = {}, {}  # first seed of a run -> all of the run; device -> the run that later seeds join
    for n in graph.nodes:
        if is_seed(n):
            run = open_runs.setdefault(n.device, [])
            run.append(n)
            runs.setdefault(run[0], run)
        elif n.impure:
            open_runs = {}
    runs = {n: run for n, run in runs.items() if len(run) > 1}
    return _Merged(graph, runs).run() if runs else graph


class _Merged(Transform):
    def __init__(self, graph: Graph, runs: dict) -> None:
        super().__init__(graph)
        self.runs = runs
        self.parts: dict = {}  # seed -> its part of what the call gives that takes all of its run

    def visit(self, n: Node) -> Node:
        if n in self.runs:
            run = self.runs[n]
            low, high, _, *rest = n.attrs["args"]
            attrs = {**n.attrs, "args": (low, high, (len(run),), *rest)}
            whole = self.node(n.op, (), attrs, TensorType.contiguous((len(run),), n.dtype, n.device))
            # All of them here: what repeats itself behind this is alike then.
            self.parts.update({seed: self.keep(seed, (whole,), "slice", {"dim": 0, "start": k, "length": 1, "step": 1})
                               for k, seed in enumerate(run)})
        return self.parts.get(n) or self.keep(n)
