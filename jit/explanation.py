"""What ``jit.explain`` gives."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frame.breaks import BreakReason


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call compiled to.

    Attributes:
        graph_count: captured graphs with at least one operation.
        graph_break_count: places where capture stopped and a rest was left.
        op_count: operations in all graphs.
        break_reasons: the records, in order.
        guards: the facts that the compiled code relies on, in words.
        kernels: source text of each generated kernel.
        launch_count: how many kernels one run of all graphs launches, with their backward; library calls are not among
            them.
        graphs: the graphs as runnable Python.
        unnamed: what of the program the compiled code holds that no other process could find by a name, and why.
    """

    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[BreakReason]
    guards: list[str]
    kernels: list[str]
    graphs: list[str]
    launch_count: int = 0
    unnamed: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {self.graph_break_count} breaks, {self.op_count} operations, "
                 f"{len(self.kernels)} kernels, "
                 f"{len(self.guards)} guards"]
        lines += [str(r) for r in self.break_reasons]
        for i, text in enumerate(self.graphs):
            lines += [f"--- graph {i}", text]
        return "\n".join(lines)
