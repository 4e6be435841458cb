"""Gradients of sampling, windows, pairwise distances and cumulative products by the library's own backward operators,
which need no second forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from jit.graph.autodiff.rules import aten_vjp
from jit.graph.autodiff.vjps_library import like
from jit.graph.ir import TensorType, same_ints

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr
    from jit.graph.ir import Node


@aten_vjp("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(b: GradBuilder, out: Node, g: Node, x: Node, grid: Node, interpolation: int, padding: int,
                 align_corners: bool) -> tuple[Node, ...]:
    if x.type.dtype is not grid.type.dtype:
        return NotImplemented
    wanted = tuple(v in b.carries for v in (x, grid))
    # The backward writes row-major gradients, whatever the strides of its arguments.
    types = tuple(TensorType.contiguous(v.type.shape, v.type.dtype, v.type.device) for v in (x, grid))
    name = f"grid_sampler_{x.type.rank - 2}d_backward"
    gx, gg = b.call(name, (g, x, grid, interpolation, padding, align_corners, wanted),
                    tuple(t if k or n else None for n, (t, k) in enumerate(zip(types, wanted))))
    return gx, gg if wanted[1] else None


@aten_vjp("im2col")
def im2col(b: GradBuilder, out: Node, g: Node, x: Node, *window: object) -> tuple[Callable, ...]:
    return (lambda: b.call("col2im", (g, x.type.shape[-2:], *window), like(x)),)


@aten_vjp("col2im")
def col2im(b: GradBuilder, out: Node, g: Node, x: Node, size: tuple[IntExpr, ...],
           *window: tuple[int, ...]) -> tuple[Callable, ...]:
    return (lambda: b.call("im2col", (g, *window), like(x)),)


@aten_vjp("cumprod")
def cumprod(b: GradBuilder, out: Node, g: Node, x: Node, dim: int, dtype=None) -> tuple[Callable, ...]:
    if x.type.dtype is not out.type.dtype or not x.type.rank:
        return NotImplemented
    return (lambda: b.call("cumprod_backward", (g, x, dim, out), like(x)),)


@aten_vjp("cdist")
def cdist(b: GradBuilder, out: Node, g: Node, x1: Node, x2: Node, p: float = 2.0,
          compute_mode=None) -> tuple[Callable, ...]:
    if x1.type.rank != x2.type.rank or not same_ints(x1.type.shape[:-2], x2.type.shape[:-2]) or out.type.is_empty:
        return NotImplemented

    def side(first: Node, second: Node, turned: bool) -> Node:
        grad, distances = (b.contiguous(b.t(v)) if turned else b.contiguous(v) for v in (g, out))
        return b.call("_cdist_backward", (grad, b.contiguous(first), b.contiguous(second), p, distances),
                      TensorType.contiguous(first.type.shape, first.type.dtype, first.type.device))

    return lambda: side(x1, x2, False), lambda: side(x2, x1, True)


@aten_vjp("pdist")
def pdist(b: GradBuilder, out: Node, g: Node, x: Node, p: float = 2.0) -> tuple[Callable, ...]:
    return (lambda: b.call("_pdist_backward", (b.contiguous(g), b.contiguous(x), p, out),
                           TensorType.contiguous(x.type.shape, x.type.dtype, x.type.device)),)


@aten_vjp("binary_cross_entropy")
def binary_cross_entropy(b: GradBuilder, out: Node, g: Node, x: Node, target, weight: Node | None = None,
                         reduction: int = 1):
    if target in b.carries or weight is not None and weight in b.carries:
        return NotImplemented
    return (lambda: b.call("binary_cross_entropy_backward", (g, x, target, weight, reduction), like(x)),)
