"""Gradients of whole composites, where those of their prims would be undefined, or take more passes over the data.

A composite marks the node that is its result with ``Builder.marked(node, name)``. The rule ``fn(b, node, g)`` gives
pairs (node, gradient) for the values that the composite was computed from, or NotImplemented when the nodes behind
``node`` are not those that it knows (a pass may have changed them); the prims' own rules hold then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph.autodiff.replay import replay_call
from jit.graph.autodiff.rules import composite_vjp, is_one
from jit.graph.autodiff.vjps_reductions import mean_of
from jit.graph.dims import product
from jit.graph.ir import Node, Ref, same_ints

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr


def _shifted(e: Node) -> Node | None:
    """``x`` when ``e`` is ``x`` minus its maximum, else None."""
    if e.op != "sub" or e.inputs[1].op != "amax" or e.inputs[1].inputs[0] is not e.inputs[0]:
        return None
    return e.inputs[0]


@composite_vjp("softmax")
def softmax(b: GradBuilder, n: Node, g: Node) -> object:
    """y (g - sum(g y))"""
    if n.op != "div" or n.inputs[0].op != "exp" or n.inputs[1].op != "sum":
        return NotImplemented
    x = _shifted(n.inputs[0].inputs[0])
    if x is None:
        return NotImplemented
    total = b.reduce("sum", b.mul(g, n), n.inputs[1].attrs["dims"], True)
    return [(x, b.mul(n, b.sub(g, total)))]


@composite_vjp("log_softmax")
def log_softmax(b: GradBuilder, n: Node, g: Node) -> list[tuple[Node, ...]]:
    """g - exp(y) sum(g)"""
    if n.op != "sub" or n.inputs[1].op != "log" or n.inputs[1].inputs[0].op != "sum":
        return NotImplemented
    x = _shifted(n.inputs[0])
    if x is None:
        return NotImplemented
    return [(x, b.sub(g, b.mul(b.exp(n), _total(b, g, n.inputs[1].inputs[0].attrs["dims"]))))]


def _total(b: GradBuilder, g: Node, dims: tuple[int, ...]) -> Node:
    """``g`` summed over ``dims``, which are kept. A gather's gradient has one value in each row, as under a negative
    log likelihood."""
    row = g.inputs[0] if g.op == "cast" else g
    if row.op == "where" and dims == (row.attrs.get("one_hot"),) and row.inputs[1].type.rank == g.type.rank:
        return b.cast(row.inputs[1], g.type.dtype)
    return b.reduce("sum", g, dims, True)


@composite_vjp("logsumexp")
def logsumexp(b: GradBuilder, n: Node, g: Node):
    """g exp(x - y)"""
    total = n.inputs[0].inputs[0] if n.op == "add" and n.inputs[0].op == "log" else n
    if total.op != "sum" or total.inputs[0].op != "exp" or total.inputs[0].inputs[0].op != "sub":
        return NotImplemented
    x = total.inputs[0].inputs[0].inputs[0]
    y = b.restore(n, total)
    return [(x, b.mul(b.restore(g, total), b.exp(b.sub(x, y))))]


def _uncast(x: Node) -> Node:
    return x.inputs[0] if x.op == "cast" else x


@composite_vjp("standardized")
def standardized(b: GradBuilder, n: Node, g: Node) -> list[tuple[Node, ...]]:
    """``y = (x - mean(x)) / std(x)``: ``(g - mean(g) - y mean(g y)) / std(x)``.

    A factor of ``g`` that is the same all along the reduced dimensions, as batch norm's weight is, is taken out of the
    sums, which then are those that the gradients of weight and bias need as well.
    """
    centred, scale = n.inputs
    rstd = scale.inputs[0] if scale.op == "custom_gradient" else scale  # with zeros for parameters
    rstd = _uncast(rstd)
    if n.op != "mul" or rstd.op != "rsqrt" or rstd.inputs[0].op != "add" or centred.op != "sub":
        return NotImplemented
    (x, mean), var = centred.inputs, rstd.inputs[0].inputs[0]
    total, _ = mean_of(mean, x) or (None, None)
    if total is None or var.op != "div" or var.inputs[0].op != "sum" or var.inputs[0].attrs != total.attrs:
        return NotImplemented
    square = var.inputs[0].inputs[0]
    if square.op != "mul" or square.inputs[0] is not square.inputs[1] or _uncast(square.inputs[0]) is not centred:
        return NotImplemented
    reduced = total.attrs["dims"]
    dims = [d for d in reduced if not is_one(x.type.shape[d])]
    count = product(x.type.shape[d] for d in dims)
    if g.op == "mul":
        for wide, factor in (g.inputs, g.inputs[::-1]):
            lead = x.type.rank - factor.type.rank
            if same_ints(wide.type.shape, x.type.shape) and all(d < lead or is_one(factor.type.shape[d - lead])
                                                                for d in dims):
                g, scale = wide, b.mul(scale, factor)
                break
    if not dims:  # zero, but for what is infinite or NaN
        return [(x, b.mul(scale, b.sub(g, g)))]
    if x.dtype is torch.float64 and backend(x.device).ordered_norms:
        return [(x, _standardized_in_eagers_order(b, n, g, scale, rstd, dims, count))]
    precise = square.dtype is not x.type.dtype
    mean_g = b.div(b.total(g, dims, precise), count)
    mean_gy = b.div(b.total(b.mul(g, n), dims, precise), count)
    return [(x, b.mul(scale, b.sub(b.sub(g, mean_g), b.mul(n, mean_gy))))]


def _standardized_in_eagers_order(b: GradBuilder, n: Node, g: Node, scale: Node, rstd: Node, dims: list[int],
                                  count: IntExpr) -> Node:
    """The same gradient for float64, in the order of PyTorch's CPU kernels: no wider type can show what is right where
    a product of the largest floats overflows."""
    centred = n.inputs[0]
    x, mean = centred.inputs
    total = b.total(g, dims)
    if n.attrs["by_row"]:
        slope = b.sub(b.mul(total, mean), b.total(b.mul(g, x), dims))
        slope = b.div(b.mul(b.mul(b.mul(slope, rstd), rstd), scale), count)
        return b.sub(b.add(b.mul(scale, g), b.mul(slope, centred)), b.div(b.mul(total, scale), count))
    slope = b.div(b.mul(b.mul(b.total(b.mul(g, centred), dims), rstd), rstd), count)
    return b.mul(b.sub(b.sub(g, b.div(total, count)), b.mul(centred, slope)), scale)


@composite_vjp("variance")
def variance(b: GradBuilder, n: Node, g: Node) -> list[tuple[Node, ...]]:
    """``2 g (x - mean(x)) / divisor``, for the form of ``ops.reductions`` that takes one pass."""
    if n.op != "div" or n.inputs[0].op != "sub" or n.inputs[0].inputs[0].op != "sum":
        return NotImplemented
    squares = n.inputs[0].inputs[0]
    shifted = squares.inputs[0].inputs[0]
    if squares.inputs[0].op != "mul" or shifted.op != "sub":
        return NotImplemented
    x, dims = shifted.inputs[0], squares.attrs["dims"]
    mean = b.div(b.reduce("sum", x, dims, True), product(x.type.shape[d] for d in dims))
    return [(x, b.mul(b.sub(x, mean), b.div(b.mul(g, 2.0), n.inputs[1])))]


@composite_vjp("floor_divide")
def floor_divide(b: GradBuilder, n: Node, g: Node) -> list:
    """There is none: PyTorch's own is asked for it, and raises when the backward comes there."""
    return [pair for x in n.inputs for pair in _asked(b, x, "aten::floor_divide", "Scalar", (Ref(0), 1))]


@composite_vjp("remainder_of_number")
def remainder_of_number(b: GradBuilder, n: Node, g: Node) -> list:
    """There is none for ``number % x``, as for ``floor_divide``."""
    return _asked(b, n.inputs[1], "aten::remainder", "Scalar_Tensor", (1, Ref(0)))


def _asked(b: GradBuilder, x: Node, name, overload: str, args: tuple[object, ...]) -> list:
    """PyTorch's own gradient for x of a call that is made when the backward comes there."""
    return replay_call(b, name, overload, args, (x,), b.zeros(x.type), b.carries) if x in b.carries else []
