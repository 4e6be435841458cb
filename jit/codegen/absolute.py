"""Values of which only the absolute error counts, so that functions of them may be computed in a cheaper way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import prims
from ..graph.prims import info

if TYPE_CHECKING:
    from .loops import Kernel


def absolute_values(kernel: Kernel) -> frozenset:
    """The values that are only ever added to, or taken from, constants of at least 1: their relative error near zero
    does not matter."""
    constants = {s.dst: s.constant for s in kernel.body if s.constant is not None}
    good: set = set()
    bad: set = set()
    for s in kernel.body:
        if s.prim and info(s.prim).linear == prims.IN_ALL and any(abs(constants.get(a, 0)) >= 1 for a in s.operands):
            good.update(s.operands)
        else:
            bad.update(s.operands)
    return frozenset(good - bad)
