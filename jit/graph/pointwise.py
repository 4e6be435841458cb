"""The pointwise prims: the record of each, beside its gradient.

A new one is a record here, and its text in ``codegen/cpp/ops.py`` and ``codegen/triton/ops.py``; nothing else needs an
edit. Where there is no derivative the gradient is PyTorch's. Records without a rule below have no gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from jit.graph import conventions
from jit.graph.prim_info import (
    EXPONENTIAL, FUNCTION, IN_ALL, IN_EACH, IN_FIRST, NOTHING, OTHERS, QUOTIENT, RARE, Cost, pointwise,
)

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.ir import Node

pointwise("logical_not", result=torch.bool, truth=True)
pointwise("bitwise_not", bools=("logical_not",))
pointwise("isnan", result=torch.bool, integers=False)
pointwise("isinf", result=torch.bool, integers=False)
pointwise("isfinite", result=torch.bool, integers=True)
pointwise("signbit", result=torch.bool, bools=torch.uint8)
pointwise("eq", 2, result=torch.bool, takes_number=True, commutative=True, bools=("logical_xor", "logical_not"))
pointwise("ne", 2, result=torch.bool, takes_number=True, commutative=True, bools=("logical_xor",))
pointwise("lt", 2, result=torch.bool, takes_number=True, bools=torch.uint8)
pointwise("le", 2, result=torch.bool, takes_number=True, bools=torch.uint8)
pointwise("gt", 2, result=torch.bool, takes_number=True, bools=torch.uint8)
pointwise("ge", 2, result=torch.bool, takes_number=True, bools=torch.uint8)
pointwise("logical_and", 2, result=torch.bool, commutative=True, truth=True)
pointwise("logical_or", 2, result=torch.bool, commutative=True, truth=True)
pointwise("logical_xor", 2, result=torch.bool, commutative=True, truth=True)
pointwise("bitwise_and", 2, takes_number=True, commutative=True, bools=("logical_and",))
pointwise("bitwise_or", 2, takes_number=True, commutative=True, bools=("logical_or",))
pointwise("bitwise_xor", 2, takes_number=True, commutative=True, bools=("logical_xor",))
pointwise("shl", 2,
          text=lambda n, a: f"torch.bitwise_left_shift({a[0]}, {a[1]})",
          library=lambda n, a: ("aten::bitwise_left_shift", "Tensor", a), takes_number=True)
pointwise("shr", 2,
          text=lambda n, a: f"torch.bitwise_right_shift({a[0]}, {a[1]})",
          library=lambda n, a: ("aten::bitwise_right_shift", "Tensor", a), takes_number=True)
pointwise("random_bits", 2,
          text=lambda n, a: f"_random_bits({', '.join(a)}, {n.dtype})", of_words=True, cost=Cost(16, 30, 16))
# Floats as integers in the order in which they sort (-0 is 0, NaN is the largest), and back.
pointwise("order_key", result=torch.int32, of_words=True, cost=Cost(4, 6, 6),
          text=lambda n, a: f"(lambda k: torch.where({a[0]}.isnan(), 0x7fffffff, k ^ (k >> 31 & 0x7fffffff)))"
                            f"(({a[0]}.float() + 0.0).view(torch.int32))")
pointwise("from_order_key", result=torch.float32, of_words=True, rounds=False, cost=Cost(4, 6, 4),
          text=lambda n, a: f"(lambda k: (k ^ (k >> 31 & 0x7fffffff)).view(torch.float32))({a[0]}.to(torch.int32))")


def kinked(b: Builder, y: Node, g, d, x: Node) -> Node:
    """``y``, which is g d, where d is constant but for steps at some x: its gradient with respect to x is zero, but
    defined, as in eager."""
    return b.emit("custom_gradient", (y, g, b.cast(d, y.type.dtype), x, b.lift(0, x)), {"kinked": True}, y.type.dtype)


@pointwise("cast", label="",
           text=lambda n, a: f"{a[0]}.to({n.dtype})",
           library=lambda n, a: ("aten::_to_copy", "", (a[0], n.type.dtype)), rounds=False, saves=NOTHING,
           linear=IN_FIRST)
def cast(b: Builder, n: Node, g) -> tuple:
    return (b.cast(g, n.inputs[0].type.dtype),)


@pointwise("neg", smooth=True, saves=NOTHING, linear=IN_FIRST, complex_gradient=True)
def neg(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.neg(g),)


@pointwise("abs", smooth=True, bools=())
def absolute(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.sign(n.inputs[0])),)


@pointwise("sign", bools=(), saves=NOTHING, flat=True)
@pointwise("ceil", bools=(), integers=(), saves=NOTHING, flat=True)
@pointwise("floor", bools=(), integers=(), saves=NOTHING, flat=True)
@pointwise("round", bools=(), integers=(), saves=NOTHING, flat=True)
@pointwise("trunc", bools=(), integers=(), saves=NOTHING, flat=True)
@pointwise("floor_div", 2,
           text=lambda n, a: f"torch.floor_divide({a[0]}, {a[1]})" if "grad" in n.attrs
           else f"torch.div({a[0]}, {a[1]}, rounding_mode='floor')",
           library=lambda n, a: ("aten::div", "Tensor_mode", (*a, "floor")), exact_numbers=True, takes_number=True,
           cost=Cost(3, 30, 16), flat=True)
@pointwise("trunc_div", 2,
           text=lambda n, a: f"torch.div({a[0]}, {a[1]}, rounding_mode='trunc')",
           library=lambda n, a: ("aten::div", "Tensor_mode", (*a, "trunc")), exact_numbers=True, takes_number=True,
           cost=Cost(3, 4), flat=True)
def flat(b: Builder, n: Node, g) -> tuple:
    """Zero wherever there is a derivative, and a zero that goes on: what comes before may multiply it by infinity."""
    return tuple(lambda i=i: b.zeros(i.type) for i in n.inputs)


@pointwise("sqrt", operators=("sqrt",), smooth=True, cost=QUOTIENT)
def sqrt(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.mul(n, 2)),)


@pointwise("rsqrt", operators=("rsqrt",), smooth=True, cost=Cost(3, 5, 4))
def rsqrt(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(b.mul(g, -0.5), b.mul(b.mul(n, n), n)),)


@pointwise("reciprocal", label="rcp", operators=("reciprocal",), smooth=True, cost=QUOTIENT)
def reciprocal(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.neg(b.mul(g, b.mul(n, n))),)


@pointwise("exp", operators=("exp",), smooth=True, cost=EXPONENTIAL)
def exp(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, n),)


@pointwise("exp2", operators=("exp2", "special_exp2"), smooth=True, cost=EXPONENTIAL)
def exp2(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(b.mul(g, n), math.log(2)),)


@pointwise("expm1", operators=("expm1", "special_expm1"), smooth=True, cost=FUNCTION)
def expm1(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.add(n, 1)),)


@pointwise("log", operators=("log",), smooth=True, cost=EXPONENTIAL)
def log(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, n.inputs[0]),)


@pointwise("log2", operators=("log2",), smooth=True, cost=Cost(8, 14))
def log2(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.mul(n.inputs[0], math.log(2))),)


@pointwise("log10", operators=("log10",), smooth=True, cost=Cost(8, 14))
def log10(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.mul(n.inputs[0], math.log(10))),)


@pointwise("log1p", operators=("log1p", "special_log1p"), smooth=True, cost=FUNCTION)
def log1p(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.add(n.inputs[0], 1)),)


@pointwise("sin", operators=("sin",), cost=EXPONENTIAL)
def sin(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.cos(n.inputs[0])),)


@pointwise("cos", operators=("cos",), cost=EXPONENTIAL)
def cos(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.neg(b.sin(n.inputs[0]))),)


@pointwise("tan", operators=("tan",), cost=FUNCTION)
def tan(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.add(b.mul(n, n), 1)),)


def _square(b: Builder, x: Node) -> Node:
    return b.mul(x, x)


@pointwise("asin", operators=("asin", "arcsin"), cost=RARE)
def asin(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.rsqrt(b.add(b.neg(_square(b, n.inputs[0])), 1))),)


@pointwise("acos", operators=("acos", "arccos"), cost=RARE)
def acos(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.neg(b.rsqrt(b.add(b.neg(_square(b, n.inputs[0])), 1)))),)


@pointwise("atan", operators=("atan", "arctan"), smooth=True, cost=RARE)
def atan(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.add(_square(b, n.inputs[0]), 1)),)


@pointwise("sinh", operators=("sinh",), smooth=True, cost=RARE)
def sinh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.cosh(n.inputs[0])),)


@pointwise("cosh", operators=("cosh",), smooth=True, cost=RARE)
def cosh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.sinh(n.inputs[0])),)


@pointwise("tanh", operators=("tanh",), smooth=True, cost=FUNCTION)
def tanh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.sub(b.lift(1.0, n), _square(b, n))),)


@pointwise("asinh", operators=("asinh", "arcsinh"), smooth=True, cost=RARE)
def asinh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.rsqrt(b.add(_square(b, n.inputs[0]), 1))),)


@pointwise("acosh", operators=("acosh", "arccosh"), cost=RARE)
def acosh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.rsqrt(b.sub(_square(b, n.inputs[0]), 1))),)


@pointwise("atanh", operators=("atanh", "arctanh"), cost=RARE)
def atanh(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.div(g, b.sub(b.lift(1.0, n), _square(b, n.inputs[0]))),)


def _erf_slope(b: Builder, x: Node) -> Node:
    return b.mul(b.exp(b.neg(_square(b, x))), 2 / math.sqrt(math.pi))


@pointwise("erf", operators=("erf", "special_erf"), smooth=True, cost=FUNCTION)
def erf(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(_erf_slope(b, n.inputs[0]), g),)


def normal_density(b: Builder, x: Node) -> Node:
    return b.mul(b.exp(b.mul(_square(b, x), -0.5)), 1 / math.sqrt(2 * math.pi))


# As ``gelu`` has it: with an error that is small beside 1, and not beside values near zero.
@pointwise("normal_cdf",
           text=lambda n, a: f"torch.special.ndtr({a[0]})",
           library=lambda n, a: ("aten::special_ndtr", "", a), smooth=True, cost=FUNCTION)
def normal_cdf(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(normal_density(b, n.inputs[0]), g),)


@pointwise("erfc", operators=("erfc", "special_erfc"), smooth=True, cost=RARE)
def erfc(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.neg(b.mul(_erf_slope(b, n.inputs[0]), g)),)


@pointwise("erfinv", operators=("erfinv", "special_erfinv"), cost=Cost(16, 200, 16))
def erfinv(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(b.mul(b.exp(_square(b, n)), math.sqrt(math.pi) / 2), g),)


@pointwise("lgamma", operators=("lgamma", "special_gammaln"), cost=Cost(16, 100, 16))
def lgamma(b: Builder, n: Node, g) -> tuple[Node, ...]:
    x = n.inputs[0]
    return (b.mul(g, b.digamma(x)),)


@pointwise("digamma", operators=("digamma", "special_digamma", "special_psi"), cost=Cost(16, 60, 60))
def digamma(b: Builder, n: Node, g) -> tuple[Node, ...]:
    x = n.inputs[0]
    return (b.mul(g, b.aten("aten::polygamma", "", (1, x), x.type)),)


@pointwise("i0", operators=("i0", "special_i0"), smooth=True, cost=Cost(16, 60, 60))
def i0(b: Builder, n: Node, g) -> tuple[Node, ...]:
    x = n.inputs[0]
    return (b.mul(g, b.call("special_i1", (x,), n.type)),)


@pointwise("sigmoid", operators=("sigmoid", "special_expit"), smooth=True, cost=EXPONENTIAL)
def sigmoid(b: Builder, n: Node, g) -> tuple[Node, ...]:
    return (b.mul(g, b.mul(b.sub(b.lift(1.0, n), n), n)),)


@pointwise("relu", smooth=True, bools=())
def relu(b: Builder, n: Node, g) -> tuple:
    negative = b.le(n, 0)
    return (kinked(b, b.where(negative, 0, g), g, b.logical_not(negative), n.inputs[0]),)


# two operands


@pointwise("add", 2, exact_numbers=True, takes_number=True, commutative=True, smooth=True, bools=("logical_or",),
           saves=NOTHING, linear=IN_ALL, complex_gradient=True, number_row="+")
def add(b: Builder, n: Node, g) -> tuple:
    return g, g


@pointwise("sub", 2, exact_numbers=True, takes_number=True, smooth=True, bools=("logical_xor",), saves=NOTHING,
           linear=IN_ALL, complex_gradient=True, number_row="-")
def sub(b: Builder, n: Node, g) -> tuple:
    return g, lambda: b.neg(g)


@pointwise("mul", 2, exact_numbers=True, takes_number=True, commutative=True, smooth=True, bools=("logical_and",),
           saves=(OTHERS,), linear=IN_EACH, number_row="*")
def mul(b: Builder, n: Node, g) -> tuple | tuple[Callable, ...]:
    x, y = n.inputs
    if x is y:
        product = b.mul(g, x)
        return product, product  # one after the other, as eager adds them to what there is
    return lambda: b.mul(g, y), lambda: b.mul(g, x)


@pointwise("fma", 3,
           text=lambda n, a: f"torch.addcmul({a[2]}, {a[0]}, {a[1]})",
           library=lambda n, a: ("aten::addcmul", "", (a[2], a[0], a[1], 1)), exact_numbers=True,
           saves=((1,), (0,), ()))
def fma(b: Builder, n: Node, g) -> tuple:
    x, y, _ = n.inputs
    return lambda: b.mul(g, y), lambda: b.mul(g, x), g


@pointwise("div", 2, exact_numbers=True, takes_number=True, smooth=True, cost=QUOTIENT, saves=((1,), (0, 1)),
           linear=IN_FIRST)
def div(b: Builder, n: Node, g) -> tuple[Callable, ...]:
    x, y = n.inputs
    return lambda: b.div(g, y), lambda: b.mul(b.neg(g), b.div(n, y))


def unpromoted(x: Node) -> Node:
    """A tensor without dimensions as it was before it took the dtype of others: what eager's formulas compute with."""
    while x.op == "cast" and not x.type.rank:
        x = x.inputs[0]
    return x


@pointwise("pow", 2, takes_number=True, cost=FUNCTION)
def power(b: Builder, n: Node, g) -> tuple[Callable, ...]:
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


@pointwise("maximum", 2, label="max", commutative=True, smooth=True, bools=("logical_or",))
@pointwise("minimum", 2, label="min", commutative=True, smooth=True, bools=("logical_and",))
def extremum(b: Builder, n: Node, g) -> tuple[Callable, ...]:
    """Equal operands share evenly; where one is NaN both get all."""
    x, y = n.inputs
    worse = "lt" if n.op in ("maximum", "fmax") else "gt"
    shared = b.where(b.eq(x, y), b.mul(g, 0.5), g)
    return lambda: b.where(b.binary(worse, x, y), 0, shared), lambda: b.where(b.binary(worse, y, x), 0, shared)


@pointwise("fmax", 2, commutative=True, smooth=True, bools=("logical_or",), integers=("maximum",))
@pointwise("fmin", 2, commutative=True, smooth=True, bools=("logical_and",), integers=("minimum",))
def extremum_without_nan(b: Builder, n: Node, g) -> tuple[Callable, ...]:
    if conventions.fmax_passes_to_nan():
        return extremum(b, n, g)
    x, y = n.inputs
    first = b.logical_or(b.binary("ge" if n.op == "fmax" else "le", x, y), b.isnan(y))
    if conventions.fmax_shares():
        tie, half = b.eq(x, y), b.mul(g, 0.5)
        return lambda: b.where(tie, half, b.where(first, g, 0)), lambda: b.where(tie, half, b.where(first, 0, g))
    return lambda: b.where(first, g, 0), lambda: b.where(first, 0, g)


@pointwise("fmod", 2, takes_number=True, cost=Cost(3, 40, 16), saves=((), (0, 1)))
def fmod(b: Builder, n: Node, g) -> tuple:
    x, y = n.inputs
    return g, lambda: b.mul(b.neg(g), b.trunc_div(x, y))


@pointwise("remainder", 2, takes_number=True, cost=Cost(3, 40, 16), saves=((), (0, 1)))
def remainder(b: Builder, n: Node, g) -> tuple:
    x, y = n.inputs
    return g, lambda: b.mul(b.neg(g), b.floor_div(x, y))


@pointwise("atan2", 2, smooth=True, cost=Cost(16, 14))
def atan2(b: Builder, n: Node, g) -> tuple[Callable, ...]:
    x, y = n.inputs
    square = b.add(b.cast(_square(b, unpromoted(x)), n.dtype), b.cast(_square(b, unpromoted(y)), n.dtype))
    scale = b.where(b.eq(square, 0), 0, b.reciprocal(square))
    return lambda: b.mul(b.mul(g, y), scale), lambda: b.mul(b.mul(g, b.neg(x)), scale)


@pointwise("hypot", 2, smooth=True, cost=Cost(16, 14))
def hypot(b: Builder, n: Node, g) -> tuple[Callable, ...]:
    x, y = n.inputs
    return lambda: b.div(b.mul(g, x), n), lambda: b.div(b.mul(g, y), n)


@pointwise("copysign", 2)
def copysign(b: Builder, n: Node, g) -> tuple[Callable, None]:
    x = n.inputs[0]
    return lambda: b.mul(g, b.where(b.eq(x, 0), 0, b.div(n, x))), None


@pointwise("where", 3, label="", rounds=False, saves=((), (0,)))
def where(b: Builder, n: Node, g) -> tuple[None, Callable, Callable]:
    condition = n.inputs[0]
    return None, lambda: b.where(condition, g, 0), lambda: b.where(condition, 0, g)
