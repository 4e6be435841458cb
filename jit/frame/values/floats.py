"""Floats that change between calls, and what is computed from them and from symbolic integers.

A ``FloatValue`` is an expression over its leaves. It is computed with Python's own arithmetic before the graph runs,
natively for a plan (``frame/numbers.py``); where that raises, or gives something else than a float, the original
function runs in place of the rewritten one. As an operand of a tensor operation it is a ``SymFloat``; whatever else
needs the number makes it a constant, guarded by value.
"""

from __future__ import annotations

import math

from ...runtime import facts
from ..source import Source
from .base import Value
from .constant import Constant, DimValue

SYMBOLS = ("+", "-", "*", "/", "**")
FUNCTIONS = frozenset([math.sqrt, math.exp, math.log, math.log2, math.log10,
                       math.log1p, math.expm1, math.sin, math.cos, math.tan, math.tanh,
                       math.sinh, math.cosh, math.atan, math.atan2, math.hypot,
                       math.pow, math.fabs, math.copysign, math.radians, math.degrees, math.erf, float])


class FloatValue(Value):
    """A float from ``source``, or ``fn`` (a symbol of an operator or a function) of ``args``. ``value`` is the number
    at hand."""

    def __init__(self, value: float, source: Source | None = None, fn=None, args=()):
        self.value, self.source, self.fn, self.args = value, source, fn, tuple(args)
        self.operand = None

    def pytype(self, s):
        return float

    def is_const(self):
        return True

    def const(self, s):
        for leaf in self.leaves():
            if isinstance(leaf, DimValue) or leaf.source is None and leaf is not self:
                leaf.const(s)
            else:
                s.specialize(leaf.source, leaf.value)
                s.guards.add(leaf.source, facts.Equals(leaf.value))
        return self.value

    def truth(self, s):
        return bool(self.const(s))

    def hash_key(self, s):
        return self.const(s)

    def getattr(self, s, name):
        return self if name == "real" else Constant(self.const(s)).getattr(s, name)

    def setattr(self, s, name, value):
        Constant(self.const(s)).setattr(s, name, value)

    def call_special(self, s, name, args):
        return Constant(self.const(s)).call_special(s, name, args)

    def call(self, s, args, kwargs):
        return Constant(self.const(s)).call(s, args, kwargs)

    def getitem(self, s, key):
        return Constant(self.const(s)).getitem(s, key)

    def iter(self, s):
        return Constant(self.const(s)).iter(s)

    def length(self, s):
        return Constant(self.const(s)).length(s)

    def leaves(self) -> list:
        """The floats from outside and the symbolic integers that it is computed from, without repeats."""
        if self.fn is None:
            return [self]
        found: list = []
        for a in self.args:
            for leaf in a.leaves() if isinstance(a, FloatValue) else [a] if isinstance(a, DimValue) else ():
                if leaf not in found:
                    found.append(leaf)
        return found

    def program(self):
        """-> (leaves, a function of their numbers that gives the float, or None where Python would raise)."""
        leaves = self.leaves()
        names = {id(leaf): f"x{i}" for i, leaf in enumerate(leaves)}
        namespace: dict = {}

        def constant(obj):
            name = f"c{len(namespace)}"
            namespace[name] = obj
            return name

        def text(v):
            if id(v) in names:
                return names[id(v)]
            if not isinstance(v, FloatValue):
                return constant(v.value)
            parts = [text(a) for a in v.args]
            if callable(v.fn):
                return f"{constant(v.fn)}({', '.join(parts)})"
            return f"({v.fn}{parts[0]})" if len(parts) == 1 else f"({parts[0]} {v.fn} {parts[1]})"

        compute = eval(f"lambda {', '.join(names.values())}: {text(self)}", namespace)

        def checked(*numbers):
            try:
                result = compute(*numbers)
            except (ArithmeticError, TypeError, ValueError):  # Python's, for these numbers
                return None
            return result if type(result) is float else None

        return leaves, checked

    def row(self, program) -> int | None:
        """The row of a ``jit.frame.numbers.NumberProgram`` that computes it; None where Python has to."""
        if self.fn is None:
            return program.row("number", program.argument(self))
        if self.fn == "**" and not any(type(a) is Constant and type(a.value) is float or isinstance(a, FloatValue)
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

    def emit(self, e):
        e.load_float(self)

    def describe(self):
        return f"a symbolic float ({self.source})" if self.source is not None else "a symbolic float"


def compute(s, fn, args) -> Value | None:
    """``fn`` (a symbol of an operator, or a function of ``FUNCTIONS``) of numbers of which one is symbolic, or None
    where the result is no symbolic float."""
    numbers = []
    for a in args:
        if isinstance(a, FloatValue):
            numbers.append(a.value)
        elif isinstance(a, DimValue):
            numbers.append(s.hint(a.dim))
        elif isinstance(a, Constant) and type(a.value) in (int, float, bool):
            numbers.append(a.const(s))
        else:
            return None
    try:
        if callable(fn):
            value = fn(*numbers)
        else:
            value = eval(f"a {fn} b" if len(numbers) == 2 else f"{fn}a", dict(zip("ab", numbers)))
    except (ArithmeticError, TypeError, ValueError):  # Python's, for these numbers
        return None
    return FloatValue(value, None, fn, args) if type(value) is float else None
