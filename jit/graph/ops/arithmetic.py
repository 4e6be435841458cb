"""Elementwise arithmetic, comparisons, selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import conventions, layout
from jit.graph.build import HALF, is_number, result_dtype
from jit.graph.dims import Dim, bounds
from jit.graph.ir import Node, TensorType
from jit.graph.nested import holds, of_kind
from jit.graph.prim_info import PRIMS
from jit.graph.registry import op, pointwise
from jit.graph.sym_float import SymFloat, plain

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import IntExpr
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer


def _of_floats(prim: str) -> Callable:
    def expand(b: Builder, self: Node) -> Node:
        (x,) = b.promote(self, to_float=True)
        return b.unary(prim, x)

    return expand


for _p in PRIMS.values():
    pointwise(*_p.operators)(_of_floats(_p.name))


def _rounding(prim: str) -> Callable:
    def expand(b: Builder, self: Node) -> Node:
        if self.dtype is torch.bool:
            raise RuntimeError(f"{prim} of bool")
        if not self.dtype.is_floating_point:
            return b.clone(self)
        return b.unary(prim, self)

    return expand


for _name, _more in {"floor": (), "ceil": (), "trunc": ("fix",)}.items():
    pointwise(_name, *_more)(_rounding(_name))


@pointwise("round", "special_round")
def round_(b: Builder, self: Node, *, decimals: int = 0) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("round of bool")
    if decimals:
        if type(decimals) is not int or self.dtype not in (torch.float32, torch.float64) or abs(decimals) > 30:
            return NotImplemented
        power = 10.0 ** abs(decimals)
        return (b.div(b.round(b.mul(self, power)), power) if decimals > 0
                else b.mul(b.round(b.div(self, power)), power))
    return b.round(self) if self.dtype.is_floating_point else b.clone(self)


@pointwise("frac")
def frac(b: Builder, self: Node):
    return b.sub(self, b.trunc(self)) if self.dtype.is_floating_point else NotImplemented


@pointwise("neg", "negative")
def neg(b: Builder, self: Node) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert "
                           "a mask, use the `~` or `logical_not()` operator instead.")
    return b.neg(self)


@pointwise("abs", "absolute")
def abs_(b: Builder, self: Node) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("abs is not implemented for bool tensors")
    return b.abs(self)


@op("positive", alias=True)
def positive(b: Builder, self: Node) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return self


@pointwise("sign", "sgn")
def sign(b: Builder, self: Node) -> Node:
    return b.clone(self) if self.dtype is torch.bool else b.sign(self)


@pointwise("relu")
def relu(b: Builder, self: Node) -> Node:
    if self.dtype is torch.bool:
        raise RuntimeError("Boolean inputs not supported for relu")
    return b.relu(self)


@pointwise("square")
def square(b: Builder, self: Node) -> Node:
    (x,) = b.promote(self, dtype=torch.int64 if self.dtype is torch.bool else None)
    return b.squared(x)


@pointwise("logical_not")
def logical_not(b: Builder, self: Node) -> Node:
    return b.logical_not(self)


@pointwise("bitwise_not")
def bitwise_not(b: Builder, self: Node) -> Node:
    if self.dtype.is_floating_point:
        raise RuntimeError(f"bitwise_not of {self.dtype}")
    return b.logical_not(self) if self.dtype is torch.bool else b.bitwise_not(self)


def _predicate(prim: str, of_integer: bool) -> Callable:
    def expand(b: Builder, self: Node) -> Node:
        if self.dtype.is_floating_point:
            return b.unary(prim, self)
        return b.full(self.shape, of_integer, torch.bool, self.device)

    return expand


pointwise("isnan")(_predicate("isnan", False))
pointwise("isinf")(_predicate("isinf", False))
pointwise("isfinite")(_predicate("isfinite", True))


@pointwise("signbit")
def signbit(b: Builder, self: Node):
    return (b.signbit(self) if self.dtype.is_floating_point else b.lt(self, 0) if self.dtype is not torch.bool
            else NotImplemented)


# two operands


def _plus(b: Builder, x: Node, y: Node, alpha: float | int) -> Node:
    """``x + alpha * y``."""
    return b.add(x, y) if type(alpha) in (int, float) and alpha == 1 else b.fma(y, _factor(b, y, alpha), x)


def _minus(b: Builder, x: Node, y: Node, alpha: int | float) -> Node:
    """``x - alpha * y``."""
    if type(alpha) in (int, float) and alpha == 1:
        return b.sub(x, y)
    return b.fma(b.neg(y), _factor(b, y, alpha), x) if y.dtype.is_floating_point else b.sub(x, b.mul(y, alpha))


def _factor(b: Builder, y: Node, alpha: float | int) -> Node:
    return b.promote(y, alpha, dtype=y.dtype, exact=_adds_exactly(b, y))[1]


def _adds_exactly(b: Builder, *operands: object) -> bool:
    """Whether sums take numbers among halves unrounded."""
    return backend(b.device_of(*operands)).adds_numbers_exactly


def _arithmetic(b: Builder, fn: Callable, x: int | Node, y: float | Node | SymFloat | IntExpr, exact: bool = True,
                to_float: bool = False, either: bool = True) -> Node:
    """``fn`` of two operands in their common dtype. ``exact``: numbers among halves are not rounded, nor are tensors
    without dimensions that eager's kernels take as numbers: a second operand where the device ``reads_numbers``, else
    one from the CPU, as ``either`` operand or the second."""
    dtype = result_dtype(x, y)
    if exact and dtype in HALF:
        reads = backend(b.device_of(x, y)).reads_numbers
        numbers = [v for v in of_kind(Node, (x, y) if either and not reads else (y,))
                   if not v.type.rank and v.dtype is not dtype]
        if any(v in b.moved or reads for v in numbers):
            return b.cast(fn(*b.promote(x, y, dtype=torch.float32)), dtype)
    return fn(*b.promote(x, y, exact=exact, to_float=to_float))


@pointwise("add", wraps=True)
def add(b: Builder, self: Node, other: float | Node | SymFloat | IntExpr, *, alpha: float | int = 1) -> Node:
    exact = _adds_exactly(b, self, other)

    def plus(x: Node, y: Node) -> Node:
        if x.dtype is torch.bool:
            return b.logical_or(x, y) if alpha is True or alpha == 1 else NotImplemented
        if y.op == "scalar" and type(alpha) is not SymFloat and alpha != 1:
            return b.add(x, b.scalar(y.attrs["value"] * alpha, x.dtype, x.device, exact))
        return _plus(b, x, y, alpha)

    return _arithmetic(b, plus, self, other, exact)


def _refuse_bool(*operands: object) -> None:
    if holds(bool, operands) or any(v.dtype is torch.bool for v in of_kind(Node, operands)):
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported.")


@pointwise("sub", "subtract", wraps=True)
def sub(b: Builder, self: Node, other: float | int | Node | SymFloat, *, alpha: int = 1) -> Node:
    _refuse_bool(self, other)
    exact = _adds_exactly(b, self, other)

    def minus(x: Node, y: Node) -> Node:
        if y.op == "scalar" and type(alpha) is not SymFloat and alpha != 1:
            return b.sub(x, b.scalar(y.attrs["value"] * alpha, x.dtype, x.device, exact))
        return _minus(b, x, y, alpha)

    return _arithmetic(b, minus, self, other, exact)


@pointwise("rsub", wraps=True, swapped=True)
def rsub(b: Builder, self: Node, other: float | int | Node | SymFloat, *, alpha: int = 1) -> Node:
    _refuse_bool(self, other)
    return _arithmetic(b, lambda x, y: _minus(b, y, x, alpha), self, other, _adds_exactly(b, self, other))


@pointwise("mul", "multiply", wraps=True)
def mul(b: Builder, self: Node, other: float | Node | SymFloat | IntExpr) -> Node:
    return _arithmetic(b, lambda x, y: b.logical_and(x, y) if x.dtype is torch.bool else b.mul(x, y), self, other)


@pointwise("div", "divide", wraps=True)
def div(b: Builder, self: Node, other: float | int | Node | SymFloat, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return true_divide(b, self, other)
    if rounding_mode not in ("floor", "trunc"):
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
                           f"'{rounding_mode}'")

    def rounded(x: Node, y: Node) -> Node:
        if x.dtype is torch.bool:
            return NotImplemented
        if _may_divide_by_zero(x, y):
            return _checked_division(b, "div", "Tensor_mode", x, y, rounding_mode)
        return b.binary("floor_div" if rounding_mode == "floor" else "trunc_div", x, y)

    return _arithmetic(b, rounded, self, other, either=False)


def _may_divide_by_zero(x: Node, y: Node) -> bool:
    """Whether eager looks for zeros among the divisors, and raises: among integers, unless divided by a known number.
    """
    if x.dtype.is_floating_point or not backend(x.device).checks_divisors:
        return False
    value = y.attrs["value"] if y.op == "scalar" else 0
    return bounds(value)[0] < 1 if type(value) is Dim and bounds(value)[0] is not None else value == 0


def _checked_division(b: Builder, name: str, overload: str, x: Node, y: Node, *more: str) -> Node:
    """The library's integer division of promoted operands, which raises for a zero divisor."""
    shape = layout.broadcast_shapes(x.type.shape, y.type.shape)
    strides = layout.iterator_strides(shape, [x.type, y.type])
    return b.aten(f"aten::{name}", overload, (x, y, *more), TensorType(shape, strides, x.dtype, b.device_of(x, y)))


@pointwise("true_divide", wraps=True)
def true_divide(b: Builder, self: Node, other: float | Node | SymFloat | IntExpr) -> Node:
    if type(other) in (int, float) and isinstance(self, Node) and backend(self.device).divides_by_reciprocals:
        (x,) = b.promote(self, to_float=True)
        single = torch.float64 if x.dtype is torch.float64 else torch.float32
        factor = torch.tensor(other, dtype=single, device="cpu").reciprocal().item()
        return b.mul(*b.promote(x, factor, exact=True))
    return _arithmetic(b, b.div, self, other, to_float=True, either=False)


@op("rdiv", raw=True, numbers=True)
def rdiv(t: Tracer, self: TensorHandle, other: float | SymFloat) -> TensorHandle:
    """``number / tensor``: eager multiplies the reciprocal."""
    return t.call_op("mul", (t.call_op("reciprocal", (self,), {}), other), {})


@pointwise("floor_divide", wraps=True)
def floor_divide(b: Builder, self: Node, other: int | Node) -> Node:
    return _without_derivative(b, div(b, self, other, rounding_mode="floor"), "floor_div", "floor_divide")


@pointwise("rfloor_divide", wraps=True, swapped=True)
def rfloor_divide(b: Builder, self: Node, other: int) -> Node:
    return _without_derivative(b, div(b, other, self, rounding_mode="floor"), "floor_div", "floor_divide")


def _without_derivative(b: Builder, result: Node, prim: str, name: str) -> Node:
    """``div(rounding_mode="floor")`` has a derivative, zero; ``floor_divide`` has none, and a backward through it
    raises. So does one through the remainder of a number."""
    if result is not NotImplemented:
        made = result.inputs[0] if result.op == "cast" else result  # from float32, beside a number in a tensor
        if made.op == prim:
            b.marked(made, name)
    return result


@pointwise("remainder", wraps=True)
def remainder(b: Builder, self: Node, other: float | int | Node) -> Node:
    x, y = b.promote(self, other)
    if x.dtype is torch.bool:
        return NotImplemented
    result = _checked_division(b, "remainder", "Tensor", x, y) if _may_divide_by_zero(x, y) else b.remainder(x, y)
    return _without_derivative(b, result, "remainder", "remainder_of_number") if is_number(self) else result


@pointwise("rremainder", wraps=True, swapped=True)
def rremainder(b: Builder, self: Node, other: Node) -> Node:
    return remainder(b, other, self)


@pointwise("fmod", wraps=True)
def fmod(b: Builder, self: Node, other: int) -> Node:
    x, y = b.promote(self, other)
    if x.dtype is torch.bool:
        return NotImplemented
    return _checked_division(b, "fmod", "Tensor", x, y) if _may_divide_by_zero(x, y) else b.fmod(x, y)


@pointwise("pow")
def pow_(b: Builder, self: Node, exponent: Node | float | IntExpr) -> Node:
    if is_number(exponent) and not isinstance(exponent, Dim) and isinstance(self, Node):
        x, number = b.promote(self, exponent)
        if x.dtype is torch.bool:
            return NotImplemented
        if not x.dtype.is_floating_point and exponent < 0:
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        e = float(exponent)
        if e == 0.0:
            return b.with_gradient(b.full(x.shape, 1, x.dtype, x.device),
                                   (x, lambda: b.full(x.shape, False, torch.bool, x.device)))
        if e == 1.0:
            return b.clone(x)
        y = b.short_power(x, e)
        y = b.pow(x, number) if y is None else y
        return b.marked(y, "power", exponent=e) if b.recording else y
    if is_number(self) and not isinstance(self, Dim) and self == 1:
        (x, y) = b.promote(self, exponent)
        zero = lambda: b.full(y.shape, 0, y.dtype, y.device)  # noqa: E731
        return (b.with_gradient(b.full(y.shape, 1, y.dtype, y.device), (y, zero)) if y.dtype.is_floating_point
                else b.full(y.shape, 1, y.dtype, y.device))
    x, y = b.promote(self, exponent)
    if x.dtype is torch.bool:
        return NotImplemented
    power = b.pow(x, y)
    return b.marked(power, "power_of_number", base=self) if b.recording and type(self) in (int, float) else power


@op("rpow")
def rpow(b: Builder, self: Node, other: Node | Number):
    y = pow_(b, other, self)
    if is_number(other) and y is not NotImplemented:
        # A number to the power of a tensor gives a row-major one.
        y.type = y.type.replace(strides=layout.contiguous_strides(y.shape))
    return y


def _same_dtype_binary(prim: str, *names: str, to_float: bool = False, bool_prim: str | None = None,
                       of_integers: bool = True) -> None:
    def expand(b: Builder, self: Node, other: Node) -> Node:
        if is_number(self) or is_number(other):
            raise TypeError(f"{prim} takes no numbers")
        x, y = b.promote(self, other, to_float=to_float)
        if not of_integers and not x.dtype.is_floating_point:
            raise RuntimeError(f"{prim} of {x.dtype}")
        if x.dtype is torch.bool:
            return b.binary(bool_prim, x, y) if bool_prim else NotImplemented
        return b.binary(prim, x, y)

    pointwise(prim, *names)(expand)


_same_dtype_binary("maximum", bool_prim="logical_or")
_same_dtype_binary("minimum", bool_prim="logical_and")
_same_dtype_binary("fmax", bool_prim="logical_or")
_same_dtype_binary("fmin", bool_prim="logical_and")
_same_dtype_binary("atan2", "arctan2", to_float=True)
_same_dtype_binary("hypot", of_integers=False)


@pointwise("copysign", wraps=True)
def copysign(b: Builder, self: Node, other: Node) -> Node:
    if b.recording and any(v.dtype in HALF for v in of_kind(Node, (self, other))):
        return NotImplemented  # whose gradient is a quotient that eager rounds
    x, y = b.promote(self, other, to_float=True)
    return b.copysign(x, y)


def _bitwise(prim: str, bool_prim: str) -> None:
    def expand(b: Builder, self: Node, other: int | Node) -> Node:
        x, y = b.promote(self, other)
        if x.dtype.is_floating_point:
            raise RuntimeError(f'"{prim}_cpu" not implemented for \'{x.dtype}\'')
        return b.binary(bool_prim if x.dtype is torch.bool else prim, x, y)

    pointwise(prim, wraps=True)(expand)


for _name in ("and", "or", "xor"):
    _bitwise(f"bitwise_{_name}", f"logical_{_name}")


def _shift(name: str, prim: str) -> Callable:
    def expand(b: Builder, self: Node, other: int) -> Node:
        x, y = b.promote(self, other)
        return NotImplemented if x.dtype is torch.bool or x.dtype.is_floating_point else b.binary(prim, x, y)

    return expand


pointwise("bitwise_left_shift", "__lshift__", wraps=True)(_shift("left", "shl"))
pointwise("bitwise_right_shift", "__rshift__", wraps=True)(_shift("right", "shr"))


def _logical(prim: str) -> None:
    def expand(b: Builder, self: Node, other: Node | Number) -> Node:
        for position, (argument, v) in enumerate((("input", self), ("other", other)), 1):
            if not isinstance(v, Node):
                raise TypeError(f"{prim}(): argument {argument!r} (position {position}) must be Tensor, not "
                                f"{type(v).__name__}")
        return b.binary(prim, _truth(b, self), _truth(b, other))

    pointwise(prim)(expand)


def _truth(b: Builder, x: Node) -> Node:
    return x if x.dtype is torch.bool else b.ne(x, 0)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _logical(_name)


def _comparison(prim: str, *names: str) -> None:
    def expand(b: Builder, self: Node, other: float | int | Node | SymFloat) -> Node:
        if not (isinstance(other, Node) or is_number(other)):
            return NotImplemented
        x, y = b.promote(self, other)
        return b.binary(prim, x, y)

    pointwise(prim, *names, wraps=True)(expand)


_comparison("eq")
_comparison("ne", "not_equal")
_comparison("lt", "less")
_comparison("le", "less_equal")
_comparison("gt", "greater")
_comparison("ge", "greater_equal")


# three operands


@pointwise("where", wraps=True, masks=True)
def where(b: Builder, condition: Node, self: Node | None = None,
          other: float | int | Node | SymFloat | None = None) -> Node:
    if self is None:
        raise Unsupported("where() with a condition alone: the size of the result depends on the data",
                          "use the form with three arguments", kind="data-dependent-shape")
    if condition.dtype is not torch.bool:
        if condition.dtype is not torch.uint8:
            raise RuntimeError("where expected condition to be a boolean tensor, but got a tensor with dtype "
                               f"{condition.dtype}")
        condition = b.ne(condition, 0)
    x, y = b.promote(self, other)
    for number in (self, other):
        if type(number) in (int, float):
            # Raises for what the dtype cannot hold, as in eager.
            torch.scalar_tensor(number, dtype=x.dtype, device="cpu")
            if (x.dtype in HALF and backend(x.device).refuses_large_numbers and abs(number) > torch.finfo(x.dtype).max
                and not math.isinf(number)):
                raise Unsupported(f"{number} does not fit in the elements of a tensor of {x.dtype}",
                                  kind="argument-error")
    return b.where(condition, x, y)


@pointwise("where_method", wraps=True, masks=True)
def where_method(b: Builder, self: Node, condition, other: Node | Number) -> Node:
    return where(b, condition, self, other)


@op("masked_fill", numbers=True)
def masked_fill(b: Builder, self: Node, mask: Node, value: float | SymFloat | Node) -> Node:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype " + str(mask.dtype))
    if isinstance(value, Node):
        if value.type.rank:
            raise RuntimeError("masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                               f"{value.type.rank} dimension(s).")
        value = b.cast(value, self.dtype)
    else:
        value = b.scalar(plain(value) if self.dtype in HALF else value, self.dtype, self.device)
    shape = layout.broadcast_shapes(self.shape, mask.shape)
    result = b.where(mask, value, self)
    # Eager makes a row-major copy and fills that.
    result.type = result.type.replace(strides=layout.contiguous_strides(shape))
    return result


@pointwise("clamp", "clip", numbers=True)
def clamp(b: Builder, self: Node, min: float | int | Node | None = None,
          max: float | int | Node | SymFloat | None = None) -> Node:
    return _clamp(b, self, min, max)


def _clamp(b: Builder, self: Node, min: float | int | Node | None, max: float | int | Node | SymFloat | None,
           by_limit: bool = False) -> Node:
    """``by_limit``: for ``clamp_min`` or ``clamp_max``, whose kernels do not pass over a limit that is NaN, as that of
    ``clamp`` with one limit does on GPUs."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    limits = [v for v in (min, max) if v is not None]
    tensors = list(of_kind(Node, limits))
    if len(tensors) < len(limits):  # one of numbers is a node where it is drawn or read while the graph runs
        tensors = []
    if self.dtype in HALF:
        min, max = plain(min), plain(max)
    if all(isinstance(v, (int, Dim)) for v in limits) and conventions.clamp_keeps_to_range():
        min, max = _within_range(min, self.dtype), _within_range(max, self.dtype)
    x, lo, hi = b.promote(self, min, max)
    if x.dtype is torch.bool:
        return NotImplemented
    y = x if lo is None else b.maximum(x, lo)
    y = y if hi is None else b.minimum(y, hi)
    if (backend(x.device).clamp_passes_nan_limits and not by_limit and (lo is None or hi is None)
        and _is_nan(max if min is None else min)):
        y = b.clone(x)
    if not b.recording:
        return y
    if tensors and conventions.clamp_shares_with_tensors():
        return y if lo is None or hi is None else _shared_at_limits(b, y, x, lo, hi, min, max)
    # Where the limits cross, the upper one counts.
    at_limits = bool(tensors) or conventions.clamp_passes_at_numbers()
    above, below = ("ge", "le") if at_limits else ("gt", "lt")
    within = [b.binary(above, x, lo)] if lo is not None else []
    within += [b.binary(below, x, hi)] if hi is not None else []
    partials = [(x, lambda: within[0] if len(within) == 1 else b.logical_and(*within))]
    if lo is not None:
        low = b.lt(x, lo)
        partials.append((min, lambda: low if hi is None else b.logical_and(low, b.lt(lo, hi))))
    if hi is not None:
        high = b.gt(x, hi)
        partials.append((max, lambda: high if lo is None else b.logical_or(high, b.gt(lo, hi))))
    return b.with_gradient(y, *partials)


def _is_nan(v) -> bool:
    return type(v) is float and v != v


def _within_range(v, dtype: torch.dtype):
    """The number of an integer dtype that is nearest to ``v``."""
    if v is None or dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return v
    ends = torch.iinfo(dtype)
    return v if ends.min <= v and v <= ends.max else ends.min if v < ends.min else ends.max


def _shared_at_limits(b: Builder, y: Node, x: Node, lo, hi, min, max) -> Node:
    """``y``, with the gradient that eager gives where x and the limit that it is equal to share it: all is x's where
    the limits are equal too, or one is NaN."""
    low, high, apart = b.lt(x, lo), b.gt(x, hi), b.lt(lo, hi)
    at_low, at_high = b.logical_and(b.eq(x, lo), apart), b.logical_and(b.eq(x, hi), apart)
    ordered, tied = b.le(lo, hi), b.logical_or(at_low, at_high)

    def of(value, all, half):
        return ((value, lambda: all), (b.mul(value, 0.5), lambda: half)) if isinstance(value, Node) else ()

    return b.with_gradient(y, *of(x, b.logical_not(b.logical_or(b.logical_or(low, high), tied)), tied),
                           *of(min, b.logical_and(low, ordered), at_low),
                           *of(max, b.logical_or(b.gt(lo, hi), b.logical_and(high, ordered)), at_high))


@pointwise("clamp_min", numbers=True)
def clamp_min(b: Builder, self: Node, min) -> Node:
    return _clamp(b, self, min, None, by_limit=True)


@pointwise("clamp_max", numbers=True)
def clamp_max(b: Builder, self: Node, max) -> Node:
    return _clamp(b, self, None, max, by_limit=True)


@pointwise("addcmul", numbers=True)
def addcmul(b: Builder, self: Node, tensor1: Node, tensor2: Node, *, value: float | Node | int = 1) -> Node:
    x, y, z = b.promote(self, tensor1, tensor2)
    if x.dtype is torch.bool:
        return NotImplemented
    w = x.dtype
    x, y, z = b.opmath(x), b.opmath(y), b.opmath(z)
    value = b.cast(value, x.dtype)
    scaled = lambda v: v if type(value) in (int, float) and value == 1 else b.mul(v, value)  # noqa: E731
    if backend(x.device).scales_products and not (type(value) in (int, float) and value == 1):
        result = b.fma(b.lift(value, y), b.mul(y, z), x)
    else:
        result = b.fma(scaled(y), z, x)
    if x.dtype.is_floating_point:
        result = b.with_gradient(result, (x, lambda: b.lift(1.0, x)), (y, lambda: scaled(z)), (z, lambda: scaled(y)))
    return b.cast(result, w)


@pointwise("addcdiv", numbers=True)
def addcdiv(b: Builder, self: Node, tensor1: Node, tensor2: Node, *, value: float | SymFloat | Node = 1) -> Node:
    x, y, z = b.promote(self, tensor1, tensor2)
    if not x.dtype.is_floating_point:
        return NotImplemented
    w = x.dtype
    x, y, z = b.opmath(x), b.opmath(y), b.opmath(z)
    value = b.cast(value, x.dtype)
    scaled = lambda v: v if type(value) in (int, float) and value == 1 else b.mul(v, value)  # noqa: E731
    quotient = b.div(scaled(y), z)
    quotient = b.with_gradient(quotient, (y, lambda: scaled(b.reciprocal(z))),
                               (z, lambda: b.neg(b.div(scaled(y), b.mul(z, z)))))
    return b.cast(b.add(x, quotient), w)


@pointwise("lerp", numbers=True)
def lerp(b: Builder, self: Node, end: Node, weight: float | Node | SymFloat) -> Node:
    if self.dtype is not end.dtype:
        raise RuntimeError(f"expected dtype {self.dtype} for `end` but got dtype {end.dtype}")
    if not self.dtype.is_floating_point:
        raise RuntimeError(f"lerp of {self.dtype}")
    dtype = self.dtype
    x, y = b.opmath(self), b.opmath(end)
    if is_number(weight) and type(weight) is not SymFloat:
        diff = b.sub(y, x)
        if abs(weight) < 0.5:
            result = _plus(b, x, diff, weight)
        else:
            result = b.fma(b.neg(diff), b.lift(1.0 - torch.tensor(weight, dtype=x.dtype, device="cpu").item(), diff), y)
        return b.cast(b.with_gradient(result, (x, lambda: b.lift(1.0 - weight, x)),
                                      (y, lambda: b.lift(float(weight), y))), dtype)
    w = b.lift(b.cast(weight, x.dtype), x)
    diff = b.sub(y, x)
    near = b.fma(diff, w, x)
    far = b.fma(b.neg(diff), b.sub(b.lift(1.0, w), w), y)
    result = b.where(b.lt(b.abs(w), 0.5), near, far)
    partials = [(x, lambda: b.sub(b.lift(1.0, w), w)), (y, lambda: w)] + [(w, lambda: diff)] * isinstance(weight, Node)
    return b.cast(b.with_gradient(result, *partials), dtype)
