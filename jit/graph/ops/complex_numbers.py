"""Operators on complex numbers as composites over pairs of real ones (``pairs``), one entry each.

``@form("mul")`` registers the expansion that is taken in place of the operator's own where complex numbers are among
its arguments; whatever else is known of the operator stays. An operator without a form, and a form that returns
NotImplemented, are left to the library: so are all on complex32, whose halves eager computes with otherwise than with
float32, and products of matrices.

Gradients are those of the parts: dL/dre + i dL/dim, as in PyTorch. Where eager's formula is another one than the
derivative of the expansion, which may be no number where that is defined, the formula is given: as the derivative of a
function that has one in the complex numbers (``_holomorphic``), or by parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.graph import layout, pairs
from jit.graph.build import result_dtype
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType
from jit.graph.nested import of_kind
from jit.graph.pairs import PARTS, Pair
from jit.graph.registry import OPS, form, pointwise
from jit.graph.sym_float import SymFloat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr


def _operands(b: Builder, *values: Any) -> list[Pair] | None:
    """Nodes and numbers as pairs of their common dtype, or None where kernels do not compute in that."""
    part = PARTS.get(result_dtype(*values))
    device = b.device_of(*values)
    return None if part is None else [pairs.operand(b, v, part, device) for v in values]


def _complex(b: Builder, fn: Callable, *values: Any) -> Node:
    """The tensor of what ``fn(b, *pairs)`` gives, a pair."""
    given = _operands(b, *values)
    return NotImplemented if given is None else pairs.joined(b, fn(b, *given))


def _real(b: Builder, fn: Callable, *values: Any) -> Node:
    """What ``fn(b, *pairs)`` gives, a real node."""
    given = _operands(b, *values)
    return NotImplemented if given is None else fn(b, *given)


def _holomorphic(b: Builder, value: Pair, *derivatives: tuple[Pair, Callable]) -> Pair:
    """``value`` with these derivatives, each (x, function that gives the complex number dvalue/dx)."""
    if not b.recording:
        return value
    re: list = []
    im: list = []
    for x, derivative in derivatives:
        d = derivative()
        re += [(x.re, lambda d=d: d.re), (x.im, lambda d=d: b.neg(d.im))]
        im += [(x.re, lambda d=d: d.im), (x.im, lambda d=d: d.re)]
    return Pair(b.with_gradient(value.re, *re), b.with_gradient(value.im, *im))


def _is_one(v: Any) -> bool:
    return type(v) in (int, float, complex) and v == 1


# sums


def _added(b: Builder, y: Pair, value: Any, alpha: Any) -> Pair:
    """``alpha * y``, of which ``value`` is what the program gave. Eager multiplies tensors by the complex number 1 as
    well, after which an infinity in one part has made the other one no number."""
    if not _is_one(alpha):
        return pairs.times(b, y, pairs.operand(b, alpha, y.re.dtype, y.re.device))
    if not isinstance(value, Node):
        return y
    return Pair(b.sub(y.re, b.mul(b.detach(y.im), 0.0)), b.add(y.im, b.mul(b.detach(y.re), 0.0)))


@form("add")
def add(b: Builder, self: Any, other: Any, *, alpha: Any = 1) -> Node:
    return _complex(b, lambda b, x, y: pairs.plus(b, x, _added(b, y, other, alpha)), self, other)


@form("sub", "subtract")
def sub(b: Builder, self: Any, other: Any, *, alpha: Any = 1) -> Node:
    return _complex(b, lambda b, x, y: pairs.minus(b, x, _added(b, y, other, alpha)), self, other)


@form("rsub")
def rsub(b: Builder, self: Any, other: Any, *, alpha: Any = 1) -> Node:
    return sub(b, other, self, alpha=alpha)


@form("neg", "negative")
def neg(b: Builder, self: Node) -> Node:
    return _complex(b, pairs.negative, self)


# products and quotients


@form("mul", "multiply")
def mul(b: Builder, self: Any, other: Any) -> Node:
    return _complex(b, pairs.times, self, other)


@form("square")
def square(b: Builder, self: Node) -> Node:
    return _complex(b, lambda b, x: pairs.times(b, x, x), self)


@form("pow")
def power(b: Builder, self: Any, exponent: Any) -> Node:
    return square(b, self) if type(exponent) in (int, float) and exponent == 2 else NotImplemented


def _quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    value = pairs.over(b, x, y)
    one = pairs.operand(b, 1.0, y.re.dtype, y.re.device)
    return _holomorphic(b, value, (x, lambda: pairs.over(b, one, y)),
                        (y, lambda: pairs.negative(b, pairs.over(b, value, y))))


@form("div", "divide")
def div(b: Builder, self: Any, other: Any, *, rounding_mode: str | None = None) -> Node:
    return _complex(b, _quotient, self, other) if rounding_mode is None else NotImplemented


@form("true_divide")
def true_divide(b: Builder, self: Any, other: Any) -> Node:
    return _complex(b, _quotient, self, other)


@form("reciprocal")
def reciprocal(b: Builder, self: Node) -> Node:

    def inverse(b: Builder, x: Pair) -> Pair:
        value = pairs.over(b, pairs.operand(b, 1.0, x.re.dtype, x.re.device), x)
        return _holomorphic(b, value, (x, lambda: pairs.negative(b, pairs.times(b, value, value))))

    return _complex(b, inverse, self)


@form("addcmul")
def addcmul(b: Builder, self: Node, tensor1: Node, tensor2: Node, *, value: Any = 1) -> Node:
    return _complex(b, lambda b, x, y, z: pairs.plus(b, x, pairs.times(b, _added(b, y, tensor1, value), z)),
                    self, tensor1, tensor2)


@form("addcdiv")
def addcdiv(b: Builder, self: Node, tensor1: Node, tensor2: Node, *, value: Any = 1) -> Node:
    return _complex(b, lambda b, x, y, z: pairs.plus(b, x, _quotient(b, _added(b, y, tensor1, value), z)),
                    self, tensor1, tensor2)


@form("lerp")
def lerp(b: Builder, self: Node, end: Node, weight: Any) -> Node:
    if isinstance(weight, (Node, SymFloat)) or self.dtype is not end.dtype:
        return NotImplemented

    def between(b: Builder, x: Pair, y: Pair) -> Pair:
        near, diff = abs(weight) < 0.5, pairs.minus(b, y, x)
        step = pairs.operand(b, weight if near else 1 - weight, x.re.dtype, x.re.device)
        return pairs.plus(b, x, pairs.times(b, diff, step)) if near else pairs.minus(b, y, pairs.times(b, diff, step))

    return _complex(b, between, self, end)


# functions


@form("exp")
def exp(b: Builder, self: Node) -> Node:
    """In two factors, as the exponential of the real part alone may overflow where the product with a small sine does
    not. They are kept finite for the imaginary part, which is zero for a real number, infinity among these."""

    def power(b: Builder, x: Pair) -> Pair:
        half = b.exp(b.mul(x.re, 0.5))
        finite = b.minimum(half, torch.finfo(x.re.dtype).max)
        value = Pair(b.mul(b.mul(half, b.cos(x.im)), half), b.mul(b.mul(finite, b.sin(x.im)), finite))
        return _holomorphic(b, value, (x, lambda: value))

    return _complex(b, power, self)


def _size(b: Builder, x: Pair) -> Node:
    """|x|, without a gradient."""
    return b.hypot(b.detach(x.re), b.detach(x.im))


def _where_not_zero(b: Builder, size: Node, value: Node) -> Node:
    return b.where(b.eq(size, 0.0), 0.0, value)


@form("abs", "absolute")
def absolute(b: Builder, self: Node) -> Node:

    def size(b: Builder, x: Pair) -> Node:
        y = b.hypot(x.re, x.im)
        return b.with_gradient(y, *((p, lambda p=p: _where_not_zero(b, y, b.div(p, y))) for p in x))

    return _real(b, size, self)


@form("angle", pointwise=False)
def angle(b: Builder, self: Node) -> Node:

    def direction(b: Builder, x: Pair) -> Node:
        size = _size(b, x)
        slope = lambda p: _where_not_zero(b, size, b.div(b.div(p, size), size))  # noqa: E731
        y = b.atan2(x.im, x.re)
        y.type = TensorType.contiguous(y.shape, y.dtype, y.device)  # in eager too, whatever its operand's strides
        return b.with_gradient(y, (x.re, lambda: b.neg(slope(x.im))), (x.im, lambda: slope(x.re)))

    return _real(b, direction, self)


@form("sgn")
def sgn(b: Builder, self: Node) -> Node:

    def unit(b: Builder, x: Pair) -> Pair:
        size = _size(b, x)
        y = Pair(*(_where_not_zero(b, size, b.div(p, size)) for p in x))
        slope = lambda p, q: _where_not_zero(b, size, b.div(b.mul(p, q), size))  # noqa: E731
        across = lambda: b.neg(slope(y.re, y.im))  # noqa: E731
        return Pair(b.with_gradient(y.re, (x.re, lambda: slope(y.im, y.im)), (x.im, across)),
                    b.with_gradient(y.im, (x.re, across), (x.im, lambda: slope(y.re, y.re))))

    return _complex(b, unit, self)


@pointwise("complex")
def from_parts(b: Builder, real: Node, imag: Node) -> Node:
    if real.dtype is not imag.dtype or real.dtype not in PARTS.values():
        return NotImplemented
    return pairs.joined(b, Pair(real, imag))


@pointwise("polar")
def polar(b: Builder, abs: Node, angle: Node) -> Node:
    if abs.dtype is not angle.dtype or abs.dtype not in PARTS.values():
        return NotImplemented
    return pairs.joined(b, Pair(b.mul(abs, b.cos(angle)), b.mul(abs, b.sin(angle))))


# comparisons and choices


@form("eq")
def eq(b: Builder, self: Any, other: Any) -> Node:
    return _real(b, lambda b, x, y: b.logical_and(b.eq(x.re, y.re), b.eq(x.im, y.im)), self, other)


@form("ne", "not_equal")
def ne(b: Builder, self: Any, other: Any) -> Node:
    return _real(b, lambda b, x, y: b.logical_or(b.ne(x.re, y.re), b.ne(x.im, y.im)), self, other)


@form("isnan")
def isnan(b: Builder, self: Node) -> Node:
    return _real(b, lambda b, x: b.logical_or(b.isnan(x.re), b.isnan(x.im)), self)


@form("isinf")
def isinf(b: Builder, self: Node) -> Node:
    return _real(b, lambda b, x: b.logical_or(b.isinf(x.re), b.isinf(x.im)), self)


@form("isfinite")
def isfinite(b: Builder, self: Node) -> Node:
    return _real(b, lambda b, x: b.logical_and(b.isfinite(x.re), b.isfinite(x.im)), self)


@form("where")
def where(b: Builder, condition: Node, self: Any = None, other: Any = None) -> Node:
    if self is None or condition.dtype is not torch.bool:
        return NotImplemented
    return _complex(b, lambda b, x, y: Pair(b.where(condition, x.re, y.re), b.where(condition, x.im, y.im)),
                    self, other)


@form("masked_fill")
def masked_fill(b: Builder, self: Node, mask: Node, value: Any) -> Node:
    if self.dtype not in PARTS or mask.dtype is not torch.bool or isinstance(value, Node) and value.type.rank:
        return NotImplemented
    x, v = (pairs.operand(b, given, PARTS[self.dtype], self.device) for given in (self, value))
    # Eager makes a row-major copy and fills that.
    strides = layout.contiguous_strides(layout.broadcast_shapes(self.shape, mask.shape))
    return pairs.joined(b, Pair(b.where(mask, v.re, x.re), b.where(mask, v.im, x.im)), strides)


# reductions


def _reduced(b: Builder, self: Node, dim: Any, dtype: torch.dtype | None, fn: Callable) -> Node:
    """``fn(part, dimensions)`` for both parts: at once where they lie side by side in memory, which is then read
    once."""
    dtype = dtype or self.dtype
    if dtype not in PARTS or self.dtype not in PARTS:
        return NotImplemented
    dims = b.dims_of(self, None if isinstance(dim, (tuple, list)) and not dim else dim)
    if pairs.computed(self) or self.dtype is not dtype:
        return pairs.joined(b, Pair(*(fn(p, dims) for p in pairs.operand(b, self, PARTS[dtype], self.device))))
    return pairs.reinterpreted(b, fn(pairs.reinterpreted(b, self, "view_as_real"), dims), "view_as_complex")


@form("sum")
def sum_(b: Builder, self: Node, dim: IntExpr | Sequence[int] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Node:
    return _reduced(b, self, dim, dtype, lambda p, dims: b.reduce("sum", p, dims, keepdim))


@form("mean")
def mean(b: Builder, self: Node, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
         dtype: torch.dtype | None = None) -> Node:
    return _reduced(b, self, dim, dtype, lambda p, dims: b.div(b.reduce("sum", p, dims, keepdim),
                                                               product(self.shape[d] for d in dims)))


# copies


def _moving(name: str) -> None:
    """An operator that moves elements: of complex numbers that are computed here it moves the parts."""

    def expand(b: Builder, *args: Any, **kwargs: Any) -> Node:
        given = list(of_kind(Node, (args, kwargs)))
        if not any(n.dtype in PARTS and pairs.computed(n) for n in given):
            return NotImplemented
        made = OPS[name].fn(b, *args, **kwargs)
        if made is NotImplemented or made.dtype not in PARTS:
            return NotImplemented
        return pairs.joined(b, pairs.moved_parts(b, made, given), made.type.strides)

    form(name)(expand)


for _name in ("clone", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack", "flip", "fliplr",
              "flipud", "roll", "repeat", "tile", "index_select", "gather"):
    _moving(_name)
