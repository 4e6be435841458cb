"""Sums of products of a matrix that is read once and a few vectors: a block of columns and of the row for a program,
each of whose threads adds up what it reads.

A row may be several axes, such as groups that share a factor and the elements of a group: each is a dimension of the
block, so that what does not vary along one is loaded once for it. The threads' sums are put together when the row has
been read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from ... import devices
from ...graph import dims
from . import ops, types, worker
from .emit import EMITTERS, Emitter
from .tiling import ROW, products

if TYPE_CHECKING:
    from ..loops import Compute, Reduce, Statement
    from .tiling import Tiling


class ThinEmitter(Emitter):
    """The text of such a kernel."""

    word, packs = "product", True

    def __init__(self, tiling: Tiling, *args: object) -> None:
        super().__init__(tiling, *args)
        self.row = [n for n in ROW if n in self.extents]

    def _dimensions(self) -> list:
        return [n for n in self.extents if self.block[n] > 1 or n == "r"]

    def _needs_mask(self, name: str) -> bool:
        return not dims.divisible(self.extents[name], self.block[name])

    def mask(self, along: Collection[str], value: str | None = None) -> str | None:
        parts = [f"{n}_in" for n in self.extents if n in along and n in self.masked]
        if value is not None:
            parts.append(self.names[value])
        return " & ".join(parts) or None

    def grid(self) -> object:
        return dims.product(dims.ceil_div(e, self.block[n]) for n, e in self.extents.items() if n not in ROW)

    def _positions(self) -> None:
        rest = "tl.program_id(0)" + (".to(tl.int64)" if self.wide - set(ROW) else "")
        for n in ("x", "y"):
            if n in self.extents:
                place = rest
                if n == "x" and "y" in self.extents:
                    count = self.text(dims.ceil_div(self.extents["y"], self.block["y"]))
                    self.line(f"rest = {rest}")
                    place, rest = f"(rest // {count})", f"(rest % {count})"
                self._place(n, f"{place} * {self.block[n]}" if self.block[n] > 1 else place)

    def _place(self, n: str, start: str) -> None:
        self.line(f"{n} = {start}" + (f" + {self._arange(n)}" if n in self.dimensions else ""))
        if n in self.masked:
            self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")

    def _statements(self) -> None:
        kernel = self.kernel
        sums = [s for s in kernel.body if s.combine]
        own, terms = set(), {}
        for s in sums:
            terms[s.dst] = products(kernel, s.arg)
            own |= self._parts(s.arg)
        later, ahead = set(), self._fetch()
        for s in kernel.body:
            if not kernel.is_element(s) and not s.reduces:
                if any(n in later or n in terms for n in s.uses):
                    later.add(s.dst)
                else:
                    self.statement(s)
        for s in sums:
            self.line(f"{self.names[s.dst]}_sum = tl.zeros({self.shape}, tl.float32)")
        with self._loops():
            for s in kernel.body:
                if kernel.is_element(s) and s.dst not in own | ahead:
                    self.statement(s)
            for s in sums:
                for t in terms[s.dst]:
                    self._add(s, t)
        for s in sums:
            self._finish(s)
        for s in kernel.body:
            if not kernel.is_element(s) and not s.reduces and (s.dst in later or s.effect and any(
                    n in later or n in terms for n in s.uses)):
                self.statement(s)

    def _fetch(self) -> set:
        """Load what may be read before the kernels in front of this one have ended, wait for these, and give the names
        of what was loaded: whole rows, where a block holds them."""
        kernel, found = self.kernel, set()
        able = worker.CAPABILITY <= devices.of_type("cuda").architecture().capability
        if self.interpret or not able or any(type(e) is not int or e > self.block[n]
                                             for n, e in self.extents.items() if n in self.row):
            return found
        steady, places = {kernel.buffers[k].name for k in kernel.steady}, set(map("@{}".format, self.extents))
        for s in kernel.body:
            if s.loaded in steady and kernel.is_element(s) and s.symbols <= places and s.mask is None:
                if not found:
                    for n in self.row:
                        self._place(n, "0")
                self.statement(s)
                found.add(s.dst)
        if found:
            context = ops.Context(torch.int32, (), helpers=self.helpers)
            self.line(f"{context.helper('_await_kernels')}()")
        return found

    def statement(self, s: Statement) -> None:
        if not (s.prim and self._of_bytes(s)):
            super().statement(s)

    def _of_bytes(self, s: Compute) -> bool:
        """A whole number taken from a byte goes with what is taken to make a float of it; masks and shifts of bytes are
        those of the words in which four of them lie."""
        kernel = self.kernel
        first, number = (kernel.definition[s.operands[k]] for k in (0, -1))
        number = number.constant
        block = bool(self.varies[s.dst] & set(self.dimensions)) and len(s.operands) == 2 and number is not None
        if block and s.prim == "sub" and first.prim == "cast" and s.dtype is torch.float32:
            (byte,) = first.operands
            less = ops.BYTES.get(kernel.dtypes[byte])
            if less and number == int(number) and abs(number) < 2**20 and self.varies[byte] & set(self.dimensions):
                context = ops.Context(s.dtype, (), interpret=self.interpret, helpers=self.helpers)
                word = context.helper("_word_of_" + str(kernel.dtypes[byte]).removeprefix("torch."))
                self.assign(s.dst, f"{word}({self.names[byte]}) - {less + number}")
                return True
        if block and s.dtype in ops.BYTES and not self.interpret:
            mask, shift = None, ""
            if s.prim == "bitwise_and":
                mask, shift = number & 255, "mov.b32 word, $1;"
            elif s.prim == "shr" and s.dtype is torch.uint8 and 0 <= number < 8:
                mask, shift = 255 >> number, f"shr.u32 word, $1, {number};"
            elif s.prim == "shl" and 0 <= number < 8:
                mask, shift = 255 << number & 255, f"shl.b32 word, $1, {number};"
            if mask is not None:
                self.assign(s.dst, f'tl.inline_asm_elementwise("{{ .reg .b32 word; {shift} and.b32 $0, word, '
                            f'{mask * 0x01010101:#x}; }}", "=r,r", [{self.names[s.operands[0]]}], '
                            f"dtype={types.tl_dtype(s.dtype)}, is_pure=True, pack=4)")
                return True
        return False

    def _parts(self, name: str) -> set:
        """The additions and multiplications of a sum, which are done as it is taken, where nothing else reads them."""
        s, readers = self.kernel.definition[name], sum(name in r.uses for r in self.kernel.body)
        if readers != 1 or s.dtype is not torch.float32:
            return set()
        if s.prim == "add":
            return {name}.union(*map(self._parts, s.operands))
        return {name} if s.prim == "mul" else set()

    def _loops(self) -> object:
        return _Nest(self)

    def _add(self, s: Reduce, term: str) -> None:
        total, product = f"{self.names[s.dst]}_sum", self.kernel.definition[term]
        a, b = (self.full(n) for n in product.operands)
        masked = [f"{n}_in" for n in self.row if n in self.masked]
        if masked:  # of what is not there, nothing is known
            a = f"tl.where({' & '.join(masked)}, {a}, 0.0)"
            b = f"tl.where({' & '.join(masked)}, {b}, 0.0)"
        self.line(f"{total} = tl.fma({a}, {b}, {total})")

    def _finish(self, s: Reduce) -> None:
        text = f"{self.names[s.dst]}_sum"
        for n in reversed(self.dimensions):
            if n in ROW:
                text = f"tl.sum({text}, {self.dimensions.index(n)})"
        kept = [n for n in self.dimensions if n not in ROW]
        if kept:
            text += f"[{', '.join('None' if n in ROW else ':' for n in self.dimensions)}]"
        self.assign(s.dst, text)


class _Nest:
    """The loops over a row: one for each dimension of which a block does not hold all."""

    def __init__(self, emitter: ThinEmitter) -> None:
        self.e = emitter

    def __enter__(self) -> None:
        e, self.depth = self.e, self.e.depth
        for n in e.row:
            wide = ".to(tl.int64)" if n in e.wide else ""
            extent, block = e.extents[n], e.block[n]
            if type(extent) is int and extent <= block:
                e._place(n, f"0{wide}" if not wide else "tl.zeros([], tl.int64)")
                continue
            loop = f"range(0, {e.text(extent)}, {block})"
            if n == e.row[-1] and e.config.stages > 1:
                loop = f"tl.range(0, {e.text(extent)}, {block}, num_stages={e.config.stages})"
            e.line(f"for {n}_start in {loop}:")
            e.depth += 1
            e._place(n, f"{n}_start{wide}")

    def __exit__(self, *error: object) -> None:
        self.e.depth = self.depth


EMITTERS["thin"] = ThinEmitter
