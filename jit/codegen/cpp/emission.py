"""C++ text of one kernel, from its layout.

The text has two functions: ``NAME_part`` runs a range of rows, and ``NAME`` shares the rows out, in one parallel
region, or none when there is little to do. Vector loops are cut into strips of a fixed length: a strip's reduction
state is one lane per position (exact NaN behaviour, several accumulators), and its results can be written around the
cache with streaming stores.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from jit.codegen import loops
from jit.codegen.absolute import absolute_values
from jit.codegen.cpp import blocks, compiler_check, ops, pieces, prefetch
from jit.codegen.cpp.layout import CLOSE, COST, Layout, analyse, hint, stream_bytes, tail
from jit.codegen.cpp.reduction import Reduction
from jit.codegen.cpp.strips import Strips
from jit.codegen.cpp.support import TILE
from jit.codegen.handlers import Handlers
from jit.errors import Unsupported
from jit.graph import dims
from jit.graph.dim_text import render
from jit.graph.prims import info

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..loops import Bounded, Check, Load, Store, Value

SERIAL_WORK = 60_000  # below this many cost units (about 15 microseconds) a kernel runs in the calling thread
BLOCK = 1024  # vector positions per block in column mode
STACK_BYTES = 16 << 10  # kept values up to this size live on the stack
STREAMS_COST = 26  # quarters of cost units of an element up to which a sum waits for its reads
COOPERATE_WORK = 1 << 18  # cost units of a row from which threads share one row

values = Handlers("the text of values in C++", loops.Value)
per_row = Handlers("rows in C++", loops.Value, loops.Effect)
per_element = Handlers("loops along the vector axis in C++")


class KernelText(Strips):
    """Writes one kernel. ``lines`` is the text; ``threads`` the number of threads that the machine is expected to give
    it."""

    def __init__(self, kernel: loops.Kernel, name: str, threads: int, layout: Layout | None = None) -> None:
        self.layout: Layout = layout or analyse(kernel)
        self.kernel = kernel = self.layout.kernel
        self.name, self.threads = name, threads
        self.lines, self.indent = [], 0
        self.ahead = []  # (pointer, bytes per element) of the loads to prefetch in the present loop
        # Extent of a bounded value -> its text; the text of what stands for values outside.
        self.limits, self.nowhere = {}, "0"
        self.divisor = {}  # statement number of a division -> name of its prepared divisor
        self.states = {}  # statement number of a Reduce -> its state
        self.piece = 0  # the length of the part of a row's tail that is being written
        self.names = {}
        for prefix, group in (("x", kernel.axes + kernel.raxes), ("b", kernel.buffers)):
            self.names.update((x.name, f"{prefix}{i}") for i, x in enumerate(group))
        self.names.update((s, f"n{i}") for i, s in enumerate(kernel.sizes))
        self.names.update((n, f"v{i}") for n, i in self.layout.definition.items())
        self.dtypes, self.absolute = kernel.dtypes, absolute_values(kernel)
        self.narrow = {}  # value name -> text of a 32-bit form of an integer
        self.value = {}  # value name -> text of it in the present scope
        for n, i in self.layout.definition.items():
            s = kernel.body[i]
            if s.constant is not None:
                self.value[n] = ops.constant(s.constant, s.dtype)
                if s.dtype is torch.int64 and abs(s.constant) < 2**31:
                    self.narrow[n] = f"({int(s.constant)})"
        self._decide()

    # decisions that depend on sizes

    def _decide(self) -> None:
        lay, kernel = self.layout, self.kernel
        elements = math.prod(hint(a.extent) for a in kernel.axes + kernel.raxes)
        widest = max([b.dtype.itemsize for b in kernel.buffers] + [d.itemsize for d in self.dtypes.values()
                                                                   if d is not torch.int64], default=4)
        self.strip = 32 if widest > 4 else 64
        extent = lay.vector.extent
        if not lay.column and type(extent) is int and 0 < extent < self.strip:
            self.strip = tail(extent)[0]
        self.streamed = set()
        for i, s in enumerate(kernel.body):
            if s.stored and s.mask is None and self.unit(s) and hint(extent) >= self.strip:
                count = math.prod(hint(a.extent) for a in kernel.axes + kernel.raxes
                                  if a.name in s.symbols)
                if count * kernel.buffer_of[s.buffer].dtype.itemsize >= stream_bytes(kernel):
                    self.streamed.add(i)
        per_element = 0.5 + sum(COST.get(s.prim, 1) * 0.25 if s.prim else 0.0 if s.constant is not None else 0.5
                                for s in kernel.body)
        rows = math.prod(hint(a.extent) for a in lay.rows)
        self.cost = max(1, round(per_element * 4))  # quarter units per element
        self.cooperate = self.alone = False  # threads share a row; only the last of them is still at work
        self.block = None
        self.flat = False
        self.tile, self.tiled = None, {}
        has_scan = any(s.scans for s in kernel.body)
        if lay.column:
            self._find_tile()
            if not kernel.raxes and not lay.rows:
                self.flat = True
            elif self.tile:
                self.block = TILE
            elif kernel.raxes:
                self.block = BLOCK
                while self.block > 64 and rows * math.ceil(hint(extent) / self.block) < 2 * self.threads:
                    self.block //= 2
            elif rows < 8 * self.threads or hint(extent) > 1 << 16:
                self.block = 4096
            units = rows * math.ceil(hint(extent) / self.block) if self.block else rows
        else:
            units = rows
        if kernel.raxes and not has_scan:
            unit_cost = per_element * elements / max(units, 1)
            if (units < 8 * self.threads and unit_cost >= COOPERATE_WORK) or (units < self.threads
                                                                              and unit_cost >= SERIAL_WORK):
                self.cooperate = True
                if lay.column:
                    self.block = BLOCK * 4
        if self.block and type(extent) is int and not self.tile:
            if extent <= self.block and not kernel.raxes:
                self.block = None
            else:
                self.block = min(self.block, extent)

    def _find_tile(self) -> None:
        """Loads that are contiguous along another parallel axis than the vector axis, or nearly so, as parts of pairs
        are, go through square tiles, transposed in cache."""
        lay, kernel = self.layout, self.kernel
        if kernel.raxes or hint(lay.vector.extent) < 16:
            return
        found = {}
        for i, s in enumerate(kernel.body):
            if not s.loaded or s.mask is not None or any(n in lay.definition for n in s.symbols):
                continue
            stride = dims.coefficient(s.index, lay.vector.name)
            if stride is None or (type(stride) is int and abs(stride) < 8):
                continue
            for a in lay.rows:
                along = dims.coefficient(s.index, a.name)
                if type(along) is int and 0 < along <= CLOSE and hint(a.extent) >= 16:
                    found.setdefault(a.name, {})[i] = stride, along
        if found:
            name = max(found, key=lambda n: len(found[n]))
            self.tile = next(a for a in lay.rows if a.name == name)
            self.tiled = found[name]

    def unit(self, s: Load | Store) -> bool:
        stride = dims.coefficient(s.index, self.layout.vector.name)
        return type(stride) is int and stride == 1

    # writing

    def put(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextlib.contextmanager
    def braces(self, head: str = "") -> Iterator[None]:
        self.put(f"{head} {{".strip())
        self.indent += 1
        saved, narrow = dict(self.value), dict(self.narrow)
        yield
        self.value, self.narrow = saved, narrow
        self.indent -= 1
        self.put("}")

    def expr(self, e: IntExpr, **names: str) -> str:
        """An index expression as C text; keyword arguments name symbols for the occasion."""
        known = {n: f"(int64_t){self.value[n]}" for n in dims.free_symbols(e) if n in self.value}
        return render(e, "c", {**self.names, **known, **names}) if type(e) is not int else str(e)

    def text(self) -> str:
        streams = "STREAMS " if self.kernel.raxes and self.cost <= STREAMS_COST else ""
        with self.braces(f"{streams}PART {self.name}_part(void** ptrs, const int64_t* ints, int64_t begin, int64_t end,"
                         " int thread, int threads, char* shared)"):
            self._arguments()
            self._rows()
            if self.streamed:
                self.put("STREAM_FENCE();")
        self._entry()
        return "\n".join(self.lines) + "\n"

    def _sizes(self) -> None:
        for i, _ in enumerate(self.kernel.sizes):
            self.put(f"const int64_t n{i} = ints[{i}];")

    def _arguments(self) -> None:
        for i, b in enumerate(self.kernel.buffers):
            kind = ops.memory_type(b.dtype)
            const = "const " if b.role == "in" else ""
            self.put(f"{const}{kind}* const b{i} = ({const}{kind}*)ptrs[{i}];")
        self._sizes()
        self._limits()

    def _limits(self) -> None:
        """The extents of bounded values, and the 0 in the place of what lies outside. Where the compiler must not see
        that an index is made from a comparison they are hidden from it: else it would find that the bounds always hold,
        and take them out."""
        bounds = [s for s in self.kernel.body if s.limit is not None]
        hidden = bool(bounds) and "bool_offset" in compiler_check.quirks()
        for s in bounds:
            key, text = loops.index_key(s.limit), self.expr(s.limit)
            if key in self.limits:
                continue
            self.limits[key] = f"limit{len(self.limits)}" if hidden else f"(int64_t)({text})"
            if hidden:
                self.put(f"const int64_t {self.limits[key]} = hidden({text});")
        if hidden:
            self.nowhere = "nowhere"
            self.put("const int64_t nowhere = hidden(0);")

    def _within(self, s: Bounded | Check) -> str:
        """Whether the value of a ``Bounded`` or a ``Check`` lies inside its bounds."""
        return f"((uint64_t){self.value[s.value]} < (uint64_t){self.limits[loops.index_key(s.limit)]})"

    def _units(self) -> str:
        factors = [f"(({self.expr(a.extent)} + {TILE - 1}) / {TILE})" if a is self.tile
                   else f"({self.expr(a.extent)})" for a in self.layout.rows]
        extent = self.expr(self.layout.vector.extent)
        if self.flat:
            factors = [f"({extent})"]
        elif self.block:
            factors.append(f"(({extent} + {self.block - 1}) / {self.block})")
        return " * ".join(f"(int64_t){f}" for f in factors) or "(int64_t)1"

    def _entry(self) -> None:
        lay = self.layout
        with self.braces(f"EXPORT void {self.name}(void** ptrs, const int64_t* ints)"):
            self._sizes()
            total = " * ".join(f"(int64_t)({self.expr(a.extent)})" for a in lay.kernel.axes + lay.kernel.raxes)
            self.put(f"const int64_t units = {self._units()};")
            constant = all(type(a.extent) is int for a in lay.kernel.axes + lay.kernel.raxes)
            work = math.prod(a.extent for a in lay.kernel.axes + lay.kernel.raxes) * self.cost if constant else None
            serial = f"{self.name}_part(ptrs, ints, 0, units, 0, 1, {'shared' if self.cooperate else '0'});"
            size = self._shared_bytes()
            if work is not None and work < 4 * SERIAL_WORK:
                self.put(serial.replace("shared", "0"))
                return
            if self.cooperate:
                self.put(f"char* const shared = scratch(1, 64 + (int64_t)omp_get_max_threads() * {2 * size}) + 64;")
                self.put("*(int*)(shared - 64) = 0; /* threads that have finished */")
            if work is None:
                self.put(f"if ({total} * {self.cost} < {4 * SERIAL_WORK}) {{ {serial} return; }}")
            self.put("#pragma omp parallel")
            with self.braces():
                self.put("const int64_t t = omp_get_thread_num(), k = omp_get_num_threads();")
                if self.cooperate:
                    self.put(f"{self.name}_part(ptrs, ints, 0, units, (int)t, (int)k, shared);")
                elif self.flat:
                    self.put("const int64_t lines = (units + 255) / 256, from = lines * t / k * 256, to = lines * (t + "
                             "1) / k * 256;")
                    self.put(f"if (from < units) {self.name}_part(ptrs, ints, from, to < units ? to : units, (int)t, "
                             "(int)k, 0);")
                else:
                    self.put("const int64_t from = units * t / k, to = units * (t + 1) / k;")
                    self.put(f"if (from < to) {self.name}_part(ptrs, ints, from, to, (int)t, (int)k, 0);")

    # rows

    def _rows(self) -> None:
        lay = self.layout
        extent = lay.vector.extent
        self.lo, self.hi, self.base = "0", self.expr(extent), 0
        self._kept_memory_early()
        if self.flat:
            self.lo, self.hi = "begin", "end"
            self._row()
            return
        axes = [(self.names[a.name], self.expr(a.extent)) for a in lay.rows if a is not self.tile]
        if self.tile:
            axes.append(("tile", f"(({self.expr(self.tile.extent)} + {TILE - 1}) / {TILE})"))
            for i in self.tiled:
                self.put(f"alignas(64) {ops.memory_type(self.kernel.buffer_of[self.kernel.body[i].buffer].dtype)} "
                         f"tile{i}[{TILE * TILE}];")
        if self.block:
            axes.append(("blk", f"(({self.expr(extent)} + {self.block - 1}) / {self.block})"))
        if not axes:
            self._row()
            return
        for n, _ in axes:
            self.put(f"int64_t {n} = 0;")
        if not self.cooperate:
            if any(type(a.extent) is not int for a in (*lay.rows, lay.vector)):
                self.put("if (begin >= end) return; /* an extent may be 0 */")
            with self.braces():
                self.put("int64_t rest = begin;")
                for n, e in reversed(axes[1:]):
                    self.put(f"{n} = rest % ({e}); rest /= ({e});")
                self.put(f"{axes[0][0]} = rest;")
        with self.braces("for (int64_t unit = begin; unit < end; unit++)"):
            if self.block:
                self.put(f"const int64_t start = blk * {self.block};")
                self.base = dims.Sym("start", lo=0)
                if type(extent) is int and extent % self.block == 0:
                    self.hi = str(self.block)
                else:
                    self.put(f"const int64_t width = {self.expr(extent)} - start < {self.block} ? {self.expr(extent)} "
                             f"- start : {self.block};")
                    self.hi = "width"
            if self.tile:
                self._tile_rows()
            else:
                self._row()
            text = f"{axes[0][0]}++;"
            for n, e in axes[1:]:
                text = f"if (++{n} == ({e})) {{ {n} = 0; {text} }}"
            self.put(text)

    def _tile_rows(self) -> None:
        """Bring the transposed operands of one tile into cache, then run the tile's rows."""
        extent, name = self.expr(self.tile.extent), self.names[self.tile.name]
        self.put(f"const int64_t first = tile * {TILE}, count = {extent} - first < {TILE} ? {extent} - first : {TILE};")
        for i, (stride, along) in self.tiled.items():
            s = self.kernel.body[i]
            corner = dims.subst(s.index, {self.layout.vector.name: self.base, self.tile.name: dims.Sym("first", lo=0)})
            self.put(f"transpose_tile(tile{i}, {self.pointer(s)} + ({self.expr(corner)}), {self.expr(stride)}, "
                     f"(int)count, (int)({self.hi})" + (");" if along == 1 else f", {along});"))
        with self.braces(f"for (int64_t {name} = first; {name} < first + count; {name}++)"):
            self._row()

    def _row(self) -> None:
        lay = self.layout
        if self.cooperate:
            self._split_row()
        for k in range(lay.passes + 1):
            self._segment(k)
            if k < lay.passes:
                self._pass(k)

    def _split_row(self) -> None:
        """This thread's part of the outermost reduction loop, or of the vector axis when that is the only one."""
        lay = self.layout
        if lay.loops:
            e = self.expr(lay.loops[0].extent)
            self.put(f"const int64_t r_lo = (int64_t)({e}) * thread / threads, r_hi = (int64_t)({e}) * (thread + 1) / "
                     "threads;")
        else:
            e, w = self.expr(lay.vector.extent), self.strip
            self.put(f"const int64_t strips = (({e}) + {w - 1}) / {w}, r_lo = strips * thread / threads * {w};")
            self.put(f"const int64_t r_end = strips * (thread + 1) / threads * {w}, r_hi = r_end < ({e}) ? r_end : "
                     f"({e});")
            self.lo, self.hi = "r_lo", "r_hi"

    # values kept between passes

    def _kept_memory_early(self) -> None:
        lay = self.layout
        width = f"{self.block}" if self.block else f"({self.expr(lay.vector.extent)} + {self.strip})"
        rows = " * ".join(f"(int64_t)({self.expr(a.extent)})" for a in lay.loops) or "1"
        constant = type(lay.vector.extent) is int and all(type(a.extent) is int for a in lay.loops)
        kept = sorted(lay.kept, key=lay.definition.get)
        sizes = [ops.C_TYPES[self.dtypes[n]] and self.dtypes[n].itemsize for n in kept]
        count = None
        if constant:
            count = (self.block or lay.vector.extent) * math.prod(a.extent for a in lay.loops)
            count = (count + 63) // 64 * 64
        on_stack = constant and count * sum(sizes) <= STACK_BYTES
        if kept and not on_stack:
            self.put(f"const int64_t kept_count = ({width} * {rows} + 63) / 64 * 64;")
            self.put(f"char* const kept = scratch(0, kept_count * {sum(sizes)});")
        offset = 0
        for n, size in sorted(zip(kept, sizes), key=lambda x: -x[1]):
            kind = ops.memory_type(self.dtypes[n])
            if on_stack:
                self.put(f"alignas(64) {kind} k{self.names[n]}[{count}];")
            else:
                self.put(f"{kind}* const k{self.names[n]} = ({kind}*)(kept + kept_count * {offset});")
            offset += size
        if lay.column:
            width = self.block or lay.vector.extent
            for n in sorted(lay.arrays, key=lay.definition.get):
                self.put(f"alignas(64) {ops.memory_type(self.dtypes[n])} a{self.names[n]}[{width}];")

    def _kept_index(self) -> str:
        """Offset of the present innermost loop in a kept array; the vector position is added to it."""
        lay = self.layout
        out = ""
        for depth, a in enumerate(lay.loops):
            lo = " - r_lo" if self.cooperate and depth == 0 else ""
            out = (f"({self.names[a.name]}{lo})" if not out
                   else f"({out} * ({self.expr(a.extent)}) + {self.names[a.name]})")
        if lay.loops:
            return f"{out} * {self.block or '(' + self.expr(lay.vector.extent) + ')'}"
        return "-r_lo" if self.cooperate and not lay.column else "0"

    # row-level code

    def _segment(self, k: int) -> None:
        lay, body = self.layout, self.kernel.body
        vector = []
        for i in lay.segments[k]:
            s = body[i]
            if lay.column and (s.effect or s.dst in lay.varying):
                vector.append(i)
            else:
                per_row[type(s)](self, s, i)
        if vector:
            lead = ("if (thread == 0)" if self.cooperate and not self.alone
                    and any(body[i].stored for i in vector) else "")
            if lead and any(body[i].dst in lay.arrays for i in vector):
                lead = ""  # every thread needs the arrays; all then store the same values
            with self.braces(lead):
                self._vector_loop(vector, [])

    @per_row(loops.Value)
    def _row_value(self, s: Value, i: int) -> None:
        self._define(i)

    @per_row(loops.Store)
    def _row_store(self, s: Store, i: int) -> None:
        guard = "if (thread == 0) " if self.cooperate and not self.alone else ""
        if s.mask is not None:
            guard += f"if ({self.value[s.mask]}) "
        self.put(f"{guard}{self.pointer(s)}[{self.expr(s.index)}] = {self._memory(s.value)};")

    @per_row(loops.Check)
    def _row_check(self, s: Check, i: int) -> None:
        mask = f"{self.value[s.mask]} && " if s.mask else ""
        self.put(f"if ({mask}!{self._within(s)}) {self.names[s.buffer]}[0] = {s.code};")

    def pointer(self, s: Load | Store) -> str:
        return self.names[s.buffer]

    def _memory(self, name: str) -> str:
        return f"(uint8_t){self.value[name]}" if self.dtypes[name] is torch.bool else self.value[name]

    def _define(self, i: int, index: str | None = None) -> None:
        """Declare the value of statement ``i`` in the present scope. ``index`` overrides the text of a load's or an
        index value's position."""
        s = self.kernel.body[i]
        text = values[type(s)](self, s, i, index)
        self.value[s.dst] = self.names[s.dst]
        self.put(f"const {ops.c_type(self.dtypes[s.dst])} {self.names[s.dst]} = {text};")

    @values(loops.Const)
    def _const(self, s: loops.Const, i: int, index: str | None) -> str:
        return ops.constant(s.value, s.dtype)

    @values(loops.Given)
    def _given(self, s: loops.Given, i: int, index: str | None) -> str:
        raise Unsupported("a value that a layout gives, in C++", kind="kernel")

    @values(loops.IndexValue)
    def _integer(self, s: loops.IndexValue, i: int, index: str | None) -> str:
        return f"({ops.c_type(s.dtype)})({index or self.expr(s.expr)})"

    @values(loops.Bounded)
    def _bounded(self, s: Bounded, i: int, index: str | None) -> str:
        return f"{self._within(s)} ? {self.value[s.value]} : {self.nowhere}"

    @values(loops.Clamped)
    def _clamped(self, s: loops.Clamped, i: int, index: str | None) -> str:
        value, kind = self.value[s.value], ops.c_type(s.dtype)
        last = f"({kind})({self.limits[loops.index_key(s.limit)]} - 1)"
        return f"{value} > 0 ? ({value} < {last} ? {value} : {last}) : ({kind})0"

    @values(loops.Compute)
    def _compute(self, s: loops.Compute, i: int, index: str | None) -> str:
        kinds = [self.dtypes[a] for a in s.args]
        constants = [self.kernel.definition[a].constant for a in s.args]
        args = [self.value[a] for a in s.args]
        short = kinds and all(k is torch.int64 for k in kinds) and all(a in self.narrow for a in s.args)
        if short and (info(s.op).compares or (s.op == "cast" and s.dtype.is_floating_point)):
            args = [self.narrow[a] for a in s.args]
        if s.op == "sub" and s.dtype.is_floating_point and self.kernel.definition[s.args[1]].prim == "mul":
            args[1] = f"ROUNDED({args[1]})"
        z = self.divisor.get(i)
        return (f"divide_by({args[0]}, {z}.s, {z}.t, {z}.r)" if z
                else ops.expression(s.op, args, kinds, s.dtype, constants, s.dst in self.absolute))

    @values(loops.Load)
    def _load(self, s: Load, i: int, index: str | None) -> str:
        dtype, text = self.dtypes[s.dst], index or f"{self.pointer(s)}[{self.expr(s.index)}]"
        if dtype is torch.bool:
            text = f"({text} != 0)"
        if s.mask is not None:
            text = f"({self.value[s.mask]} ? {text} : {ops.constant(s.other, dtype)})"
        return text

    # passes over the reduction axes

    def _pass(self, k: int) -> None:
        lay, body = self.layout, self.kernel.body
        statements = lay.bodies[k]
        scans = [i for i in statements if body[i].scans]
        states = [Reduction(self, i) for i in statements if body[i].reduces]
        block = blocks.block_rows(self, k, states)
        for r in states:
            r.begin()
        for i in scans:
            self._begin_scan(i)
        flush = [r for r in states if r.flushed]
        counted = flush and lay.loops and not block
        if counted:
            self.put(f"int additions{k} = 0;")
        with contextlib.ExitStack() as stack:
            depth_of = self._depths(statements)
            for depth, a in enumerate(lay.loops):
                n = self.names[a.name]
                lo, hi = ("r_lo", "r_hi") if self.cooperate and depth == 0 else ("0", self.expr(a.extent))
                if block and depth == len(lay.loops) - 1:
                    blocks.write(self, n, lo, hi, block, statements, depth_of, states)
                    break
                stack.enter_context(self.braces(f"for (int64_t {n} = {lo}; {n} < {hi}; {n}++)"))
                for i in statements:
                    if depth_of.get(i) == depth + 1:
                        self._define(i)
            inner = [i for i in statements if depth_of.get(i, len(lay.loops) + 1) > len(lay.loops)]
            if not block:
                with self.braces():
                    self.ahead = prefetch.next_row(self) if k == 1 else []
                    self._vector_loop(inner, states)
                    self.ahead = []
            if counted:
                per_loop = 1 if lay.column else max(1, -(-hint(lay.vector.extent) // self.strip))
                limit = max(1, min(r.limit for r in flush) // per_loop)
                with self.braces(f"if (++additions{k} == {limit})"):
                    for r in flush:
                        r.flush(again=True)
                    self.put(f"additions{k} = 0;")
        for r in states:
            r.finish()
        if self.cooperate and states:
            self._combine(states, k)

    def _depths(self, statements: list[int]) -> dict:
        """Statement number -> loops around it, for the statements of a pass that do not vary along the vector axis."""
        lay, body = self.layout, self.kernel.body
        position = {a.name: d + 1 for d, a in enumerate(lay.loops)}
        depth, level = {}, {}
        inside = {body[i].dst for i in statements}
        for i in statements:
            s = body[i]
            if s.effect or s.combine or s.dst in lay.varying or s.dst in lay.kept:
                continue
            if any((n in inside or n in lay.kept) and n not in level for n in s.uses):
                continue
            d = max([position.get(n, level.get(n, 0)) for n in s.uses], default=0)
            depth[i] = level[s.dst] = max(d, 1)
        return depth

    def _shared_bytes(self) -> int:
        """Bytes of one thread's partial results of one row."""
        width = (self.block or 1) if self.layout.column else 1
        count = sum(1 + s.ordered for s in self.kernel.body if s.reduces)
        return max(64, (count * width * 8 + 63) // 64 * 64)

    def _combine(self, states: list[Reduction], k: int) -> None:
        """Every thread's partial results, put together in thread order by every thread alike."""
        size = self._shared_bytes()
        earlier = sum(1 + s.ordered for s, t in zip(self.kernel.body, self.layout.stage) if s.reduces and t < k)
        slot = earlier * (self.block if self.layout.column else 1) * 8
        self.put("#define SHARED(t, kind, offset) ((kind*)(shared + ((t) * 2 + (unit_parity)) * %d + (offset)))" % size)
        with self.braces("if (threads > 1)"):
            self.put(f"const int unit_parity = {'(int)(unit & 1)' if self.layout.rows or self.block else '0'};")
            for r in states:
                r.offset = slot
                slot += (2 if r.arg else 1) * (self.block if self.layout.column else 1) * 8
                r.share()
            if k == self.layout.passes - 1 and self._single_unit():
                # Nobody waits: the thread that arrives last puts the results together and finishes the row.
                stop = "{ STREAM_FENCE(); return; }" if self.streamed else "return;"
                self.put(f"if (__atomic_add_fetch((int*)(shared - 64), 1, __ATOMIC_ACQ_REL) != threads) {stop}")
                self.alone = True
            else:
                self.put("#pragma omp barrier")
            for r in states:
                r.gather()
        self.put("#undef SHARED")
        for r in states:
            if not self.layout.column:
                r.settle()

    def _single_unit(self) -> bool:
        """Whether the whole kernel is one row, or one block of columns."""
        extent = self.layout.vector.extent
        return not self.layout.rows and (not self.layout.column or (type(extent) is int and extent <= self.block))

    # the vector loop

    def _vector_loop(self, statements: list[int], states: list[Reduction]) -> None:
        """The loop over the vector axis. Where masks of loads are the same all along it, one that knows them to hold
        comes first: a load behind a condition keeps the compiler from vectorising, and at the edges of an image alone
        they do not hold."""
        body = self.kernel.body
        masks = [m for m in dict.fromkeys(body[i].mask for i in statements if body[i].loaded)
                 if m is not None and m in self.value and m not in self.layout.varying]
        if not masks or states:
            self._one_vector_loop(statements, states)
            return
        ahead = self.ahead
        with self.braces(f"if ({' && '.join(self.value[m] for m in masks)})"):
            self.value.update(dict.fromkeys(masks, "true"))
            self._one_vector_loop(statements, states)
        self.ahead = ahead
        with self.braces("else"):
            self._one_vector_loop(statements, states)

    def _one_vector_loop(self, statements: list[int], states: list[Reduction]) -> None:
        lay, body = self.layout, self.kernel.body
        scans = [i for i in statements if body[i].scans]
        stripped = bool((states and not lay.column) or (scans and not lay.column)
                        or any(i in self.streamed for i in statements))
        checks = [i for i in statements if body[i].effect and not body[i].stored]
        for i in checks:
            self.put(f"int bad{i} = 0;")
        access = self._accesses(statements)
        self._divisors(statements)
        if stripped and not self.ahead:
            self.ahead = prefetch.stream(self, statements, access)
        if not stripped:
            self._in_pieces(statements, checks, access)
        else:
            self._strips(statements, states, scans, checks, access)
        self.ahead = []
        for i in checks:
            self.put(f"if (bad{i}) {self.names[body[i].buffer]}[0] = {body[i].code};")

    def _in_pieces(self, statements: list[int], checks: list, access: dict[int, str]) -> None:
        """A loop over elements, or one for each piece of the axis."""
        found = pieces.cuts(self.kernel, self.layout, statements)
        places, ends = pieces.distinct(found), [self.lo]
        for k, place in enumerate(places):
            name = f"cut{k}_{len(self.lines)}"
            at, low, high = self.expr(place - self.base), ends[-1], self.hi
            self.put(f"const int64_t {name} = {at} < {low} ? {low} : {at} < {high} ? {at} : {high};")
            ends.append(name)
        before = dict(self.value)
        for piece, (low, high) in enumerate(zip(ends, [*ends[1:], self.hi])):
            known = pieces.answers(found, places, piece)
            self.value = dict(before)
            self._simd(checks)
            with self.braces(f"for (int64_t j = {low}; j < {high}; j++)"):
                for i in statements:
                    if i in known:
                        self.value[self.kernel.body[i].dst] = "true" if known[i] else "false"
                    else:
                        self._element(i, access, {}, "j")

    def _divisors(self, statements: list[int]) -> None:
        """Prepare the divisors that are the same along the vector axis: a vector division takes as long as ten
        multiplications."""
        lay, self.divisor = self.layout, {}
        if hint(lay.vector.extent) < 64:
            return
        for i in statements:
            s = self.kernel.body[i]
            if (s.prim == "div" and s.dtype is torch.float32
                and s.args[1] not in lay.varying and s.args[1] in self.value and s.dst in lay.varying):
                name = self.divisor[i] = f"z{i}_{len(self.lines)}"
                self.put(f"const Divisor {name} = divisor({self.value[s.args[1]]});")

    def _simd(self, checks: list[int]) -> None:
        clause = f" reduction(|: {', '.join(f'bad{i}' for i in checks)})" if checks else ""
        self.put("#pragma omp simd" + clause)

    def tail(self) -> list:
        """The lengths of what a row has beyond its last whole strip, where they are known."""
        known = self.lo.isdigit() and self.hi.isdigit()
        return tail((int(self.hi) - int(self.lo)) % self.strip) if known and not self.layout.column else []

    def _accesses(self, statements: list[int]) -> dict:
        """Pointers that the vector loop indexes by position alone: statement number -> name, declared here."""
        lay, body, out = self.layout, self.kernel.body, {}
        shared = {}
        for i in statements:
            s = body[i]
            if not s.accessed:
                continue
            stride = dims.coefficient(s.index, lay.vector.name)
            if stride is None or any(n in lay.definition and (n not in self.value or n in lay.varying)
                                     for n in s.symbols):
                continue
            if i in self.tiled:
                out[i] = f"q{i}"
                kind = ops.memory_type(self.kernel.buffer_of[s.buffer].dtype)
                self.put(f"const {kind}* const q{i} = tile{i} + ({self.names[self.tile.name]} - first) * {TILE};")
                continue
            base = self.expr(dims.subst(s.index, {lay.vector.name: self.base}))
            name = shared.get((s.buffer, base))
            if name is None:
                name = shared[s.buffer, base] = f"q{i}_{len(self.lines)}"
                const = "const " if self.kernel.buffer_of[s.buffer].role == "in" else ""
                self.put(f"{const}{ops.memory_type(self.kernel.buffer_of[s.buffer].dtype)}* const {name} = "
                         f"{self.pointer(s)} + ({base});")
            out[i] = name
        return out

    def _position(self, i: int, access: dict) -> str:
        """The element that load or store ``i`` touches, in the vector loop."""
        s = self.kernel.body[i]
        if i in self.tiled:
            return f"{access[i]}[j]"
        if i in access:
            stride = dims.coefficient(s.index, self.layout.vector.name)
            if type(stride) is int and stride in (0, 1):
                return f"{access[i]}[{'j' if stride else '0'}]"
            return f"{access[i]}[j * ({self.expr(stride)})]"
        return f"{self.pointer(s)}[{self._absolute(s.index)}]"

    def _absolute(self, e: IntExpr) -> str:
        vector = self.layout.vector.name
        if vector in dims.free_symbols(e) and type(self.base) is not int:
            return self.expr(e, **{vector: "(start + j)"})
        return self.expr(e, **{vector: "j"})

    def _element(self, i: int, access: dict, redirect: dict, lane: str) -> None:
        """One statement inside a vector loop."""
        lay, s = self.layout, self.kernel.body[i]
        for n in s.uses:
            if n in lay.definition and n not in self.value:
                self._fetch(n)
        per_element[type(s)](self, s, i, access, redirect, lane)
        if s.dst in lay.kept and s.dst in lay.element and s.dst in self.value:
            self.put(f"k{self.names[s.dst]}[{self._kept_index()} + j] = {self._memory(s.dst)};")
        if s.dst in lay.arrays and s.dst in self.value:
            self.put(f"a{self.names[s.dst]}[j] = {self._memory(s.dst)};")

    @per_element(loops.Value)
    def _element_value(self, s: Value, i: int, access: dict, redirect: dict, lane: str) -> None:
        self._define(i)

    @per_element(loops.Load)
    def _element_load(self, s: Load, i: int, access: dict, redirect: dict, lane: str) -> None:
        self._define(i, self._position(i, access))

    @per_element(loops.Store)
    def _element_store(self, s: Store, i: int, access: dict, redirect: dict, lane: str) -> None:
        target = redirect.get(i) or self._position(i, access)
        text = f"{target} = {self._memory(s.value)};"
        self.put(f"if ({self.value[s.mask]}) {text}" if s.mask else text)

    @per_row(loops.Total)
    @per_element(loops.Total)
    def _total(self, s: loops.Total, *_: object) -> None:
        raise Unsupported("columns added up beside rows, in C++", kind="kernel")

    @per_row(loops.Update)
    @per_element(loops.Update)
    def _update(self, s: loops.Update, *_: object) -> None:
        raise Unsupported("a CPU kernel that writes to places that data decide", kind="kernel")

    @per_element(loops.Check)
    def _element_check(self, s: Check, i: int, access: dict, redirect: dict, lane: str) -> None:
        mask = f"{self.value[s.mask]} & " if s.mask else ""
        self.put(f"bad{i} |= {mask}!{self._within(s)};")

    @per_element(loops.Reduce)
    def _element_reduce(self, s: loops.Reduce, i: int, access: dict, redirect: dict, lane: str) -> None:
        self.states[i].add(lane if not self.layout.column or self.states[i].blocked else "j")

    @per_element(loops.Scan)
    def _element_scan(self, s: loops.Scan, i: int, access: dict, redirect: dict, lane: str) -> None:
        if self.layout.column and s.op != "sum":
            name, position = self.names[s.dst], self.names[self.kernel.raxes[0].name]
            self.put(f"const {ops.c_type(s.dtype)} {name} = {self._step(s, self.value[s.arg], position, '[j]')};")
            self.value[s.dst] = name
        elif self.layout.column:  # else strips write it
            name = self.names[s.dst]
            self.put(f"const {ops.c_type(s.dtype)} {name} = ({ops.c_type(s.dtype)})(s{name}[j] += "
                     f"{self.value[s.arg]});")
            self.value[s.dst] = name

    def _fetch(self, n: str) -> None:
        """Make a value that another loop has stored available under its name."""
        lay = self.layout
        name = self.names[n]
        if n in lay.kept:
            text = f"k{name}[{self._kept_index()} + j]"
        elif n in lay.arrays:
            text = f"a{name}[j]"
        else:
            raise AssertionError(f"{n} is not available in {self.kernel.text()}")
        if self.dtypes[n] is torch.bool:
            text = f"({text} != 0)"
        self.put(f"const {ops.c_type(self.dtypes[n])} {name} = {text};")
        self.value[n] = name

    @per_element(loops.IndexValue)
    def _index_value(self, s: loops.IndexValue, i: int, access: dict, redirect: dict, lane: str) -> None:
        vector = self.layout.vector.name
        lo, hi = dims.bounds(s.expr)
        stride = dims.coefficient(s.expr, vector)
        plain = not any(n in self.layout.definition for n in s.symbols)
        if (plain and type(stride) is int and lo is not None and hi is not None
            and -(2**31) <= lo and hi < 2**31 and abs(stride) < 2**20):
            rest = self._absolute(dims.subst(s.expr, {vector: self.base}))
            name = f"w{self.names[s.dst]}"
            self.put(f"const int32_t {name} = (int32_t)({rest}) + (int32_t)j * {stride};")
            self.narrow[s.dst] = name
            self.put(f"const {ops.c_type(s.dtype)} {self.names[s.dst]} = {name};")
            self.value[s.dst] = self.names[s.dst]
            return
        self._define(i, self._absolute(s.expr))
