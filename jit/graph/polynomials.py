"""Polynomials with integer coefficients over indivisible factors, in one normal form: what sizes are made of.

An ``IntExpr`` is an ``int`` or a ``Dim``, which is an immutable polynomial over *atoms*. Arithmetic normalises as it
goes, so that equal polynomials are equal objects field by field, and results without any symbol come back as plain
ints; inside these files an int may be a polynomial without terms (``polynomial``). Which kinds of atoms there are is in
``dims``, which also divides and decides comparisons.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable

from jit.graph.dim_text import render

if TYPE_CHECKING:
    from jit.graph.dims import Symbol

_ELIMINATION_STEPS = 12


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
        chooses: whether it is always one of its two operands, as a ``max`` or ``min``.
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
    chooses = False

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(of_atom(self))

    def divided(self, den: IntExpr) -> IntExpr | None:
        """``self // den`` where there is a simpler form of it."""
        return None

    def congruent(self, den: IntExpr) -> IntExpr | None:
        """Something simpler that leaves the same remainder by ``den``, if there is."""
        return None


def _of_sizes(function: Callable) -> Callable:
    """An operator of a Dim and an int or another Dim."""

    def method(self: Dim, other: Any) -> Any:
        return function(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    return method


class Dim:
    """``const`` plus the sum of ``coefficient * product of atoms`` over ``terms`` (a dict that is never changed)."""

    __slots__ = ("terms", "const", "_hash", "_bounds", "_free")
    # What ``dims`` fills in: ``a // b``, ``a % b``, whether ``e`` is "==0" or ">=0", and its value, which is recorded.
    quotient: Any
    remainder: Any
    decide: Any
    specialize: Any
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
        return finish(terms, self.const + other.const)

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
        return finish({m: c for m, c in terms.items() if c}, const)

    __rmul__ = __mul__

    __floordiv__ = _of_sizes(lambda self, other: Dim.quotient(self, other))
    __rfloordiv__ = _of_sizes(lambda self, other: Dim.quotient(int(other), self))
    __mod__ = _of_sizes(lambda self, other: Dim.remainder(self, other))
    __rmod__ = _of_sizes(lambda self, other: Dim.remainder(int(other), self))

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

    __eq__ = _of_sizes(lambda self, other: self is other or Dim.decide("==0", self - other))
    __ne__ = _of_sizes(lambda self, other: not self == other)
    __lt__ = _of_sizes(lambda self, other: Dim.decide(">=0", other - self - 1))
    __le__ = _of_sizes(lambda self, other: Dim.decide(">=0", other - self))
    __gt__ = _of_sizes(lambda self, other: Dim.decide(">=0", self - other - 1))
    __ge__ = _of_sizes(lambda self, other: Dim.decide(">=0", self - other))

    def __bool__(self) -> bool:
        return not Dim.decide("==0", self)

    def __int__(self) -> int:
        return Dim.specialize(self)

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
    """``e`` as a polynomial: of an int, one without terms, which stays inside of these files."""
    return e if isinstance(e, Dim) else _constant(e)


@functools.lru_cache(1 << 12)
def _constant(number: int) -> Dim:
    return Dim({}, int(number))


def symbolic(e: IntExpr | None) -> Dim | None:
    return e if isinstance(e, Dim) else None


def of_atom(atom: Atom) -> Dim:
    return Dim({(atom,): 1}, 0)


def finish(terms: dict, const: int) -> IntExpr:
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


def product(values: Iterable[IntExpr]) -> IntExpr:
    """The product of a sequence of expressions; 1 for an empty one."""
    result: IntExpr = 1
    for v in values:
        result = result * v
    return result


def structurally_equal(a: IntExpr, b: IntExpr) -> bool:
    """Whether two normal forms are the same; never guards."""
    if a is b:
        return True
    if type(a) is Dim and type(b) is Dim:
        return a.const == b.const and hash(a) == hash(b) and a.terms == b.terms
    if type(a) is Dim or type(b) is Dim:
        return False
    return a == b


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


def subst(e: Any, values: dict) -> IntExpr:
    """``e`` with symbols replaced by expressions, given by name."""
    if free_symbols(e).isdisjoint(values):
        return e
    result: IntExpr = e.const
    for mono, c in e.terms.items():
        term: IntExpr = c
        for atom in mono:
            term = term * (of_atom(atom) if atom.free.isdisjoint(values) else atom.replaced(values))
        result = result + term
    return result


def numeric(e: Any, symbol: Callable[[Symbol], int]) -> int:
    e = polynomial(e)
    total = e.const
    for mono, c in e.terms.items():
        for atom in mono:
            c *= atom.value(symbol)
        total += c
    return total


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


def eliminate(e: IntExpr, sign: int) -> IntExpr:
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
            e = e - c * of_atom(atom) + c * limit
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
    lower = eliminate(e, -1)
    if lower is not e:
        lo = bounds(lower)[0]
        if lo is not None and lo >= 0:
            return True
    return _in_each_case(e)


def _in_each_case(e: IntExpr) -> bool:
    """Whether it can be proved of an expression with a ``max`` or ``min`` by looking at both of what that may be."""
    terms = polynomial(e).terms
    for atom in {a: None for mono in terms for a in mono if a.chooses}:
        c = _coefficient_of_atom(e, atom)
        if type(c) is not int or any(mono.count(atom) > 1 for mono in terms):
            continue
        rest = e - c * of_atom(atom)
        cases = (nonnegative(rest + c * case) for case in (atom.a, atom.b))
        # c * min(a, b) is the smaller of c * a and c * b where c is positive, else the larger, of which one is enough.
        return all(cases) if (c > 0) == (atom.kind == "min") else any(cases)
    return False


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
