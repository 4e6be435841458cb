"""Integer expressions in one normal form: tensor sizes and strides, and the loop indices that are computed from them.

An ``IntExpr`` is an ``int`` or a ``Dim``. A ``Dim`` is an immutable polynomial with integer coefficients over *atoms*:
symbols (``Sym``), floor divisions (``FloorDiv``), remainders (``Mod``), ``Max`` and ``Min``. Arithmetic normalises as
it goes, so that equal polynomials are equal objects field by field, and results without any symbol come back as plain
ints. Division and remainder have Python's floor semantics; divisors are taken to be positive.

Comparing two Dims gives a bool. It is decided by structure, then by bounds, then by the symbols' hints, in which case
the answer is recorded as a guard in the symbols' ``ShapeEnv``; without an environment ``Undecidable`` is raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable

from jit.errors import JitError
from jit.graph.dim_text import render

if TYPE_CHECKING:
    from jit.graph.shape_env import ShapeEnv

_ELIMINATION_STEPS = 12


class Undecidable(JitError):
    """A comparison that neither structure nor bounds decide, over symbols that have no ShapeEnv or no hint."""


class Atom:
    """An indivisible factor. ``kind`` is ``sym``, ``//``, ``%``, ``max`` or ``min``; the last four have operands ``a``
    and ``b``.

    A symbol has ``name``, ``hint`` (int or None), inclusive bounds ``lo`` and ``hi`` (IntExpr or None), a known divisor
    ``multiple`` and an ``env`` (ShapeEnv or None). Symbols are equal when their names are.
    """

    __slots__ = ("kind", "a", "b", "name", "hint", "lo", "hi", "multiple", "env", "_hash", "_key", "_free", "_bounds")
    a: IntExpr  # None in a symbol, as b
    b: IntExpr
    name: str  # None in the other kinds
    hint: int | None
    lo: IntExpr | None
    hi: IntExpr | None
    env: ShapeEnv | None
    _key: str | None
    _free: frozenset[str] | None
    _bounds: tuple[int | None, int | None] | None

    def __init__(self, kind: str, a: IntExpr | None = None, b: IntExpr | None = None, name: str | None = None) -> None:
        self.kind = kind
        self.a, self.b, self.name = a, b, name  # type: ignore[assignment]
        self.hint = self.env = self.lo = self.hi = None
        self.multiple = 1
        self._hash = hash((kind, name, a, b))
        self._key = self._free = self._bounds = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not Atom or self._hash != other._hash or self.kind != other.kind or self.name != other.name:
            return False
        return self.kind == "sym" or (structurally_equal(self.a, other.a) and structurally_equal(self.b, other.b))

    def __reduce__(self) -> tuple[Callable, tuple[str | IntExpr | None, ...]]:
        return _rebuild_atom, (self.kind, self.a, self.b, self.name, self.hint, self.lo, self.hi, self.multiple)

    @property
    def key(self) -> str:
        """A text that orders atoms, the same in every process."""
        if self._key is None:
            self._key = self.name if self.kind == "sym" else f"~{self.kind}({_key(self.a)},{_key(self.b)})"
        return self._key

    @property
    def free(self) -> frozenset[str]:
        if self._free is None:
            self._free = frozenset((self.name,)) if self.kind == "sym" else free_symbols(self.a) | free_symbols(self.b)
        return self._free

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        if self._bounds is None:
            self._bounds = _atom_bounds(self)
        return self._bounds

    def __repr__(self) -> str:
        return render(_of_atom(self), "py")


def _rebuild_atom(kind: str, a: IntExpr | None, b: IntExpr | None, name: str | None, hint: int | None, lo: int | None,
                  hi: int | None, multiple: int) -> Atom:
    atom = Atom(kind, a, b, name)
    atom.hint, atom.lo, atom.hi, atom.multiple = hint, lo, hi, multiple
    return atom


class Dim:
    """``const`` plus the sum of ``coefficient * product of atoms`` over ``terms`` (a dict that is never changed)."""

    __slots__ = ("terms", "const", "_hash", "_bounds", "_free")
    _hash: int | None
    _bounds: tuple[int | None, int | None] | None
    _free: frozenset[str] | None

    def __init__(self, terms: dict, const: int) -> None:
        self.terms, self.const = terms, const
        self._hash = self._bounds = self._free = None

    def __reduce__(self) -> tuple[type, tuple[dict, int]]:
        return Dim, (self.terms, self.const)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.const))
        return self._hash

    # arithmetic

    def __add__(self, other: IntExpr) -> IntExpr:
        if type(other) is int:
            return Dim(self.terms, self.const + other) if other else self
        if type(other) is not Dim:
            return NotImplemented if not isinstance(other, int) else self + int(other)
        terms = dict(self.terms)
        for mono, c in other.terms.items():
            c += terms.get(mono, 0)
            if c:
                terms[mono] = c
            else:
                del terms[mono]
        return _finish(terms, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim({m: -c for m, c in self.terms.items()}, -self.const)

    def __pos__(self) -> Dim:
        return self

    def __abs__(self) -> IntExpr:
        return self if self >= 0 else -self

    def __sub__(self, other: IntExpr) -> IntExpr:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: int) -> IntExpr:
        if not isinstance(other, int):
            return NotImplemented
        return -self + int(other)

    def __mul__(self, other: IntExpr) -> IntExpr:
        if type(other) is int:
            if other == 0:
                return 0
            if other == 1:
                return self
            return Dim({m: c * other for m, c in self.terms.items()}, self.const * other)
        if type(other) is not Dim:
            return NotImplemented if not isinstance(other, int) else self * int(other)
        terms: dict = {}
        left = [*self.terms.items(), ((), self.const)] if self.const else self.terms.items()
        right = [*other.terms.items(), ((), other.const)] if other.const else other.terms.items()
        for m1, c1 in left:
            for m2, c2 in right:
                mono = tuple(sorted(m1 + m2, key=_atom_key)) if m1 and m2 else m1 or m2
                terms[mono] = terms.get(mono, 0) + c1 * c2
        const = terms.pop((), 0)
        return _finish({m: c for m, c in terms.items() if c}, const)

    __rmul__ = __mul__

    def __floordiv__(self, other: IntExpr) -> IntExpr:
        return FloorDiv(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rfloordiv__(self, other: int) -> IntExpr:
        return FloorDiv(int(other), self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: IntExpr) -> IntExpr:
        return Mod(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rmod__(self, other: int) -> IntExpr:
        return Mod(int(other), self) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: IntExpr) -> tuple[IntExpr, IntExpr]:
        return self // other, self % other

    def __pow__(self, other: int) -> IntExpr:
        if not isinstance(other, int) or other < 0:
            return NotImplemented
        result: IntExpr = 1
        for _ in range(other):
            result = result * self
        return result

    # comparisons

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return _decide("==0", self - other)

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return not self == other

    def __lt__(self, other: IntExpr) -> bool:
        return _decide(">=0", other - self - 1) if isinstance(other, (int, Dim)) else NotImplemented

    def __le__(self, other: IntExpr) -> bool:
        return _decide(">=0", other - self) if isinstance(other, (int, Dim)) else NotImplemented

    def __gt__(self, other: IntExpr) -> bool:
        return _decide(">=0", self - other - 1) if isinstance(other, (int, Dim)) else NotImplemented

    def __ge__(self, other: IntExpr) -> bool:
        return _decide(">=0", self - other) if isinstance(other, (int, Dim)) else NotImplemented

    def __bool__(self) -> bool:
        return not _decide("==0", self)

    def __int__(self) -> int:
        return specialize(self)

    def __repr__(self) -> str:
        return render(self, "py")

    @property
    def single_atom(self) -> Atom | None:
        """The atom that it is, with no factor and nothing beside; None for all else."""
        if self.const == 0 and len(self.terms) == 1:
            (mono, c), = self.terms.items()
            if c == 1 and len(mono) == 1:
                return mono[0]
        return None

    @property
    def is_nonnegative(self) -> bool:
        """Whether bounds show that it is not negative."""
        return nonnegative(self)


IntExpr = int | Dim


def _atom_key(atom: Atom) -> str:
    return atom.key


def _key(e: IntExpr) -> str:
    return str(e) if isinstance(e, int) else render(e, "py")


def _of_atom(atom: Atom) -> Dim:
    return Dim({(atom,): 1}, 0)


def _finish(terms: dict, const: int) -> IntExpr:
    """Turn ``(x // k) * k + x % k`` back into ``x``; give a plain int when no terms are left."""
    if not terms:
        return const
    for mono, c in terms.items():
        if len(mono) == 1 and mono[0].kind == "%":
            atom = mono[0]
            quotient = FloorDiv(atom.a, atom.b)
            product = quotient * atom.b * c
            if type(product) is Dim and product.terms and all(terms.get(m) == k for m, k in product.terms.items()):
                rest = {m: k for m, k in terms.items() if m not in product.terms and m != mono}
                return Dim(rest, const - product.const) + atom.a * c if rest else atom.a * c + (const - product.const)
    return Dim(terms, const)


def Sym(name: str, hint: int | None = None, lo: IntExpr = 0, hi: IntExpr | None = None, env: ShapeEnv | None = None,
        multiple: int = 1) -> Dim:
    """A new symbol with inclusive bounds. ``hint`` is its present value; ``multiple`` divides every value it takes."""
    atom = Atom("sym", name=name)
    atom.hint, atom.lo, atom.hi, atom.env, atom.multiple = hint, lo, hi, env, multiple
    return _of_atom(atom)


# division


def _split(e: IntExpr, den: IntExpr) -> tuple[IntExpr, Any]:
    """Write ``e`` as ``q * den + r`` with ``r`` as small as the terms allow; returns (q, r)."""
    if isinstance(den, int):
        if isinstance(e, int):
            return e // den, e % den
        q_terms, r_terms = {}, {}
        for mono, c in e.terms.items():
            q, r = divmod(c, den)
            if r and den - r < r and c < 0:
                q, r = q + 1, r - den  # keep small negative coefficients: i - 1 and not i + (den - 1)
            if q and not r:
                q_terms[mono] = q
            elif abs(c) < den:
                r_terms[mono] = c
            else:
                if q:
                    q_terms[mono] = q
                r_terms[mono] = r
        q0, r0 = divmod(e.const, den)
        return _finish(q_terms, q0), _finish(r_terms, r0)
    if isinstance(e, int):
        return 0, e
    if structurally_equal(e, den):
        return 1, 0
    if len(den.terms) == 1 and den.const == 0:
        (dmono, dc), = den.terms.items()
        q_terms, r_terms, q_const = {}, {}, 0
        for mono, c in e.terms.items():
            rest = _divide_mono(mono, dmono)
            q, r = (0, c) if rest is None else divmod(c, dc)
            if rest is None or r:
                r_terms[mono] = c
            elif rest:
                q_terms[rest] = q
            else:
                q_const = q
        return _finish(q_terms, q_const), _finish(r_terms, e.const)
    # A sum as divisor: only whole multiples of it are taken out.
    if not isinstance(e, int) and den.terms:
        mono, dc = next(iter(den.terms.items()))
        c = e.terms.get(mono, 0)
        if c and c % dc == 0:
            return c // dc, e - den * (c // dc)
    return 0, e


def _divide_mono(mono: tuple[Atom, ...], dmono: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    rest = list(mono)
    for atom in dmono:
        if atom in rest:
            rest.remove(atom)
        else:
            return None
    return tuple(rest)


def FloorDiv(num: IntExpr, den: IntExpr) -> IntExpr:
    """``num // den`` in normal form. ``den`` must be positive; ZeroDivisionError when it is the constant 0."""
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    if isinstance(den, int):
        if den == 1:
            return num
        if den < 0:
            return FloorDiv(-num, -den)
        if den == 0:
            raise ZeroDivisionError("integer division by zero")
    q, r = _split(num, den)
    if isinstance(r, int) and r == 0:
        return q
    place = _place(r, den)
    if place is not None:
        return q + place
    if isinstance(den, int):
        g = math.gcd(den, *r.terms.values())
        if g > 1:
            return q + FloorDiv(_finish({m: c // g for m, c in r.terms.items()}, r.const // g), den // g)
    atom = r.single_atom if isinstance(r, Dim) else None
    if atom is not None and atom.kind == "//":
        return q + FloorDiv(atom.a, atom.b * den)
    if atom is not None and atom.kind == "%":
        inner, rest = _split(atom.b, den)
        if isinstance(rest, int) and rest == 0:
            return q + Mod(FloorDiv(atom.a, den), inner)
    return q + _of_atom(Atom("//", r, den))


def Mod(num: IntExpr, den: IntExpr) -> IntExpr:
    """``num % den`` in normal form, with the sign of ``den``, which must be positive."""
    if isinstance(num, int) and isinstance(den, int):
        return num % den
    if isinstance(den, int):
        if den == 1:
            return 0
        if den <= 0:
            if den == 0:
                raise ZeroDivisionError("integer modulo by zero")
            return -Mod(-num, -den)
    _, r = _split(num, den)
    r = _unwrap_mods(r, den)
    if isinstance(r, int) and r == 0:
        return 0
    place = _place(r, den)
    if place is not None:
        return r - den * place
    if isinstance(den, int):
        g = math.gcd(den, *r.terms.values())
        if g > 1:
            inner = _finish({m: c // g for m, c in r.terms.items()}, r.const // g)
            return Mod(inner, den // g) * g + r.const % g
    return _of_atom(Atom("%", r, den))


def _unwrap_mods(r: IntExpr, den: IntExpr) -> Any:
    """``(x % (k * den) + y) % den`` is ``(x + y) % den``."""
    if isinstance(r, int):
        return r
    for mono, c in r.terms.items():
        if len(mono) == 1 and mono[0].kind == "%":
            _, rest = _split(mono[0].b, den)
            if isinstance(rest, int) and rest == 0:
                _, r = _split(r - _of_atom(mono[0]) * c + mono[0].a * c, den)
                return _unwrap_mods(r, den)
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
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if nonnegative(a - b):
        return a
    if nonnegative(b - a):
        return b
    return _of_atom(Atom("max", *sorted((a, b), key=_key)))  # type: ignore[arg-type]


def Min(a: IntExpr, b: IntExpr) -> IntExpr:
    """The smaller of two expressions, as an atom when bounds do not decide; never guards."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if nonnegative(a - b):
        return b
    if nonnegative(b - a):
        return a
    return _of_atom(Atom("min", *sorted((a, b), key=_key)))  # type: ignore[arg-type]


def ceil_div(num: IntExpr, den: IntExpr) -> IntExpr:
    """``num / den`` rounded up, for a positive ``den``."""
    return FloorDiv(num + (den - 1), den)


def product(values: Iterable[IntExpr]) -> IntExpr:
    """The product of a sequence of expressions; 1 for an empty one."""
    result: IntExpr = 1
    for v in values:
        result = result * v
    return result


# bounds


def bounds(e: IntExpr) -> tuple[int | None, int | None]:
    """Inclusive integer bounds that hold for every value of the symbols; None where there is none."""
    if not isinstance(e, Dim):
        return e, e
    if e._bounds is None:
        lo: int | None = e.const
        hi: int | None = e.const
        for mono, c in e.terms.items():
            mlo, mhi = mono[0].bounds if len(mono) == 1 else _product_bounds(mono)
            if c < 0:
                mlo, mhi = mhi, mlo
            lo = None if lo is None or mlo is None else lo + c * mlo
            hi = None if hi is None or mhi is None else hi + c * mhi
        e._bounds = lo, hi
    return e._bounds


def _product_bounds(mono: tuple[Atom, ...]) -> tuple[int | None, int | None]:
    lo: Any = 1
    hi: Any = 1
    alo: Any
    ahi: Any
    for atom in mono:
        alo, ahi = atom.bounds
        if lo is not None and alo is not None and lo >= 0 and alo >= 0:
            lo, hi = lo * alo, None if hi is None or ahi is None else hi * ahi
        elif None in (lo, hi, alo, ahi):
            lo = hi = None
        else:
            corners = (lo * alo, lo * ahi, hi * alo, hi * ahi)
            lo, hi = min(corners), max(corners)
    return lo, hi


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    lo: int | None
    hi: int | None
    if atom.kind == "sym":
        return (None if atom.lo is None else bounds(atom.lo)[0]), (None if atom.hi is None else bounds(atom.hi)[1])
    alo, ahi = bounds(atom.a)
    blo, bhi = bounds(atom.b)
    if atom.kind == "//":
        if blo is None or blo < 1:
            blo = 1
        lo = hi = None
        if alo is not None:
            lo = alo // blo if alo < 0 else (0 if bhi is None else alo // bhi)
        if ahi is not None:
            hi = ahi // blo if ahi >= 0 else (-1 if bhi is None else ahi // bhi)
        return lo, hi
    if atom.kind == "%":
        hi = None if bhi is None else bhi - 1
        if alo is not None and alo >= 0 and ahi is not None and (hi is None or ahi < hi):
            hi = ahi
        return 0, hi
    if atom.kind == "max":
        lo = max((v for v in (alo, blo) if v is not None), default=None)
        return lo, None if ahi is None or bhi is None else max(ahi, bhi)
    hi = min((v for v in (ahi, bhi) if v is not None), default=None)
    return None if alo is None or blo is None else min(alo, blo), hi


def _atom_limits(atom: Atom) -> tuple[IntExpr | None, IntExpr | None]:
    """Symbolic inclusive limits (lo, hi) of an atom, beyond what ``bounds`` can say; None where there is none."""
    if atom.kind == "sym":
        return (atom.lo if isinstance(atom.lo, Dim) else None), (atom.hi if isinstance(atom.hi, Dim) else None)
    if atom.kind == "%" and isinstance(atom.b, Dim):
        return 0, atom.b - 1
    if atom.kind == "//":
        top = _eliminate(atom.a, +1)
        if top is not atom.a:
            return None, FloorDiv(top, atom.b)
    return None, None


def _eliminate(e: IntExpr, sign: int) -> IntExpr:
    """An upper (sign +1) or lower (-1) estimate of ``e`` in which atoms with symbolic limits are replaced by these
    limits."""
    for _ in range(_ELIMINATION_STEPS):
        if not isinstance(e, Dim):
            return e
        for atom in {a: None for mono in e.terms for a in mono}:
            limits = _atom_limits(atom)
            if limits == (None, None):
                continue
            if sum(atom in mono for mono in e.terms) == 0 or any(mono.count(atom) > 1 for mono in e.terms):
                continue
            c = _coefficient_of_atom(e, atom)
            clo, chi = bounds(c)
            if clo is not None and clo >= 0:
                limit = limits[1] if sign > 0 else limits[0]
                numeric = atom.bounds[1] if sign > 0 else atom.bounds[0]
            elif chi is not None and chi <= 0:
                limit = limits[0] if sign > 0 else limits[1]
                numeric = atom.bounds[0] if sign > 0 else atom.bounds[1]
            else:
                continue
            limit = limit if limit is not None else numeric
            if limit is None:
                continue
            e = e - c * _of_atom(atom) + c * limit
            break
        else:
            return e
    return e


def _coefficient_of_atom(e: Dim, atom: Atom) -> IntExpr:
    result: IntExpr = 0
    for mono, c in e.terms.items():
        if atom in mono:
            rest = list(mono)
            rest.remove(atom)
            result = result + (Dim({tuple(rest): c}, 0) if rest else c)
    return result


def nonnegative(e: IntExpr) -> bool:
    """True when ``e >= 0`` can be proved from bounds alone; never guards."""
    if not isinstance(e, Dim):
        return e >= 0
    lo = bounds(e)[0]
    if lo is not None and lo >= 0:
        return True
    lower = _eliminate(e, -1)
    if lower is e:
        return False
    lo = bounds(lower)[0]
    return lo is not None and lo >= 0


def divisible(e: IntExpr, k: int) -> bool:
    """True when ``k`` provably divides ``e``; uses coefficients and the symbols' ``multiple``."""
    if not isinstance(e, Dim):
        return e % k == 0
    if e.const % k:
        return False
    for mono, c in e.terms.items():
        for atom in mono:
            c *= atom.multiple
        if c % k:
            return False
    return True


# queries


def structurally_equal(a: IntExpr, b: IntExpr) -> bool:
    """Whether two normal forms are the same; never guards."""
    if a is b:
        return True
    if type(a) is Dim and type(b) is Dim:
        return a.const == b.const and hash(a) == hash(b) and a.terms == b.terms
    if type(a) is Dim or type(b) is Dim:
        return False
    return a == b


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


def free_symbols(e: IntExpr) -> frozenset[str]:
    """The names of all symbols in ``e``."""
    if not isinstance(e, Dim):
        return frozenset()
    if e._free is None:
        e._free = frozenset().union(*(a.free for mono in e.terms for a in mono))
    return e._free


def _symbols(e: IntExpr) -> Iterator[Atom]:
    """Every symbol atom in ``e``."""
    if isinstance(e, Dim):
        for mono in e.terms:
            for atom in mono:
                if atom.kind == "sym":
                    yield atom
                else:
                    yield from _symbols(atom.a)
                    yield from _symbols(atom.b)


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


_ATOM_FUNCTIONS = {"//": FloorDiv, "%": Mod, "max": Max, "min": Min}
_INT_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "//": int.__floordiv__, "%": int.__mod__, "max": max, "min": min}


def subst(e: IntExpr, values: dict) -> IntExpr:
    """``e`` with symbols replaced by expressions, given by name."""
    if not isinstance(e, Dim) or free_symbols(e).isdisjoint(values):
        return e
    result: IntExpr = e.const
    for mono, c in e.terms.items():
        term: IntExpr = c
        for atom in mono:
            if atom.free.isdisjoint(values):
                term = term * _of_atom(atom)
            elif atom.kind == "sym":
                term = term * values[atom.name]
            else:
                term = term * _ATOM_FUNCTIONS[atom.kind](subst(atom.a, values), subst(atom.b, values))
        result = result + term
    return result


def evaluate(e: IntExpr, values: dict) -> int:
    """The value of ``e`` for integer values of its symbols; KeyError names one that is missing."""
    if not isinstance(e, Dim):
        return e
    return _numeric(e, lambda atom: values[atom.name])


def _numeric(e: IntExpr, symbol: Callable) -> int:
    if not isinstance(e, Dim):
        return e
    total = e.const
    for mono, c in e.terms.items():
        for atom in mono:
            if atom.kind == "sym":
                c *= symbol(atom)
            else:
                c *= _INT_FUNCTIONS[atom.kind](_numeric(atom.a, symbol), _numeric(atom.b, symbol))
        total += c
    return total


def _symbol_hint(atom: Atom) -> int:
    if atom.hint is None:
        raise Undecidable(f"symbol {atom.name} has no hint")
    return atom.hint


def hint(e: IntExpr) -> int:
    """The present value of ``e``, from its symbols' hints; Undecidable when one has none."""
    return _numeric(e, _symbol_hint)


def env_of(e: IntExpr) -> ShapeEnv | None:
    """The ShapeEnv of the symbols of ``e``, or None."""
    for atom in _symbols(e):
        if atom.env is not None:
            return atom.env
    return None


def specialize(e: IntExpr) -> int:
    """The present value of ``e``, after recording a guard that it stays so. Undecidable without a ShapeEnv."""
    if not isinstance(e, Dim):
        return int(e)
    env = env_of(e)
    if env is None:
        raise Undecidable(f"{e} is not a constant")
    return env.specialize(e)


def _decide(kind: str, e: IntExpr) -> bool:
    if not isinstance(e, Dim):
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
