"""Sums over columns by blocks of rows: a strip of columns is added up in registers for a few rows before it joins the
totals, which lie in memory.

That is more exact than one chain of additions for each column, and touches the totals less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.codegen.cpp.layout import CHEAP, COST

if TYPE_CHECKING:
    from .emission import KernelText
    from .reduction import Reduction


def block_rows(text: KernelText, k: int, states: list[Reduction]) -> int:
    """How many rows of pass ``k`` are added up in registers, strip by strip of columns, before they join the totals; 0
    for none.

    What is written, checked or scanned keeps the order of memory; what a row alone computes is computed again for each
    strip, which has to be cheap.
    """
    lay, body = text.layout, text.kernel.body
    flush = [r for r in states if r.flushed]
    if not lay.column or not flush or text.tile:
        return 0
    for i in lay.bodies[k]:
        s = body[i]
        if s.effect or s.scans or s.dst in lay.kept:
            return 0
        if s.dst not in lay.varying and COST.get(s.prim, 1) > CHEAP:
            return 0
    for r in flush:
        r.blocked = True
    return min(r.limit for r in flush)


def write(text: KernelText, row: str, lo: str, hi: str, size: int, statements: list[int], depth_of: dict,
          states: list[Reduction]) -> None:
    """The innermost loop of a pass in column mode, by blocks of ``size`` rows, and in these by strips of columns."""
    w, width, depth = text.strip, text.hi, len(text.layout.loops)
    flush = [r for r in states if r.blocked]

    def strip(count: str, full: bool) -> None:
        for r in flush:
            r.lanes(w)
        with text.braces(f"for (int64_t {row} = first; {row} < last; {row}++)"):
            for i in statements:
                if depth_of.get(i) == depth:
                    text._define(i)
            inner = [i for i in statements if depth_of.get(i, depth + 1) > depth]
            access = text._accesses(inner)
            text._divisors(inner)
            text._strip(inner, [], [], access, count, full)
        for r in flush:
            r.flush(at="j0 + ", count=count)

    with text.braces(f"for (int64_t first = {lo}; first < {hi}; first += {size})"):
        text.put(f"const int64_t last = first + {size} < {hi} ? first + {size} : {hi};")
        text.put("int64_t j0 = 0;")
        known = int(width) if width.isdigit() else None
        if known is None or known >= w:
            with text.braces(f"for (; j0 + {w} <= {width}; j0 += {w})"):
                strip(str(w), True)
        if known is None:
            with text.braces(f"if (j0 < {width})"):
                text.put(f"const int rest = (int)({width} - j0);")
                strip("rest", False)
        elif known % w:
            with text.braces():
                strip(str(known % w), False)
