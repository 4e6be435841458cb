"""Sizes computed by other means than Python's: guards, registers, emitted bytecode."""

from __future__ import annotations

from typing import Any, Callable

from .dims import IntExpr, polynomial


def fold(e: IntExpr, number: Callable, symbol: Callable, operate: Callable) -> Any:
    """``e`` computed by ``number(int)``, ``symbol(Symbol)`` and ``operate(function, left, right)``, with a function of
    ``+ * // % max min``."""
    e, total = polynomial(e), None
    for mono, c in e.terms.items():
        term = None
        for atom in mono:
            factor = atom.fold(lambda operand: fold(operand, number, symbol, operate), symbol, operate)
            term = factor if term is None else operate("*", term, factor)
        if c != 1:
            term = operate("*", term, number(c))
        total = term if total is None else operate("+", total, term)
    if total is None:
        return number(e.const)
    return operate("+", total, number(e.const)) if e.const else total


def as_operations(e: IntExpr) -> int | str | tuple:
    """``e`` as an int, a symbol's name, or (function, tree, tree)."""
    return fold(e, int, lambda s: s.name, lambda *operation: operation)
