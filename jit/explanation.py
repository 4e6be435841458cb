"""What ``jit.explain`` gives."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frame.breaks import BreakReason
    from .report.model import Report


def _forms() -> Any:
    """What shows a report: as text, and as a page."""
    from .report import html, text  # late: only who looks at a report needs them

    return text, html


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
        report: all that is known, as plain data: the source line by line, each kernel and library call with what it
            reads, writes and computes, what was not fused and why, guards, memory, where the time of compiling went.
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
    report: Report | None = None

    def text(self, width: int | None = None, everything: bool = False) -> str:
        """The report as text. ``width``: in characters, the terminal's if it is not given; ``everything``: with all
        guards, all pairs of kernels that were not fused, and the functions of libraries that were inlined."""
        assert self.report is not None
        return _forms()[0].render(self.report, width, everything)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file: as a page that any browser shows, and that loads nothing else, where its name
        ends in .html, else as text with all details. Raises OSError where that fails."""
        assert self.report is not None
        page = os.fspath(path).lower().endswith((".html", ".htm"))
        made = _forms()[1].page(self.report) if page else self.text(140, everything=True) + "\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)

    def __str__(self) -> str:
        return self.text()
