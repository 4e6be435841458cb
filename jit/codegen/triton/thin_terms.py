"""What the sums of products of a matrix and a few vectors are made of: which of the factors of a term belong to the
matrix and which to the vectors, which stay the same along a row and can be multiplied by once, behind the sum, and
whether matrix units can take the sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..approximate import fast_values
from ..loops import HALF
from .tiling import ROW, products

if TYPE_CHECKING:
    from ..loops import Compute, Kernel, Reduce, Statement
    from .tiling import Tiling

EXACT = (torch.int8, torch.uint8)  # of which halves keep every value


@dataclass(frozen=True)
class Term:
    """``matrix``: the factors that belong to the matrix; ``vector``: one that does not vary along its rows. Names of
    values of the kernel."""

    matrix: tuple[str, ...]
    vector: str


@dataclass(frozen=True)
class Sum:
    """``terms`` that are added up along a row, and the ``behind``: factors of all of them that stay the same along it.
    ``inner``: the names of additions and multiplications that are done as the sum is taken."""

    terms: tuple[Term, ...]
    behind: tuple[str, ...]
    inner: frozenset[str]


def sums(tiling: Tiling) -> dict[str, Sum]:
    """The sums of a kernel of the kind ``thin``, by the name of the result."""
    return {s.dst: _sum(tiling, s) for s in tiling.kernel.body if s.combine}


def varies(tiling: Tiling, name: str) -> set[str]:
    """The dimensions along which a value varies."""
    return {n.removeprefix("@") for n in tiling.kernel.varies[name]}


def _sum(tiling: Tiling, s: Reduce) -> Sum:
    kernel = tiling.kernel
    terms, inner = products(kernel, s.arg), _within(kernel, s.arg)
    found = [_factors(kernel, t, inner) for t in terms]
    common = Counter(found[0])
    for factors in found[1:]:
        common &= Counter(factors)
    most = min(map(len, found)) - 2
    behind = [n for n in common.elements() if not varies(tiling, n) & set(ROW)][:max(most, 0)]
    made = []
    for factors in found:
        left = list(factors)
        for n in behind:
            left.remove(n)
        vector = next((n for n in reversed(left) if "x" not in varies(tiling, n)), left[-1])
        left.remove(vector)
        made.append(Term(tuple(left), vector))
    return Sum(tuple(made), tuple(behind), frozenset(inner))


def _within(kernel: Kernel, name: str) -> set[str]:
    """The additions and multiplications of which a value is made, where nothing else reads them."""
    s = kernel.definition[name]
    if s.prim not in ("add", "mul") or s.dtype is not torch.float32 or not kernel.is_element(s):
        return set()
    if sum(list(r.uses).count(name) for r in kernel.body) != 1:
        return set()
    below = s.operands if s.prim == "add" else [n for n in s.operands if kernel.definition[n].prim == "mul"]
    return {name}.union(*(_within(kernel, n) for n in below))


def _factors(kernel: Kernel, name: str, inner: set[str]) -> list[str]:
    """What a term multiplies: the operands of a product, and theirs where these are products of the sum's alone."""
    found = []
    for n in kernel.definition[name].operands:
        found += _factors(kernel, n, inner) if n in inner else [n]
    return found


def behind_cast(kernel: Kernel, name: str) -> Statement | Compute:
    """What defines a value, or what it is a cast of."""
    s = kernel.definition[name]
    return kernel.definition[s.operands[0]] if s.prim == "cast" else s


def operand_type(tiling: Tiling) -> torch.dtype | None:
    """The half type in which matrix units can take both operands of all sums of a kernel; None where they cannot.

    Vectors have to lie in memory in it, and the matrix may be rounded to it: because nothing more of the results is
    kept, or because it is whole numbers that have no more digits."""
    kernel, fast, dtypes = tiling.kernel, fast_values(tiling.kernel), set()
    if type(tiling.extents.get("y", 1)) is not int or tiling.extents.get("y", 1) < 2:
        return None
    for total in sums(tiling).values():
        for t in total.terms:
            vector = behind_cast(kernel, t.vector)
            if not vector.loaded or "x" in varies(tiling, t.vector) or not t.matrix:
                return None
            if any("y" in varies(tiling, n) for n in t.matrix):
                return None
            dtypes.add(kernel.buffer_of[vector.loaded].dtype)
            if not all(n in fast for n in t.matrix) and not (len(t.matrix) == 1 and whole(kernel, t.matrix[0])):
                return None
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(HALF) else None


def whole(kernel: Kernel, name: str) -> bool:
    """Whether a value is a whole number of eight bits, as a float."""
    s = kernel.definition[name]
    return s.prim == "cast" and kernel.dtypes[s.operands[0]] in EXACT


@dataclass(frozen=True)
class PartTerm:
    """``(first - less) * others * vector``, where ``less`` does not vary along ``r``, or is None."""

    first: str
    less: str | None
    others: tuple[str, ...]
    vector: str


@dataclass(frozen=True)
class Part:
    """Terms that are multiplied by the same ``outer`` factors, which do not vary along ``r``."""

    outer: tuple[str, ...]
    terms: tuple[PartTerm, ...]


def parts(tiling: Tiling, total: Sum) -> list[Part]:
    """A sum's terms by the factors that do not vary along ``r``; none where there are no such factors and nothing that
    is taken from numbers."""
    kernel, found, worth = tiling.kernel, {}, False
    for t in total.terms:
        inner = [n for n in t.matrix if "r" in varies(tiling, n)]
        outer = tuple(n for n in t.matrix if n not in inner)
        if not inner or "r" not in varies(tiling, t.vector):
            return []
        first, less = inner[0], None
        s = kernel.definition[first]
        if s.prim == "sub" and s.dtype is torch.float32 and len(inner) == 1:
            if "r" not in varies(tiling, s.operands[1]):
                first, less = s.operands
        worth |= bool(outer) or less is not None
        found.setdefault(outer, []).append(PartTerm(first, less, tuple(inner[1:]), t.vector))
    return [Part(outer, tuple(terms)) for outer, terms in found.items()] if worth else []


def small(kernel: Kernel, name: str) -> str | None:
    """What a value is a conversion of, where that is a whole number from 0 to 127, of eight bits or of 32."""
    s = kernel.definition[name]
    while s.prim == "cast" and s.dtype.is_floating_point and s.dtype.itemsize > 1:
        s = kernel.definition[s.operands[0]]
    if not s.prim or s.prim == "cast" or s.dtype not in (torch.uint8, torch.int32) or s.dst == name:
        return None
    number = kernel.definition[s.operands[-1]].constant
    if number is None:
        return None
    low = s.prim == "bitwise_and" and 0 <= number < 128
    return s.dst if low or s.prim == "shr" and s.dtype is torch.uint8 and 1 <= number < 8 else None
