"""Attention in C++: scores of a block of queries and keys are made, changed and used up in the cache.

A unit of work is some queries of one head. It goes along the keys in blocks, with the largest score of each query so
far, the sum of exponentials and the weighted sum of values, which are scaled whenever a larger score is found. Of a
block of keys the transpose is laid down once for all queries of the unit, so that both products are those of
``support.PRODUCT``, which keeps sums of some rows in registers. The function of the scores stands between them, in a
loop along the keys as any kernel has, and of blocks of which a map says that nothing is kept nothing is computed.

Everything is computed in float32; halves are converted where a block is laid down. No row's result depends on how many
threads there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from .. import loops
from ..attention import SCORE, Parts
from ..template import Layout as Laid
from ...errors import Unsupported
from ...graph import dims
from . import ops
from .emission import SERIAL_WORK, KernelText, per_row
from .layout import Layout, _levels
from .support import TILE

KEYS = 2 * TILE  # of a block, and the side of one in a map of blocks
ROWS = 32  # queries whose scores are in the cache at once
MOST = 256  # queries of a unit, half as many where they are wide
FEWEST = 64  # of a unit where there are few for the threads


@dataclass(frozen=True)
class AttentionLayout(Laid):
    parts: Parts
    version: int = 1

    def emit(self, kernel: loops.Kernel, aligned: Collection[str] | None, interpret: bool) -> str:
        if self.parts.kind != "forward":
            raise Unsupported("the gradient of attention in one kernel, on a CPU", kind="kernel")
        if self.parts.side % KEYS:
            raise Unsupported(f"a map of blocks of {self.parts.side} keys, on a CPU", kind="kernel")
        return _Text(kernel, self.parts).text()


class _Text(KernelText):
    def __init__(self, kernel: loops.Kernel, parts: Parts) -> None:
        z, y, x = kernel.axes
        made = Layout(kernel, x, [z, y], [])
        _levels(made)
        self.parts = parts
        super().__init__(kernel, "KERNEL", 1, made)
        self.z, self.y, self.x = z.name, y.name, x.name
        self.r, self.d = (a.name for a in kernel.raxes)
        self.width, self.out_width = (dims.specialize(a.extent) for a in kernel.raxes)
        self.load = {role: kernel.definition[name] for role, name in parts.loads}
        self.store = {role: next(s for s in kernel.body if s.stored and s.value == name) for role, name in parts.stores}
        self.most = MOST if self.width + self.out_width <= MOST else MOST // 2
        # Whether rows of values are read where they lie; else they are laid down like the keys.
        v = self.load["v"]
        self.in_place = (self._dtype("v") is torch.float32 and self.out_width % 16 == 0
                         and dims.coefficient(v.index, self.d) == 1)
        self.scores = [s.dst for s in kernel.body if type(s) is loops.Given and s.number == SCORE]

    def _decide(self) -> None:
        self.strip, self.cost, self.block, self.tile = TILE, 1, None, None
        self.streamed, self.tiled = set(), {}
        self.flat = self.cooperate = self.alone = False
        self.lo, self.hi, self.base = "0", "columns", dims.Sym("start", lo=0)

    def _dtype(self, role: str) -> torch.dtype:
        return self.kernel.dtypes[self.load[role].dst]

    # text

    def text(self) -> str:
        with self.braces(f"PART {self.name}_part(void** ptrs, const int64_t* ints, int64_t unit, int64_t step, "
                         "int64_t share)"):
            self._arguments()
            self._memory_of_thread()
            z, y, x = (self.expr(a.extent) for a in self.kernel.axes)
            self.put(f"const int64_t queries = {y}, keys = {x}, shares = (queries + share - 1) / share;")
            self.put(f"const int64_t units = ({z}) * shares;")
            with self.braces("for (; unit < units; unit += step)"):
                self._unit()
        self._entry()
        return "\n".join(self.lines) + "\n"

    def _entry(self) -> None:
        with self.braces(f"EXPORT void {self.name}(void** ptrs, const int64_t* ints)"):
            self._sizes()
            z, y, x = (self.expr(a.extent) for a in self.kernel.axes)
            self.put(f"const int64_t heads = {z}, queries = {y}, keys = {x};")
            self.put(f"int64_t share = {self.most};")
            with self.braces(f"if (heads * queries * keys * {self.width + self.out_width} < {16 * SERIAL_WORK})"):
                self.put(f"{self.name}_part(ptrs, ints, 0, 1, share);")
                self.put("return;")
            self.put("const int threads = omp_get_max_threads();")
            self.put(f"while (threads > 1 && share > {FEWEST} && heads * ((queries + share - 1) / share) < 4 * threads)"
                     " share /= 2;")
            self.put("#pragma omp parallel")
            self.put(f"{self.name}_part(ptrs, ints, omp_get_thread_num(), omp_get_num_threads(), share);")

    def _memory_of_thread(self) -> None:
        out = -(-self.out_width // 16) * 16
        parts = {"laid": self.width * KEYS, "scores": ROWS * KEYS, "query": self.most * self.width,
                 "sum": self.most * out, "top": self.most, "total": self.most}
        if not self.in_place:
            parts["value"] = KEYS * out
        if self._converted():
            parts["converted"] = TILE * self.width
        self.out = out
        sizes = {name: -(-n // 16) * 16 for name, n in parts.items()}
        self.put(f"float* const memory = (float*)scratch(0, {4 * sum(sizes.values())});")
        at = 0
        for name, size in sizes.items():
            self.put(f"float* const {name} = memory + {at};")
            at += size

    def _unit(self) -> None:
        z, y = self.names[self.z], self.names[self.y]
        self.put(f"const int64_t {z} = unit / shares, first = unit % shares * share;")
        self.put("const int64_t rows = queries - first < share ? queries - first : share;")
        self._pack_queries()
        self.put("for (int64_t m = 0; m < rows; m++) { top[m] = -__builtin_inff(); total[m] = 0; }")
        self.put(f"for (int64_t m = 0; m < rows * {self.out}; m++) sum[m] = 0;")
        for i in self._needed(self._results()):
            if self._level(i) == "z":
                self._once(i)
        with self.braces(f"for (int64_t start = 0; start < keys; start += {KEYS})"):
            self.put(f"const int64_t columns = keys - start < {KEYS} ? keys - start : {KEYS};")
            self.put("const int64_t wide = (columns + LANES - 1) / LANES * LANES;")
            self.put("bool there = false;")
            with self.braces(f"for (int64_t m = 0; m < rows; m += {ROWS})"):
                self._block()
        with self.braces("for (int64_t m = 0; m < rows; m++)"):
            self.put(f"const int64_t {y} = first + m;")
            self._write()

    def _block(self) -> None:
        """The scores of some queries and a block of keys, and what they add."""
        y = self.names[self.y]
        if "blocks" in self.load:
            s = self.load["blocks"]
            side = self.parts.side
            place = self.expr(s.index, **{self.y: f"((first + m) / {side})", self.x: f"(start / {side})"})
            self.put(f"const int32_t state = {self.pointer(s)}[{place}];")
            self.put("if (!state) continue;")
        self.put(f"const int64_t height = rows - m < {ROWS} ? rows - m : {ROWS};")
        with self.braces("if (!there)"):
            self.put("there = true;")
            self._pack_keys()
            if not self.in_place:
                self._pack_values()
        for half in (0, 1):
            at, wide = half * TILE, f"(wide - {half * TILE} < {TILE} ? wide - {half * TILE} : {TILE})"
            head = f"if (wide > {at}) " if half else ""
            self.put(f"{head}block_product(scores + {at}, {KEYS}, query + m * {self.width}, {self.width}, laid + "
                     f"{at * self.width}, {TILE}, height, {wide}, {self.width}, false);")
        with self.braces("for (int64_t row = 0; row < height; row++)"):
            self.put(f"float* const score = scores + row * {KEYS};")
            self.put(f"const int64_t {y} = first + m + row;")
            if self.parts.results[1:]:
                with self.braces("if (state == 2)"):
                    self._tree(1)
                with self.braces("else"):
                    self._tree(0)
            else:
                self._tree(0)
            self.put("for (int64_t j = columns; j < wide; j++) score[j] = -__builtin_inff();")
            self.put(f"row_weights(score, wide, top + m + row, total + m + row, sum + (m + row) * {self.out}, "
                     f"{self.out});")
        values, stride = "value", str(self.out)
        if self.in_place:
            v = self.load["v"]
            values = f"{self.pointer(v)} + ({self.expr(v.index, **{self.x: 'start', self.d: '0'})})"
            stride = self.expr(dims.coefficient(v.index, self.x))
        self.put(f"block_product(sum + m * {self.out}, {self.out}, scores, {KEYS}, {values}, {stride}, height, "
                 f"{self.out}, columns, true);")

    # operands

    def _float(self, text: str, dtype: torch.dtype) -> str:
        return ops.cast(text, dtype, torch.float32)

    def _element_of(self, role: str, **places: str) -> str:
        s = self.load[role]
        names = {getattr(self, axis): text for axis, text in places.items()}
        return self._float(f"{self.pointer(s)}[{self.expr(s.index, **names)}]", self._dtype(role))

    def _converted(self) -> bool:
        """Whether keys are converted before they are transposed, as rows."""
        return dims.coefficient(self.load["k"].index, self.r) == 1 and self._dtype("k") is not torch.float32

    def _pack_queries(self) -> None:
        with self.braces("for (int64_t m = 0; m < rows; m++)"):
            self.put("#pragma omp simd")
            self.put(f"for (int64_t c = 0; c < {self.width}; c++) query[m * {self.width} + c] = "
                     f"{self._element_of('q', y='(first + m)', r='c')};")

    def _pack_keys(self) -> None:
        """The transpose of a block of keys, as two halves of ``TILE`` columns."""
        s, w = self.load["k"], self.width
        along, across = dims.coefficient(s.index, self.r), dims.coefficient(s.index, self.x)
        with self.braces(f"for (int64_t half = 0; half < columns; half += {TILE})"):
            self.put(f"const int64_t count = columns - half < {TILE} ? columns - half : {TILE};")
            self.put(f"float* const target = laid + half * {w};")
            if along == 1 and type(along) is int:
                source, stride = "converted", str(w)
                if self._converted():
                    with self.braces("for (int64_t n = 0; n < count; n++)"):
                        self.put("#pragma omp simd")
                        self.put(f"for (int64_t c = 0; c < {w}; c++) converted[n * {w} + c] = "
                                 f"{self._element_of('k', x='(start + half + n)', r='c')};")
                else:
                    source = f"{self.pointer(s)} + ({self.expr(s.index, **{self.x: '(start + half)', self.r: '0'})})"
                    stride = self.expr(across)
                self.put(f"transpose_tile(target, {source}, {stride}, {w}, (int)count);")
                return
            with self.braces(f"for (int64_t c = 0; c < {w}; c++)"):
                self.put("#pragma omp simd")
                self.put(f"for (int64_t n = 0; n < count; n++) target[c * {TILE} + n] = "
                         f"{self._element_of('k', x='(start + half + n)', r='c')};")

    def _pack_values(self) -> None:
        with self.braces("for (int64_t n = 0; n < columns; n++)"):
            self.put("#pragma omp simd")
            self.put(f"for (int64_t c = 0; c < {self.out_width}; c++) value[n * {self.out} + c] = "
                     f"{self._element_of('v', x='(start + n)', d='c')};")
            if self.out != self.out_width:
                self.put(f"for (int64_t c = {self.out_width}; c < {self.out}; c++) value[n * {self.out} + c] = 0;")

    # the function of the scores

    def _results(self) -> list[str]:
        return [n for names in self.parts.results for n in names]

    def _needed(self, wanted: Iterable[str]) -> list[int]:
        """The numbers of the statements behind values, in order."""
        body, live, found = self.kernel.body, set(wanted), []
        for i in range(len(body) - 1, -1, -1):
            s = body[i]
            if s.stored or type(s) is loops.Given:
                continue
            reached = s.dst in live if not s.effect else any(
                b.limit is not None and b.dst in live and b.value == s.value for b in body if not b.effect)
            if reached:
                live.update(s.uses)
                found.append(i)
        return found[::-1]

    def _level(self, i: int) -> str:
        """The innermost loop that a statement depends on: "x" of keys, "y" of queries, else "z"."""
        along = self.kernel.along(self.kernel.body[i])
        return "x" if self.x in along else "y" if self.y in along else "z"

    def _once(self, i: int) -> None:
        per_row[type(self.kernel.body[i])](self, self.kernel.body[i], i)

    def _tree(self, number: int) -> None:
        (result,) = self.parts.results[number]
        self.value.update((n, "score[j]") for n in self.scores)
        found = self._needed([result])
        for i in found:
            if self._level(i) == "y":
                self._once(i)
        inner = [i for i in found if self._level(i) == "x"]
        self.result = result
        if inner:
            self._vector_loop(inner, [])
        elif result not in self.scores:
            self.put(f"for (int64_t j = 0; j < columns; j++) score[j] = {self.value[result]};")

    def _element(self, i: int, access: dict, redirect: dict, lane: str) -> None:
        super()._element(i, access, redirect, lane)
        if self.kernel.body[i].dst == self.result:
            self.put(f"score[j] = {self.value[self.result]};")

    # results

    def _write(self) -> None:
        """The results of one query."""
        other = "0.0f" if self.parts.safe else "__builtin_nanf(\"\")"
        self.put("const bool empty = total[m] == 0, none = total[m] != total[m];")
        if "out" in self.store:
            s = self.store["out"]
            dtype = self.kernel.buffer_of[s.buffer].dtype
            self.put(f"const float divisor = empty ? {'1.0f' if self.parts.safe else other} : total[m];")
            self.put("#pragma omp simd")
            with self.braces(f"for (int64_t c = 0; c < {self.out_width}; c++)"):
                self.put(f"const float found = sum[m * {self.out} + c] / divisor;")
                self.put(f"{self.pointer(s)}[{self.expr(s.index, **{self.d: 'c'})}] = "
                         f"{ops.cast('found', torch.float32, dtype)};")
        nothing = "-__builtin_inff()" if self.parts.safe else "__builtin_nanf(\"\")"
        if "sums" in self.store or "rest" in self.store:
            self.put("const float rest = log_f32(total[m]);")
        for role, text, without in (("sums", "top[m] + rest", nothing), ("rest", "rest", other)):
            if role in self.store:
                s = self.store[role]
                self.put(f"{self.pointer(s)}[{self.expr(s.index)}] = empty ? {without} : {text};")
        if "top" in self.store:
            s = self.store["top"]
            self.put(f"{self.pointer(s)}[{self.expr(s.index)}] = none ? total[m] : top[m];")
