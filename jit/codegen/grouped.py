"""Sums of rows whose positions have been sorted by place, as kernels: what ``jit::part_sums`` and ``jit::row_sums``
compute, in the language of loops as far as that goes.

The axes are the parts of the positions, or the rows of the result (``y``), the elements of a row (``x``) and the
positions (``r``). The sum is ``Given``: the layout (``triton.grouped``) goes through those positions that belong to it.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import devices
from ..graph import dims
from ..graph.grouped import PART
from ..graph.ir import filled
from . import loops
from .apart import Apart
from .indexing import linear
from .lower import ERROR, _position

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Node
    from .buffers import Buffers

SUM = 0


@dataclass(frozen=True)
class Parts:
    """The names of a kernel's values that a layout has to know: the first and the last place, or the first position
    and that behind the last one; what is added; and, of sums of rows, the sum of a part."""

    kind: str
    first: str
    last: str
    value: str
    part: str | None = None
    length: int = PART


def kernel(node: Node, buffers: Buffers, number: int) -> tuple[loops.Kernel, tuple]:
    """The kernel of a call, with what its buffers are."""
    args = list(filled(node.attrs["args"], node.inputs))
    of_parts = node.attrs["target"] == "jit::part_sums"
    values, order = args[:2] if of_parts else args[1:3]
    e = Apart(buffers.place_of, node.type.device)
    b = e.b
    count = order.type.shape[0]
    width = node.type.shape[1] if of_parts else args[4].type.shape[1]
    y, x, r = b.axis(node.type.shape[0]), b.axis(width), b.axis(count, "r")
    at = b.clamped(e.value(order, (r,)), count)
    rest = values.type.shape[-_dimensions(values, width):] if width > 1 else ()
    lead = values.type.shape[: len(values.type.shape) - len(rest)]
    value = b.cast(e.value(values, (*_place(at, lead), *_place(x, rest))), torch.float32)
    place = buffers.place_of(node)
    if of_parts:
        places, rows = args[2:4]
        last = dims.Min(y * PART + (PART - 1), count - 1)
        ends = [e.value(places, (i,)) for i in (y * PART, last)]
        for i in (y * PART, last):
            _position(e, places, (i,), None, rows, False, 1)
        parts = Parts("parts", *ends, value)
        total = b.given(SUM, y + x, torch.float32)
        b.store(e.buffer(place.storage, place.dtype, True), place.offset + linear((y, x), place.strides), total)
    else:
        start, bounds, part = args[0], *args[3:5]
        ends = [e.value(bounds, (i,)) for i in (y, y + 1)]
        of_part = e.value(part, (dims.Min(r, part.type.shape[0] - 1), x))
        total = b.given(SUM, y + x, torch.float32)
        index = (y, *_place(x, node.type.shape[1:]))
        added_to = b.const(0.0, torch.float32) if start is None else b.cast(e.value(start, index), torch.float32)
        total = b.compute("add", added_to, total, dtype=torch.float32)
        parts = Parts("rows", *ends, value, of_part)
        b.store(e.buffer(place.storage, place.dtype, True), place.offset + linear(index, place.strides),
                b.cast(total, place.dtype))
    made = loops.verify_addresses(b.finish(f"k{number}"))
    emitter = importlib.import_module(devices.backend(node.type.device).emitter.removesuffix("target") + "grouped")
    return dataclasses.replace(made, layout=emitter.GroupedLayout(parts)), tuple(e.arguments)


def _dimensions(values: Node, width: int) -> int:
    """How many of the last dimensions are those of a row."""
    shape, found = values.type.shape, 0
    while dims.product(shape[len(shape) - found:]) != width:
        found += 1
    return found


def _place(i: IntExpr, shape: tuple) -> tuple[IntExpr, ...]:
    """The index in dimensions of these sizes of element ``i`` of them."""
    index: list[IntExpr] = []
    for n in reversed(shape[1:]):
        index.insert(0, i % n)
        i = i // n
    return (i, *index) if shape else ()
