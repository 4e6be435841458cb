"""Gradients of pointwise prims. Where there is no derivative the value is PyTorch's."""

from __future__ import annotations

import math

import torch

from jit.graph import conventions
from jit.graph.autodiff.rules import UNDEFINED, vjp
from jit.graph.ir import Node


@vjp("cast")
def cast(b, n, g):
    return (b.cast(g, n.inputs[0].type.dtype),)


@vjp("custom_gradient")
def custom_gradient(b, n, g):
    """Operands are y, then pairs (x, dy/dx), then maybe an x with an undefined gradient."""

    def share(x, d):
        if d.op == "scalar" and d.attrs["value"] == 0:
            return None
        mask = d.inputs[0] if d.op == "cast" and d.inputs[0].type.dtype is torch.bool else None
        made = b.mul(b.cast(g, d.type.dtype), d) if mask is None else b.where(mask, g, 0)
        if "kinked" in n.attrs:
            made = kinked(b, made, g, d, n.inputs[3] if len(n.inputs) > 3 else x)
        return b.sum_to(made, x.type.shape)

    entries = [None]
    for x, d in zip(n.inputs[1::2], n.inputs[2::2]):
        entries += [lambda x=x, d=d: share(x, d), None]
    return (*entries, UNDEFINED)[: len(n.inputs)]


def kinked(b, y, g, d, x):
    """``y``, which is g d, where d is constant but for steps at some x: its gradient with respect to x is zero, but
    defined, as in eager."""
    return b.emit("custom_gradient", (y, g, b.cast(d, y.type.dtype), x, b.lift(0, x)), {"kinked": True}, y.type.dtype)


@vjp("neg")
def neg(b, n, g):
    return (b.neg(g),)


@vjp("abs")
def absolute(b, n, g):
    return (b.mul(g, b.sign(n.inputs[0])),)


@vjp("sign", "ceil", "floor", "round", "trunc", "floor_div", "trunc_div")
def flat(b, n, g):
    """Zero wherever there is a derivative, and a zero that goes on: what comes before may multiply it by infinity."""
    return tuple(lambda i=i: b.zeros(i.type) for i in n.inputs)


@vjp("sqrt")
def sqrt(b, n, g):
    return (b.div(g, b.mul(n, 2)),)


@vjp("rsqrt")
def rsqrt(b, n, g):
    return (b.mul(b.mul(g, -0.5), b.mul(b.mul(n, n), n)),)


@vjp("reciprocal")
def reciprocal(b, n, g):
    return (b.neg(b.mul(g, b.mul(n, n))),)


@vjp("exp")
def exp(b, n, g):
    return (b.mul(g, n),)


@vjp("exp2")
def exp2(b, n, g):
    return (b.mul(b.mul(g, n), math.log(2)),)


@vjp("expm1")
def expm1(b, n, g):
    return (b.mul(g, b.add(n, 1)),)


@vjp("log")
def log(b, n, g):
    return (b.div(g, n.inputs[0]),)


@vjp("log2")
def log2(b, n, g):
    return (b.div(g, b.mul(n.inputs[0], math.log(2))),)


@vjp("log10")
def log10(b, n, g):
    return (b.div(g, b.mul(n.inputs[0], math.log(10))),)


@vjp("log1p")
def log1p(b, n, g):
    return (b.div(g, b.add(n.inputs[0], 1)),)


@vjp("sin")
def sin(b, n, g):
    return (b.mul(g, b.cos(n.inputs[0])),)


@vjp("cos")
def cos(b, n, g):
    return (b.mul(g, b.neg(b.sin(n.inputs[0]))),)


@vjp("tan")
def tan(b, n, g):
    return (b.mul(g, b.add(b.mul(n, n), 1)),)


def _square(b, x):
    return b.mul(x, x)


@vjp("asin")
def asin(b, n, g):
    return (b.mul(g, b.rsqrt(b.add(b.neg(_square(b, n.inputs[0])), 1))),)


@vjp("acos")
def acos(b, n, g):
    return (b.mul(g, b.neg(b.rsqrt(b.add(b.neg(_square(b, n.inputs[0])), 1)))),)


@vjp("atan")
def atan(b, n, g):
    return (b.div(g, b.add(_square(b, n.inputs[0]), 1)),)


@vjp("sinh")
def sinh(b, n, g):
    return (b.mul(g, b.cosh(n.inputs[0])),)


@vjp("cosh")
def cosh(b, n, g):
    return (b.mul(g, b.sinh(n.inputs[0])),)


@vjp("tanh")
def tanh(b, n, g):
    return (b.mul(g, b.sub(b.lift(1.0, n), _square(b, n))),)


@vjp("asinh")
def asinh(b, n, g):
    return (b.mul(g, b.rsqrt(b.add(_square(b, n.inputs[0]), 1))),)


@vjp("acosh")
def acosh(b, n, g):
    return (b.mul(g, b.rsqrt(b.sub(_square(b, n.inputs[0]), 1))),)


@vjp("atanh")
def atanh(b, n, g):
    return (b.div(g, b.sub(b.lift(1.0, n), _square(b, n.inputs[0]))),)


def _erf_slope(b, x):
    return b.mul(b.exp(b.neg(_square(b, x))), 2 / math.sqrt(math.pi))


@vjp("erf")
def erf(b, n, g):
    return (b.mul(_erf_slope(b, n.inputs[0]), g),)


@vjp("erfc")
def erfc(b, n, g):
    return (b.neg(b.mul(_erf_slope(b, n.inputs[0]), g)),)


@vjp("erfinv")
def erfinv(b, n, g):
    return (b.mul(b.mul(b.exp(_square(b, n)), math.sqrt(math.pi) / 2), g),)


@vjp("lgamma")
def lgamma(b, n, g):
    x = n.inputs[0]
    return (b.mul(g, b.call("digamma", (x,), n.type)),)


@vjp("sigmoid")
def sigmoid(b, n, g):
    return (b.mul(g, b.mul(b.sub(b.lift(1.0, n), n), n)),)


@vjp("relu")
def relu(b, n, g):
    negative = b.le(n, 0)
    return (kinked(b, b.where(negative, 0, g), g, b.logical_not(negative), n.inputs[0]),)


# two operands


@vjp("add")
def add(b, n, g):
    return g, g


@vjp("sub")
def sub(b, n, g):
    return g, lambda: b.neg(g)


@vjp("mul")
def mul(b, n, g):
    x, y = n.inputs
    if x is y:
        product = b.mul(g, x)
        return product, product  # one after the other, as eager adds them to what there is
    return lambda: b.mul(g, y), lambda: b.mul(g, x)


@vjp("fma")
def fma(b, n, g):
    x, y, _ = n.inputs
    return lambda: b.mul(g, y), lambda: b.mul(g, x), g


@vjp("div")
def div(b, n, g):
    x, y = n.inputs
    return lambda: b.div(g, y), lambda: b.mul(b.neg(g), b.div(n, y))


def unpromoted(x: Node) -> Node:
    """A tensor without dimensions as it was before it took the dtype of others: what eager's formulas compute with."""
    while x.op == "cast" and not x.type.rank:
        x = x.inputs[0]
    return x


@vjp("pow")
def power(b, n, g):
    x, e = n.inputs
    value = e.attrs["value"] if e.op == "scalar" else None
    given = unpromoted(e)

    def base():
        if isinstance(value, (int, float)):
            if value == 0:
                return b.zeros(x.type)
            return b.mul(g, b.mul(b.power(x, value - 1), value))
        slope = b.mul(g, b.mul(e, b.pow(x, b.cast(b.sub(given, 1), x.dtype))))
        return b.where(b.eq(given, 0), 0, slope)

    def exponent():
        at_zero = b.logical_and(b.eq(x, 0), b.ge(e, 0))
        return b.mul(g, b.where(at_zero, 0, b.mul(n, b.log(x))))

    return base, exponent


@vjp("maximum", "minimum")
def extremum(b, n, g):
    """Equal operands share evenly; where one is NaN both get all."""
    x, y = n.inputs
    worse = "lt" if n.op in ("maximum", "fmax") else "gt"
    shared = b.where(b.eq(x, y), b.mul(g, 0.5), g)
    return lambda: b.where(b.binary(worse, x, y), 0, shared), lambda: b.where(b.binary(worse, y, x), 0, shared)


@vjp("fmax", "fmin")
def extremum_without_nan(b, n, g):
    if conventions.fmax_passes_to_nan():
        return extremum(b, n, g)
    x, y = n.inputs
    first = b.logical_or(b.binary("ge" if n.op == "fmax" else "le", x, y), b.isnan(y))
    if conventions.fmax_shares():
        tie, half = b.eq(x, y), b.mul(g, 0.5)
        return lambda: b.where(tie, half, b.where(first, g, 0)), lambda: b.where(tie, half, b.where(first, 0, g))
    return lambda: b.where(first, g, 0), lambda: b.where(first, 0, g)


@vjp("fmod")
def fmod(b, n, g):
    x, y = n.inputs
    return g, lambda: b.mul(b.neg(g), b.trunc_div(x, y))


@vjp("remainder")
def remainder(b, n, g):
    x, y = n.inputs
    return g, lambda: b.mul(b.neg(g), b.floor_div(x, y))


@vjp("atan2")
def atan2(b, n, g):
    x, y = n.inputs
    square = b.add(b.cast(_square(b, unpromoted(x)), n.dtype), b.cast(_square(b, unpromoted(y)), n.dtype))
    scale = b.where(b.eq(square, 0), 0, b.reciprocal(square))
    return lambda: b.mul(b.mul(g, y), scale), lambda: b.mul(b.mul(g, b.neg(x)), scale)


@vjp("hypot")
def hypot(b, n, g):
    x, y = n.inputs
    return lambda: b.div(b.mul(g, x), n), lambda: b.div(b.mul(g, y), n)


@vjp("copysign")
def copysign(b, n, g):
    x = n.inputs[0]
    return lambda: b.mul(g, b.where(b.eq(x, 0), 0, b.div(n, x))), None


@vjp("where")
def where(b, n, g):
    condition = n.inputs[0]
    return None, lambda: b.where(condition, g, 0), lambda: b.where(condition, 0, g)
