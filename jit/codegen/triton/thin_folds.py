"""Sums of products whose factors stay the same along parts of a row, such as those of groups of weights of few bits.

What a thread has of such a part is summed first, of whole numbers as they are and of the vector, and is then multiplied
by the factor: ``sum((c - z) * f * v)`` is ``f * (sum(c * v) - z * sum(v))``. That takes two instructions for an element
where five do each by itself. Whole numbers below 128 are put into the bits of a float, as 128 and more, and what
that adds is taken away with ``z``. The result is as exact as halves are, not as float32.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ..approximate import fast_values
from . import ops, thin_terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..loops import Reduce
    from .thin import ThinEmitter

THREADS_BYTES = 16  # that a thread loads at once, which lie beside each other along ``r``
ADDED = 128  # what a small whole number becomes more by in the bits of a float


# 128 and as much more as each of four whole numbers below 128, which are the last seven bits of a bfloat16 number.
ops.helper("_small_word", """
@triton.jit
def _small_word(x):
    return tl.inline_asm_elementwise("{ prmt.b32 $0, $4, 0x43000000, 0x7044; prmt.b32 $1, $4, 0x43000000, 0x7144; "
        "prmt.b32 $2, $4, 0x43000000, 0x7244; prmt.b32 $3, $4, 0x43000000, 0x7344; }", "=r,=r,=r,=r,r", [x],
        dtype=tl.int32, is_pure=True, pack=4).to(tl.float32, bitcast=True)
""", interpreted="""
@triton.jit
def _small_word(x):
    return x.to(tl.float32) + 128.0
""")


class Folds:
    """The sums of one kernel that are taken so: ``parts`` are their terms by the factors outside of a part."""

    def __init__(self, emitter: ThinEmitter) -> None:
        self.e, self.parts = emitter, {}
        e, fast = emitter, fast_values(emitter.kernel)
        for s in e.kernel.body if e.config.folded else ():
            found = thin_terms.parts(e.tiling, e.sums[s.dst]) if s.combine and s.dst in fast else []
            if found:
                self.parts[s.dst] = found
        # Along a dimension that is walked one by one, each thread has its own part.
        self.walked = e.block["r"] == 1
        # A thread has what it loads of the vectors at once, of neighbours as much of each.
        itemsize = max((e.kernel.buffer_of[s.loaded].dtype.itemsize for s in e.kernel.body
                        if s.loaded and "r" in e.varies[s.dst]), default=1)
        beside = max((g.count for g in e.groups), default=1)
        self.each = 1 if self.walked else min(max(THREADS_BYTES // itemsize // beside, 1), e.block["r"])

    def shape(self, s: Reduce) -> list[int]:
        """The shape of what a kernel adds up in its loops, for one of its sums."""
        e = self.e
        each = self.each if s.dst in self.parts else 1
        return [e.length[n] // (each if n == "r" else 1) for n in e.dimensions]

    @contextmanager
    def within(self, sums: list[Reduce]) -> Iterator[None]:
        """Around the innermost loop: where it walks through parts these begin in front of it; they are put together
        behind it."""
        e = self.e
        mine = [s for s in sums if s.dst in self.parts]
        for s in mine if self.walked else ():
            for i, part in enumerate(self.parts[s.dst]):
                e.line(f"{self._name(s, i)} = tl.zeros({e.shape}, tl.float32)")
                for j, vectors in enumerate(self._offsets(part).values()):
                    shape = [e.length[n] if any(n in e.varies[v] for v in vectors) else 1 for n in e.dimensions]
                    e.line(f"{self._name(s, i)}_{j} = tl.zeros({shape}, tl.float32)")
        yield
        for s in mine:
            for i, part in enumerate(self.parts[s.dst]):
                self._put_together(s, i, part)

    def _name(self, s: Reduce, i: int) -> str:
        return f"{self.e.names[s.dst]}_part{i}"

    def _offsets(self, part: thin_terms.Part) -> dict:
        """The vectors whose sums are taken away, by what they are multiplied by: (a value's name or None, a number)."""
        found: dict = {}
        for t in part.terms:
            key = (t.less, self._number(t)[1])
            if key != (None, 0):
                found.setdefault(key, []).append(t.vector)
        return found

    def _number(self, t: thin_terms.PartTerm) -> tuple[str, int]:
        """A term's first factor, and by how much that is too large."""
        e, kernel = self.e, self.e.kernel
        number = thin_terms.small(kernel, t.first)
        if number is not None and kernel.dtypes[number] is torch.int32:
            return f"(({e.names[number]} << 16) | 0x43000000).to(tl.float32, bitcast=True)", ADDED
        if number is not None and e.varies[number] & set(e.dimensions):
            context = ops.Context(torch.float32, (), interpret=e.interpret, helpers=e.helpers)
            return f"{context.helper('_small_word')}({e.names[number]})", ADDED
        return e.names[t.first], 0

    def add(self, s: Reduce) -> None:
        """A block's products: added to the parts that are walked through, or summed over what each thread has."""
        e = self.e
        inside = " & ".join(f"{n}_in" for n in e.row if n in e.masked)

        def there(text: str) -> str:  # of what is not there, nothing is known
            return f"tl.where({inside}, {text}, 0.0)" if inside else text

        for i, part in enumerate(self.parts[s.dst]):
            name, offsets, products, vectors = self._name(s, i), list(self._offsets(part)), [], {}
            for t in part.terms:
                number, more = self._number(t)
                matrix = " * ".join([number, *(e.names[n] for n in t.others)])
                if not set().union(*(e.varies[n] for n in (t.first, *t.others))) >= set(e.dimensions):
                    matrix = f"tl.broadcast_to({matrix}, {e.shape})"
                products.append((there(matrix), there(e.full(t.vector))))
                if (t.less, more) in offsets:
                    vectors.setdefault(offsets.index((t.less, more)), []).append(t.vector)
            if self.walked:
                for a, b in products:
                    e.line(f"{name} = tl.fma({a}, {b}, {name})")
                for j, found in vectors.items():
                    for n in found:
                        e.line(f"{name}_{j} += {there(e.names[n])}")
                continue
            shape = [e.length[n] for n in e.dimensions]
            e.line(f"{name} = {' + '.join(self._of_threads(f'({a}) * ({b})', shape) for a, b in products)}")
            for j, found in vectors.items():
                along = set().union(*(e.varies[n] for n in found)) | (set(e.row) & e.masked)
                shape = [e.length[d] if d in along else 1 for d in e.dimensions]
                together = there(" + ".join(e.names[n] for n in found))
                e.line(f"{name}_{j} = {self._of_threads(f'({together})', shape)}")

    def _put_together(self, s: Reduce, i: int, part: thin_terms.Part) -> None:
        e, text, total = self.e, self._name(s, i), f"{self.e.names[s.dst]}_sum"
        for j, (less, more) in enumerate(self._offsets(part)):
            constant = less and e.kernel.definition[less].constant
            number = e.names[less] if less and constant is not None else less and e.finite(less)
            by = " + ".join([*([number] if less else []), *([f"{more}.0"] if more else [])])
            text = f"{text} - ({by}) * {self._name(s, i)}_{j}"
        shape = self.shape(s)
        if part.outer:
            factor = " * ".join(map(e.finite, part.outer))
            e.line(f"{total} = tl.fma({text}, tl.broadcast_to({factor}, {shape}), {total})")
        else:
            e.line(f"{total} += {text}")

    def _of_threads(self, text: str, shape: list[int]) -> str:
        """The sums over what each thread has beside each other."""
        if self.each == 1:
            return text
        return f"tl.sum(tl.reshape({text}, {[*shape[:-1], shape[-1] // self.each, self.each]}), {len(shape)})"
