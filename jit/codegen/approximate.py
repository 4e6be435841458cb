"""Values of which only as much has to be right as a half type of 16 bits keeps."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from ..graph.prims import info
from .loops import FLOAT8, HALF

if TYPE_CHECKING:
    from .loops import Kernel

LARGEST_POWER = 8
NARROW = frozenset(HALF) - frozenset(FLOAT8)


def fast_values(kernel: Kernel) -> frozenset:
    """The float32 values that reach memory only through a half type and by smooth operations."""
    good, bad = set(), set()
    constants = {s.dst: s.constant for s in kernel.body if s.constant is not None}
    for s in reversed(kernel.body):
        bad |= s.symbols
        fast = s.dst in good and s.dst not in bad
        kept = s.prim == "cast" and s.dtype in NARROW  # of which a step is too much to miss
        if kept or s.accessed and s.effect and kernel.buffer_of[s.accessed].rounded:
            good.add(s.operands[0])
            bad.update(s.operands[1:])
        elif fast and s.prim == "pow" and abs(constants.get(s.args[1], math.inf)) <= LARGEST_POWER:
            good.add(s.args[0])  # an error grows by as much as the exponent
        elif fast and s.prim == "where":
            good.update(s.args[1:])
            bad.add(s.args[0])
        elif fast and (s.combine in ("sum", "max", "min") or s.prim and info(s.prim).smooth
                       or s.prim == "cast" and s.dtype is torch.float32):
            good.update(s.operands)
        else:
            bad.update(s.operands)
    return frozenset(n for n in good - bad if kernel.dtypes.get(n) is torch.float32)


def rounded_values(kernel: Kernel) -> frozenset:
    """The float32 values that reach memory only through a half type, by whatever operations: for them a function is
    exact enough that is right to a unit or two in float32's last place. What is compared, counted or looked up with is
    none of them."""
    exact: set = set()
    for s in reversed(kernel.body):
        exact |= s.symbols
        if s.accessed and s.effect:
            exact.update(s.operands if kernel.buffer_of[s.accessed].dtype not in NARROW else s.operands[1:])
        elif s.dst in exact or not kernel.dtypes.get(s.dst, torch.bool).is_floating_point:
            exact.update(s.operands)
    return frozenset(n for n, dtype in kernel.dtypes.items() if dtype is torch.float32 and n not in exact)


def bfloat16_values(kernel: Kernel) -> frozenset:
    """The float32 values that are bfloat16 numbers: none lies nearer to 1 than 1/256, but 1 itself."""
    return frozenset(s.dst for s in kernel.body if s.prim == "cast" and s.dtype is torch.float32
                     and kernel.dtypes[s.args[0]] is torch.bfloat16)


def fractions(kernel: Kernel) -> frozenset:
    """The values that are 0 to 1 (or NaN), both included: exponentials of what is the negative of a magnitude."""
    prims = {s.dst: s for s in kernel.body if s.prim}

    def falls(name: str) -> bool:
        s = prims.get(name)
        return s is not None and s.prim == "neg" and s.args[0] in prims and prims[s.args[0]].prim == "abs"

    return frozenset(n for n, s in prims.items() if s.prim in ("exp", "exp2") and falls(s.args[0])
                     and s.dtype.is_floating_point)


def rounded_inputs(kernel: Kernel) -> frozenset:
    """The names of the float32 buffers of which all that is read is such a value."""
    fast = fast_values(kernel)
    exact = {s.loaded for s in kernel.body if s.loaded and s.dst not in fast}
    return frozenset(s.loaded for s in kernel.body if s.loaded and s.loaded not in exact)


def rounded(kernel: Kernel, names: frozenset) -> Kernel:
    """The kernel with these buffers marked as read for half types only."""
    return dataclasses.replace(kernel, buffers=tuple([
        dataclasses.replace(b, rounded=True) if b.name in names else b for b in kernel.buffers]))
