"""Activation functions. Half types are computed in float32 and rounded once, as eager's kernels do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph.build import vectorized
from jit.graph.ir import contiguous_strides
from jit.graph.pointwise import normal_density
from jit.graph.registry import op, pointwise

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.ir import Node


def _in_float(fn: Callable) -> Callable:
    """The expansion ``fn(b, x, ...)`` on float32 (or wider) with the result cast back."""

    def expand(b: Builder, self: Node, *args: float, **kwargs: str) -> Node:
        if not self.dtype.is_floating_point:
            return NotImplemented
        return b.cast(fn(b, b.opmath(self), *args, **kwargs), self.dtype)

    expand.__name__ = fn.__name__
    return expand


@pointwise("gelu")
@_in_float
def gelu(b: Builder, x: Node, *, approximate: str = "none") -> Node:
    if approximate == "tanh":
        # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        beta = math.sqrt(2.0) * 2.0 / math.sqrt(math.pi) * 0.5
        inner = b.mul(b.add(x, b.mul(b.mul(b.mul(x, x), x), 0.044715)), beta)
        t = b.tanh(inner)

        def slope() -> Node:
            rise = b.mul(b.add(b.mul(b.mul(x, x), 3 * 0.044715), 1.0), beta)
            return b.add(b.mul(b.add(t, 1.0), 0.5), b.mul(b.mul(b.mul(x, 0.5), b.sub(b.lift(1.0, t), b.mul(t, t))),
                                                          rise))

        return b.with_gradient(b.mul(b.mul(x, 0.5), b.add(t, 1.0)), (x, slope))
    if approximate != "none":
        raise RuntimeError("approximate argument must be either none or tanh.")
    # Eager multiplies x / 2 by 1 + erf(x / sqrt(2)).
    below = b.normal_cdf(x)
    return b.with_gradient(b.mul(x, below), (x, lambda: b.add(below, b.mul(x, normal_density(b, x)))))


@pointwise("silu")
@_in_float
def silu(b: Builder, x: Node) -> Node:
    # x / (1 + exp(-x)): the division form stays accurate where the sigmoid is rounded.

    def slope() -> Node:
        s = b.sigmoid(x)
        return b.mul(s, b.add(b.mul(x, b.sub(b.lift(1.0, s), s)), 1.0))

    return b.with_gradient(b.div(x, b.add(b.exp(b.neg(x)), 1.0)), (x, slope))


@pointwise("mish")
@_in_float
def mish(b: Builder, x: Node) -> Node:
    # x tanh(log(1 + e)) with e = exp(x), which is x n / (n + 2) with n = e (e + 2). From 20 on the tangent is 1, and
    # products of e need not be finite.
    high = b.gt(x, 20.0)
    e = b.exp(b.where(high, 0.0, x))
    n = b.mul(e, b.add(e, 2.0))
    t = b.where(high, 1.0, b.div(n, b.add(n, 2.0)))

    def slope():
        # t + x sigmoid(x) (1 - t^2), of which the last two factors are 4 e (1 + e) / (n + 2)^2
        r = b.reciprocal(b.add(n, 2.0))
        return b.add(t, b.mul(x, b.where(high, 0.0, b.mul(b.mul(b.mul(e, 4.0), b.add(e, 1.0)), b.mul(r, r)))))

    return b.with_gradient(b.mul(x, t), (x, slope))


@pointwise("leaky_relu")
@_in_float
def leaky_relu(b: Builder, x: Node, negative_slope: float = 0.01) -> Node:
    positive = b.gt(x, 0.0)
    return b.with_gradient(b.where(positive, x, b.mul(x, negative_slope)),
                           (x, lambda: b.where(positive, b.lift(1.0, x), negative_slope)), kinked=True)


def _elu(b: Builder, x: Node, alpha, scale, input_scale, input_slope=None) -> Node:
    """``input_slope``: the ``input_scale`` of the gradient, where that is another."""
    scaled = b.mul(x, input_scale) if input_scale != 1.0 else x
    negative = b.mul(b.expm1(scaled), alpha * scale)
    below = b.le(x, 0.0) if backend(x.device).elu_bends_above_zero else b.lt(x, 0.0)
    y = b.where(below, negative, b.mul(x, scale) if scale != 1.0 else x)
    partial = (x, lambda: b.where(b.gt(x, 0.0) if vectorized(x) else b.logical_not(b.le(x, 0.0)),
                                  b.lift(scale, x), b.mul(b.exp(scaled), alpha * scale * input_scale)))
    if not all(type(v) in (int, float) for v in (alpha, scale, input_scale)):
        return b.with_gradient(y, partial)
    return b.with_formula(y, "elu", partial, factors=(alpha, scale,
                                                      input_scale if input_slope is None else input_slope))


@pointwise("elu")
@_in_float
def elu(b: Builder, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    return _elu(b, x, alpha, scale, input_scale)


@pointwise("celu")
@_in_float
def celu(b: Builder, x: Node, alpha: float = 1.0) -> Node:
    return _elu(b, x, alpha, 1.0, 1.0 / alpha, 1.0 / torch.tensor(alpha, dtype=torch.float32,
                                                                  device="cpu").item() if type(alpha) is float
                                                                  else None)


@pointwise("selu")
@_in_float
def selu(b: Builder, x: Node) -> Node:
    return _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


@pointwise("softplus")
@_in_float
def softplus(b: Builder, x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    scaled = b.mul(x, beta) if beta != 1 else x
    soft, linear = b.log1p(b.exp(scaled)), b.gt(scaled, float(threshold))
    y = b.where(linear, x, b.div(soft, float(beta)) if beta != 1 else soft)
    partial = (x, lambda: b.where(linear, 1.0, b.sigmoid(scaled)))
    if not all(type(v) in (int, float) for v in (beta, threshold)):
        return b.with_gradient(y, partial)
    return b.with_formula(y, "softplus", partial, factors=(beta, float(threshold)))


def log_sigmoid_of(b: Builder, x: Node) -> Node:
    """``min(x, 0) - log1p(exp(-|x|))``"""
    decay = b.exp(b.neg(b.abs(x)))

    def slope():
        negative, rest = b.lt(x, 0.0), b.div(decay, b.add(decay, 1.0))
        return b.where(negative, b.sub(b.lift(1.0, x), rest), rest)

    return b.with_gradient(b.sub(b.minimum(x, 0.0), b.log1p(decay)), (x, slope))


@op("log_sigmoid")
def log_sigmoid(b: Builder, self: Node) -> Node:
    if not self.dtype.is_floating_point:
        return NotImplemented
    x = b.opmath(self)
    y = b.cast(log_sigmoid_of(b, x), self.dtype)
    if backend(self.device).row_major_results:
        y.type = y.type.replace(strides=contiguous_strides(self.shape))
    return y


@pointwise("relu6", like_first=True)
@_in_float
def relu6(b: Builder, x: Node) -> Node:
    return _hardtanh(b, x, 0.0, 6.0)


def _between(b: Builder, x: Node, low: float, high: float) -> Node:
    """``x`` limited to [low, high], with no gradient at the limits."""
    return b.with_gradient(b.minimum(b.maximum(x, low), high), (x, lambda: b.logical_and(b.gt(x, low), b.lt(x, high))),
                           kinked=True)


def _hardtanh(b: Builder, x: Node, low: float, high: float) -> Node:
    return b.with_gradient(b.minimum(b.maximum(x, low), high),
                           (x, lambda: b.within(x, low, high, nan=backend(x.device).gives_nan_gradients,
                                                strict=True)), kinked=True)


@pointwise("hardtanh", like_first=True)
def hardtanh(b: Builder, self: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    return (b.cast(_hardtanh(b, b.opmath(self), min_val, max_val), self.dtype) if self.dtype.is_floating_point
            else NotImplemented)


@pointwise("hardsigmoid")
@_in_float
def hardsigmoid(b: Builder, x: Node) -> Node:
    return b.mul(_between(b, b.add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)


@pointwise("hardswish")
@_in_float
def hardswish(b: Builder, x: Node) -> Node:
    y = b.mul(b.mul(x, b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0)), 1.0 / 6.0)
    return b.with_formula(y, "hardswish", (x, lambda: b.where(b.le(x, -3.0),
        0.0, b.where(b.ge(x, 3.0), 1.0, b.add(b.mul(x, 1.0 / 3.0), 0.5)))))


@pointwise("logit", "special_logit")
def logit(b: Builder, self: Node, eps: float | None = None):
    if not self.dtype.is_floating_point:
        return NotImplemented
    z = x = b.opmath(self)
    limits = None if eps is None else (eps, 1.0 - eps)
    if limits and backend(self.device).rounds_logit_limits:
        limits = tuple(torch.tensor(v, dtype=self.dtype, device="cpu").item() for v in limits)
    if limits:
        z = b.where(b.lt(x, limits[0]), limits[0], b.where(b.gt(x, limits[1]), limits[1], x))

    def slope():
        low, high, outside = (*limits, 0.0) if limits else (0.0, 1.0, math.nan)
        return b.where(b.within(x, low, high, not vectorized(x)), b.reciprocal(b.mul(x, b.sub(b.lift(1.0, x), x))),
                       outside)

    return b.cast(b.with_formula(b.log(b.div(z, b.sub(b.lift(1.0, z), z))), "logit", (x, slope), limits=limits),
                  self.dtype)


@pointwise("threshold")
def threshold(b: Builder, self: Node, threshold: int, value: int) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("threshold of bool")
    below = b.le(self if backend(self.device).rounds_limits else b.opmath(self), threshold)
    return b.with_gradient(b.where(below, value, self), (self, lambda: b.logical_not(below)), kinked=True)
