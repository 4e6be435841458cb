"""Integer expressions in one normal form: tensor sizes and strides, and the loop indices that are computed from them.

An ``IntExpr`` is an ``int`` or a ``Dim``. A ``Dim`` is an immutable polynomial with integer coefficients over *atoms*:
symbols (``Sym``), floor divisions (``FloorDiv``), remainders (``Mod``), ``Max`` and ``Min``. Arithmetic normalises as
it goes, so that equal polynomials are equal objects field by field, and results without any symbol come back as plain
ints; inside this file an int may be a polynomial without terms (``polynomial``). Division and remainder have Python's
floor semantics; divisors are taken to be positive.

Comparing two Dims gives a bool. It is decided by structure, then by bounds, then by the symbols' hints, in which case
the answer is recorded as a guard in the symbols' ``ShapeEnv``; without an environment ``Undecidable`` is raised.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable

from jit.errors import JitError
from jit.graph.dim_text import operand, render

if TYPE_CHECKING:
    from jit.graph.shape_env import ShapeEnv

_ELIMINATION_STEPS = 12


class Undecidable(JitError):
    """A comparison that neither structure nor bounds decide, over symbols that have no ShapeEnv or no hint."""


class Atom:
    """An indivisible factor. Each kind is a subclass that answers for itself; ``kind`` is its name: ``sym``, ``//``,
    ``%``, ``max`` or ``min``.

    Attributes:
        key: a text that orders atoms, the same in every process.
        free: the names of the symbols in it.
        bounds: inclusive integer bounds; None where there is none.
        limits: symbolic ones, beyond what ``bounds`` can say.
        multiple: a number that divides it.
        complement: the multiple of a divisor that is missing in a remainder; None for other atoms.
    """

    __slots__ = ("_hash",)
    _hash: int
    kind: str
    key: str
    free: frozenset[str]
    bounds: tuple[int | None, int | None]
    limits: tuple[IntExpr | None, IntExpr | None] = (None, None)
    multiple = 1
    complement: IntExpr | None = None

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(_of_atom(self))

    def divided(self, den: IntExpr) -> IntExpr | None:
        """``self // den`` where there is a simpler form of it."""
        return None

    def congruent(self, den: IntExpr) -> IntExpr | None:
        """Something simpler that leaves the same remainder by ``den``, if there is."""
        return None


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
        self.limits = _symbolic(lo), _symbolic(hi)

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
        return self.compute(_numeric(self.a, symbol), _numeric(self.b, symbol))

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
        top = _eliminate(self.a, +1)
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
        return (None, None) if _symbolic(self.b) is None else (0, self.b - 1)

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


def _of_sizes(function: Callable) -> Callable:
    """An operator of a Dim and an int or another Dim."""

    def method(self: Dim, other: Any) -> Any:
        return function(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    return method


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

    __sub__ = _of_sizes(lambda self, other: self + (-other))
    __rsub__ = _of_sizes(lambda self, other: -self + int(other))

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

    __floordiv__ = _of_sizes(lambda self, other: FloorDiv(self, other))
    __rfloordiv__ = _of_sizes(lambda self, other: FloorDiv(int(other), self))
    __mod__ = _of_sizes(lambda self, other: Mod(self, other))
    __rmod__ = _of_sizes(lambda self, other: Mod(int(other), self))

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

    __eq__ = _of_sizes(lambda self, other: self is other or _decide("==0", self - other))
    __ne__ = _of_sizes(lambda self, other: not self == other)
    __lt__ = _of_sizes(lambda self, other: _decide(">=0", other - self - 1))
    __le__ = _of_sizes(lambda self, other: _decide(">=0", other - self))
    __gt__ = _of_sizes(lambda self, other: _decide(">=0", self - other - 1))
    __ge__ = _of_sizes(lambda self, other: _decide(">=0", self - other))

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


IntExpr = int | Dim


def _atom_key(atom: Atom) -> str:
    return atom.key


def polynomial(e: IntExpr) -> Dim:
    """``e`` as a polynomial: of an int, one without terms, which stays inside of this file."""
    return e if isinstance(e, Dim) else _constant(e)


@functools.lru_cache(1 << 12)
def _constant(number: int) -> Dim:
    return Dim({}, int(number))


def _symbolic(e: IntExpr | None) -> Dim | None:
    return e if isinstance(e, Dim) else None


def _of_atom(atom: Atom) -> Dim:
    return Dim({(atom,): 1}, 0)


def _finish(terms: dict, const: int) -> IntExpr:
    """Turn ``(x // k) * k + x % k`` back into ``x``; give a plain int when no terms are left."""
    if not terms:
        return const
    for mono, c in terms.items():
        if len(mono) == 1 and (complement := mono[0].complement) is not None:
            atom = mono[0]
            product = complement * c
            if type(product) is Dim and product.terms and all(terms.get(m) == k for m, k in product.terms.items()):
                rest = {m: k for m, k in terms.items() if m not in product.terms and m != mono}
                return Dim(rest, const - product.const) + atom.a * c if rest else atom.a * c + (const - product.const)
    return Dim(terms, const)


def Sym(name: str, hint: int | None = None, lo: IntExpr = 0, hi: IntExpr | None = None, env: ShapeEnv | None = None,
        multiple: int = 1) -> Dim:
    """A new symbol with inclusive bounds. ``hint`` is its present value; ``multiple`` divides every value it takes."""
    return _of_atom(Symbol(name, hint, lo, hi, multiple, env))


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
        return _finish(q_terms, q0), _finish(r_terms, r0)
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
        return _finish(q_terms, q_const), _finish(r_terms, e.const)
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
            return q + FloorDiv(_finish({m: c // g for m, c in r.terms.items()}, r.const // g), den // g)
    atom = polynomial(r).single_atom
    simpler = None if atom is None else atom.divided(den)
    return q + (_of_atom(Quotient(r, den)) if simpler is None else simpler)


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
            inner = _finish({m: c // g for m, c in r.terms.items()}, r.const // g)
            return Mod(inner, den // g) * g + r.const % g
    return _of_atom(Remainder(r, den))


def _without_multiples(r: IntExpr, den: IntExpr) -> Any:
    """``(x % (k * den) + y) % den`` is ``(x + y) % den``."""
    for mono, c in polynomial(r).terms.items():
        simpler = mono[0].congruent(den) if len(mono) == 1 else None
        if simpler is not None:
            return _without_multiples(_split(r - _of_atom(mono[0]) * c + simpler * c, den)[1], den)
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
    return _of_atom(Larger(*sorted((a, b), key=str)))


def Min(a: IntExpr, b: IntExpr) -> IntExpr:
    """The smaller of two expressions, as an atom when bounds do not decide; never guards."""
    if nonnegative(a - b):
        return b
    if nonnegative(b - a):
        return a
    return _of_atom(Smaller(*sorted((a, b), key=str)))


Quotient.make, Remainder.make, Larger.make, Smaller.make = map(staticmethod, (FloorDiv, Mod, Max, Min))


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
    e = polynomial(e)
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


def _eliminate(e: IntExpr, sign: int) -> IntExpr:
    """An upper (sign +1) or lower (-1) estimate of ``e`` in which atoms with symbolic limits are replaced by these
    limits."""
    for _ in range(_ELIMINATION_STEPS):
        terms = polynomial(e).terms
        for atom in {a: None for mono in terms for a in mono}:
            limits = atom.limits
            if limits == (None, None):
                continue
            if any(mono.count(atom) > 1 for mono in terms):
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


def _coefficient_of_atom(e: Any, atom: Atom) -> IntExpr:
    result: IntExpr = 0
    for mono, c in e.terms.items():
        if atom in mono:
            rest = list(mono)
            rest.remove(atom)
            result = result + (Dim({tuple(rest): c}, 0) if rest else c)
    return result


def nonnegative(e: IntExpr) -> bool:
    """True when ``e >= 0`` can be proved from bounds alone; never guards."""
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
    e = polynomial(e)
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
    e = polynomial(e)
    if e._free is None:
        e._free = frozenset().union(*(a.free for mono in e.terms for a in mono))
    return e._free


def symbols_of(e: IntExpr) -> Iterator[Symbol]:
    """Every symbol in ``e``."""
    for mono in polynomial(e).terms:
        for atom in mono:
            yield from atom.symbols()


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


def subst(e: Any, values: dict) -> IntExpr:
    """``e`` with symbols replaced by expressions, given by name."""
    if free_symbols(e).isdisjoint(values):
        return e
    result: IntExpr = e.const
    for mono, c in e.terms.items():
        term: IntExpr = c
        for atom in mono:
            term = term * (_of_atom(atom) if atom.free.isdisjoint(values) else atom.replaced(values))
        result = result + term
    return result


def evaluate(e: IntExpr, values: dict) -> int:
    """The value of ``e`` for integer values of its symbols; KeyError names one that is missing."""
    return _numeric(e, lambda atom: values[atom.name])


def _numeric(e: Any, symbol: Callable[[Symbol], int]) -> int:
    e = polynomial(e)
    total = e.const
    for mono, c in e.terms.items():
        for atom in mono:
            c *= atom.value(symbol)
        total += c
    return total


def _symbol_hint(atom: Symbol) -> int:
    if atom.hint is None:
        raise Undecidable(f"symbol {atom.name} has no hint")
    return atom.hint


def hint(e: IntExpr) -> int:
    """The present value of ``e``, from its symbols' hints; Undecidable when one has none."""
    return _numeric(e, _symbol_hint)


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
