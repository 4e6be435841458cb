"""Sums of rows at places that data decide, as kernels: what the operators of ``graph.grouped`` compute, in the language
of loops as far as that goes.

Names are counted with atomic additions, whose old values are a name's number among those of its row, and ranges of
positions are given to rows by such an addition for each block of rows: both are ``Given`` (by ``triton.grouped``). Of
sums, the axes are the parts of the positions, or the rows of the result (``y``), the elements of a row (``x``) and the
positions (``r``); the sum is ``Given`` too: the layout goes through those positions that belong to it.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..graph import dims
from ..graph.ir import filled
from ..graph.prims import PART
from . import loops
from .apart import Apart
from .indexing import linear
from .lower import _position

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Graph, Node
    from .buffers import Buffers

MADE = 0  # the number of what is given


@dataclass(frozen=True)
class Parts:
    """What a layout has to know. ``kind``: "ranks", "starts", "parts" or "rows". The names of values: what is added to
    in memory, whether a name counts, and by how much it adds; or the first of the positions of a row and how many they
    are, what is added up, and, of sums of rows, the sum of a part."""

    kind: str
    counted: str | None = None
    kept: str | None = None
    first: str | None = None
    count: str | None = None
    value: str | None = None
    part: str | None = None
    length: int = PART


def kernels(node: Node, graph: Graph, buffers: Buffers, number: int) -> list[tuple[loops.Kernel, tuple]]:
    """The kernels of a call, each with what its buffers are."""
    args = list(filled(node.attrs["args"], node.inputs))
    target = node.attrs["target"].removeprefix("jit::")
    if target == "place_ranks":
        results = {n.attrs["index"]: n for n in graph.nodes if n.op == "getitem" and n.inputs[0] is node}
        counts, ranks, starts = (results[i] for i in range(3))
        made = [_zeros(buffers, counts), _ranks(buffers, *args, counts, ranks), _starts(buffers, counts, starts)]
    else:
        make: Any = {"place_order": _order, "part_sums": _part_sums, "row_sums": _row_sums}[target]
        made = [make(buffers, node, *args)]
    return [_finished(e, parts, f"k{number + i}") for i, (e, parts) in enumerate(made)]


def _finished(e: Apart, parts: Parts | None, name: str) -> tuple[loops.Kernel, tuple]:
    kernel = loops.verify_addresses(e.b.finish(name))
    if parts is None:
        return kernel, tuple(e.arguments)
    emitter = importlib.import_module(e.backend.emitter.removesuffix("target") + "grouped")
    return dataclasses.replace(kernel, layout=emitter.GroupedLayout(parts)), tuple(e.arguments)


def _begun(buffers: Buffers, node: Node) -> Apart:
    return Apart(buffers.place_of, node.type.device)


def _store(e: Apart, node: Node, index: tuple[IntExpr, ...], value: str) -> None:
    place = e.places(node)
    e.b.store(e.buffer(place.storage, place.dtype, True), place.offset + linear(index, place.strides),
              e.b.cast(value, place.dtype))


def _zeros(buffers: Buffers, counts: Node) -> tuple[Apart, None]:
    e = _begun(buffers, counts)
    _store(e, counts, (e.b.axis(counts.type.shape[0]),), e.b.const(0, torch.int32))
    return e, None


def _ranks(buffers: Buffers, index: Node, rows: int, wrap: bool, skipped: int | None, counts: Node,
           ranks: Node) -> tuple[Apart, Parts]:
    e = _begun(buffers, counts)
    x = e.b.axis(index.type.shape[0])
    at = _position(e, index, (x,), None, rows, wrap, 1)
    counted, kept = _added_to(e, counts, at), _kept(e, index, x, skipped)
    _store(e, ranks, (x,), e.b.given(MADE, x, torch.int32))
    return e, Parts("ranks", counted=counted, kept=kept)


def _kept(e: Apart, index: Node, x: IntExpr, skipped: int | None) -> str | None:
    """Whether a name counts; None where all do."""
    if skipped is None:
        return None
    name = e.value(index, (x,))
    return e.compute("ne", name, e.constant(skipped, index.type.dtype), dtype=torch.bool)


def _starts(buffers: Buffers, counts: Node, starts: Node) -> tuple[Apart, Parts]:
    e = _begun(buffers, counts)
    rows = starts.type.shape[0]
    x = e.b.axis(rows)
    count, counted = e.value(counts, (x,)), _added_to(e, counts, rows)
    _store(e, starts, (x,), e.b.given(MADE, x, torch.int32))
    return e, Parts("starts", counted=counted, count=count)


def _added_to(e: Apart, node: Node, index: IntExpr) -> str:
    """The load of what the layout adds to."""
    place = e.places(node)
    e.buffer(place.storage, place.dtype, True)
    return e.b.load(e.buffer(place.storage, place.dtype, False), place.offset + linear((index,), place.strides))


def _order(buffers: Buffers, node: Node, index: Node, ranks: Node, starts: Node, wrap: bool,
           skipped: int | None) -> tuple[Apart, None]:
    e = _begun(buffers, node)
    count = index.type.shape[0]
    x = e.b.axis(count)
    at = _position(e, index, (x,), None, starts.type.shape[0], wrap, 1)
    position = e.compute("add", e.value(starts, (at,)), e.value(ranks, (x,)), dtype=torch.int32)
    place = e.places(node)
    buffer = e.buffer(place.storage, place.dtype, True)
    e.b.update(buffer, place.offset + linear((e.b.clamped(position, count),), place.strides),
               e.b.index(x, torch.int32), "set", _kept(e, index, x, skipped))
    return e, None


def _part_sums(buffers: Buffers, node: Node, values: Node, order: Node, index: Node, starts: Node, counts: Node,
               wrap: bool, width: int) -> tuple[Apart, Parts]:
    e = _begun(buffers, node)
    count = order.type.shape[0]
    y, x, r = e.b.axis(node.type.shape[0]), e.b.axis(width), e.b.axis(count, "r")
    value = _added(e, values, order, x, r, width)
    own = e.b.clamped(e.value(order, (y * PART,)), count)
    row = _position(e, index, (own,), None, starts.type.shape[0], wrap, 1)
    parts = Parts("parts", first=e.value(starts, (row,)), count=e.value(counts, (row,)), value=value)
    _store(e, node, (y, x), e.b.given(MADE, y + x, torch.float32))
    return e, parts


def _row_sums(buffers: Buffers, node: Node, start: Node | None, values: Node, order: Node, starts: Node, counts: Node,
              part: Node, shape: list, dtype: torch.dtype) -> tuple[Apart, Parts]:
    e = _begun(buffers, node)
    number, width = part.type.shape
    y, x, r = e.b.axis(shape[0]), e.b.axis(width), e.b.axis(order.type.shape[0], "r")
    value = _added(e, values, order, x, r, width)
    parts = Parts("rows", first=e.value(starts, (y,)), count=e.value(counts, (y,)), value=value,
                  part=e.value(part, (dims.Min(r, number - 1), x)))
    total = e.b.given(MADE, y + x, torch.float32)
    index = (y, *_unflattened(x, shape[1:]))
    old = e.constant(0.0, torch.float32) if start is None else e.b.cast(e.value(start, index), torch.float32)
    _store(e, node, index, e.compute("add", old, total, dtype=torch.float32))
    return e, parts


def _added(e: Apart, values: Node, order: Node, x: IntExpr, r: IntExpr, width: int) -> str:
    """What a row gets at a position."""
    at = e.b.clamped(e.value(order, (r,)), order.type.shape[0])
    shape, own = values.type.shape, 0
    while dims.product(shape[len(shape) - own:]) != width:
        own += 1
    index = (*_unflattened(at, shape[: len(shape) - own]), *_unflattened(x, shape[len(shape) - own:]))
    return e.b.cast(e.value(values, index), torch.float32)


def _unflattened(i: IntExpr, shape: Any) -> tuple[IntExpr, ...]:
    """The index in dimensions of these sizes of element ``i`` of them."""
    index: list[IntExpr] = []
    for n in reversed(shape[1:]):
        index.insert(0, i % n)
        i = i // n
    return (i, *index) if shape else ()
