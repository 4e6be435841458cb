"""Gradients of reductions, scans and indexing."""

from __future__ import annotations

import math

import torch

from jit.errors import Unsupported
from jit.graph.autodiff.rules import aten_vjp, is_one, vjp
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType, same_ints


def _mean_of(c: Node, dims):
    """``x`` when ``c`` is ``x`` minus its own mean over ``dims``, else None."""
    if c.op != "sub":
        return None
    x, mean = c.inputs
    if mean.op != "div" or mean.inputs[1].op != "scalar" or mean.inputs[0].op != "sum":
        return None
    total, count = mean.inputs[0], mean.inputs[1].attrs["value"]
    if total.inputs[0] is not x or total.attrs["dims"] != dims or not total.attrs["keepdim"]:
        return None
    return x if same_ints((product(x.type.shape[d] for d in dims),), (int(count) if isinstance(count, float) else count,)) else None


def centred_square(n: Node):
    """(x, x - mean) when ``n`` sums the square of a centred ``x``, else None."""
    y = n.inputs[0]
    if n.op != "sum" or y.op != "mul" or y.inputs[0] is not y.inputs[1]:
        return None
    x = _mean_of(y.inputs[0], n.attrs["dims"])
    return None if x is None else (x, y.inputs[0])


@vjp("sum")
def sum_(b, n, g):
    return (b.spread(g, n),)


@vjp("prod")
def prod(b, n, g):
    """The product of the others. Where one element is zero only its own gradient is not, but for what times zero is not zero."""
    x = n.inputs[0]
    dims, dtype = n.attrs["dims"], x.type.dtype
    zero = b.eq(x, 0)
    zeros = b.reduce("sum", b.cast(zero, torch.int64), dims, True)
    others = b.reduce("prod", b.where(zero, 1, x), dims, True)
    g = b.cast(b.restore(g, n), dtype)
    unbounded = b.cast(b.ne(b.mul(x, 0), 0), torch.int64)
    rest = b.where(b.gt(b.sub(b.reduce("sum", unbounded, dims, True), unbounded), 0), b.lift(math.nan, x), 0.0)
    if len(dims) == x.type.rank:  # of all elements, several zeros are looked at first
        rest = b.where(b.gt(zeros, 1), 0.0, rest)
    alone = b.where(b.logical_and(zero, b.eq(zeros, 1)), others, rest)
    return (b.mul(g, b.where(b.eq(zeros, 0), b.div(others, x), alone)),)


@vjp("amax", "amin")
def extremum(b, n, g):
    """Equal extrema share evenly; ``nan_hits``: NaN counts as equal to itself, as for the maximum of all elements."""
    x, dims = n.inputs[0], n.attrs["dims"]
    if not dims:
        return (g,)
    g = b.restore(g, n)
    best = b.restore(n, n)
    hit = b.eq(x, best)
    if n.attrs.get("nan_hits"):
        hit = b.logical_or(hit, b.logical_and(b.isnan(x), b.isnan(best)))
    count = b.reduce("sum", b.cast(hit, torch.int64), dims, True)
    return (b.div(b.where(hit, g, 0), b.cast(count, g.type.dtype)),)


@vjp("cumsum")
def cumsum(b, n, g):
    d, x = n.attrs["dim"], n.inputs[0]
    return (b.cast(b.flip(b.cumsum(b.flip(g, (d,)), d), (d,)), x.type.dtype),)


# indexing


@vjp("gather")
def gather(b, n, g):
    x, index = n.inputs
    d = n.attrs["dim"]
    rest = [k for k in range(x.type.rank) if k != d]
    if x.type.rank and is_one(index.type.shape[d]) and same_ints([x.type.shape[k] for k in rest], [index.type.shape[k] for k in rest]):
        return b.marked(b.where(b.eq(b.positions(x.type.shape, d, x.type.device), index), g, 0), "", one_hot=d), None
    zeros = b.zeros(x.type)
    return b.call("scatter_add", (zeros, d, index, g), zeros.type), None


def embedding_gradient(b, g, at: Node, table: TensorType, padding_idx: int, scale_grad_by_freq: bool) -> Node:
    """The rows of ``g`` added up by the row of the ``table`` that they were read from."""
    made = TensorType.contiguous(table.shape, table.dtype, table.device)
    return b.call("embedding_dense_backward", (g, at, table.shape[0], padding_idx, scale_grad_by_freq), made)


@aten_vjp("embedding")
def embedding(b, out, g, table, at, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if sparse:
        raise Unsupported("the sparse gradient of an embedding", "use sparse=False", kind="gradient")
    return (lambda: embedding_gradient(b, g, at, table.type, padding_idx, scale_grad_by_freq),)


@vjp("index")
def index(b, n, g):
    x, *at = n.inputs
    if n.attrs.get("grad") == "embedding":
        return (lambda: embedding_gradient(b, g, at[0], x.type, -1, False), None)

    def put():
        zeros = b.zeros(x.type)
        places = (None,) * n.attrs["dims"][0] + tuple(at)
        return b.call("index_put", (zeros, places, g, True), zeros.type)

    return (put, *(None for _ in at))
