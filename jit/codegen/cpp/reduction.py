"""The state of a reduction inside a pass, as C++ text: how it starts, takes an element in, is folded, and is put
together across threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from jit.codegen import loops
from jit.codegen.cpp import ops
from jit.codegen.cpp.layout import hint

if TYPE_CHECKING:
    from .emission import KernelText

SHORT = {8: 0, 4: 8, 3: 12, 2: 12, 1: 12}  # length of a part of a row's tail -> its lane behind the strip's
COLUMN_FLUSH = {torch.float32: 8, torch.float64: 32}  # additions per entry of a column sum before it joins the total
ROW_FLUSH = {torch.float32: 16, torch.float64: 32}  # and per lane of a row's sum, whose many lanes average the errors


class Reduction:
    """The state of one ``Reduce`` in a pass: lanes of a strip (row mode) or one entry per vector position (column
    mode).

    Sums are taken in blocks, so that their errors do not grow with their length. Lanes ``r`` add up to 8 to 32 values;
    float32 lanes then join a total ``d`` of doubles, and lanes of doubles a total that keeps what its own additions
    round off, ``e`` (A. Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, 1974). The
    lanes of a ``precise`` sum of float32 values are doubles, and so are its totals; that of doubles made from such
    values takes products in unrounded.
    """

    def __init__(self, owner: KernelText, i: int) -> None:
        self.owner, self.i = owner, i
        self.s = owner.kernel.body[i]
        self.op, self.arg = self.s.op.removeprefix("arg"), self.s.ordered
        self.dtype = owner.dtypes[self.s.arg]
        self.name = owner.names[self.s.dst]
        self.column = owner.layout.column
        self.count = (owner.block or owner.layout.vector.extent) if self.column else owner.strip
        # A short vector that is written to the lanes of a long one stalls the next read of it, so parts of a tail have
        # lanes of their own.
        self.short = [] if self.column else [size for size in owner.tail() if size in SHORT]
        additions = math.prod(hint(a.extent) for a in owner.kernel.raxes) / (1 if self.column else owner.strip)
        fixed = all(type(a.extent) is int for a in owner.kernel.raxes)
        floats = (self.op == "sum" and self.dtype is torch.float32
                  and (additions > 1 or not fixed or self.column or self.s.precise))
        self.lane = torch.float64 if floats and self.s.precise else self.dtype  # what a lane is
        self.limit = (COLUMN_FLUSH if self.column else ROW_FLUSH).get(self.dtype) if self.op == "sum" else None
        if self.limit and self.s.precise:
            self.limit = self.limit * 8 if self.lane is not self.dtype else None
        self.flushed = (self.limit is not None and (self.column or self.lane is self.dtype)
                        and (additions > self.limit or not fixed))
        self.compensated = self.flushed and self.dtype is torch.float64
        self.blocked = False  # a strip of columns has lanes of its own for a block of rows
        self.empty = False  # the lanes have joined the total when the pass ends
        # What the finished sum is, before it is rounded.
        self.total = torch.float64 if floats and (self.flushed or not self.column) else self.lane
        self.folds, self.totals = [], self.count
        if floats and not self.column and not self.s.precise:
            self._plan_folds()
        owner.states[i] = self

    def _plan_folds(self) -> None:
        """Float lanes are folded to 16 or fewer, and their halves are added as doubles; there must be as many of those
        as a part of a tail has."""
        while self.totals > 16:
            self.folds.append(self.totals)
            self.totals = (self.totals + 1) // 2
        if self.totals > 8 and self.totals % 2 == 0 and self.totals // 2 >= max(self.short, default=0):
            self.totals //= 2

    @property
    def kind(self) -> str:
        """The C++ type of the finished result before it is rounded."""
        return self._memory(self.total)

    def _memory(self, dtype: torch.dtype) -> str:
        return ops.memory_type(dtype) if self.dtype is not torch.bool else "int32_t"

    def _start(self) -> str:
        if self.dtype is torch.bool:
            return str(int(loops.neutral(self.op, self.dtype)))
        return ops.constant(loops.neutral(self.op if not self.arg else "arg" + self.op, self.dtype), self.lane)

    def begin(self) -> None:
        """Before the pass: the totals, and the lanes where blocks have none of their own."""
        o = self.owner
        for name in "de" if self.compensated else "d" if self.flushed else "":
            o.put(f"alignas(64) double {name}{self.name}[{self.totals}];")
            o.put(f"for (int l = 0; l < {self.totals}; l++) {name}{self.name}[l] = 0;")
        if not self.blocked:
            self.lanes(self.count)

    def lanes(self, count: int) -> None:
        """Declare empty lanes in the present scope."""
        o, count = self.owner, count + (16 if self.short else 0)
        o.put(f"alignas(64) {self._memory(self.lane)} r{self.name}[{count}];")
        o.put(f"for (int l = 0; l < {count}; l++) r{self.name}[l] = {self._start()};")
        if self.arg:
            o.put(f"alignas(64) {self._index_kind()} i{self.name}[{count}];")
            o.put(f"for (int l = 0; l < {count}; l++) i{self.name}[l] = {self._never()};")

    def _index_kind(self) -> str:
        extents = [a.extent for a in self.owner.kernel.raxes]
        small = all(type(e) is int for e in extents) and math.prod(extents) < 2**31 - 1
        return "int32_t" if small else "int64_t"

    def _never(self) -> str:
        return "INT32_MAX" if self._index_kind() == "int32_t" else "INT64_MAX"

    def single(self) -> None:
        """Declare one empty lane, which ``add`` and ``join`` know as ""."""
        self.owner.put(f"{self._memory(self.lane)} r{self.name} = {self._start()};")

    def add(self, lane: str) -> None:
        """Inside the vector loop: take the present element in."""
        if self.owner.piece in self.short:
            lane = f"{lane} + {self.count + SHORT[self.owner.piece]}"
        o, state, value = self.owner, f"r{self.name}{lane and f'[{lane}]'}", self.owner.value[self.s.arg]
        if self.arg:
            position = ""
            for a in o.kernel.raxes:
                index = "j" if a is o.layout.vector else o.names[a.name]
                position = index if not position else f"({position} * ({o.expr(a.extent)}) + {index})"
            self._better(state, f"i{self.name}[{lane}]", value, f"({self._index_kind()})({position})", False)
        else:
            o.put(f"{state} = {self._product(state) or self._merge(state, ops.cast(value, self.dtype, self.lane))};")

    def _product(self, state: str) -> str | None:
        """A product of doubles added to a precise sum in one instruction."""
        made = self.owner.kernel.definition[self.s.arg]
        if not (self.s.precise and self.dtype is torch.float64 and made.prim == "mul"):
            return None
        x, y = (self.owner.value.get(a) for a in made.args)
        return x and y and f"FMA_DOUBLE({x}, {y}, {state})"

    def _better(self, value: str, index: str, other: str, other_index: str, ties: bool) -> None:
        """Replace (value, index) by the other pair where that is more extreme, or as extreme and earlier."""
        o, sign, n = self.owner, ">" if self.op == "max" else "<", len(self.owner.lines)
        kind = self.kind
        o.put(f"const {kind} p{n} = {value}, o{n} = {other};")
        o.put(f"const {self._index_kind()} pi{n} = {index}, oi{n} = {other_index};")
        test = f"(o{n} {sign} p{n}) | ((pi{n} == {self._never()}) & (oi{n} != {self._never()}))"
        if self.dtype.is_floating_point:
            test += f" | ((o{n} != o{n}) & (p{n} == p{n}))"
        if ties:
            same = f"(o{n} == p{n})" + (f" | ((o{n} != o{n}) & (p{n} != p{n}))" if self.dtype.is_floating_point else "")
            test = f"{test} | (({same}) & (oi{n} < pi{n}))"
        if self.dtype.is_floating_point and ties:
            # An ordered value never replaces a NaN: comparisons with it are false, and an empty lane holds no NaN.
            pass
        o.put(f"const bool t{n} = {test};")
        o.put(f"{value} = t{n} ? o{n} : p{n}; {index} = t{n} ? oi{n} : pi{n};")

    def _merge(self, a: str, b: str) -> str:
        """The text of two partial results put together; both are repeated in it."""
        if self.dtype is torch.bool:
            return f"({a} {'|' if self.op in ('any', 'max', 'sum') else '&'} (int32_t){b})"
        if self.op in ("max", "min"):
            return ops.maximum(b, a, self.dtype, self.op == "min")
        return ops.wrap("+" if self.op == "sum" else "*", a, b, self.lane)

    def flush(self, again: bool = False, at: str = "", count: str | None = None) -> None:
        """Add the lanes to the totals. ``again``: they go on from zero; ``at``, ``count``: the totals' first position
        and their number, for a block's lanes."""
        o, n = self.owner, self.name
        lanes = count or self.count
        if self.compensated or self.column:
            o.put("#pragma omp simd")
            with o.braces(f"for (int l = 0; l < {lanes}; l++)"):
                self.join(f"{at}l", "[l]")
            self._add_short(f"d{n}")
        else:
            self._widen(f"d{n}", "+=")
            self._add_short(f"d{n}")
        if again:
            o.put(f"for (int l = 0; l < {self.count + (16 if self.short else 0)}; l++) r{n}[l] = 0;")

    def join(self, position: str, lane: str) -> None:
        """Add a lane of ``r`` to the total at ``position``."""
        o, n = self.owner, self.name
        total, new = f"d{n}[{position}]", f"r{n}{lane}"
        if self.compensated:
            with o.braces():
                o.put(f"const double p = {total}, q = {new}, s = p + q, back = s - p, lost = (p - (s - back)) + (q - "
                      "back);")
                o.put(f"{total} = s; e{n}[{position}] += lost;")
        else:
            o.put(f"{total} += {new};")

    def _widen(self, total: str, assign: str) -> None:
        """Fold the float lanes, and put them into the doubles ``total``."""
        o, state, width = self.owner, f"r{self.name}", self.count
        for width in self.folds:
            half = (width + 1) // 2
            self._fold(state, width - half, half)
            width = half
        other = "" if width == self.totals else f" + (double){state}[l + {self.totals}]"
        o.put("#pragma omp simd")
        o.put(f"for (int l = 0; l < {self.totals}; l++) {total}[l] {assign} (double){state}[l]{other};")

    def _add_short(self, total: str) -> None:
        for size in self.short:
            self.owner.put(f"for (int l = 0; l < {size}; l++) {total}[l] += r{self.name}[l + "
                           f"{self.count + SHORT[size]}];")

    def finish(self) -> None:
        """After the pass: a scalar ``v`` (row mode), or the arrays themselves (column mode)."""
        o, n = self.owner, self.name
        state, short = f"r{n}", list(self.short)
        if self.flushed:
            state, short = f"d{n}", []
            if not self.blocked and not self.empty:
                self.flush()
            if self.compensated:
                o.put("#pragma omp simd")
                o.put(f"for (int l = 0; l < {self.count}; l++) {state}[l] += e{n}[l] == e{n}[l] ? e{n}[l] : 0; /* "
                      "infinities leave NaN there */")
        elif self.total is not self.lane:
            state = f"d{n}"
            o.put(f"alignas(64) double {state}[{self.totals}];")
            self._widen(state, "=")
        if not self.column:
            self._tree(state, short)
            state += "[0]"
            self.result = state
            if not o.cooperate:
                self.settle()
        else:
            self.result = state
            o.value[self.s.dst] = self._final(f"{state}[j]", f"i{n}[j]")

    def _final(self, value: str, index: str) -> str:
        if self.arg:
            return f"(int64_t){index}"
        if self.dtype is torch.bool:
            return f"({value} != 0)"
        return ops.cast(value, self.total, self.s.dtype)

    def settle(self) -> None:
        o = self.owner
        o.put(f"const {ops.c_type(self.s.dtype)} {self.name} = {self._final(self.result, f'i{self.name}[0]')};")
        o.value[self.s.dst] = self.name

    def _tree(self, state: str, waiting: list) -> None:
        """Fold the lanes in halves, and those of the row's tail in where they are as many."""
        width = self.totals
        while width > 1 or waiting:
            half = (width + 1) // 2
            while waiting and (waiting[0] > half or width == 1):
                size = waiting.pop(0)
                self._fold(state, size, self.count + SHORT[size], f"r{self.name}")
            if width > 1:
                self._fold(state, width - half, half)
            width = half

    def _fold(self, state: str, count: int, start: int, source: str = "") -> None:
        """Put ``count`` lanes from ``start`` on together with the first ones."""
        o, source = self.owner, source or state
        if count >= 4:
            o.put("#pragma omp simd")
        if self.arg:
            with o.braces(f"for (int l = 0; l < {count}; l++)"):
                self._better(f"{state}[l]", f"i{self.name}[l]", f"{source}[l + {start}]",
                             f"i{self.name}[l + {start}]", True)
        else:
            o.put(f"for (int l = 0; l < {count}; l++) {state}[l] = "
                  f"{self._merge(f'{state}[l]', f'{source}[l + {start}]')};")

    # threads that share a row

    def _each(self) -> object:
        return self.owner.braces(f"for (int j = 0; j < {self.count if self.column else 1}; j++)")

    def share(self) -> None:
        o = self.owner
        own = f"{self.result}[j]" if self.column else self.result
        with self._each():
            o.put(f"SHARED(thread, {self.kind}, {self.offset})[j] = {own};")
            if self.arg:
                o.put(f"SHARED(thread, int64_t, {self.offset + 8 * (self.count if self.column else 1)})[j] = "
                      f"i{self.name}[j];")

    def gather(self) -> None:
        o = self.owner
        own = f"{self.result}[j]" if self.column else self.result
        o.put("#pragma omp simd")
        with self._each():
            o.put(f"{own} = SHARED(0, {self.kind}, {self.offset})[j];")
            if self.arg:
                o.put(f"i{self.name}[j] = ({self._index_kind()})SHARED(0, int64_t, "
                      f"{self.offset + 8 * (self.count if self.column else 1)})[j];")
        with o.braces("for (int t = 1; t < threads; t++)"):
            o.put("#pragma omp simd")
            with self._each():
                o.put(f"const {self.kind} other = SHARED(t, {self.kind}, {self.offset})[j];")
                if self.arg:
                    o.put(f"const {self._index_kind()} at = ({self._index_kind()})SHARED(t, int64_t, "
                          f"{self.offset + 8 * (self.count if self.column else 1)})[j];")
                    self._better(own, f"i{self.name}[j]", "other", "at", True)
                else:
                    o.put(f"{own} = {self._merge(own, 'other')};")
