"""Sums over columns by blocks of rows: a few rows are added up in registers before they join the totals, which lie in
memory.

That is more exact than one chain of additions for each column, and touches the totals less often. Where a row has few
statements, several rows are taken in one loop over the columns: each of them is a stream that the processor prefetches,
and sums over columns take a half to four fifths of the time. Rows that are left over, and rows of many statements, go
by strips of columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jit.codegen.cpp.layout import CHEAP, COST, hint

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


STREAMS = 16  # rows times loads of each that one loop reads; half of it where they start at the same place of a page
LONGEST = 16  # statements of a row of which several are taken together
PAGE = 4096  # bytes: what lies as far apart shares its places in the first cache


def rows_together(text: KernelText, inner: list[int]) -> int:
    """How many rows one loop over the columns takes; 1 where each goes by itself."""
    loads = [text.dtypes[text.kernel.body[i].dst].itemsize for i in inner if text.kernel.body[i].loaded]
    width = hint(text.layout.vector.extent)
    streams = STREAMS // 2 if any(width * size % PAGE == 0 for size in loads) else STREAMS
    return 1 if len(inner) > LONGEST or 2 * len(loads) > streams else streams // max(len(loads), 2)


@contextlib.contextmanager
def _own_names(text: KernelText, names: dict, value: dict, divisor: dict) -> Iterator[None]:
    before = text.names, text.value, text.divisor
    text.names, text.value, text.divisor = names, value, divisor
    yield
    text.names, text.value, text.divisor = before


def _together(text: KernelText, row: str, count: int, outer: list[int], inner: list[int],
              flush: list[Reduction]) -> None:
    """The rows ``first`` to ``first + count``: what each has for itself, then a loop over the columns."""
    body, axis, rows = text.kernel.body, text.layout.loops[-1].name, []
    for k in range(count):
        own = {n: f"{text.names[n]}_{k}" for n in [axis, *(body[i].dst for i in outer)]}
        with _own_names(text, {**text.names, **own}, dict(text.value), {}):
            text.put(f"const int64_t {row}_{k} = first + {k};")
            for i in outer:
                text._define(i)
            access = text._accesses(inner)
            text._divisors(inner)
            rows.append((text.names, text.value, text.divisor, access))
    text._simd([])
    with text.braces(f"for (int64_t j = 0; j < {text.hi}; j++)"):
        for r in flush:
            r.single()
        for names, value, divisor, access in rows:
            with _own_names(text, names, value, divisor), text.braces():
                for i in inner:
                    text._element(i, access, {}, "")
        for r in flush:
            r.join("j", "")


def write(text: KernelText, row: str, lo: str, hi: str, size: int, statements: list[int], depth_of: dict,
          states: list[Reduction]) -> None:
    """The innermost loop of a pass in column mode, by blocks of ``size`` rows, and in these by strips of columns."""
    w, width, depth = text.strip, text.hi, len(text.layout.loops)
    flush = [r for r in states if r.blocked]

    outer = [i for i in statements if depth_of.get(i) == depth]
    inner = [i for i in statements if depth_of.get(i, depth + 1) > depth]
    together = rows_together(text, inner)

    def strip(count: str, full: bool) -> None:
        for r in flush:
            r.lanes(w)
        with text.braces(f"for (int64_t {row} = first; {row} < last; {row}++)"):
            for i in outer:
                text._define(i)
            access = text._accesses(inner)
            text._divisors(inner)
            text._strip(inner, [], [], access, count, full)
        for r in flush:
            r.flush(at="j0 + ", count=count)

    with text.braces():
        text.put(f"int64_t first = {lo};")
        if together > 1:
            with text.braces(f"for (; first + {together} <= {hi}; first += {together})"):
                _together(text, row, together, outer, inner, flush)
        with text.braces(f"for (; first < {hi}; first += {size})"):
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
