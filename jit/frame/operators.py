"""Python's operators as records: what each is written as, its function in ``operator``, its special methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Binary:
    """``a symbol b``, or ``a symbol= b`` where ``inplace`` names a method. ``forward`` is asked of the left operand,
    ``reflected`` of the right one. ``shown`` is the operator in CPython's messages."""

    symbol: str
    fn: Callable
    forward: str
    reflected: str
    inplace: str | None
    shown: str


@dataclass(frozen=True)
class Unary:
    symbol: str
    fn: Callable
    method: str


@dataclass(frozen=True)
class Comparison:
    """``a symbol b``; ``mirrored`` is the symbol of ``b ... a``. ``equality``: of ``==`` and ``!=``, what identity
    says."""

    symbol: str
    fn: Callable
    method: str
    mirrored: str
    equality: bool | None = None

    @property
    def swapped(self) -> Comparison:
        return COMPARE[self.mirrored]


_NAMES = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
          "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor"}


def _binary(symbol, name: str, shown, inplace: bool = False) -> Binary:
    fn = getattr(operator, f"i{name}" if inplace else f"{name}_" if name in ("and", "or") else name)
    return Binary(symbol, fn, f"__{name}__", f"__r{name}__", f"__i{name}__" if inplace else None, shown)


BINARY = {symbol: _binary(symbol, name, "** or pow()" if symbol == "**" else symbol)
          for symbol, name in _NAMES.items()}
INPLACE = {symbol: _binary(symbol, name, f"{symbol}=", inplace=True) for symbol, name in _NAMES.items()}
DIVMOD = Binary("divmod", divmod, "__divmod__", "__rdivmod__", None, "divmod()")
UNARY = {"-": Unary("-", operator.neg, "__neg__"), "+": Unary("+", operator.pos, "__pos__"),
         "~": Unary("~", operator.invert, "__invert__")}
COMPARE = {c.symbol: c for c in (
    Comparison("<", operator.lt, "__lt__", ">"), Comparison("<=", operator.le, "__le__", ">="),
    Comparison("==", operator.eq, "__eq__", "==", True), Comparison("!=", operator.ne, "__ne__", "!=", False),
    Comparison(">", operator.gt, "__gt__", "<"), Comparison(">=", operator.ge, "__ge__", "<="),
)}
BY_FUNCTION = {op.fn: op for table in (BINARY, INPLACE) for op in table.values()}
# Functions that call a special method: -> the names that the first and the second operand are asked for.
METHODS = {op.fn: (op.inplace or op.forward, op.reflected) for op in (*BINARY.values(), *INPLACE.values())}
METHODS |= {op.fn: (op.method, op.swapped.method) for op in COMPARE.values()}
METHODS |= {op.fn: (op.method, None) for op in UNARY.values()}
METHODS |= {operator.getitem: ("__getitem__", None), operator.setitem: ("__setitem__", None)}
