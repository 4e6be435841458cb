"""What the emitter and its heuristics ask about a kernel's body: passes over a row, maxima taken with sums, and which
values may be approximate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...graph import dims
from ...graph.prims import info
from .. import loops
from . import types

if TYPE_CHECKING:
    from ...graph.dims import Dim, IntExpr
    from ..loops import Compute, Load, Reduce

# Elements per aligned access: 16 bytes of a half type.
VECTOR = 8


class Schedule:
    """The statements of a reduction dealt into passes over the row.

    Args:
        online: take ``sum(exp(x - max(x)))`` and its maximum in one pass.

    Attributes:
        at: per statement, the pass in which it runs; for a row-level one, the number of passes before it.
        count: the number of passes.
        pairs: maxima and the sums that are taken with them.
    """

    def __init__(self, kernel: loops.Kernel, online: bool) -> None:
        self.kernel, self.body = kernel, kernel.body
        self.pairs = online_pairs(kernel) if online else {}
        self.phase = {}
        self.at = [self._place(s) for s in self.body]
        self.is_element = [not isinstance(s, loops.Reduce) and kernel.is_element(s) for s in self.body]
        self.count = 1 + max((self.at[i] for i in range(len(self.body)) if self._is_sink(i)), default=-1)
        self._keep_writes_behind_reads()

    def _place(self, s: object) -> int:
        p = max([self.phase.get(n, 0) for n in (*loops.reads(s), *loops.index_symbols(s))], default=0)
        if isinstance(s, loops.Reduce):
            if s.dst in self.pairs.values():
                p -= 1
            self.phase[s.dst] = p + 1
        elif not isinstance(s, (loops.Store, loops.Check)):
            self.phase[s.dst] = p
        return p

    def _keep_writes_behind_reads(self) -> None:
        """A buffer that is read in a later pass is written in the last of these, not before."""
        last = {}
        for p in range(self.count):
            for i in self.needed(self.sinks(p)):
                if isinstance(self.body[i], loops.Load):
                    last[self.body[i].buffer] = p
        for i, s in enumerate(self.body):
            if isinstance(s, loops.Store) and self.is_element[i]:
                self.at[i] = max(self.at[i], last.get(s.buffer, 0))

    def _is_sink(self, i: int) -> bool:
        s = self.body[i]
        return isinstance(s, loops.Reduce) or self.is_element[i] and isinstance(s, (loops.Store, loops.Check))

    def sinks(self, p: int) -> list:
        """The positions of what a pass is made for: its reductions, element-level stores and checks."""
        return [i for i in range(len(self.body)) if self.at[i] == p and self._is_sink(i)]

    def needed(self, sinks: list[int]) -> list:
        """The positions of the element-level statements that the sinks depend on, and of the sinks, in order."""
        names, chosen = set(), set(sinks)
        for i in sinks:
            names |= set(loops.reads(self.body[i])) | loops.index_symbols(self.body[i])
        for i in range(len(self.body) - 1, -1, -1):
            s = self.body[i]
            if (i in chosen or isinstance(s, (loops.Store, loops.Check, loops.Reduce))
                or not self.is_element[i] or s.dst not in names):
                continue
            chosen.add(i)
            names |= set(loops.reads(s)) | loops.index_symbols(s)
        return sorted(chosen)

    def loads_by_pass(self) -> dict:
        """Name of a loaded element-level value -> the passes that need it."""
        found = {}
        for p in range(self.count):
            for i in self.needed(self.sinks(p)):
                if isinstance(self.body[i], loops.Load):
                    found.setdefault(self.body[i].dst, []).append(p)
        return found


def held_bytes(kernel: loops.Kernel) -> int:
    """Bytes per element that a row on chip has to keep, because they are needed before and after a reduction."""
    loads = Schedule(kernel, online=False).loads_by_pass()
    return sum(kernel.dtypes[n].itemsize for n, where in loads.items() if len(where) > 1)


def has_scan(kernel: loops.Kernel) -> bool:
    return any(isinstance(s, loops.Scan) for s in kernel.body)


def pieces_allowed(kernel: loops.Kernel) -> bool:
    """Whether a block may be combined in pieces: only reductions of values, not of positions, and no scan."""
    return not has_scan(kernel) and not any(isinstance(s, loops.Reduce) and s.op.startswith("arg") for s in kernel.body)


def writes_elements(kernel: loops.Kernel) -> bool:
    return any(isinstance(s, loops.Store) and kernel.is_element(s) for s in kernel.body)


def row_part(index: Dim) -> IntExpr:
    """An index without its term in ``@r``."""
    return dims.subst(index, {"@r": 0})


def along_row(index: Dim, row_start: Dim) -> bool:
    """Whether an access walks along ``@r`` from ``row_start``, or from a whole number of vectors away from it."""
    stride = dims.coefficient(index, "@r")
    return type(stride) is int and stride == 1 and dims.divisible(row_part(index) - row_start, VECTOR)


def odd_row_start(kernel: loops.Kernel) -> Dim | None:
    """Where a row begins that is not aligned to vectors, for the access that decides (the first store, else the first
    load); None when all are aligned."""
    accesses = [s for s in kernel.body if isinstance(s, (loops.Store, loops.Load)) and "@r" in loops.index_symbols(s)]
    for s in sorted(accesses, key=lambda s: isinstance(s, loops.Load)):
        stride, start = dims.coefficient(s.index, "@r"), row_part(s.index)
        free = dims.free_symbols(start) - {"@x"}
        if (type(stride) is int and stride == 1 and not free and type(start) is not int
            and not dims.divisible(start, VECTOR)):
            return start
    return None


def online_pairs(kernel: loops.Kernel) -> dict:
    """Maxima and the sums of exponentials that are taken with them in one pass: {max: sum} for ``sum(exp(x - m))``,
    where ``m`` is ``max(x)`` or (as in logsumexp) that with 0 in the place of infinities."""
    pairs = {}
    by_name = {s.dst: s for s in kernel.body if not isinstance(s, (loops.Store, loops.Check))}
    for s in kernel.body:
        if isinstance(s, loops.Reduce) and s.op == "sum" and s.dtype.is_floating_point:
            exp = by_name[s.arg]
            sub = by_name[exp.args[0]] if _is(exp, "exp") else None
            if _is(sub, "sub"):
                m = by_name[sub.args[1]]
                m = _without_infinities(m, by_name) or m
                if (isinstance(m, loops.Reduce) and m.op == "max" and m.arg == sub.args[0]
                    and m.dst not in pairs and m.dtype is s.dtype):
                    pairs[m.dst] = s.dst
    return pairs


def _is(s: Compute | Load | Reduce | None, op: str) -> bool:
    return isinstance(s, loops.Compute) and s.op == op


def _without_infinities(s: Compute | Reduce, by_name: dict[str, object]) -> Reduce | None:
    """The statement of ``m`` when ``s`` is ``where(isinf(m), 0, m)``, else None."""
    if not _is(s, "where"):
        return None
    cond, zero = by_name[s.args[0]], by_name[s.args[1]]
    if _is(cond, "isinf") and cond.args[0] == s.args[2] and isinstance(zero, loops.Const) and zero.value == 0:
        return by_name[s.args[2]]
    return None


def exponent_of(kernel: loops.Kernel, total: str) -> tuple[Compute, ...]:
    """The statements ``exp`` and ``sub`` of an online pair's sum."""
    by_name = {s.dst: s for s in kernel.body if not isinstance(s, (loops.Store, loops.Check))}
    exp = by_name[by_name[total].arg]
    return exp, by_name[exp.args[0]]


def fast_values(kernel: loops.Kernel) -> frozenset:
    """The float32 values that reach memory only through a half type and by smooth operations."""
    good, bad = set(), set()
    for s in reversed(kernel.body):
        indexed = loops.index_symbols(s)
        bad |= set(indexed)
        if isinstance(s, loops.Compute):
            if s.op == "cast" and s.dtype in types.HALF:
                good.add(s.args[0])
            elif (info(s.op).smooth or s.op == "cast"
                  and s.dtype is torch.float32) and s.dst in good and s.dst not in bad:
                good.update(s.args)
            elif s.op == "where" and s.dst in good and s.dst not in bad:
                good.update(s.args[1:])
                bad.add(s.args[0])
            else:
                bad.update(s.args)
        elif isinstance(s, (loops.Reduce, loops.Scan)) and s.op in ("sum", "max",
                                                                    "min") and s.dst in good and s.dst not in bad:
            good.add(s.arg)
        else:
            bad.update(loops.reads(s))
    return frozenset(n for n in good - bad if kernel.dtypes.get(n) is torch.float32)
