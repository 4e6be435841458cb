"""Attention of a few queries to many keys with a mask, as in decoding with a cache, by the kernel of attention.

The library's fused kernels take no mask together with heads that share their keys, and its composed form writes the
keys once for each head. Here the queries of the heads that share keys are rows of one block, and, where there are few
blocks for the device, the keys are cut into pieces whose results are weighted by their sums of exponentials.
"""

from __future__ import annotations

import math

import torch

from jit.devices import backend
from jit.graph.build import HALF, Builder
from jit.graph.ir import Graph, Node, Output, TensorType, filled
from jit.graph.passes.attention import BLOCK, WIDEST
from jit.graph.passes.rewrite import rebuilt

MOST = 16  # rows of a block, the least side that matrix units take
PIECE = 256  # keys of a piece, or more
FEWEST_PROGRAMS = 64  # below so many the keys are cut


def attend_few_queries(graph: Graph) -> Graph:
    """The graph with such attention as calls of ``jit::attention``."""
    return rebuilt(graph, _is_library_attention, _rewrite, ("aten_call",))


def _is_library_attention(n: Node) -> bool:
    return (n.op == "aten_call" and n.attrs["target"] == "aten::scaled_dot_product_attention" and not n.impure
            and backend(n.device).fuses_few_queries)


def _rewrite(b: Builder, n: Node) -> Node | None:
    q, k, v, mask, dropout, causal, scale, grouped = filled(n.attrs["args"], n.inputs)
    if mask is None or dropout or causal or q.dtype not in HALF or mask.dtype not in (q.dtype, torch.float32):
        return None
    shapes = [t.type.shape for t in (q, k, v, mask)]
    if q.type.rank != 4 or not all(type(s) is int and s > 0 for shape in shapes for s in shape):
        return None
    if not (q.dtype is k.dtype is v.dtype and all(t.device == n.device for t in (q, k, v, mask))):
        return None
    batch, heads, rows, width = q.type.shape
    shared, keys = k.type.shape[1:3]
    group = heads // shared
    if (group * shared != heads or group > 1 and not (grouped and rows == 1) or group * rows > MOST
        or k.type.shape[0] != batch or v.type.shape[:3] != k.type.shape[:3]
        or not all(8 <= w <= WIDEST for w in (width, v.type.shape[-1]))):
        return None
    bias = _bias(b, mask, (batch, heads, rows, keys), group)
    q = b.try_view(q, (batch, shared, group * rows, width))
    if bias is None or q is None:
        return None
    pieces = _pieces(batch * shared, keys)
    made = _attended(b, q, k, v, bias, scale) if pieces == 1 else _in_pieces(b, q, k, v, bias, scale, pieces)
    return None if made is None else _laid_out(b, made, n)


def _bias(b: Builder, mask: Node, shape: tuple[int, ...], group: int) -> Node | None:
    """The mask as (batch, heads that share keys, rows of a group, keys), sizes of one where it is the same."""
    own = (1,) * (4 - mask.type.rank) + mask.type.shape
    if len(own) > 4 or any(m not in (1, s) for m, s in zip(own, shape)) or own[3] != shape[3]:
        return None
    if group > 1 and own[1] != 1:
        own = (own[0], own[1] // group, group, own[3])
    return b.try_view(mask, own)


def _pieces(programs: int, keys: int) -> int:
    """Into how many parts the keys are cut."""
    found = 1
    while programs * found < FEWEST_PROGRAMS and keys % (2 * found) == 0 and keys // (2 * found) >= PIECE:
        found *= 2
    return found


def _attended(b: Builder, q: Node, k: Node, v: Node, bias: Node, scale: float | None,
              sums: bool = False) -> tuple[Node, Node] | Node:
    t = Builder(b.env)
    s = t.node("input", (), {"index": 0}, TensorType.contiguous((*q.shape[:-1], k.shape[-2]), torch.float32, q.device))
    given = t.node("input", (), {"index": 1}, bias.type)
    x = t.add(t.mul(s, 1 / math.sqrt(q.shape[-1]) if scale is None else scale), t.cast(given, torch.float32))
    tree = Graph([s, given], t.nodes, [Output(x)], b.env)
    out = TensorType.contiguous((*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
    row = TensorType.contiguous(q.shape[:-1], torch.float32, q.device)
    made = b.aten("jit::attention", "", (q, k, v, (bias,), None, BLOCK, tree, None, True, True), (out, row, row, row))
    return (made[0], made[1]) if sums else made[0]


def _in_pieces(b: Builder, q: Node, k: Node, v: Node, bias: Node, scale: float | None, pieces: int) -> Node | None:
    """Attention to each piece of the keys, with a dimension for the pieces behind the heads, and the mean of the
    results with the sums of exponentials as weights."""
    batch, shared, rows, width = q.type.shape

    def cut(x: Node, dim: int) -> Node | None:
        shape = x.type.shape
        found = b.try_view(x, (*shape[:dim], pieces, shape[dim] // pieces, *shape[dim + 1 :]))
        return found if found is None or dim == 2 else b.transpose(found, 2, 3)

    parts = [cut(k, 2), cut(v, 2), cut(bias, 3)]
    if any(p is None for p in parts):
        return None
    q = b.expand(b.unsqueeze(q, 2), (batch, shared, pieces, rows, width))
    out, sums = _attended(b, q, *parts, scale, True)
    largest = b.reduce("amax", sums, (2,), True)
    largest = b.where(b.eq(largest, -math.inf), 0.0, largest)
    weights = b.exp(b.sub(sums, largest))
    total = b.reduce("sum", weights, (2,), True)
    weights = b.unsqueeze(b.div(weights, b.where(b.eq(total, 0.0), 1.0, total)), 4)
    return b.cast(b.reduce("sum", b.mul(b.cast(out, torch.float32), weights), (2,)), q.dtype)


def _laid_out(b: Builder, made: Node, n: Node) -> Node | None:
    """A result of (batch, heads that share, rows, width) as ``n`` has it, as a view; None where that needs a copy."""
    found = b.try_view(made, n.type.shape)
    if found is not None and found.type == n.type:
        return found
    batch, heads, rows, width = n.type.shape
    if rows == 1:  # a transposed result, of which no dimension but one of a single element lies elsewhere
        found = b.transpose(b.try_view(made, (batch, 1, heads, width)), 1, 2)
    return found if found is not None and found.type == n.type else None
