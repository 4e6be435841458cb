"""The loop of a kernel over the strips of its vector axis, and the running sums in it.

A strip has a fixed length. Its statements run in phases, each a loop over the strip's lanes: a scan ends a phase, and
what later phases use of earlier ones lies in arrays of a strip's length.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from jit.codegen import loops
from jit.codegen.cpp import ops
from jit.errors import Unsupported

if TYPE_CHECKING:
    from .reduction import Reduction


class Strips:
    """The part of ``emission.KernelText`` that writes strips: it uses that one's layout, names and values."""

    def _strips(self, statements: list[int], states: list[Reduction], scans: list[int], checks: list,
                access: dict[int, str]) -> None:
        w, lo, hi = self.strip, self.lo, self.hi
        flush = [r for r in states if r.flushed]
        limit = w * min([r.limit for r in flush], default=0)
        if self.layout.loops and type(self.layout.vector.extent) is int and self.layout.vector.extent <= limit:
            flush = []  # the loops around it do that
        exact = lo.isdigit() and hi.isdigit() and (int(hi) - int(lo)) % w == 0
        for r in flush:
            r.empty = exact and not self.layout.loops
        if lo == "0" and hi == str(w):
            self.put("const int64_t j0 = 0;")
            with self.braces():
                self._strip(statements, scans, checks, access, str(w), True)
            return
        self.put(f"int64_t j0 = {lo};")
        if flush:
            with self.braces(f"while (j0 + {w} <= {hi})"):
                self.put(f"const int64_t stop = j0 + {limit} < {hi} ? j0 + {limit} : {hi};")
                for r in flush:
                    r.lanes(r.count)
                with self.braces(f"for (; j0 + {w} <= stop; j0 += {w})"):
                    self._strip(statements, scans, checks, access, str(w), True)
                for r in flush:
                    r.flush()
        else:
            with self.braces(f"for (; j0 + {w} <= {hi}; j0 += {w})"):
                self._strip(statements, scans, checks, access, str(w), True)
        if exact:
            return
        if self.tail():
            for self.piece in self.tail():
                with self.braces():
                    self._strip(statements, scans, checks, access, str(self.piece), False)
                self.put(f"j0 += {self.piece};")
            self.piece = 0
            return
        with self.braces(f"if (j0 < {hi})"):
            self.put(f"const int rest = (int)({hi} - j0);")
            self._strip(statements, scans, checks, access, "rest", False)

    def _strip(self, statements: list[int], scans: list[int], checks: list, access: dict[int, str], count: str,
               full: bool) -> None:
        """One strip: phases cut at the scans, each a vector loop."""
        body, lay = self.kernel.body, self.layout
        if lay.column:
            scans = []
        if full:
            for pointer, size in self.ahead:
                for line in range(-(-self.strip * size // 64)):
                    self.put(f"__builtin_prefetch((const char*)({pointer} + j0) + {64 * line}, 0, 2);")
        phase, crossing = self._phases(statements, scans)
        streams = [i for i in statements if i in self.streamed and full]
        for i in streams:
            self.put(f"alignas(64) {ops.memory_type(self.kernel.buffer_of[body[i].buffer].dtype)} o{i}[{self.strip}];")
        for n in sorted(crossing, key=lay.definition.get):
            self.put(f"alignas(64) {ops.memory_type(self.dtypes[n])} c{self.names[n]}[{self.strip}];")
        for p in range(len(scans) + 1):
            here = [i for i in statements if phase[i] == p and i not in scans]
            scan = scans[p] if p < len(scans) else None
            fused = (scan is not None and body[scan].arg not in lay.kept
                and not any(body[i].effect or body[i].combine for i in here))
            passed = None  # the scan's argument, where only the scan reads it
            if fused and not any(phase[i] > p and i != scan and body[scan].arg in body[i].uses for i in statements):
                passed = body[scan].arg
            with contextlib.ExitStack() as stack:
                if fused:
                    self._open_scan(scan)
                elif here:
                    self._simd([c for c in checks if c in here])
                if here or fused:
                    stack.enter_context(self.braces(f"for (int l = 0; l < {count}; l++)"))
                    self.put("const int64_t j = j0 + l;")
                self._crossed(crossing, scans, phase, p)
                for i in here:
                    self._element(i, access, {s: f"o{s}[l]" for s in streams}, "l")
                    if body[i].dst in crossing and body[i].dst != passed:
                        self.put(f"c{self.names[body[i].dst]}[l] = {self.value[body[i].dst]};")
                if fused:
                    self._scan_element(scan, self.value[body[scan].arg])
            if scan is not None and not fused:
                self._open_scan(scan)
                name, arg = self.names[body[scan].arg], body[scan].arg
                if arg in lay.kept and arg not in crossing:
                    arg = f"k{name}[{self._kept_index()} + j0 + l]"
                elif arg in crossing:
                    arg = self._scanned(lay.definition[arg]) if lay.definition[arg] in scans else f"c{name}[l]"
                else:
                    arg = self.value[arg]
                with self.braces(f"for (int l = 0; l < {count}; l++)"):
                    self._scan_element(scan, arg)
            if scan is not None and body[scan].op != "sum":
                if body[scan].dst in lay.kept:
                    name = self.names[body[scan].dst]
                    self.put(f"for (int l = 0; l < {count}; l++) k{name}[{self._kept_index()} + j0 + l] = "
                             f"{self._scanned(scan)};")
            elif scan is not None:
                name = self.names[body[scan].dst]
                kind, total = ops.c_type(body[scan].dtype), f"run{name}"
                self.put(f"{kind} t{name} = ({kind})s{name};")
                if body[scan].dtype is torch.float32:
                    total = f"w{name}"
                    self.put(f"float u{name} = (float)(s{name} - t{name});")
                    self._sum_of_strip(name, total, count)
                    with self.braces(f"if (j0 == 0 || !(run{name} - run{name} == 0 && {total} - {total} == 0 && "
                                     f"t{name} - t{name} == 0))"):
                        self.put(f"t{name} = u{name} = 0;")
                        self.put("double v = 0;")
                        self.put("#pragma omp simd reduction(inscan, +: v)")
                        with self.braces(f"for (int l = 0; l < {count}; l++)"):
                            self.put(f"v += g{name}[l];")
                            self.put("#pragma omp scan inclusive(v)")
                            self.put(f"c{name}[l] = (float)(s{name} + v);")
                        self.put(f"{total} = v;")
                elif body[scan].dtype is torch.float64:
                    # One after the other: an infinite sum of a strip may be a NaN after another infinity.
                    with self.braces(f"if (__builtin_expect(!(run{name} - run{name} == 0), 0))"):
                        self.put(f"t{name} = run{name} = 0;")
                        with self.braces(f"for (int l = 0; l < {count}; l++)"):
                            if fused:
                                self.put("const int64_t j = j0 + l;")
                                self._crossed(crossing, scans, phase, p)
                                for i in here:
                                    self._element(i, access, {}, "l")
                                arg = self.value[body[scan].arg]
                            self.put(f"c{name}[l] = s{name} += {arg};")
                self.put(f"s{name} += {total};")
                if body[scan].dst in lay.kept:
                    self.put(f"for (int l = 0; l < {count}; l++) k{name}[{self._kept_index()} + j0 + l] = "
                             f"{self._scanned(scan)};")
        for i in streams:
            kind = ops.memory_type(self.kernel.buffer_of[body[i].buffer].dtype)
            self.put(f"stream<{self.strip} * (int)sizeof({kind})>({access[i]} + j0, o{i});")

    def _sum_of_strip(self, name: str, total: str, count: str) -> None:
        """A double with the sum of a strip of floats. Its rounding errors stay for the rest of the row, so only two
        floats at a time are added as such."""
        if count not in ("32", "64"):
            self.put(f"double {total} = 0;")
            self.put(f"#pragma omp simd reduction(+: {total})")
            self.put(f"for (int l = 0; l < {count}; l++) {total} += g{name}[l];")
            return
        width = int(count) // 4
        at = [f"g{name}[l + {k * width}]" for k in range(4)]
        self.put(f"alignas(64) double d{name}[{width}];")
        self.put("#pragma omp simd")
        self.put(f"for (int l = 0; l < {width}; l++) d{name}[l] = (double)({at[0]} + {at[2]}) + (double)({at[1]} + "
                 f"{at[3]});")
        while width > 2:
            width //= 2
            if width >= 4:
                self.put("#pragma omp simd")
            self.put(f"for (int l = 0; l < {width}; l++) d{name}[l] += d{name}[l + {width}];")
        self.put(f"double {total} = d{name}[0] + d{name}[1];")

    def _crossed(self, crossing: set[str], scans: list[int], phase: dict[int, int], p: int) -> None:
        """Where phase ``p`` of a strip finds the values of earlier ones at lane ``l``."""
        for n in crossing:
            d = self.layout.definition[n]
            if d in scans and phase[d] <= p:
                self.value[n] = self._scanned(d)
            elif phase[d] < p:
                self.value[n] = f"c{self.names[n]}[l]"

    def _phases(self, statements: list[int], scans: list[int]) -> tuple[dict[int, int], set[str]]:
        """(statement -> phase, names of values that a later phase uses). A scan's result belongs to the phase after its
        argument's."""
        body, lay = self.kernel.body, self.layout
        phase, inside = {}, set(statements)
        for i in statements:
            uses = [lay.definition[n] for n in body[i].uses if n in lay.definition]
            p = max([phase[d] for d in uses if d in inside and d in phase], default=0)
            phase[i] = scans.index(i) + 1 if i in scans else p
        crossing = set()
        for i in statements:
            for n in body[i].uses:
                d = lay.definition.get(n)
                if d in inside and (phase[d] < phase[i] or d in scans):
                    crossing.add(n)
        crossing |= {body[i].dst for i in scans}
        return phase, crossing

    def _begin_scan(self, i: int) -> None:
        s, name = self.kernel.body[i], self.names[self.kernel.body[i].dst]
        if s.op != "sum":
            self._begin_stepwise(s, name)
            return
        kind = "double" if s.dtype is torch.float32 else ops.c_type(s.dtype)
        if self.layout.column:
            self.put(f"alignas(64) {kind} s{name}[{self.block}];")
            self.put(f"for (int j = 0; j < {self.block}; j++) s{name}[j] = 0;")
        else:
            self.put(f"{kind} s{name} = 0;")

    # scans that are taken one element after the other, as eager takes them

    def _state(self, s: loops.Scan) -> list[tuple[str, str, str]]:
        """(name, type, value before the first element) of each variable that a stepwise scan carries along."""
        name, of = self.names[s.dst], self.dtypes[s.arg]
        first = ops.constant(loops.neutral(s.op.removeprefix("arg"), of), of)
        places = [(f"p{name}", "int64_t", "0")] if s.op.startswith("arg") else []
        return [(f"s{name}", ops.c_type(of), first), *places]

    def _begin_stepwise(self, s: loops.Scan, name: str) -> None:
        if s.op == "sort":
            raise Unsupported("a CPU kernel that sorts rows", kind="kernel")
        for variable, kind, first in self._state(s):
            if self.layout.column:
                self.put(f"alignas(64) {kind} {variable}[{self.block}];")
                self.put(f"for (int j = 0; j < {self.block}; j++) {variable}[j] = {first};")
            else:
                self.put(f"{kind} {variable} = {first};")

    def _step(self, s: loops.Scan, arg: str, position: str, at: str = "") -> str:
        """Takes in one element, at ``position`` of the row; gives the text of the result. ``at``: which of several rows
        beside each other it is."""
        state, of = f"s{self.names[s.dst]}{at}", self.dtypes[s.arg]
        if s.op.startswith("arg"):
            place, sign = f"p{self.names[s.dst]}{at}", ">=" if s.op == "argmax" else "<="
            better = f"{arg} {sign} {state}"
            if of.is_floating_point:  # nothing but a NaN comes after a NaN
                better = f"({arg} != {arg}) | ({better})"
            self.put(f"{{ const bool better = {better}; {place} = better ? (int64_t)({position}) : {place}; "
                     f"{state} = better ? {arg} : {state}; }}")
            return place
        prim = {"prod": "mul", "max": "maximum", "min": "minimum"}.get(s.op)
        new = (ops.expression(prim, [state, arg], [of, of], of, [None, None], False) if prim
               else f"log_add_exp({state}, {arg})")
        self.put(f"{state} = ({ops.c_type(of)})({new});")
        return state

    def _open_scan(self, i: int) -> None:
        """The head of a loop that leaves the running values within a strip in an array; what came before the strip is
        added where they are used.

        Of float32 values that is a sum of doubles, as in eager, which is taken apart into two floats where it is added.
        """
        s = self.kernel.body[i]
        if s.op != "sum":
            return
        self.put(f"{ops.c_type(s.dtype)} run{self.names[s.dst]} = 0;")
        if s.dtype is torch.float32:
            self.put(f"alignas(64) float g{self.names[s.dst]}[{self.strip}];")
        self.put(f"#pragma omp simd reduction(inscan, +: run{self.names[s.dst]})")

    def _scanned(self, i: int) -> str:
        """The running value at lane ``l``."""
        s = self.kernel.body[i]
        name = self.names[s.dst]
        if s.op != "sum":
            return f"c{name}[l]"
        return f"(t{name} + (u{name} + c{name}[l]))" if s.dtype is torch.float32 else f"(t{name} + c{name}[l])"

    def _scan_element(self, i: int, arg: str) -> None:
        name = self.names[self.kernel.body[i].dst]
        if self.kernel.body[i].op != "sum":
            self.put(f"c{name}[l] = {self._step(self.kernel.body[i], arg, 'j0 + l')};")
            return
        if self.kernel.body[i].dtype is torch.float32:
            self.put(f"g{name}[l] = {arg};")
        self.put(f"run{name} += {arg};")
        self.put(f"#pragma omp scan inclusive(run{name})")
        self.put(f"c{name}[l] = run{name};")
