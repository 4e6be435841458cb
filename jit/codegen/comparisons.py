"""What comparisons of integers say, asked of the comparisons themselves."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from ..graph import dims
from ..graph.prims import info
from .reference import pointwise

if TYPE_CHECKING:
    from ..graph.dims import IntExpr


@functools.cache
def below_zero(op: str) -> tuple[int, int] | None:
    """What is below 0 where a prim holds: the difference of its operands times the first number, plus the second. None
    of one that is no order."""
    if not info(op).compares:
        return None
    holds = pointwise(op, [torch.tensor([-1, 0, 1]), torch.tensor([0, 0, 0])], torch.bool).tolist()
    if holds[0] == holds[2]:
        return None
    return (1 if holds[0] else -1), -int(holds[1])


def known(op: str, a: IntExpr, b: IntExpr) -> bool | None:
    """Whether a comparison of two expressions holds, where that is known."""
    order = below_zero(op)
    if order is None:
        return None
    e = (a - b) * order[0] + order[1]
    return True if dims.nonnegative(-e - 1) else False if dims.nonnegative(e) else None
