"""The state of a reduction inside a pass, as C++ text: how it starts, takes an element in, is folded, and is put together across threads."""

from __future__ import annotations

import math

import torch

from jit.codegen.cpp import ops
from jit.codegen.cpp.layout import hint

SHORT = {8: 0, 4: 8, 3: 12, 2: 12, 1: 12}  # length of a part of a row's tail -> its lane behind the strip's
FLUSH = 256  # float additions per lane before the sum moves to a double
_IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}


def identity(op: str, dtype: torch.dtype):
    """The value that a reduction starts from."""
    if op in _IDENTITY:
        return _IDENTITY[op]
    low = op in ("max", "argmax")
    if dtype is torch.bool:
        return not low
    if dtype.is_floating_point:
        return -math.inf if low else math.inf
    return torch.iinfo(dtype).min if low else torch.iinfo(dtype).max


class Reduction:
    """The state of one ``Reduce`` in a pass: lanes of a strip (row mode) or one entry per vector position (column mode).

    A float sum that is long moves to doubles every ``FLUSH`` additions (the error stays below about 256 roundings of a partial sum).
    """

    def __init__(self, owner, i: int):
        self.owner, self.i = owner, i
        self.s = owner.kernel.body[i]
        self.op, self.arg = self.s.op.removeprefix("arg"), self.s.op.startswith("arg")
        self.dtype = owner.dtypes[self.s.arg]
        self.kind = ops.memory_type(self.dtype) if self.dtype is not torch.bool else "int32_t"
        self.name = owner.names[self.s.dst]
        self.column = owner.layout.column
        self.count = (owner.block or owner.layout.vector.extent) if self.column else owner.strip
        additions = math.prod(hint(a.extent) for a in owner.kernel.raxes) / (1 if self.column else owner.strip)
        fixed = all(type(a.extent) is int for a in owner.kernel.raxes)
        self.flushed = self.op == "sum" and self.dtype is torch.float32 and (additions > FLUSH or not fixed)
        # A short vector that is written to the lanes of a long one stalls the next read of it, so parts of a tail have lanes of their own.
        self.short = [] if self.column or self.flushed else [size for size in owner.tail() if size in SHORT]
        owner.states[i] = self

    @property
    def wide(self) -> str:
        """The type of the finished sum before it is rounded."""
        return "double" if self.flushed else self.kind

    def _start(self) -> str:
        if self.dtype is torch.bool:
            return str(int(identity(self.op, self.dtype)))
        return ops.constant(identity(self.op if not self.arg else "arg" + self.op, self.dtype), self.dtype)

    def begin(self):
        o = self.owner
        lanes = self.count + (16 if self.short else 0)
        o.put(f"alignas(64) {self.kind} r{self.name}[{lanes}];")
        o.put(f"for (int l = 0; l < {lanes}; l++) r{self.name}[l] = {self._start()};")
        if self.arg:
            o.put(f"alignas(64) {self._index_kind()} i{self.name}[{lanes}];")
            o.put(f"for (int l = 0; l < {lanes}; l++) i{self.name}[l] = {self._never()};")
        if self.flushed:
            o.put(f"alignas(64) double d{self.name}[{self.count}];")
            o.put(f"for (int l = 0; l < {self.count}; l++) d{self.name}[l] = 0;")

    def _index_kind(self) -> str:
        extents = [a.extent for a in self.owner.kernel.raxes]
        small = all(type(e) is int for e in extents) and math.prod(extents) < 2**31 - 1
        return "int32_t" if small else "int64_t"

    def _never(self) -> str:
        return "INT32_MAX" if self._index_kind() == "int32_t" else "INT64_MAX"

    def add(self, lane: str):
        """Inside the vector loop: take the present element in."""
        if self.owner.piece in self.short:
            lane = f"{lane} + {self.count + SHORT[self.owner.piece]}"
        o, state, value = self.owner, f"r{self.name}[{lane}]", self.owner.value[self.s.arg]
        if self.arg:
            position = ""
            for a in o.kernel.raxes:
                index = "j" if a is o.layout.vector else o.names[a.name]
                position = index if not position else f"({position} * ({o.expr(a.extent)}) + {index})"
            self._better(state, f"i{self.name}[{lane}]", value, f"({self._index_kind()})({position})", False)
        else:
            o.put(f"{state} = {self._merge(state, value)};")

    def _better(self, value, index, other, other_index, ties: bool):
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

    def _merge(self, a: str, b: str, dtype=None) -> str:
        """The text of two partial results put together; both are repeated in it."""
        if self.dtype is torch.bool:
            return f"({a} {'|' if self.op in ('any', 'max', 'sum') else '&'} (int32_t){b})"
        if self.op in ("max", "min"):
            return ops.maximum(b, a, self.dtype, self.op == "min")
        return ops.wrap("+" if self.op == "sum" else "*", a, b, dtype or self.dtype)

    def flush(self):
        self.owner.put("#pragma omp simd")
        self.owner.put(f"for (int l = 0; l < {self.count}; l++) {{ d{self.name}[l] += r{self.name}[l]; r{self.name}[l] = 0; }}")

    def finish(self):
        """After the pass: a scalar ``v`` (row mode), or the arrays themselves (column mode)."""
        o, n = self.owner, self.name
        state = f"r{n}"
        if self.flushed:
            self.flush()
            state = f"d{n}"
        if not self.column:
            self._tree(state)
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
        return f"({ops.c_type(self.s.dtype)}){value}" if self.flushed else value

    def settle(self):
        o = self.owner
        o.put(f"const {ops.c_type(self.s.dtype)} {self.name} = {self._final(self.result, f'i{self.name}[0]')};")
        o.value[self.s.dst] = self.name

    def _tree(self, state: str):
        """Fold the lanes in halves, and those of the row's tail in where they are as many."""
        width, waiting = self.count, list(self.short)
        while width > 1 or waiting:
            half = (width + 1) // 2
            while waiting and (waiting[0] > half or width == 1):
                size = waiting.pop(0)
                self._fold(state, size, self.count + SHORT[size])
            if width > 1:
                self._fold(state, width - half, half)
            width = half

    def _fold(self, state: str, count: int, start: int):
        """Put ``count`` lanes from ``start`` on together with the first ones."""
        o, dtype = self.owner, torch.float64 if self.flushed else self.dtype
        if count >= 4:
            o.put("#pragma omp simd")
        if self.arg:
            with o.braces(f"for (int l = 0; l < {count}; l++)"):
                self._better(f"{state}[l]", f"i{self.name}[l]", f"{state}[l + {start}]", f"i{self.name}[l + {start}]", True)
        else:
            o.put(f"for (int l = 0; l < {count}; l++) {state}[l] = {self._merge(f'{state}[l]', f'{state}[l + {start}]', dtype)};")

    # threads that share a row

    def _each(self):
        return self.owner.braces(f"for (int j = 0; j < {self.count if self.column else 1}; j++)")

    def share(self):
        o = self.owner
        own = f"{self.result}[j]" if self.column else self.result
        with self._each():
            o.put(f"SHARED(thread, {self.wide}, {self.offset})[j] = {own};")
            if self.arg:
                o.put(f"SHARED(thread, int64_t, {self.offset + 8 * (self.count if self.column else 1)})[j] = i{self.name}[j];")

    def gather(self):
        o = self.owner
        own = f"{self.result}[j]" if self.column else self.result
        dtype = torch.float64 if self.flushed else self.dtype
        o.put("#pragma omp simd")
        with self._each():
            o.put(f"{own} = SHARED(0, {self.wide}, {self.offset})[j];")
            if self.arg:
                o.put(f"i{self.name}[j] = ({self._index_kind()})SHARED(0, int64_t, {self.offset + 8 * (self.count if self.column else 1)})[j];")
        with o.braces("for (int t = 1; t < threads; t++)"):
            o.put("#pragma omp simd")
            with self._each():
                o.put(f"const {self.wide} other = SHARED(t, {self.wide}, {self.offset})[j];")
                if self.arg:
                    o.put(f"const {self._index_kind()} at = ({self._index_kind()})SHARED(t, int64_t, {self.offset + 8 * (self.count if self.column else 1)})[j];")
                    self._better(own, f"i{self.name}[j]", "other", "at", True)
                else:
                    o.put(f"{own} = {self._merge(own, 'other', dtype)};")
