"""A kernel for other sizes than its own: the numbers in it that may be sizes become symbols.

Whatever number is replaced, the kernel is the same for the value that it had, so that this needs no proof; what is
chosen are the numbers by which kernels differ that do one thing to tensors of several sizes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..graph import dims
from . import loops

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from .loops import Kernel, Statement

PREFIX = "general"  # of the symbols' names
NARROW = 2**31 - 2**24  # a place that 32 bits hold, with a block behind it
DIVISOR = 16  # what is known of a size: whether it is a multiple of this
_KNOWN = (loops.Load, loops.Store, loops.Const, loops.IndexValue, loops.Compute, loops.Reduce)


def general(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The kernel with symbols for the extents of its axes, for the strides that are more than one, and for the numbers
    that it compares positions with; and their values. Without values where it is left as it is: the sizes of its axes
    are symbols already, an index divides, positions are results, or places need 64 bits."""
    axes, sizes = kernel.axes + kernel.raxes, frozenset(kernel.sizes)
    if not axes or not all(type(s) in _KNOWN and not s.ordered and _plain(s, sizes) for s in kernel.body):
        return kernel, {}
    if any(type(a.extent) is not int or not 1 < a.extent < NARROW for a in axes):
        return kernel, {}
    made: dict[int, IntExpr] = {}

    def symbol(value: int) -> IntExpr:
        if value not in made:
            multiple = DIVISOR if value % DIVISOR == 0 else 1
            made[value] = dims.Sym(f"{PREFIX}{len(made)}", hint=value, lo=2, hi=NARROW, multiple=multiple)
        return made[value]

    def of(e: IntExpr) -> IntExpr:
        if type(e) is int:
            return e
        total: IntExpr = e.const
        for (atom,), c in e.terms.items():
            total = total + dims.Sym(atom.name, lo=0, hi=atom.hi) * (c if abs(c) < 2 else symbol(c))
        return total

    extents = {a.name: symbol(a.extent) for a in axes}
    renamed = {a.name: loops.axis_symbol(a.name, extents[a.name]) for a in axes}
    body = tuple(_changed(s, lambda e: dims.subst(of(e), renamed), symbol) if s.symbols.isdisjoint(sizes) else s
                 for s in kernel.body)
    new = [tuple(dataclasses.replace(a, extent=extents[a.name]) for a in group)
           for group in (kernel.axes, kernel.raxes)]
    values = {f"{PREFIX}{k}": value for k, value in enumerate(made)}
    return dataclasses.replace(kernel, axes=new[0], raxes=new[1], body=body,
                               sizes=(*kernel.sizes, *values)), values


def _changed(s: Statement, of: object, symbol: object) -> Statement:
    if type(s) is loops.IndexValue and type(s.expr) is int:
        return dataclasses.replace(s, expr=symbol(s.expr)) if s.expr > 1 else s
    return s.mapped(of)


def _plain(s: Statement, sizes: frozenset[str]) -> bool:
    """Whether an expression is a sum of axes with positive factors, in places that 32 bits hold, or is of sizes alone
    and no place in memory."""
    e = s.expression
    if not s.symbols.isdisjoint(sizes):
        return s.symbols <= sizes and not s.accessed
    if e is None or type(e) is int:
        return e is None or abs(e) < NARROW
    high = dims.bounds(e)[1]
    return (all(len(mono) == 1 and mono[0].kind == "sym" and c > 0 for mono, c in e.terms.items())
            and high is not None and high < NARROW and abs(e.const) < NARROW)
