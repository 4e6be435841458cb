"""Less frequent elementwise functions and differences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph import conventions
from jit.graph.build import HALF, is_number
from jit.graph.layout import normalize_dim, preserved_strides
from jit.graph.ops.copies import cat
from jit.graph.registry import op, pointwise

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.ir import Node


@op("diff")
def diff(b: Builder, self: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append=None) -> Node:
    if self.type.rank == 0:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if type(n) is not int or n < 1:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    x = self
    if prepend is not None or append is not None:
        x = cat(b, [p for p in (prepend, self, append) if p is not None], d)
    for _ in range(n):
        size = x.shape[d]
        if type(size) is int and size == 0:
            return b.clone(x)
        upper, lower = b.slice(x, d, 1, size - 1), b.slice(x, d, 0, size - 1)
        x = b.binary("logical_xor" if x.dtype is torch.bool else "sub", upper, lower)
    return x


@pointwise("nan_to_num", like_first=True)
def nan_to_num(b: Builder, self: Node, nan=None, posinf=None, neginf=None) -> Node:
    if not self.dtype.is_floating_point:
        return b.clone(self)
    limits = torch.finfo(self.dtype)
    x = b.where(b.isnan(self), 0.0 if nan is None else float(nan), self)
    x = b.where(b.eq(self, math.inf), limits.max if posinf is None else float(posinf), x)
    y = b.where(b.eq(self, -math.inf), limits.min if neginf is None else float(neginf), x)
    # A factor: NaN times 0 is NaN.
    return b.with_gradient(y, (self, lambda: b.where(b.isfinite(self), b.lift(1.0, self), 0.0)))


@pointwise("xlogy", "special_xlogy", wraps=True)
def xlogy(b: Builder, self: Node, other: Node | float | int) -> Node:
    x, y = b.promote(self, other, to_float=True)
    dtype = x.dtype
    x, y = b.opmath(x), b.opmath(y)
    log = b.opmath(b.cast(b.log(y), dtype))  # eager's kernel rounds the logarithm
    zero = b.eq(x, 0.0)
    result = b.where(b.isnan(y), y, b.where(zero, 0.0, b.mul(x, log)))
    number = other if type(other) in (int, float) else None
    return b.cast(b.with_formula(result, "xlogy", (x, lambda: b.where(zero, 0.0, log)),
                                 (y, lambda: b.div(x, y)), number=number), dtype)


@pointwise("special_xlog1py", wraps=True)
def xlog1py(b: Builder, self: Node, other: Node | float | int) -> Node:
    x, y = b.promote(self, other, to_float=True)
    dtype = x.dtype
    x, y = b.opmath(x), b.opmath(y)
    log = b.opmath(b.cast(b.log1p(y), dtype))  # rounded, as that of xlogy
    zero = b.eq(x, 0.0)
    none = b.logical_and(zero, b.le(y, -1.0))
    result = b.where(b.isnan(y), y, b.where(zero, 0.0, b.mul(x, log)))
    return b.cast(b.with_gradient(result, (x, lambda: b.where(none, 0.0, log)),
                                  (y, lambda: b.div(x, b.add(y, 1.0)))), dtype)


@pointwise("logaddexp")
def logaddexp(b: Builder, self: Node, other: Node) -> Node:
    x, y = b.promote(self, other)
    if not x.dtype.is_floating_point:
        return NotImplemented
    dtype = x.dtype
    x, y = b.opmath(x), b.opmath(y)
    top = b.maximum(x, y)
    # equal infinities would give inf - inf
    same = b.logical_and(b.isinf(x), b.eq(x, y))
    soft = b.add(top, b.log1p(b.exp(b.neg(b.abs(b.sub(x, y))))))
    share = lambda p, q: b.reciprocal(b.add(b.exp(b.sub(q, p)), 1.0))  # noqa: E731
    return b.cast(b.with_gradient(b.where(same, x, soft), (x, lambda: share(x, y)), (y, lambda: share(y, x))), dtype)


@pointwise("isclose")
def isclose(b: Builder, self: Node, other: Node, rtol: float = 1e-05, atol: float = 1e-08,
            equal_nan: bool = False) -> Node:
    if not self.dtype.is_floating_point or self.dtype is not other.dtype:
        return NotImplemented
    close = b.eq(self, other)
    if equal_nan:
        close = b.logical_or(close, b.logical_and(b.isnan(self), b.isnan(other)))
    allowed = b.add(b.mul(b.abs(other), rtol), atol)
    actual = b.abs(b.sub(self, other))
    return b.logical_or(close, b.logical_and(b.isfinite(actual), b.le(actual, allowed)))


@op("outer", "ger")
def outer(b: Builder, self: Node, vec2: Node) -> Node:
    if self.type.rank != 1 or vec2.type.rank != 1:
        raise RuntimeError(f"outer: Expected 1-D argument self, but got {self.type.rank}-D")
    x, y = b.promote(self, vec2)
    return b.mul(b.unsqueeze(x, 1), y)


@pointwise("deg2rad", like_first=True)
def deg2rad(b: Builder, self: Node) -> Node:
    return b.mul(self, math.pi / 180.0) if self.dtype.is_floating_point else NotImplemented


@pointwise("rad2deg", like_first=True)
def rad2deg(b: Builder, self: Node):
    return b.mul(self, 180.0 / math.pi) if self.dtype.is_floating_point else NotImplemented


@pointwise("softshrink")
def softshrink(b: Builder, self: Node, lambd: float = 0.5) -> Node:
    if not is_number(lambd) or not self.dtype.is_floating_point:
        return NotImplemented
    x = b.opmath(self)
    if self.dtype in HALF and (backend(self.device).rounds_limits or conventions.softshrink_rounds_limits()):
        lambd = torch.tensor(lambd, dtype=self.dtype, device="cpu").item()
    small = b.mul(x, 0.0)
    shrunk = b.where(b.gt(x, float(lambd)), b.sub(x, float(lambd)),
                     b.where(b.lt(x, -float(lambd)), b.add(x, float(lambd)), small))
    # Whose limits are rounded on CPUs too.
    return b.cast(b.with_gradient(shrunk, (x, lambda: _shrunk_slope(b, self, float(lambd))), kinked=True), self.dtype)


@pointwise("hardshrink")
def hardshrink(b: Builder, self: Node, lambd: float = 0.5) -> Node:
    if not self.dtype.is_floating_point:
        return NotImplemented
    inside = b.logical_and(b.ge(self, -float(lambd)), b.le(self, float(lambd)))
    return b.with_gradient(b.where(inside, 0.0, self), (self, lambda: _shrunk_slope(b, self, float(lambd))),
                           kinked=True)


def _shrunk_slope(b: Builder, x: Node, lambd: float) -> Node:
    """1 outside of [-lambd, lambd], and for NaN where the device gives it a gradient."""
    return (b.logical_not(b.logical_and(b.ge(x, -lambd), b.le(x, lambd))) if backend(x.device).gives_nan_gradients
            else b.gt(b.abs(x), lambd))


@pointwise("sinc", "special_sinc")
def sinc(b: Builder, self: Node) -> Node:
    (x,) = b.promote(self, to_float=True)
    dtype = x.dtype
    x = b.opmath(x)
    angle = b.mul(x, math.pi)
    zero = b.eq(x, 0.0)

    def slope():
        return b.where(zero, 0.0, b.div(b.sub(b.mul(angle, b.cos(angle)), b.sin(angle)), b.mul(angle, x)))

    return b.cast(b.with_formula(b.where(zero, 1.0, b.div(b.sin(angle), angle)), "sinc", (x, slope)), dtype)


@pointwise("logaddexp2")
def logaddexp2(b: Builder, self: Node, other: Node) -> Node:
    x, y = b.promote(self, other)
    if not x.dtype.is_floating_point:
        return NotImplemented
    dtype = x.dtype
    x, y = b.opmath(x), b.opmath(y)
    same = b.logical_and(b.isinf(x), b.eq(x, y))
    soft = b.add(b.maximum(x, y), b.mul(b.log1p(b.exp2(b.neg(b.abs(b.sub(x, y))))), 1.0 / math.log(2.0)))
    share = lambda p, q: b.reciprocal(b.add(b.exp2(b.sub(q, p)), 1.0))  # noqa: E731
    return b.cast(b.with_gradient(b.where(same, x, soft), (x, lambda: share(x, y)), (y, lambda: share(y, x))), dtype)


@pointwise("heaviside")
def heaviside(b: Builder, self: Node, values):
    if self.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    if b.recording or self.dtype is torch.bool:
        return NotImplemented
    return b.where(b.eq(self, 0), values, b.cast(b.gt(self, 0), self.dtype))


def _is_infinite(name: str, value: float) -> None:
    def expand(b: Builder, self: Node):
        if self.dtype.is_complex:
            return NotImplemented
        return b.eq(self, value) if self.dtype.is_floating_point else b.full(self.shape, False, torch.bool, self.device)

    pointwise(name)(expand)


_is_infinite("isposinf", math.inf)
_is_infinite("isneginf", -math.inf)


@op("isreal")
def isreal(b: Builder, self: Node):
    if self.dtype.is_complex:
        return NotImplemented
    y = b.full(self.shape, True, torch.bool, self.device)
    y.type = y.type.replace(strides=preserved_strides(self.type))
    return y
