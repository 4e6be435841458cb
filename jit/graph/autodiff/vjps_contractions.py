"""Gradients of matrix products. A gradient with respect to a matrix that is stored column by column is made in that
layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from jit.devices import backend
from jit.graph.autodiff.rules import aten_vjp, is_transposed
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType, same_ints

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr


def mm(b: GradBuilder, x: Node, y: Node) -> Node:
    """``x @ y`` of matrices."""
    return b.call("mm", (x, y), TensorType.contiguous((x.type.shape[0], y.type.shape[1]), x.type.dtype, x.type.device))


def bmm(b: GradBuilder, x: Node, y: Node) -> Node:
    return b.call("bmm", (x, y), TensorType.contiguous((*x.type.shape[:2], y.type.shape[2]),
                                                       x.type.dtype, x.type.device))


def mm_like(b: GradBuilder, x: Node, y: Node, like: Node) -> Node:
    """``x @ y``, stored as ``like`` is."""
    return b.t(mm(b, b.t(y), b.t(x))) if is_transposed(like.type) else mm(b, x, y)


@aten_vjp("mm")
def mm_vjp(b: GradBuilder, out: Node, g: Node, x: Node, y: Node) -> tuple[Callable, ...]:
    return lambda: mm_like(b, g, b.t(y), x), lambda: mm_like(b, b.t(x), g, y)


def column_sums(b: GradBuilder, g: Node, shape: tuple[IntExpr, ...]) -> Node:
    """``g`` summed to a bias's shape. On a GPU the kernel that makes ``g`` can do that in the same pass, if the sum is
    over the dimensions that ``g`` has there; a CPU's pass over ``g`` would no longer be one range."""
    while (g.op == "reshape" and len(shape) == 1 and backend(g.type.device).sums_columns_with_producer
           and same_ints(g.inputs[0].type.shape[-1:], shape)):
        g = g.inputs[0]
    return b.sum_to(g, shape)


@aten_vjp("addmm")
def addmm(b: GradBuilder, out: Node, g: Node, c: Node, x: Node, y: Node, beta: float = 1,
          alpha: int = 1) -> tuple[Callable, ...]:
    gx, gy = mm_vjp(b, out, g, x, y)
    return (lambda: column_sums(b, b.scaled(g, beta), c.type.shape), lambda: b.scaled(gx(), alpha),
            lambda: b.scaled(gy(), alpha))


@aten_vjp("bmm")
def bmm_vjp(b: GradBuilder, out: Node, g: Node, x: Node, y: Node) -> tuple[Callable, ...]:
    return lambda: bmm(b, g, b.t(y)), lambda: bmm(b, b.t(x), g)


@aten_vjp("baddbmm")
def baddbmm(b: GradBuilder, out: Node, g: Node, c: Node, x: Node, y: Node, beta: int = 1,
            alpha: int = 1) -> tuple[Callable, ...]:
    gx, gy = bmm_vjp(b, out, g, x, y)
    return (lambda: b.sum_to(b.scaled(g, beta), c.type.shape), lambda: b.scaled(gx(), alpha),
            lambda: b.scaled(gy(), alpha))


@aten_vjp("mv")
def mv(b: GradBuilder, out: Node, g: Node, x: Node, v: Node) -> tuple:
    t = x.type
    back = lambda: b.call("mv", (b.t(x), g), TensorType.contiguous(t.shape[1:], t.dtype, t.device))  # noqa: E731
    return lambda: b.mul(b.unsqueeze(g, 1), v), back


@aten_vjp("dot", "vdot")
def dot(b: GradBuilder, out: Node, g: Node, x: Node, y: Node) -> tuple[Callable, ...]:
    return lambda: b.mul(g, y), lambda: b.mul(g, x)


def rows(b: GradBuilder, x: Node) -> Node:
    """``x`` of shape (..., n) as a matrix of rows."""
    t = x.type
    return x if t.rank == 2 else b.reshape(x, (product(t.shape[:-1]), t.shape[-1]))


@aten_vjp("linear")
def linear(b: GradBuilder, out: Node, g: Node, x: Node, w: Node, bias: Node | None = None) -> tuple[Callable, ...]:
    """``x @ w.T + bias`` for x of shape (..., n), w (m, n) or (n,), which gives a result of shape (...)."""
    if w.type.rank == 1:
        flat, matrix = b.reshape(g, (product(x.type.shape[:-1]), 1)), b.reshape(w, (1, *w.type.shape))
    else:
        flat, matrix = rows(b, g), w

    def bias_gradient() -> Node:
        return column_sums(b, flat, bias.type.shape)

    def weight_gradient() -> Node:
        found = mm_like(b, b.t(flat), rows(b, x), matrix)
        return found if matrix is w else b.reshape(found, w.type.shape)

    return (lambda: b.reshape(mm(b, flat, matrix), x.type.shape), weight_gradient, bias_gradient)
