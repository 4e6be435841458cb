"""Gradients of reductions, scans and indexing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph.autodiff.rules import aten_vjp, is_one, vjp
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.scattering import added, writes

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import Dim


def mean_of(mean: Node, x: Node) -> tuple[Node, Dim | float] | None:
    """(sum of x, count) when ``mean`` is ``sum(x) / count``, be it that x is multiplied by a small number before and
    the quotient by its inverse after, or cast to a wider type; else None."""
    cast, scale = None, 1
    if mean.op == "cast":
        cast, mean = mean.type.dtype, mean.inputs[0]
    elif mean.op == "mul" and mean.inputs[1].op == "scalar":
        scale, mean = mean.inputs[1].attrs["value"], mean.inputs[0]
    if mean.op != "div" or mean.inputs[1].op != "scalar" or mean.inputs[0].op != "sum":
        return None
    total, count = mean.inputs[0], mean.inputs[1].attrs["value"]
    source = total.inputs[0]
    if cast is not None:
        if source.op != "cast" or x.type.dtype is not cast:
            return None
        source = source.inputs[0]
        x = x.inputs[0] if source is not x and x.op == "cast" else x  # of a half type: one cast takes both steps
    elif scale != 1:
        if source.op != "mul" or source.inputs[1].op != "scalar" or source.inputs[1].attrs["value"] * scale != 1:
            return None
        source = source.inputs[0]
    return (total, count) if source is x else None


def _centred(c: Node, dims: tuple[int, ...]) -> Node | None:
    """``x`` when ``c`` is ``x`` minus its own mean over ``dims``, else None."""
    if c.op != "sub":
        return None
    x = c.inputs[0]
    total, count = mean_of(c.inputs[1], x) or (None, None)
    if total is None or total.attrs["dims"] != dims or not total.attrs["keepdim"]:
        return None
    return x if same_ints((product(x.type.shape[d] for d in dims),),
                          (int(count) if isinstance(count, float) else count,)) else None


def centred_square(n: Node) -> tuple[Node, ...] | None:
    """(x, x - mean) when ``n`` sums the square of a centred ``x``, else None."""
    y = n.inputs[0]
    if n.op != "sum" or y.op != "mul" or y.inputs[0] is not y.inputs[1]:
        return None
    x = _centred(y.inputs[0], n.attrs["dims"])
    return None if x is None else (x, y.inputs[0])


@vjp("sum")
def sum_(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    return (b.spread(g, n),)


@vjp("prod")
def prod(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    """``g (y / x)`` where no element of the whole tensor is zero, else the product of the others, as eager has it: the
    two differ at infinities. ``whole``: of a product without dimensions, whose gradient is zero where several elements
    are."""
    x, dims, whole = n.inputs[0], n.attrs["dims"], n.attrs.get("whole")
    if not x.type.rank:
        return (g,)
    g, y, zero = b.restore(g, n), b.restore(n, n), b.eq(x, 0)
    others = b.mul(g, _product_of_others(b, x, dims))
    if whole:
        zeros = b.reduce("sum", b.cast(zero, torch.int64), None)
        return (b.where(b.eq(zeros, 0), b.mul(g, b.div(y, x)), b.where(b.eq(zeros, 1), others, 0.0)),)
    return (b.where(b.reduce("any", zero, None), others, b.mul(g, b.div(y, x))),)


def _product_of_others(b: GradBuilder, x: Node, dims: tuple[int, ...]) -> Node:
    """For each element the product of those before it along ``dims`` and of those behind it, of which each may leave
    the range of floats."""
    flat = b.reshape(x, (x.type.numel,)) if len(dims) > 1 else x
    d = 0 if len(dims) > 1 else dims[0]
    shape = flat.type.shape
    if type(shape[d]) is int and shape[d] <= 1 or flat.type.is_empty:
        return b.full(x.type.shape, 1, x.dtype, x.device)
    ones = b.full(tuple(1 if k == d else s for k, s in enumerate(shape)), 1, x.dtype, x.device)

    def before(v: Node) -> Node:
        line = b.cat([ones, b.slice(v, d, 0, shape[d] - 1)], d)
        return b.call("cumprod", (line, d, None), TensorType.contiguous(shape, x.dtype, x.device))

    return b.reshape(b.mul(before(flat), b.flip(before(b.flip(flat, (d,))), (d,))), x.type.shape)


@vjp("amax", "amin")
def extremum(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    """Equal extrema share evenly; ``nan_hits``: NaN counts as equal to itself, as for the maximum of all elements."""
    x, dims = n.inputs[0], n.attrs["dims"]
    g = b.restore(g, n)
    best = b.restore(n, n)
    hit = b.eq(x, best)
    whole = n.attrs.get("nan_hits")
    if whole:
        hit = b.logical_or(hit, b.logical_and(b.isnan(x), b.isnan(best)))
    count = b.cast(b.reduce("sum", b.cast(hit, torch.int64), dims, True), g.type.dtype)
    if whole:
        share = b.div(g, count)
        chosen = backend(g.device).shares_extrema_by_choice
        return (b.where(hit, share, 0) if chosen else b.mul(b.cast(hit, g.type.dtype), share),)
    return (b.div(b.mul(g, b.cast(hit, g.type.dtype)), count),)


@vjp("cumsum")
def cumsum(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    d, x = n.attrs["dim"], n.inputs[0]
    return (b.cast(b.flip(b.cumsum(b.flip(g, (d,)), d), (d,)), x.type.dtype),)


@vjp("cumprod")
def cumprod(b: GradBuilder, n: Node, g: Node) -> tuple[Callable]:
    (x,), made = n.inputs, TensorType.contiguous(n.type.shape, n.type.dtype, n.type.device)
    return (lambda: b.call("cumprod_backward", (g, x, n.attrs["dim"], n), made),)


@vjp("cummax", "cummin")
def running_extremum(b: GradBuilder, n: Node, g: Node) -> tuple[Callable]:
    """Each value's gradient goes to the position that it was taken from."""
    (x,), d = n.inputs, n.attrs["dim"]

    def placed() -> Node:
        return scattered(b, x.type, d, b.scan(f"{n.op}_at", x, d), g)

    return (placed,)


# indexing


@vjp("gather")
def gather(b: GradBuilder, n: Node, g: Node) -> tuple[Node, None]:
    x, index = n.inputs
    d = n.attrs["dim"]
    rest = [k for k in range(x.type.rank) if k != d]
    if x.type.rank and is_one(index.type.shape[d]) and same_ints([x.type.shape[k] for k in rest],
                                                                 [index.type.shape[k] for k in rest]):
        return b.marked(b.where(b.eq(b.positions(x.type.shape, d, x.type.device), index), g, 0), "", one_hot=d), None
    return scattered(b, x.type, d, index, g), None


def scattered(b: GradBuilder, t: TensorType, dim: int, index: Node, g: Node) -> Node:
    """Zeros like ``t`` with ``g`` added where ``gather`` reads."""
    zeros = b.zeros(t)  # the library's sums along a dimension are as fast as kernels of ours, or faster
    return b.call("scatter_add", (zeros, dim, index, g), zeros.type)


@vjp("scatter")
def scatter(b: GradBuilder, n: Node, g: Node) -> tuple[Node | Callable, Callable, None]:
    x, values, index = n.inputs
    d = n.attrs["dim"]

    def rest() -> Node:
        zero = b.expand(b.full((1,) * x.type.rank, 0, g.type.dtype, g.type.device), index.type.shape)
        return b.scatter(g, d, index, zero, "set")

    return g if n.attrs["combine"] == "sum" else rest, lambda: b.gather(g, d, index), None


@vjp("put")
def put(b: GradBuilder, n: Node, g: Node) -> tuple:
    x, values, *at = n.inputs
    where, wrap = n.attrs["dims"], n.attrs["wrap"]

    def rest() -> Node:
        zero = b.expand(b.full((1,) * values.type.rank, 0, g.type.dtype, g.type.device), values.type.shape)
        return b.put(g, where, at, zero, "set", wrap)

    return (g if n.attrs["combine"] == "sum" else rest, lambda: b.index(g, where, at, wrap), *(None for _ in at))


def embedding_gradient(b: GradBuilder, g: Node, at: Node, table: TensorType, padding_idx: int,
                       scale_grad_by_freq: bool) -> Node:
    """The rows of ``g`` added up by the row of the ``table`` that they were read from."""
    made = TensorType.contiguous(table.shape, table.dtype, table.device)
    if writes(made) and not scale_grad_by_freq and not at.type.is_empty:
        if padding_idx >= 0:
            g = b.where(b.unsqueeze(b.eq(at, padding_idx), at.type.rank), 0, g)
        at = b.cast(at, torch.int64)
        return added(b, b.zeros(made), g, lambda x, v: b.put(x, (0,), [at], v, "sum", wrap=False))
    return b.call("embedding_dense_backward", (g, at, table.shape[0], padding_idx, scale_grad_by_freq), made)


@aten_vjp("embedding")
def embedding(b: GradBuilder, out: Node, g: Node, table, at, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> tuple[Callable, ...]:
    return (lambda: embedding_gradient(b, g, at, table.type, padding_idx, scale_grad_by_freq),)


@vjp("index")
def index(b: GradBuilder, n: Node, g: Node) -> tuple[Callable | None, ...]:
    x, *at = n.inputs
    if n.attrs.get("grad") == "embedding":
        return (lambda: embedding_gradient(b, g, at[0], x.type, -1, False), None)

    def put() -> Node:
        zeros = b.zeros(x.type)
        if writes(zeros.type) and not at[0].type.is_empty:
            return added(b, zeros, g, lambda y, v: b.put(y, n.attrs["dims"], at, v, "sum", n.attrs.get("wrap", True)))
        if len(at) == at[0].type.rank == 1 and not n.attrs.get("wrap", True) and not at[0].type.is_empty:  # by rows
            return b.call("index_select_backward", (g, x.type.shape, n.attrs["dims"][0], at[0]),
                          TensorType.contiguous(x.type.shape, x.type.dtype, x.type.device))
        places = (None,) * n.attrs["dims"][0] + tuple(at)
        # unsafe: with nothing to read, the forward takes any index.
        return b.call("_index_put_impl", (zeros, places, g, True, True), zeros.type)

    return (put, *(None for _ in at))
