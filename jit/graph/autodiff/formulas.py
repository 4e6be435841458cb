"""Gradients of elementwise operations that are no product of the gradient and a slope, or not in that order: near the
ends of floats another order overflows, or makes NaN of zero times infinity. Each is a rule for a composite (see
``composites``); those that ``Builder.with_formula`` made have the operand x behind the value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from jit.graph.autodiff.rules import UNDEFINED, composite_vjp, vjp
from jit.graph.build import vectorized
from jit.graph.pointwise import kinked, unpromoted

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.ir import Node

# For a number as exponent: the prim that makes the power, and which of its operands is the base.
_BASES = {2.0: ("mul", lambda n: n.inputs[0]), 3.0: ("mul", lambda n: n.inputs[1]),
          0.5: ("sqrt", lambda n: n.inputs[0]), -0.5: ("rsqrt", lambda n: n.inputs[0]),
          -1.0: ("reciprocal", lambda n: n.inputs[0]), -2.0: ("reciprocal", lambda n: n.inputs[0].inputs[0])}


@vjp("custom_gradient")
def custom_gradient(b: GradBuilder, n: Node, g: Node):
    """Operands are y, then pairs (x, dy/dx), then maybe an x with an undefined gradient."""

    def share(x: Node, d):
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


@composite_vjp("power")
def power(b: GradBuilder, n: Node, g: Node) -> list[tuple[Node, ...]]:
    """``x ** e`` of a number e: ``g (e x ** (e - 1))``"""
    e = n.attrs["exponent"]
    op, base = _BASES.get(e, ("pow", lambda n: n.inputs[0])) if n.op != "pow" else ("pow", lambda n: n.inputs[0])
    if n.op != op or e == -2.0 and n.inputs[0].op != "mul":
        return NotImplemented
    x = base(n)
    return [(x, b.mul(g, b.mul(b.power(x, e - 1), e)))]


@composite_vjp("power_of_number")
def power_of_number(b: GradBuilder, n: Node, g: Node) -> list:
    """``a ** x`` of a number a: ``g (y log(a))``, the logarithm in double precision"""
    a, x = n.attrs["base"], n.inputs[1]
    if a == 0:
        return [(x, b.mul(g, b.where(b.ge(x, 0.0), 0.0, b.mul(n, -math.inf))))]
    return [(x, b.mul(g, b.mul(n, math.log(a) if a > 0 else math.nan)))]


@composite_vjp("root")
def root(b: GradBuilder, n: Node, g: Node) -> list[tuple[Node, ...]]:
    """The root of a variance: no gradient where it is zero, be ``g`` infinite."""
    y, x = n.inputs[:2]
    return [(x, b.where(b.eq(y, 0.0), 0.0, b.div(g, b.mul(y, 2.0))))]


@composite_vjp("elu")
def elu(b: GradBuilder, n: Node, g: Node) -> list:
    """``scale x`` above zero, ``alpha scale (exp(input_scale x) - 1)`` for others."""
    x, (alpha, scale, input_scale) = n.inputs[1], n.attrs["factors"]
    slope = b.exp(x if input_scale == 1 else b.mul(x, input_scale))
    below = b.mul(b.scaled(b.scaled(g, input_scale), alpha * scale), slope)
    above = b.gt(x, 0.0) if vectorized(x) else b.logical_not(b.le(x, 0.0))
    return [(x, b.where(above, b.scaled(g, scale), below))]


@composite_vjp("softplus")
def softplus(b: GradBuilder, n: Node, g: Node) -> list:
    """``g e / (e + 1)`` for e = exp(beta x), but ``g`` above the threshold"""
    x, (beta, threshold) = n.inputs[1], n.attrs["factors"]
    scaled = x if beta == 1 else b.mul(x, beta)
    e = b.exp(scaled)
    return [(x, b.where(b.gt(scaled, threshold), g, b.div(b.mul(g, e), b.add(e, 1.0))))]


@composite_vjp("hardswish")
def hardswish(b: GradBuilder, n: Node, g: Node) -> list:
    """Zero up to -3, ``g`` from 3 on, and ``g (x / 3 + 0.5)`` between them, and for NaN."""
    x = n.inputs[1]
    return [(x, b.where(b.le(x, -3.0), 0.0, b.where(b.ge(x, 3.0), g, b.mul(g, b.add(b.div(x, 3.0), 0.5)))))]


@composite_vjp("logit")
def logit(b: GradBuilder, n: Node, g: Node) -> list:
    """``g / (x (1 - x))`` within the limits, NaN or zero outside."""
    x, limits = n.inputs[1], n.attrs["limits"]
    low, high, outside = (*limits, 0.0) if limits else (0.0, 1.0, math.nan)
    return [(x, b.where(b.within(x, low, high, not vectorized(x)), b.div(g, b.mul(x, b.sub(b.lift(1.0, x), x))),
                        outside))]


@composite_vjp("sinc")
def sinc(b: GradBuilder, n: Node, g: Node) -> list:
    """``g (a cos(a) - sin(a)) / (pi x x)`` for a = pi x, zero where that square is"""
    x = n.inputs[1]
    angle, square = b.mul(x, math.pi), b.mul(b.mul(x, x), math.pi)
    slope = b.div(b.sub(b.mul(angle, b.cos(angle)), b.sin(angle)), square)
    return [(x, b.where(b.eq(square, 0.0), 0.0, b.mul(g, slope)))]


@composite_vjp("xlogy")
def xlogy(b: GradBuilder, n: Node, g: Node) -> list:
    """``x log(y)``: ``xlogy(g, y)``, zero where both are, and ``g x / y``"""
    _, x, _, y, _ = n.inputs
    product, number = b.where(b.isnan(y), y, b.where(b.eq(g, 0.0), 0.0, b.mul(g, b.log(y)))), n.attrs["number"]
    if number is None:
        gx = b.where(b.logical_and(b.eq(x, 0.0), b.le(unpromoted(y), 0.0)), 0.0, product)
    else:
        gx = product if number > 0 else b.where(b.eq(x, 0.0), 0.0, product)
    return [(x, b.sum_to(gx, x.type.shape)), (y, b.sum_to(b.div(b.mul(g, x), y), y.type.shape))]
