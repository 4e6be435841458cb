"""Size expressions as operation trees, for those who compute them: guards, emitted bytecode."""

from __future__ import annotations

from .dims import Dim, IntExpr


def as_operations(e: IntExpr) -> int | str | tuple:
    """``e`` as an int, a symbol's name, or (operator, tree, tree) with operator ``+ * // % max min``."""
    if not isinstance(e, Dim):
        return int(e)
    total = None
    for mono, c in e.terms.items():
        term = None
        for atom in mono:
            tree = atom.name if atom.kind == "sym" else (atom.kind, as_operations(atom.a), as_operations(atom.b))
            term = tree if term is None else ("*", term, tree)
        if c != 1:
            term = ("*", term, c)
        total = term if total is None else ("+", total, term)
    return total if not e.const else ("+", total, e.const)
