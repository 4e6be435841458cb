"""Where values belong in a sorted tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph.ir import Node
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number

_LONGEST = 511  # boundaries: a search has as many steps as a tree of one kernel holds


def _search(b: Builder, values: Node, boundaries: Node, right: bool) -> Node | None:
    """How many ``boundaries``, few and sorted, are below each of ``values``, or not above it where ``right``; None
    where the library finds that out. By halving: after the first step, which leaves a window of one element less than a
    power of two, each element that is compared is inside (L. E. Shar, in D. Knuth, The Art of Computer Programming 3,
    6.2.1)."""
    if (boundaries.type.rank != 1 or values.dtype is not boundaries.dtype or not backend(values.device).searches
        or values.type.is_empty or type(boundaries.shape[0]) is not int):
        return None
    n = boundaries.shape[0]
    if not 0 < n <= _LONGEST or values.dtype not in backend(values.device).dtypes or values.dtype is torch.bool:
        return None
    step = 1 << n.bit_length() - 1

    def passes(at: Node) -> Node:
        """NaN is above all boundaries."""
        return b.logical_not(b.gt(at, values) if right else b.ge(at, values))

    first = b.slice(boundaries, 0, step - 1, 1)
    found = b.where(passes(b.drop_dim(first, 0)), b.scalar(n - step + 1, torch.int64, values.device),
                    b.scalar(0, torch.int64, values.device))
    while step > 1:
        step //= 2
        beyond = b.slice(boundaries, 0, step - 1, n - step + 1)
        found = b.where(passes(b.index(beyond, (0,), [found], wrap=False)), b.add(found, step), found)
    return b.contiguous(found)


@op("bucketize")
def bucketize(b: Builder, self: Node | Number, boundaries: Node, *, out_int32: bool = False,
              right: bool = False) -> Node:
    found = _search(b, self, boundaries, right) if isinstance(self, Node) else None
    return NotImplemented if found is None else b.cast(found, torch.int32) if out_int32 else found


@op("searchsorted")
def searchsorted(b: Builder, sorted_sequence: Node, self: Node | Number, *, out_int32: bool = False,
                 right: bool = False, side: str | None = None, sorter: Node | None = None) -> Node:
    if not isinstance(self, Node) or sorter is not None or side not in (None, "left", "right"):
        return NotImplemented
    found = _search(b, self, sorted_sequence, right or side == "right")
    return NotImplemented if found is None else b.cast(found, torch.int32) if out_int32 else found
