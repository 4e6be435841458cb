"""Integers and floats that change between calls, and what is computed from them.

A ``DimValue`` is an integer that depends on sizes, in one normal form.

A ``FloatValue`` is an expression over its leaves. It is computed with Python's own arithmetic before the graph runs,
natively for a plan (``frame/numbers.py``); where that raises, or gives something else than a float, the original
function runs in place of the rewritten one. As an operand of a tensor operation it is a ``SymFloat``; whatever else
needs the number makes it a constant, guarded by value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

from ...errors import Unsupported
from ...graph.dims import Max, Min, bounds, free_symbols, hint
from ...runtime import facts
from ...runtime.names import made
from ..conditions import compared
from ..operators import BINARY
from ..source import Source
from .base import Value
from .constant import Constant
from .text import NumberText

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session

SYMBOLS = ("+", "-", "*", "/", "**")
FUNCTIONS = frozenset([math.sqrt, math.exp, math.log, math.log2, math.log10,
                       math.log1p, math.expm1, math.sin, math.cos, math.tan, math.tanh,
                       math.sinh, math.cosh, math.atan, math.atan2, math.hypot,
                       math.pow, math.fabs, math.copysign, math.radians, math.degrees, math.erf, float])


class DimValue(Value):
    """An integer that depends on the sizes of inputs: a ``jit.graph.dims.Dim``."""

    symbolic = int

    def __init__(self, dim) -> None:
        self.dim = dim

    def pytype(self, s: Session) -> type:
        return int

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> Any:
        if type(self.dim) is not int:
            origins = s.varying.origins()
            for name in free_symbols(self.dim):
                if name in origins and isinstance(origins[name][0], Source):
                    s.varying.specialize(origins[name], hint(self.dim))
        return s.tracer.env.specialize(self.dim)

    def truth(self, s: Session) -> bool:
        return bool(self.dim != 0)

    def hash_key(self, s: Session) -> Any:
        return self.const(s)

    def identity(self) -> tuple[str, int]:
        return ("dim", self.dim)

    is_numeric = can_wait = True

    def probed(self, s: Session) -> IntExpr:
        return self.dim

    def at_hand(self, s: Session) -> int:
        return hint(self.dim)

    def leaves(self) -> list:
        return [self]

    def row(self, program) -> int:
        return program.row("number", program.argument(self))

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        return arithmetic(s, op, a, b)

    def unary(self, s: Session, op: Unary) -> Value | None:
        return DimValue(-self.dim) if op.symbol == "-" else self if op.symbol == "+" else None

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        n = other.exact_int()
        if n is not None:
            if type(n) is int:
                other.const(s)
            return Constant(bool(op.fn(self.dim, n)))
        if not other.is_numeric or not other.is_const():
            return None
        if other.symbolic is float:
            return other.compare(s, op.swapped, self)
        number = other.const(s)
        if type(number) is float:
            return Constant(_compare_with_float(op, self.dim, number))
        return s.fold(op.fn, [self, other], {})

    def has_index(self, s: Session) -> bool:
        return True

    def index(self, s: Session) -> int:
        return self.const(s)

    def exact_int(self) -> None:
        return self.dim

    def extreme(self, s: Session, fn: Callable, a: Value, b: Value) -> Value | None:
        x, y = a.exact_int(), b.exact_int()
        if x is None or y is None:
            return None
        for v in (a, b):
            if type(v) is Constant:
                v.const(s)
        return integer((Max if fn is max else Min)(x, y))

    def to_int(self, s: Session) -> Value:
        return self

    def to_float(self, s: Session) -> Value:
        return compute(s, float, [self]) or super().to_float(s)

    def integral(self, s: Session, fn: Callable) -> Value:
        return self

    def getattr(self, s: Session, name: str) -> Value:
        if name in ("real", "numerator"):
            return self
        return Constant(self.const(s)).getattr(s, name)

    def text(self, s: Session, method: str) -> Value:
        return NumberText.of(s, self) if type(self.dim) is not int else super().text(s, method)

    def formatted(self, s: Session, spec: Value) -> Value:
        plain = spec.const(s)
        # Whether it is a character, and the digits of another locale, are not known yet.
        if type(self.dim) is int or plain[-1:] in ("c", "n"):
            return super().formatted(s, spec)
        return NumberText.of(s, self, plain)

    def lower(self, s: Session) -> Any:
        return s.varying.plain_dim(self.dim)

    def emit(self, e: Emitter) -> None:
        e.load_dim(self.dim)

    def describe(self) -> str:
        return f"symbolic int {self.dim}"


class FloatValue(Value):
    """A float from ``source``, or ``fn`` (a symbol of an operator or a function) of ``args``. ``value`` is the number
    at hand."""

    symbolic = float

    def __init__(self, value: float, source: Source | None = None, fn=None, args=()) -> None:
        self.value, self.source, self.fn, self.args = value, source, fn, tuple(args)
        self.operand = None

    def pytype(self, s: Session) -> type:
        return float

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> Any:
        for leaf in self.leaves():
            if leaf.source is None and leaf is not self:
                leaf.const(s)
            else:
                s.varying.specialize(leaf.source, leaf.value)
                s.guards.add(leaf.source, facts.Equals(leaf.value))
        return self.value

    is_numeric = can_wait = True

    def probed(self, s: Session) -> float:
        return self.value

    at_hand = probed

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        return arithmetic(s, op, a, b)

    def unary(self, s: Session, op: Unary) -> Value | None:
        return compute(s, op.symbol, [self]) if op.symbol != "~" else None

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if not other.is_numeric or not other.is_const():
            return None
        answer = compared(s, op.symbol, self, other)
        return s.fold(op.fn, [self, other], {}) if answer is None else Constant(answer)

    def truth(self, s: Session) -> bool:
        answer = compared(s, "!=", self, Constant(0.0))
        return bool(self.const(s)) if answer is None else answer

    def hash_key(self, s: Session) -> Any:
        return self.const(s)

    def to_float(self, s: Session) -> Value:
        return self

    def to_int(self, s: Session) -> Value:
        return s.varying.integer_of(self, int) or super().to_int(s)

    def integral(self, s: Session, fn: Callable) -> Value:
        return s.varying.integer_of(self, fn) or super().integral(s, fn)

    def rounded(self, s: Session, digits: list[Value]) -> Value:
        return not digits and s.varying.integer_of(self, round) or super().rounded(s, digits)

    def getattr(self, s: Session, name: str) -> Value:
        return self if name == "real" else Constant(self.const(s)).getattr(s, name)

    def setattr(self, s: Session, name: str, value: Value) -> None:
        Constant(self.const(s)).setattr(s, name, value)

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return Constant(self.const(s)).call_special(s, name, args)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return Constant(self.const(s)).call(s, args, kwargs)

    def getitem(self, s: Session, key: Value) -> Value:
        return Constant(self.const(s)).getitem(s, key)

    def iter(self, s: Session) -> Value:
        return Constant(self.const(s)).iter(s)

    def length(self, s: Session) -> IntExpr:
        return Constant(self.const(s)).length(s)

    def leaves(self) -> list:
        """The floats from outside and the symbolic integers that it is computed from, without repeats."""
        if self.fn is None:
            return [self]
        found: list = []
        for a in self.args:
            for leaf in a.leaves() if a.symbolic else ():
                if leaf not in found:
                    found.append(leaf)
        return found

    def program(self) -> tuple:
        """-> (leaves, a function of their numbers that gives the float, or None where Python would raise)."""
        leaves = self.leaves()
        names = {id(leaf): f"x{i}" for i, leaf in enumerate(leaves)}
        constants: list = []

        def constant(obj):
            constants.append(obj)
            return f"c{len(constants) - 1}"

        def text(v: Value):
            if id(v) in names:
                return names[id(v)]
            if v.is_leaf:
                return constant(v.value)
            parts = [text(a) for a in v.args]
            if callable(v.fn):
                return f"{constant(v.fn)}({', '.join(parts)})"
            return f"({v.fn}{parts[0]})" if len(parts) == 1 else f"({parts[0]} {v.fn} {parts[1]})"

        return leaves, function_of_floats(f"lambda {', '.join(names.values())}: {text(self)}", *constants)

    def row(self, program) -> int | None:
        """The row of a ``jit.frame.numbers.NumberProgram`` that computes it; None where Python has to."""
        if self.fn is None:
            return program.row("number", program.argument(self))
        if self.fn == "**" and not any(type(a) is Constant and type(a.value) is float or a.symbolic is float
                                       for a in self.args):
            return None  # a power of integers is an integer for other ones
        rows = [program.value(a) for a in self.args]
        if None in rows:
            return None
        if self.fn is float or self.fn == "+" and len(rows) == 1:
            return rows[0]
        if callable(self.fn):
            return program.row("sqrt", *rows) if self.fn is math.sqrt else program.row("call", self.fn, tuple(rows))
        return program.row("neg", *rows) if len(rows) == 1 else program.row(self.fn, *rows)

    def emit(self, e: Emitter) -> None:
        e.load_float(self)

    def describe(self) -> str:
        return f"a symbolic float ({self.source})" if self.source is not None else "a symbolic float"


def arithmetic(s: Session, op, a: Value, b: Value) -> Value | None:
    """``a op b`` where one of them is symbolic: an exact integer, a symbolic float, or that of the numbers at hand."""
    result = _exact(s, op, a, b)
    if result is None and op.symbol in SYMBOLS:
        result = compute(s, op.symbol, [a, b])
    if result is None and a.is_numeric and b.is_numeric and a.is_const() and b.is_const():
        result = s.fold(op.fn, [a, b], {})
    return result


def _exact(s: Session, op, a: Value, b: Value) -> Value | None:
    """``a op b`` of symbolic integers, as a polynomial; None where it is none."""
    x, y = (int(v.value) if type(v) is Constant and type(v.value) is bool else v.exact_int() for v in (a, b))
    if x is None or y is None or op.symbol not in ("+", "-", "*", "//", "%"):
        return None
    turns, divides = 0, op.symbol in ("//", "%")
    if divides and y == 0:
        return s.fold(op.fn, [Constant(1), Constant(0)], {})
    if divides and type(y) is int and y > 0 and type(x) is not int and (bounds(x)[0] or 0) < 0:
        turns = -(bounds(x)[0] // y)  # added so that the dividend is not negative, which symbolic quotients want
        x = x + turns * y
    if divides and any(bounds(v)[0] is None or bounds(v)[0] < 0 for v in (x, y)):
        return None
    result = BINARY[op.symbol].fn(x, y) - (turns if op.symbol == "//" else 0)
    for v in (a, b):
        if type(v) is Constant:
            v.const(s)
    return integer(result)


def _compare_with_float(op, n, f: float) -> bool:
    """``n op f`` of a symbolic integer, by a condition on integers."""
    if not math.isfinite(f):
        return op.fn(0, f)
    if op.equality is not None:
        return bool(op.fn(n, int(f))) if f == int(f) else not op.equality
    return bool(op.fn(n, math.floor(f) if op.symbol in ("<=", ">") else math.ceil(f)))


def compute(s: Session, fn, args) -> Value | None:
    """``fn`` (a symbol of an operator, or a function of ``FUNCTIONS``) of numbers of which one is symbolic, or None
    where the result is no symbolic float."""
    numbers = []
    for a in args:
        number = a.at_hand(s)
        if number is None:
            return None
        numbers.append(number)
    try:
        if callable(fn):
            value = fn(*numbers)
        else:
            value = eval(f"a {fn} b" if len(numbers) == 2 else f"{fn}a", dict(zip("ab", numbers)))
    except (ArithmeticError, TypeError, ValueError):  # Python's, for these numbers
        return None
    return FloatValue(value, None, fn, args) if type(value) is float else None


def function_of_floats(text: str, *constants: object) -> Callable:
    """The function that a lambda's text is, which may name constants c0, c1 and so on; None where Python would
    raise."""
    compute = eval(text, {f"c{k}": constant for k, constant in enumerate(constants)})

    def checked(*numbers):
        try:
            result = compute(*numbers)
        except (ArithmeticError, TypeError, ValueError):  # Python's, for these numbers
            return None
        return result if type(result) is float else None

    return made(checked, function_of_floats, text, *constants)


def integer(n) -> Value:
    """The value of an int or a Dim."""
    return Constant(n) if isinstance(n, int) else DimValue(n)


def scalar(s: Session, value: Value):
    """A value as an int, float, bool or Dim for arithmetic; Unsupported if it is not one."""
    if value.symbolic is int:
        return value.dim
    if value.is_const():
        return value.const(s)
    raise Unsupported(f"{value.describe()} where a number is needed", kind="not-constant")
