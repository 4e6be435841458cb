"""Activation functions. Half types are computed in float32 and rounded once, as eager's kernels do."""

from __future__ import annotations

import math

from jit.graph.registry import pointwise


def _in_float(fn):
    """The expansion ``fn(b, x, ...)`` on float32 (or wider) with the result cast back."""

    def expand(b, self, *args, **kwargs):
        if not self.dtype.is_floating_point:
            return NotImplemented
        return b.cast(fn(b, b.opmath(self), *args, **kwargs), self.dtype)

    expand.__name__ = fn.__name__
    return expand


@pointwise("gelu")
@_in_float
def gelu(b, x, *, approximate="none"):
    if approximate == "tanh":
        # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        inner = b.mul(b.add(x, b.mul(b.mul(b.mul(x, x), x), 0.044715)), math.sqrt(2.0) * 2.0 / math.sqrt(math.pi) * 0.5)
        return b.mul(b.mul(x, 0.5), b.add(b.tanh(inner), 1.0))
    if approximate != "none":
        raise RuntimeError("approximate argument must be either none or tanh.")
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, math.sqrt(0.5))), 1.0))


@pointwise("silu")
@_in_float
def silu(b, x):
    # x / (1 + exp(-x)): the division form stays accurate where the sigmoid is rounded.
    return b.div(x, b.add(b.exp(b.neg(x)), 1.0))


@pointwise("mish")
@_in_float
def mish(b, x):
    return b.mul(x, b.tanh(b.log1p(b.exp(x))))


@pointwise("leaky_relu")
@_in_float
def leaky_relu(b, x, negative_slope=0.01):
    return b.where(b.gt(x, 0.0), x, b.mul(x, negative_slope))


def _elu(b, x, alpha, scale, input_scale):
    negative = b.mul(b.expm1(b.mul(x, input_scale) if input_scale != 1.0 else x), alpha * scale)
    return b.where(b.le(x, 0.0), negative, b.mul(x, scale) if scale != 1.0 else x)


@pointwise("elu")
@_in_float
def elu(b, x, alpha=1.0, scale=1.0, input_scale=1.0):
    return _elu(b, x, alpha, scale, input_scale)


@pointwise("celu")
@_in_float
def celu(b, x, alpha=1.0):
    return _elu(b, x, alpha, 1.0, 1.0 / alpha)


@pointwise("selu")
@_in_float
def selu(b, x):
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return b.where(b.le(x, 0.0), b.mul(b.expm1(x), alpha * scale), b.mul(x, scale))


@pointwise("softplus")
@_in_float
def softplus(b, x, beta=1.0, threshold=20.0):
    scaled = b.mul(x, beta) if beta != 1 else x
    soft = b.log1p(b.exp(scaled))
    return b.where(b.gt(scaled, float(threshold)), x, b.div(soft, float(beta)) if beta != 1 else soft)


@pointwise("log_sigmoid")
@_in_float
def log_sigmoid(b, x):
    # min(x, 0) - log1p(exp(-|x|))
    return b.sub(b.minimum(x, 0.0), b.log1p(b.exp(b.neg(b.abs(x)))))


@pointwise("relu6")
@_in_float
def relu6(b, x):
    return b.minimum(b.maximum(x, 0.0), 6.0)


@pointwise("hardtanh")
def hardtanh(b, self, min_val=-1.0, max_val=1.0):
    return b.minimum(b.maximum(self, min_val), max_val) if self.dtype.is_floating_point else NotImplemented


@pointwise("hardsigmoid")
@_in_float
def hardsigmoid(b, x):
    return b.mul(b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0), 1.0 / 6.0)


@pointwise("hardswish")
@_in_float
def hardswish(b, x):
    return b.mul(b.mul(x, b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0)), 1.0 / 6.0)


@pointwise("logit", "special_logit")
@_in_float
def logit(b, x, eps=None):
    if eps is not None:
        x = b.minimum(b.maximum(x, float(eps)), 1.0 - eps)
    return b.log(b.div(x, b.sub(b.lift(1.0, x), x)))


@pointwise("threshold")
def threshold(b, self, threshold, value):
    return b.where(b.le(self, threshold), value, self)
