"""Scans along rows of which there are too few for the device: in three phases, with pieces of rows for rows.

What each piece comes to is a reduction; what comes before a piece is a scan of these, over the pieces; and with that
combined, the scan of each piece is that of the row. The tensor is read twice, by as many programs as there are pieces,
where one program would go through each row alone. Sums are added in another order, as a parallel scan does in any case.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.ir import Graph, Node
from jit.graph.passes.rewrite import rebuilt
from jit.graph.prim_info import info
from jit.graph.prims import SCANS

if TYPE_CHECKING:
    from jit.graph.build import Builder


def split_long_scans(graph: Graph) -> Graph:
    """The graph with scans along few long rows as scans along more and shorter ones."""
    return rebuilt(graph, _interesting, _rewrite, SCANS)


def _interesting(n: Node) -> bool:
    return info(n.op).combine in _KINDS and backend(n.type.device).splits_scans


def _log_sum(b: Builder, x: Node, d: int) -> Node:
    top = b.reduce("amax", x, (d,), True)
    top = b.where(b.isinf(top), 0.0, top)
    return b.add(b.log(b.reduce("sum", b.exp(b.sub(x, top)), (d,), True)), top)


def _log_add(b: Builder, x: Node, y: Node) -> Node:
    same = b.logical_and(b.isinf(x), b.eq(x, y))
    soft = b.add(b.maximum(x, y), b.log1p(b.exp(b.neg(b.abs(b.sub(x, y))))))
    return b.where(same, x, soft)


def _reduced(op: str) -> Callable:
    return lambda b, x, d: b.reduce(op, x, (d,), True)


# What a scan combines by -> (the same of whole pieces, of two values, what changes nothing).
_KINDS: dict = {}


def _kind(combine: str, whole: Callable, two: Callable | None, neutral: float) -> None:
    _KINDS[combine] = whole, two, neutral


_kind("sum", _reduced("sum"), lambda b, x, y: b.add(x, y), 0)
_kind("prod", _reduced("prod"), lambda b, x, y: b.mul(x, y), 1)
_kind("logaddexp", _log_sum, _log_add, -math.inf)
for _extreme, _worst in (("max", -math.inf), ("min", math.inf)):
    _kind(_extreme, _reduced(f"a{_extreme}"), lambda b, x, y, two=f"{_extreme}imum": b.binary(two, x, y), _worst)
    _kind(f"arg{_extreme}", _reduced(f"a{_extreme}"), None, _worst)


def _least(dtype: torch.dtype, value: float) -> float:
    """A number that changes nothing, as the dtype has it."""
    if dtype.is_floating_point or math.isfinite(value):
        return value
    limits = torch.iinfo(dtype)
    return limits.min if value < 0 else limits.max


def _rewrite(b: Builder, n: Node) -> Node | None:
    """The nodes that compute ``n``, or None to leave it as it is."""
    (x,), d, shape = n.inputs, n.attrs["dim"], n.type.shape
    if not all(type(s) is int for s in shape):
        return None
    piece = backend(n.type.device).scan_pieces(math.prod(shape[:d]), shape[d], math.prod(shape[d + 1 :]))
    if not piece or not x.type.dtype.is_floating_point and n.type.dtype is torch.bool:
        return None
    combine = info(n.op).combine
    positions = combine.startswith("arg")
    whole, two, neutral = _KINDS[combine]
    dtype = x.type.dtype if positions else n.type.dtype
    x = b.opmath(b.cast(x, dtype))
    neutral = _least(x.type.dtype, neutral)
    count = dims.ceil_div(shape[d], piece)
    padded = count * piece - shape[d]
    if padded:
        x = _padded(b, x, d, (0, padded), neutral)
    x = b.reshape(x, (*shape[:d], count, piece, *shape[d + 1 :]))
    totals = whole(b, x, d + 1)
    inside = b.scan(n.op, x, d + 1)
    if positions:
        result = _positions(b, n.op, x, inside, totals, d, piece, neutral)
    else:
        before = _shifted(b, b.scan(n.op, totals, d), d, neutral)
        result = two(b, before, inside)
    result = b.reshape(b.cast(result, n.type.dtype), (*shape[:d], count * piece, *shape[d + 1 :]))
    if padded:
        result = b.clone(b.slice(result, d, 0, shape[d]))
    return result if result.type == n.type else None


def _shifted(b: Builder, x: Node, d: int, first: float) -> Node:
    """What comes before each element along ``d``."""
    count = x.type.shape[d]
    return _padded(b, b.slice(x, d, 0, count - 1), d, (1, 0), first)


def _padded(b: Builder, x: Node, d: int, by: tuple[int, int], value: float) -> Node:
    pads = tuple(by if k == d else (0, 0) for k in range(x.type.rank))
    value = float(value) if x.type.dtype.is_floating_point else int(value)  # any integer, as it is
    return b.emit("constant_pad", (x,), {"pads": pads, "value": value})


def _positions(b: Builder, op: str, x: Node, inside: Node, totals: Node, d: int, piece: int, neutral: float) -> Node:
    """Where the running extreme stands: in the piece if it is as good as what was before, and of NaNs the last."""
    base = op.removesuffix("_at")
    last = b.sub(b.reduce("argmax" if base == "cummax" else "argmin", b.flip(x, (d + 1,)), (d + 1,), True), piece - 1)
    count = x.type.shape[d]
    starts = b.reshape(b.mul(b.iota(count, device=x.type.device), piece),
                       tuple(count if k == d else 1 for k in range(x.type.rank)))
    last = b.add(b.neg(last), starts)
    running = b.gather(last, d, b.scan(op, totals, d))
    before, place = _shifted(b, b.scan(base, totals, d), d, neutral), _shifted(b, running, d, 0)
    value = b.scan(base, x, d + 1)
    better = b.binary("ge" if base == "cummax" else "le", value, before)
    first = b.eq(starts, 0)
    own = b.logical_or(b.logical_or(better, b.isnan(value)) if x.type.dtype.is_floating_point else better, first)
    return b.where(own, b.add(inside, starts), place)
