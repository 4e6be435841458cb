"""The library's matrix products in the form that is cheapest to call.

On CUDA ``linear`` becomes ``mm`` or ``addmm`` on views, which saves the library's own unpacking of it. A product whose
rows would not start at multiples of 16 bytes is split: cuBLAS has no fast kernels for such rows (on an H200 an output
of 2048x50257 in bfloat16 takes 1.7 ms, and one padded to aligned rows 0.23 ms), so the columns up to the last multiple
and the few that are left are two products, joined by a copy that fuses with what reads it. One that sums over such a
number of columns is split likewise, when a kernel makes the matrix that has them, and can align its rows: the product
of the few that are left is added to that of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.ir import Graph, Node, TensorType, filled, same_ints
from jit.graph.passes.rewrite import rebuilt
from jit.graph.prim_info import info
from jit.graph.prims import base_of

if TYPE_CHECKING:
    from jit.graph.build import Builder


def rewrite_contractions(graph: Graph) -> Graph:
    """The graph with its products in the form that is cheapest to call; the same graph when there is none to change."""
    return rebuilt(graph, _interesting, _rewrite, ("aten_call",))


def _interesting(n: Node) -> bool:
    return (n.op == "aten_call" and not n.several and backend(n.type.device).products_flat
            and n.attrs["target"] in ("aten::linear", "aten::mm", "aten::addmm") and n.attrs["overload"] == "")


def _rewrite(b: Builder, n: Node) -> Node | None:
    """The nodes that compute ``n``, or None to leave it as it is."""
    args = list(filled(n.attrs["args"], n.inputs))
    if n.attrs["target"] == "aten::linear":
        x, w, bias = (args + [None])[:3]
        if w.type.rank != 2 or x.type.rank < 2 or (bias is not None and bias.type.rank != 1):
            return None
        rows = dims.product(x.type.shape[:-1])
        flat = x if x.type.rank == 2 else b.try_view(x, (rows, x.type.shape[-1]))
        if flat is None:
            return None
        product = _product(b, bias, flat, b.permute(w, (1, 0)))
        return product if x.type.rank == 2 else b.try_view(product, n.type.shape)
    if n.attrs["target"] == "aten::mm":
        at = _split_sum_at(*args)
        if at is not None:
            (x, w), rest = args, args[0].type.shape[1] - at
            first = b.aten("aten::mm", "", (b.slice(x, 1, 0, at), b.slice(w, 0, 0, at)), n.type)
            return b.aten("aten::addmm", "", (first, b.slice(x, 1, at, rest), b.slice(w, 0, at, rest), 1, 1), n.type)
        return _product(b, None, *args) if _split_at(*(a.type for a in args)) else None
    bias, x, w = args[:3]
    if bias.type.rank != 1 or any(a != 1 for a in args[3:]) or not _split_at(x.type, w.type):
        return None
    return _product(b, bias, x, w)


def _split_at(x: TensorType, w: TensorType) -> None:
    """The column at which to split a product, or None where its rows are aligned or it would not pay."""
    kind, m, n = backend(x.device), x.shape[0], w.shape[1]
    unit = kind.aligned_rows // x.dtype.itemsize
    if type(n) is not int or n % unit == 0 or x.dtype not in (torch.float16, torch.bfloat16):
        return None
    if dims.hint(m) * n < kind.worth_aligning:
        return None
    return n // unit * unit


def _split_sum_at(x: Node, w: Node) -> int | None:
    """The column of ``x`` at which to split a product's sum, or None."""
    kind = backend(x.type.device)
    unit = kind.aligned_rows // x.type.dtype.itemsize
    m, k = x.type.shape
    if (type(k) is not int or k % unit == 0 or x.type.dtype not in (torch.float16, torch.bfloat16)
        or dims.hint(m) * k < kind.worth_aligning):
        return None
    if (info(base_of(x).op).kind in ("input", "call", "part")
        or not same_ints(x.type.strides[1:], (1,)) or not same_ints(w.type.strides[1:], (1,))):
        return None
    return k // unit * unit


def _product(b: Builder, bias, x: Node, w: Node) -> Node:
    """``x @ w + bias`` of rank 2, dense."""
    m, n = x.type.shape[0], w.type.shape[1]

    def dense(width):
        return TensorType.contiguous((m, width), x.type.dtype, x.type.device)

    at = _split_at(x.type, w.type)
    if at is None:
        if bias is None:
            return b.aten("aten::mm", "", (x, w), dense(n))
        return b.aten("aten::addmm", "", (bias, x, w, 1, 1), dense(n))
    parts = [b.aten("aten::mm", "", (x, b.slice(w, 1, start, width)), dense(width))
             for start, width in ((0, at), (at, n - at))]
    joined = b.emit("cat", tuple(parts), {"dim": 1})
    return joined if bias is None else b.add(joined, bias)
