"""Operations that PyTorch's own kernels do in one or several passes, and that are a few prims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph.build import is_number
from jit.graph.dims import product
from jit.graph.ir import Node, same_ints
from jit.graph.layout import broadcast_shapes, normalize_dim
from jit.graph.ops.arithmetic import mul, pow_
from jit.graph.ops.reductions import vector_norm
from jit.graph.registry import op, pointwise

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import IntExpr

FEW_DIMENSIONS = 16
_EXACT = (torch.float32, torch.float64)  # halves are rounded after each step in eager, and are left to it


def _floats(*tensors: object) -> bool:
    """Whether all are tensors of one type of floats, which rounds no halves in between."""
    return all(isinstance(t, Node) and t.dtype in _EXACT and t.dtype is tensors[0].dtype  # type: ignore[attr-defined]
               for t in tensors)


@op("linalg_cross", "cross")
def cross(b: Builder, self: Node, other: Node, dim: int | None = None, **named: int) -> Node:
    if named or dim is None or not _floats(self, other) or self.type.rank != other.type.rank or not self.type.rank:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    if not same_ints((self.shape[d], other.shape[d]), (3, 3)):
        return NotImplemented
    shape = broadcast_shapes(self.shape, other.shape)
    x, y = ([b.slice(b.expand(v, shape), d, k, 1) for k in range(3)] for v in (self, other))
    parts = [b.sub(b.mul(x[(k + 1) % 3], y[(k + 2) % 3]), b.mul(x[(k + 2) % 3], y[(k + 1) % 3])) for k in range(3)]
    return b.contiguous(b.cat(parts, d))


def _steps(b: Builder, y: Node, x: Node | None, d: int) -> Node | None:
    """The distances of neighbouring points of ``x`` along dimension ``d`` of ``y``."""
    assert x is not None
    if x.type.rank not in (1, y.type.rank):
        return None
    if x.type.rank == 1:
        x = b.reshape(x, tuple(x.shape[0] if k == d else 1 for k in range(y.type.rank)))
    n = x.shape[d]
    return b.sub(b.slice(x, d, 1, n - 1), b.slice(x, d, 0, n - 1))


def _areas(b: Builder, y: Node, x: Node | None, dx: Number, dim: int) -> tuple[Node, int] | None:
    """Twice the areas below the pieces of a line through ``y``, and the dimension along which they lie."""
    if not (_floats(y) if x is None else _floats(y, x)) or not y.type.rank or not is_number(dx):
        return None
    d = normalize_dim(dim, y.type.rank)
    n = y.shape[d]
    if type(n) is not int or n < 2 or x is not None and not x.type.rank:
        return None
    both = b.add(b.slice(y, d, 0, n - 1), b.slice(y, d, 1, n - 1))
    if x is None:
        return b.mul(both, float(dx)), d
    steps = _steps(b, y, x, d)
    return None if steps is None else (b.mul(both, steps), d)


def _trapezoid(*names: str) -> None:
    def expand(b: Builder, y: Node, x: Node | None = None, *, dx: Number = 1, dim: int = -1) -> Node:
        found = _areas(b, y, x, dx, dim)
        if found is None:
            return NotImplemented
        areas, d = found
        return b.mul(b.reduce("sum", areas, (d,)), 0.5)

    op(*names)(expand)


_trapezoid("trapezoid", "trapz")


@op("cumulative_trapezoid")
def cumulative_trapezoid(b: Builder, y: Node, x: Node | None = None, *, dx: Number = 1, dim: int = -1) -> Node:
    found = _areas(b, y, x, dx, dim)
    if found is None:
        return NotImplemented
    areas, d = found
    return b.mul(b.cumsum(areas, d), 0.5)


@op("addr")
def addr(b: Builder, self: Node, vec1: Node, vec2: Node, *, beta: Number = 1, alpha: Number = 1) -> Node:
    if not _floats(self, vec1, vec2) or vec1.type.rank != 1 or vec2.type.rank != 1 or beta == 0:
        return NotImplemented
    shape = (vec1.shape[0], vec2.shape[0])
    line = b.mul(vec1, float(alpha)) if alpha != 1 else vec1
    base = b.expand(self, shape)
    return b.add(b.mul(base, float(beta)) if beta != 1 else base, b.mul(b.unsqueeze(line, 1), vec2))


@pointwise("float_power")
def float_power(b: Builder, self: Node | Number, exponent: Node | Number) -> Node:
    if any(is_number(v) and not isinstance(v, (int, float)) for v in (self, exponent)):
        return NotImplemented
    wide = [b.cast(v, torch.float64) if isinstance(v, Node) else float(v) for v in (self, exponent)]
    return pow_(b, *wide)


@pointwise("ldexp")
def ldexp(b: Builder, self: Node, other: Node) -> Node:
    if not isinstance(self, Node) or not isinstance(other, Node) or other.dtype is torch.bool or b.recording:
        return NotImplemented  # the gradient of whole exponents is that of powers of whole numbers
    return mul(b, self, pow_(b, 2.0, other))


@pointwise("special_entr")
def entr(b: Builder, self: Node) -> Node:
    if not _floats(self):
        return NotImplemented
    log = b.log(self)
    value = b.where(b.gt(self, 0.0), b.mul(b.neg(self), log), b.where(b.eq(self, 0.0), 0.0, b.lift(-math.inf, self)))
    return b.with_gradient(b.where(b.isnan(self), self, value), (self, lambda: b.sub(b.neg(log), 1.0)))


@pointwise("special_ndtr")
def ndtr(b: Builder, self: Node) -> Node:
    if not _floats(self):
        return NotImplemented
    x = b.mul(self, math.sqrt(0.5))
    far = b.mul(b.erfc(b.abs(x)), 0.5)
    value = b.where(b.lt(b.abs(x), 1.0), b.add(b.mul(b.erf(x), 0.5), 0.5),
                    b.where(b.gt(x, 0.0), b.sub(b.lift(1.0, far), far), far))
    density = lambda: b.mul(b.exp(b.mul(b.mul(self, self), -0.5)), 1 / math.sqrt(2 * math.pi))  # noqa: E731
    return b.with_gradient(value, (self, density))


@pointwise("angle", like_first=True)
def angle(b: Builder, self: Node) -> Node:
    if not self.dtype.is_floating_point:
        return NotImplemented
    value = b.where(b.isnan(self), self, b.where(b.lt(self, 0.0), b.lift(math.pi, self), 0.0))
    return b.with_gradient(value, (self, lambda: b.lift(0.0, self)))


@op("dist")
def dist(b: Builder, self: Node, other: Node, p: Number = 2) -> Node:
    if not _floats(self, other) or not is_number(p) or self.type.is_empty or other.type.is_empty:
        return NotImplemented
    difference = b.sub(self, other)
    return vector_norm(b, difference, p, tuple(range(difference.type.rank)), False)


@op("cdist")
def cdist(b: Builder, x1: Node, x2: Node, p: Number = 2, compute_mode: int | None = None) -> Node:
    """Distances between points of a few dimensions, where writing them takes longest; of many dimensions, and on CPUs,
    the library's, which multiplies matrices."""
    width = x1.shape[-1] if x1.type.rank > 1 else None
    if (not backend(x1.device).traps or not _floats(x1, x2) or p not in (1, 2) or compute_mode == 1
        or x1.type.rank != x2.type.rank or type(width) is not int or not 0 < width <= FEW_DIMENSIONS
        or not same_ints(x1.shape[:-2] + x1.shape[-1:], x2.shape[:-2] + x2.shape[-1:]) or x1.type.is_empty
        or x2.type.is_empty):
        return NotImplemented
    rank = x1.type.rank
    return vector_norm(b, b.sub(b.unsqueeze(x1, rank - 1), b.unsqueeze(x2, rank - 2)), p, (rank,), False)


@op("sum_to_size", varargs="size")
def sum_to_size(b: Builder, self: Node, size: Sequence[IntExpr]) -> Node:
    lead = self.type.rank - len(size)
    if not _floats(self) or lead < 0 or same_ints(tuple(size), self.shape):
        return NotImplemented
    dims = [d for d in range(self.type.rank) if d < lead or type(size[d - lead]) is int and size[d - lead] == 1]
    if not all(d in dims or same_ints((self.shape[d],), (size[d - lead],)) for d in range(self.type.rank)):
        return NotImplemented
    return b.reshape(b.reduce("sum", self, dims, True), tuple(size))


@op("kron")
def kron(b: Builder, self: Node, other: Node) -> Node:
    if not _floats(self, other) or self.type.rank != other.type.rank or not self.type.rank:
        return NotImplemented
    x = b.reshape(self, tuple(n for s in self.shape for n in (s, 1)))
    y = b.reshape(other, tuple(n for s in other.shape for n in (1, s)))
    return b.reshape(b.mul(x, y), tuple(product((m, n)) for m, n in zip(self.shape, other.shape)))
