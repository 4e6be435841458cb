"""Sums of products of a matrix that is read once and a few vectors: a block of columns and of the row for a program,
each of whose threads adds up what it reads.

A row may be several axes, such as groups that share a factor and the elements of a group: each is a dimension of the
block, so that what does not vary along one is loaded once for it. The threads' sums are put together when the row has
been read. Several vectors of halves are multiplied by the matrix units, to which the matrix is turned into halves as
eager has it. Factors that stay the same along a row are multiplied by behind the sum.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...graph import dims
from . import ops, thin_terms, types
from .emit import EMITTERS
from .interleaved import InterleavedEmitter, joined
from .thin_folds import Folds
from .tiling import ROW

if TYPE_CHECKING:
    from ..loops import Compute, Reduce, Statement
    from .tiling import Tiling


# The names in a text that it gives itself; strings are left alone.
_OWN = re.compile(r'"[^"]*"|\b(?:v\d+\w*|[xyrst](?:_\w+)?|rest)\b')


class ThinEmitter(InterleavedEmitter):
    """The text of such a kernel."""

    word, packs, side = "product", True, "r"

    def __init__(self, tiling: Tiling, *args: object) -> None:
        super().__init__(tiling, *args)
        self.row = [n for n in ROW if n in self.extents]
        self.sums = thin_terms.sums(tiling)
        # The type of the matrix units' operands, where they are used, and the loads that are done where they are.
        self.units = thin_terms.operand_type(tiling) if self.config.units else None
        self.there: set = set()
        self.folds = Folds(self)
        self.fused = bool(self.folds.parts)

    def _dimensions(self) -> list:
        found = [n for n in self.extents if self.block[n] > 1 or n == "r"]
        # What a thread goes through is no dimension; it has columns.
        if self.block["r"] == 1 and "x" in found and not self.config.units:
            found = [n for n in found if n not in "xr"] + ["x"]
        return found

    def _too_few(self, along: frozenset, dtype: torch.dtype) -> bool:
        """What is read for a group's columns is read for each word of the group, laid out as the words are. Triton
        would carry sums of words over to where the few factors lie."""
        return self.folds.walked and "x" in along and not along >= set(self.dimensions)

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
        if n == self.side:
            self.places_of_all(lambda count: f"{start} * {count}")

    def _statements(self) -> None:
        kernel, later = self.kernel, self._sums_taken()
        self._again([s for s in kernel.body if s.dst in self.folds.parts])
        for s in kernel.body:
            if not kernel.is_element(s) and not s.reduces and (s.dst in later or s.effect and any(
                    n in later or n in self.sums for n in s.uses)):
                self.statement(s)

    def _sums_taken(self) -> set:
        """Take the sums, with what does not need them, and give the names of what does."""
        kernel, sums = self.kernel, [s for s in self.kernel.body if s.combine]
        own = set().union(*(t.inner for t in self.sums.values()))
        if self.units:
            own |= self._turned(own)
        later: set = set()
        for s in kernel.body:
            if not kernel.is_element(s) and not s.reduces:
                if any(n in later or n in self.sums for n in s.uses):
                    later.add(s.dst)
                else:
                    self.statement(s)
        for s in sums:
            shape = [self.block["y"], self.block["x"]] if self.units else self.folds.shape(s)
            self.line(f"{self.names[s.dst]}_sum = tl.zeros({shape}, tl.float32)")
        elements = [s for s in kernel.body if kernel.is_element(s) and s.dst not in own]
        inside = self._walked()[-1:] if self.folds.parts and self.folds.walked else []
        with _Nest(self, [n for n in self.row if n not in inside], innermost=not inside):
            for s in elements:
                if inside and not self.varies[s.dst] & set(inside):
                    self.statement(s)
            with self.folds.within(sums), _Nest(self, inside):
                for s in elements:
                    if not inside or self.varies[s.dst] & set(inside):
                        self.statement(s)
                for s in sums:
                    if self.units:
                        self._multiply(s)
                    elif s.dst in self.folds.parts:
                        self.folds.add(s)
                    else:
                        for t in self.sums[s.dst].terms:
                            self._add(s, t)
        self._put_together(sums)
        for s in sums:
            self._finish(s)
        return later

    def _again(self, sums: list[Reduce]) -> None:
        """Take sums in parts once more, element by element and in smaller blocks, where one is no number: infinite
        numbers make it one, of which eager may have infinite sums."""
        if not sums:
            return
        fewer = dict.fromkeys(self.row[:1], 1) if len(self.row) > 1 else {}
        config = replace(self.config, folded=False, stages=1, unrolled=False, evict=False, **fewer)
        other = type(self)(self.tiling, config, self.aligned, self.interpret)
        other.helpers, other.depth = self.helpers, self.depth + 1
        other._positions()
        other._sums_taken()
        context = ops.Context(torch.float32, (), helpers=self.helpers)
        unknown = " | ".join(f"({self.names[s.dst]} != {self.names[s.dst]})" for s in sums)
        self.line(f"if {context.helper('_some')}({unknown}):")
        self.lines += [_OWN.sub(lambda m: m[0] if m[0][0] == '"' else f"again_{m[0]}", line) for line in other.lines]
        shape = [1 if n in ROW else self.length[n] for n in self.dimensions]
        with self.indented():
            for s in sums:
                text = f"again_{self.names[s.dst]}"
                self.line(f"{self.names[s.dst]} = " + (f"tl.reshape({text}, {shape})" if set(shape) > {1} else text))

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

    def _turned(self, own: set) -> set:
        """What needs not be computed where matrix units take the operands: vectors as float32, bytes as float32 that
        become halves at once, and what is read together with its neighbours."""
        kernel, found = self.kernel, set()
        for total in self.sums.values():
            names = [t.vector for t in total.terms]
            names += [t.matrix[0] for t in total.terms if self._whole(t)]
            for n in names:
                if kernel.definition[n].prim == "cast" and all(
                        r.dst in own or r.combine for r in kernel.body if n in r.uses):
                    found.add(n)
            loads = [thin_terms.behind_cast(kernel, t.vector) for t in total.terms]
            for group in self.groups:
                if all(s in loads and loads.count(s) == 1 and all(
                        r.dst in found | own or r.combine for r in kernel.body if s.dst in r.uses)
                       for s in group.members):
                    self.there |= {s.dst for s in group.members}
        return found | self.there

    def _walked(self) -> list[str]:
        """The dimensions of a row of which a block does not hold all."""
        return [n for n in self.row if not (type(self.extents[n]) is int and self.extents[n] <= self.block[n])]

    def _add(self, s: Reduce, term: thin_terms.Term) -> None:
        total = f"{self.names[s.dst]}_sum"
        a, b = self._product(term.matrix, self.dimensions), self.full(term.vector)
        masked = [f"{n}_in" for n in self.row if n in self.masked]
        if masked:  # of what is not there, nothing is known
            a = f"tl.where({' & '.join(masked)}, {a}, 0.0)"
            b = f"tl.where({' & '.join(masked)}, {b}, 0.0)"
        self.line(f"{total} = tl.fma({a}, {b}, {total})")

    def _product(self, factors: tuple[str, ...], dimensions: list[str]) -> str:
        """Factors multiplied, as a block that has these of the dimensions."""
        text = " * ".join(self.names[n] for n in factors)
        if set().union(*(self.varies[n] for n in factors)) >= set(dimensions):
            return text
        shape = [self.length[n] if n in dimensions else 1 for n in self.dimensions]
        return f"tl.broadcast_to({text}, {shape})"

    def _multiply(self, s: Reduce) -> None:
        """Add a block's products by the matrix units: of loads that lie side by side, with the vectors as they lie, and
        the parts of the matrix put side by side."""
        kernel, terms = self.kernel, self.sums[s.dst].terms
        of = {thin_terms.behind_cast(kernel, t.vector).dst: t for t in terms}
        done = []
        for group in self.groups:
            names = [member.dst for member in group.members]
            if self.there.issuperset(names) and of.keys() >= set(names):
                text, shape = self.read_together(group)
                shape = [*shape[:-1], shape[-1] * group.count]
                self._dot(s, [of[n] for n in names], text, shape, f"r_{group.count}_in")
                done += [of[n] for n in names]
        for t in terms:
            if t not in done:
                load = thin_terms.behind_cast(kernel, t.vector)
                shape = [self.length[n] if n in self.varies[load.dst] else 1 for n in self.dimensions]
                self._dot(s, [t], self.names[load.dst], shape, "r_in")

    def _dot(self, s: Reduce, terms: list, vector: str, shape: list[int], within: str) -> None:
        """Add the products of vectors, which have this shape, and as many parts of the matrix as there are terms.
        ``within``: the name of what tells which of the vectors' elements along ``r`` are there."""
        total, dtype, count = f"{self.names[s.dst]}_sum", types.tl_dtype(self.units), len(terms)
        masked = [f"{n}_in" for n in self.row if n in self.masked]
        wanted = [1 if n == "x" else self.length[n] * (count if n == "r" else 1) for n in self.dimensions]
        if shape != wanted:
            vector = f"tl.broadcast_to({vector}, {wanted})"
        if masked:
            inside = " & ".join(within if n == "r_in" else n for n in masked)
            vector = f"tl.where({inside}, {vector}, 0.0).to({dtype})"
        depth = count
        for n in self.row:
            depth *= self.length[n]
        parts = [self._part(t, masked) for t in terms]
        matrix = f"tl.reshape({joined(parts)}, [{self.block['x']}, {depth}])"
        vector = f"tl.reshape({vector}, [{self.block['y']}, {depth}])"
        if self.interpret:  # it multiplies the bits of bfloat16
            vector, matrix = f"{vector}.to(tl.float32)", f"{matrix}.to(tl.float32)"
        self.line(f"{total} = tl.dot({vector}, tl.trans({matrix}), {total})")

    def _whole(self, term: thin_terms.Term) -> bool:
        """Whether a term's part of the matrix is nothing but bytes, which become halves at once."""
        first = term.matrix[0]
        return (len(term.matrix) == 1 and thin_terms.whole(self.kernel, first)
                and self.varies[first] >= set(self.dimensions) - {"y"})

    def _part(self, term: thin_terms.Term, masked: list[str]) -> str:
        """A term's part of the matrix in the type of the matrix units."""
        dtype, kept = types.tl_dtype(self.units), [n for n in self.dimensions if n != "y"]
        if self._whole(term):
            text = self.names[self.kernel.definition[term.matrix[0]].operands[0]]
        else:
            text = self._product(term.matrix, kept)
        if masked:
            text = f"tl.where({' & '.join(masked)}, {text}, 0)"
        return f"({text}){'.to(tl.float32)' if self.interpret else ''}.to({dtype})"

    def _put_together(self, sums: list[Reduce]) -> None:
        """Add up what the threads have, of sums whose blocks are alike together: each time alone, warps would wait for
        each other as often as there are sums."""
        alike: dict = {}
        for s in [] if self.units else sums:
            alike.setdefault(tuple(self.folds.shape(s)), []).append(f"{self.names[s.dst]}_sum")
        for names in alike.values():
            for n in reversed(self.dimensions):
                if n not in ROW:
                    continue
                at = self.dimensions.index(n)
                if len(names) == 1 or self.interpret:
                    for name in names:
                        self.line(f"{name} = tl.sum({name}, {at})")
                else:
                    self.line(f"{', '.join(names)} = tl.reduce(({', '.join(names)}), {at}, {self._adds(len(names))})")

    def _adds(self, count: int) -> str:
        """The name of a helper that adds so many numbers to as many."""
        name, (a, b) = f"_{count}_sums", ([f"{side}{k}" for k in range(count)] for side in "ab")
        self.helpers[name] = (f"@triton.jit\ndef {name}({', '.join(a + b)}):\n    return "
                              f"{', '.join(f'{x} + {y}' for x, y in zip(a, b))}\n")
        return name

    def _finish(self, s: Reduce) -> None:
        text = f"{self.names[s.dst]}_sum"
        if self.units:
            text += f"[:, :{', None' * (len(self.dimensions) - 2)}]"
        else:
            kept = [n for n in self.dimensions if n not in ROW]
            if kept:
                text += f"[{', '.join('None' if n in ROW else ':' for n in self.dimensions)}]"
        for n in self.sums[s.dst].behind:
            text += f" * {self.finite(n)}"
        self.assign(s.dst, text)

    def finite(self, name: str) -> str:
        """A value that a whole sum is multiplied by: one that is no finite number would make most of the terms none."""
        text = self.names[name]
        return f"({text} + ({text} - {text}))"


class _Nest:
    """The loops over dimensions of a row: one for each of which a block does not hold all."""

    def __init__(self, emitter: ThinEmitter, row: list[str], innermost: bool = True) -> None:
        self.e, self.row, self.innermost = emitter, row, innermost

    def __enter__(self) -> None:
        e, self.depth = self.e, self.e.depth
        walked = [n for n in e._walked() if n in self.row]
        for n in self.row:
            wide = ".to(tl.int64)" if n in e.wide else ""
            extent, block = e.extents[n], e.block[n]
            if n not in walked:
                e._place(n, f"0{wide}" if not wide else "tl.zeros([], tl.int64)")
                continue
            last = self.innermost and n == walked[-1]
            loop = e.steps(extent, block) if last else f"range(0, {e.text(extent)}, {block})"
            e.line(f"for {n}_start in {loop}:")
            e.depth += 1
            e._place(n, f"{n}_start{wide}")

    def __exit__(self, *error: object) -> None:
        self.e.depth = self.depth


EMITTERS["thin"] = ThinEmitter
