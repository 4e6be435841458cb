"""Integer expressions: tensor sizes and strides, and the loop indices that are computed from them.

An ``IntExpr`` is an ``int`` or a ``Dim``: a polynomial (``polynomials``) over symbols (``Sym``), floor divisions
(``FloorDiv``), remainders (``Mod``), ``Max`` and ``Min``. Division and remainder have Python's floor semantics;
divisors are taken to be positive.

Comparing two Dims gives a bool. It is decided by structure, then by bounds, then by the symbols' hints, in which case
the answer is recorded as a guard in the symbols' ``ShapeEnv``; without an environment ``Undecidable`` is raised.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from jit.errors import JitError
from jit.graph.dim_text import operand, render
from jit.graph.polynomials import (
    Atom, Dim, IntExpr, bounds, divisible, eliminate, finish, free_symbols, nonnegative, numeric, of_atom, polynomial,
    product, structurally_equal, subst, symbolic, symbols_of,
)

if TYPE_CHECKING:
    from jit.graph.shape_env import ShapeEnv

__all__ = [
    "Atom", "Dim", "FloorDiv", "IntExpr", "Max", "Min", "Mod", "Sym", "Symbol", "Undecidable", "bounds", "ceil_div",
    "coefficient", "divisible", "env_of", "equal", "evaluate", "free_symbols", "hint", "nonnegative", "plain_if_few",
    "polynomial", "product", "specialize", "structurally_equal", "subst", "symbols_of",
]


class Undecidable(JitError):
    """A comparison that neither structure nor bounds decide, over symbols that have no ShapeEnv or no hint."""


class Symbol(Atom):
    """``hint`` is its present value (int or None), ``lo`` and ``hi`` are inclusive bounds (IntExpr or None), ``env`` is
    a ShapeEnv or None. Symbols are equal when their names are."""

    __slots__ = ("name", "hint", "lo", "hi", "multiple", "env", "key", "free", "bounds", "limits")
    kind = "sym"

    def __init__(self, name: str, hint: int | None = None, lo: IntExpr | None = None, hi: IntExpr | None = None,
                 multiple: int = 1, env: ShapeEnv | None = None) -> None:
        self.name = self.key = name
        self.hint, self.lo, self.hi, self.multiple, self.env = hint, lo, hi, multiple, env
        self.free, self._hash = frozenset((name,)), hash(name)
        self.bounds = (None if lo is None else bounds(lo)[0]), (None if hi is None else bounds(hi)[1])
        self.limits = symbolic(lo), symbolic(hi)

    __hash__ = Atom.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or type(other) is Symbol and self.name == other.name

    def __reduce__(self) -> tuple:
        return Symbol, (self.name, self.hint, self.lo, self.hi, self.multiple)

    def symbols(self) -> Iterator[Symbol]:
        yield self

    def value(self, symbol: Callable[[Symbol], int]) -> int:
        return symbol(self)

    def replaced(self, values: dict) -> IntExpr:
        return values[self.name]

    def fold(self, of: Callable, symbol: Callable, operate: Callable) -> Any:
        return symbol(self)

    def text(self, style: str, names: dict | None) -> str:
        return names.get(self.name, self.name) if names else self.name


class Operation(Atom):
    """What a function of two operands gives that is no polynomial of them.

    Attributes:
        compute: the function, of two ints.
        make: its normal form, of two expressions.
    """

    __slots__ = ("a", "b", "_key", "_free", "_bounds")
    _key: str | None
    _free: frozenset[str] | None
    _bounds: tuple[int | None, int | None] | None
    compute: Any
    make: Any
    _between: Callable[..., tuple[int | None, int | None]]
    _floored: Callable[[str, str], str]

    def __init__(self, a: IntExpr, b: IntExpr) -> None:
        self.a, self.b = a, b
        self._hash = hash((self.kind, a, b))
        self._key = self._free = self._bounds = None

    __hash__ = Atom.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._hash == other._hash
                                 and structurally_equal(self.a, other.a) and structurally_equal(self.b, other.b))

    def __reduce__(self) -> tuple:
        return type(self), (self.a, self.b)

    @property
    def key(self) -> str:  # type: ignore[override]
        if self._key is None:
            self._key = f"~{self.kind}({self.a},{self.b})"
        return self._key

    @property
    def free(self) -> frozenset[str]:  # type: ignore[override]
        if self._free is None:
            self._free = free_symbols(self.a) | free_symbols(self.b)
        return self._free

    @property
    def bounds(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        if self._bounds is None:
            self._bounds = self._between(*bounds(self.a), *bounds(self.b))
        return self._bounds

    def symbols(self) -> Iterator[Symbol]:
        yield from symbols_of(self.a)
        yield from symbols_of(self.b)

    def value(self, symbol: Callable[[Symbol], int]) -> int:
        return self.compute(numeric(self.a, symbol), numeric(self.b, symbol))

    def replaced(self, values: dict) -> IntExpr:
        return self.make(subst(self.a, values), subst(self.b, values))

    def fold(self, of: Callable, symbol: Callable, operate: Callable) -> Any:
        return operate(self.kind, of(self.a), of(self.b))

    def text(self, style: str, names: dict | None) -> str:
        a, b = operand(self.a, style, names), operand(self.b, style, names)
        if style == "py":
            return f"({a} {self.kind} {b})"
        return f"({a} {self.kind[0]} {b})" if nonnegative(self.a) else self._floored(a, b)


class Quotient(Operation):
    __slots__ = ()
    kind = "//"
    compute = operator.floordiv

    def _between(self, alo: Any, ahi: Any, blo: Any, bhi: Any) -> tuple[int | None, int | None]:
        blo = 1 if blo is None or blo < 1 else blo
        lo = hi = None
        if alo is not None:
            lo = alo // blo if alo < 0 else (0 if bhi is None else alo // bhi)
        if ahi is not None:
            hi = ahi // blo if ahi >= 0 else (-1 if bhi is None else ahi // bhi)
        return lo, hi

    @property
    def limits(self) -> tuple[IntExpr | None, IntExpr | None]:  # type: ignore[override]
        top = eliminate(self.a, +1)
        return None, None if top is self.a else FloorDiv(top, self.b)

    def divided(self, den: IntExpr) -> IntExpr | None:
        return FloorDiv(self.a, self.b * den)

    def _floored(self, a: str, b: str) -> str:
        return f"({a} >= 0 ? {a} / {b} : -((-{a} + {b} - 1) / {b}))"


class Remainder(Operation):
    __slots__ = ()
    kind = "%"
    compute = operator.mod

    def _between(self, alo: Any, ahi: Any, blo: Any, bhi: Any) -> tuple[int | None, int | None]:
        hi = None if bhi is None else bhi - 1
        if alo is not None and alo >= 0 and ahi is not None and (hi is None or ahi < hi):
            hi = ahi
        return 0, hi

    @property
    def limits(self) -> tuple[IntExpr | None, IntExpr | None]:  # type: ignore[override]
        return (None, None) if symbolic(self.b) is None else (0, self.b - 1)

    @property
    def complement(self) -> IntExpr | None:  # type: ignore[override]
        return FloorDiv(self.a, self.b) * self.b

    def divided(self, den: IntExpr) -> IntExpr | None:
        inner, rest = _split(self.b, den)
        return Mod(FloorDiv(self.a, den), inner) if structurally_equal(rest, 0) else None

    def congruent(self, den: IntExpr) -> IntExpr | None:
        return self.a if structurally_equal(_split(self.b, den)[1], 0) else None

    def _floored(self, a: str, b: str) -> str:
        return f"(({a} % {b} + {b}) % {b})"


class _Choice(Operation):
    """One of two."""

    __slots__ = ()
    chooses = True
    sign: str

    def text(self, style: str, names: dict | None) -> str:
        if style == "py":
            return f"{self.kind}({render(self.a, style, names)}, {render(self.b, style, names)})"
        a, b = operand(self.a, style, names), operand(self.b, style, names)
        return f"({a} {self.sign} {b} ? {a} : {b})"


class Larger(_Choice):
    __slots__ = ()
    kind, sign, compute = "max", ">", max

    def _between(self, alo: Any, ahi: Any, blo: Any, bhi: Any) -> tuple[int | None, int | None]:
        lo = max((v for v in (alo, blo) if v is not None), default=None)
        return lo, None if ahi is None or bhi is None else max(ahi, bhi)


class Smaller(_Choice):
    __slots__ = ()
    kind, sign, compute = "min", "<", min

    def _between(self, alo: Any, ahi: Any, blo: Any, bhi: Any) -> tuple[int | None, int | None]:
        hi = min((v for v in (ahi, bhi) if v is not None), default=None)
        return None if alo is None or blo is None else min(alo, blo), hi


def Sym(name: str, hint: int | None = None, lo: IntExpr = 0, hi: IntExpr | None = None, env: ShapeEnv | None = None,
        multiple: int = 1) -> Dim:
    """A new symbol with inclusive bounds. ``hint`` is its present value; ``multiple`` divides every value it takes."""
    return of_atom(Symbol(name, hint, lo, hi, multiple, env))


# division


def _split(num: IntExpr, divisor: IntExpr) -> tuple[IntExpr, Any]:
    """Write ``num`` as ``q * divisor + r`` with ``r`` as small as the terms allow; returns (q, r)."""
    e, den = polynomial(num), polynomial(divisor)
    q_terms, r_terms, q_const = {}, {}, 0
    if not den.terms:
        for mono, c in e.terms.items():
            q, r = divmod(c, den.const)
            if r and den.const - r < r and c < 0:
                q, r = q + 1, r - den.const  # keep small negative coefficients: i - 1 and not i + (den - 1)
            if q and not r:
                q_terms[mono] = q
            elif abs(c) < den.const:
                r_terms[mono] = c
            else:
                if q:
                    q_terms[mono] = q
                r_terms[mono] = r
        q0, r0 = divmod(e.const, den.const)
        return finish(q_terms, q0), finish(r_terms, r0)
    if structurally_equal(num, divisor):
        return 1, 0
    if len(den.terms) == 1 and den.const == 0:
        (dmono, dc), = den.terms.items()
        for mono, c in e.terms.items():
            rest = _divide_mono(mono, dmono)
            q, r = (0, c) if rest is None else divmod(c, dc)
            if rest is None or r:
                r_terms[mono] = c
            elif rest:
                q_terms[rest] = q
            else:
                q_const = q
        return finish(q_terms, q_const), finish(r_terms, e.const)
    # A sum as divisor: only whole multiples of it are taken out.
    mono, dc = next(iter(den.terms.items()))
    c = e.terms.get(mono, 0)
    return (c // dc, num - divisor * (c // dc)) if c and c % dc == 0 else (0, num)


def _divide_mono(mono: tuple[Atom, ...], dmono: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    rest = list(mono)
    for atom in dmono:
        if atom in rest:
            rest.remove(atom)
        else:
            return None
    return tuple(rest)


def FloorDiv(num: IntExpr, den: Any) -> IntExpr:
    """``num // den`` in normal form. ``den`` must be positive; ZeroDivisionError when it is the constant 0."""
    n, d = polynomial(num), polynomial(den)
    if not (n.terms or d.terms):
        return n.const // d.const
    if not d.terms:
        if den == 1:
            return num
        if den < 0:
            return FloorDiv(-num, -den)
        if den == 0:
            raise ZeroDivisionError("integer division by zero")
    q, r = _split(num, den)
    place = 0 if structurally_equal(r, 0) else _place(r, den)
    if place is not None:
        return q + place
    if not d.terms:
        g = math.gcd(den, *r.terms.values())
        if g > 1:
            return q + FloorDiv(finish({m: c // g for m, c in r.terms.items()}, r.const // g), den // g)
    atom = polynomial(r).single_atom
    simpler = None if atom is None else atom.divided(den)
    return q + (of_atom(Quotient(r, den)) if simpler is None else simpler)


def Mod(num: IntExpr, den: Any) -> IntExpr:
    """``num % den`` in normal form, with the sign of ``den``, which must be positive."""
    n, d = polynomial(num), polynomial(den)
    if not (n.terms or d.terms):
        return n.const % d.const
    if not d.terms:
        if den == 1:
            return 0
        if den <= 0:
            if den == 0:
                raise ZeroDivisionError("integer modulo by zero")
            return -Mod(-num, -den)
    r = _without_multiples(_split(num, den)[1], den)
    if structurally_equal(r, 0):
        return 0
    place = _place(r, den)
    if place is not None:
        return r - den * place
    if not d.terms:
        g = math.gcd(den, *r.terms.values())
        if g > 1:
            inner = finish({m: c // g for m, c in r.terms.items()}, r.const // g)
            return Mod(inner, den // g) * g + r.const % g
    return of_atom(Remainder(r, den))


def _without_multiples(r: IntExpr, den: IntExpr) -> Any:
    """``(x % (k * den) + y) % den`` is ``(x + y) % den``."""
    for mono, c in polynomial(r).terms.items():
        simpler = mono[0].congruent(den) if len(mono) == 1 else None
        if simpler is not None:
            return _without_multiples(_split(r - of_atom(mono[0]) * c + simpler * c, den)[1], den)
    return r


def _place(r: IntExpr, den: IntExpr) -> int | None:
    """0 when ``0 <= r < den`` is certain, -1 when ``-den <= r < 0`` is, else None."""
    lo = bounds(r)[0]
    if lo is not None and lo >= 0 or nonnegative(r):
        return 0 if nonnegative(den - r - 1) else None
    if nonnegative(-1 - r) and nonnegative(r + den):
        return -1
    return None


def Max(a: IntExpr, b: IntExpr) -> IntExpr:
    """The larger of two expressions, as an atom when bounds do not decide; never guards."""
    if nonnegative(a - b):
        return a
    if nonnegative(b - a):
        return b
    return of_atom(Larger(*sorted((a, b), key=str)))


def Min(a: IntExpr, b: IntExpr) -> IntExpr:
    """The smaller of two expressions, as an atom when bounds do not decide; never guards."""
    if nonnegative(a - b):
        return b
    if nonnegative(b - a):
        return a
    return of_atom(Smaller(*sorted((a, b), key=str)))


Quotient.make, Remainder.make, Larger.make, Smaller.make = map(staticmethod, (FloorDiv, Mod, Max, Min))


def ceil_div(num: IntExpr, den: IntExpr) -> IntExpr:
    """``num / den`` rounded up, for a positive ``den``."""
    return FloorDiv(num + (den - 1), den)


# queries


def equal(a: IntExpr, b: IntExpr) -> bool:
    """Whether two sizes are equal. Where neither structure nor bounds say, it is the answer at the sizes at hand,
    recorded; without a ShapeEnv, no."""
    if structurally_equal(a, b):
        return True
    if type(a) is not Dim and type(b) is not Dim:
        return False
    return env_of(a - b) is not None and a == b


def plain_if_few(e: IntExpr) -> IntExpr:
    """A size as a plain int where it is 0 or 1, which is recorded: these broadcast, and leave out what other sizes do
    not."""
    return e if type(e) is not Dim else 1 if equal(e, 1) else 0 if equal(e, 0) else e


def coefficient(e: Any, name: str) -> IntExpr | None:
    """The factor of symbol ``name`` in ``e``, 0 when it is absent, None when ``e`` is not affine in it."""
    if name not in free_symbols(e):
        return 0
    result: IntExpr = 0
    for mono, c in e.terms.items():
        hits = [i for i, a in enumerate(mono) if name in a.free]
        if not hits:
            continue
        if len(hits) > 1 or mono[hits[0]].kind != "sym":
            return None
        rest = mono[: hits[0]] + mono[hits[0] + 1 :]
        result = result + (Dim({rest: c}, 0) if rest else c)
    return result


def periods(e: IntExpr, name: str) -> set[int]:
    """The numbers by which an expression divides the symbol ``name`` itself, as a quotient or a remainder."""
    found = symbolic(e)
    if found is None:
        return set()
    atoms = {a for mono in found.terms for a in mono if isinstance(a, (Quotient, Remainder))}
    itself = [a for a in atoms if free_symbols(a.a) == {name} and coefficient(a.a, name) == 1]
    return {a.b for a in itself if type(a.b) is int and structurally_equal(subst(a.a, {name: 0}), 0)}


def evaluate(e: IntExpr, values: dict) -> int:
    """The value of ``e`` for integer values of its symbols; KeyError names one that is missing."""
    return numeric(e, lambda atom: values[atom.name])


def _symbol_hint(atom: Symbol) -> int:
    if atom.hint is None:
        raise Undecidable(f"symbol {atom.name} has no hint")
    return atom.hint


def hint(e: IntExpr) -> int:
    """The present value of ``e``, from its symbols' hints; Undecidable when one has none."""
    return numeric(e, _symbol_hint)


def env_of(e: IntExpr) -> ShapeEnv | None:
    """The ShapeEnv of the symbols of ``e``, or None."""
    for atom in symbols_of(e):
        if atom.env is not None:
            return atom.env
    return None


def specialize(e: IntExpr) -> int:
    """The present value of ``e``, after recording a guard that it stays so. Undecidable without a ShapeEnv."""
    if not free_symbols(e):
        return int(e)
    env = env_of(e)
    if env is None:
        raise Undecidable(f"{e} is not a constant")
    return env.specialize(e)


def _decide(kind: str, e: Any) -> bool:
    if not free_symbols(e):
        return e == 0 if kind == "==0" else e >= 0
    lo, hi = bounds(e)
    if kind == "==0":
        if (lo is not None and lo > 0) or (hi is not None and hi < 0):
            return False
        if e.const:
            g = math.gcd(*(c * math.prod(a.multiple for a in m) for m, c in e.terms.items()))
            if e.const % g:
                return False
        if nonnegative(e - 1) or nonnegative(-1 - e):
            return False
    else:
        if lo is not None and lo >= 0:
            return True
        if hi is not None and hi < 0:
            return False
        if nonnegative(e):
            return True
        if nonnegative(-1 - e):
            return False
    env = env_of(e)
    if env is None:
        raise Undecidable(f"cannot decide {e} {kind[:2]} 0")
    return env.decide(kind, e)


Dim.quotient, Dim.remainder = staticmethod(FloorDiv), staticmethod(Mod)
Dim.decide, Dim.specialize = staticmethod(_decide), staticmethod(specialize)


def same(a: IntExpr, b: IntExpr) -> bool:
    """Whether two IntExprs are structurally equal. Never guards."""
    return structurally_equal(a, b)


def is_one(e: IntExpr) -> bool:
    return type(e) is int and e == 1


def size_hint(e: IntExpr, default: int = 4096) -> int:
    """The present value of a size, or ``default`` for a symbol without a hint. For decisions of cost only."""
    if type(e) is int:
        return e
    try:
        return hint(e)
    except Undecidable:
        return default


def segments(source: tuple[IntExpr, ...], target: tuple[IntExpr, ...]) -> list:
    """Pair runs of dimensions with equal products in two shapes of equal element count.

    Returns a list of (source dims, target dims) in order. Dimensions of size 1 belong to no run, so that a run of one
    dimension on both sides is that dimension unchanged.
    """
    src = [i for i, s in enumerate(source) if not is_one(s)]
    dst = [i for i, s in enumerate(target) if not is_one(s)]
    out, i, j = [], 0, 0
    while i < len(src) and j < len(dst):
        a, b = [src[i]], [dst[j]]
        pa, pb = source[src[i]], target[dst[j]]
        i, j = i + 1, j + 1
        while not same(pa, pb):
            if i < len(src) and (j >= len(dst) or size_hint(pa) < size_hint(pb)):
                pa = pa * source[src[i]]
                a.append(src[i])
                i += 1
            elif j < len(dst):
                pb = pb * target[dst[j]]
                b.append(dst[j])
                j += 1
            else:
                break
        out.append((a, b))
    if out:
        out[-1][0].extend(src[i:])
        out[-1][1].extend(dst[j:])
    return out
