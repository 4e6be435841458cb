"""Random numbers: made in kernels from a seed that PyTorch's generator gives (see ``philox``), or all by PyTorch's
operators, in program order.

The operators are called where ``config.fallback_random`` asks for eager's very numbers, for a generator that the
program gives, and for distributions that have no expansion here. A rule gives NotImplemented also where eager may raise
for the values of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit import config
from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import aten, layout, philox
from jit.graph.build import HALF, resolve_device
from jit.graph.dims import hint, product
from jit.graph.handles import TensorHandle
from jit.graph.ir import Node, TensorType
from jit.graph.nested import of_kind
from jit.graph.ops.creation import _size
from jit.graph.registry import extern, op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.handles import SymSize
    from jit.graph.tracer import Tracer

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Bits of a uniform number: those of the dtype's significand, so that 1 is never rounded to.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}



def in_kernels(shape: SymSize | tuple[IntExpr, ...], device: torch.device, generator: object = None) -> bool:
    """Whether a draw is made in kernels."""
    if config.fallback_random or generator is not None:
        return False
    fewest = backend(device).fewest_drawn
    # Of a symbolic size a guard: size and seed alone say the numbers.
    return fewest == 0 or fewest is not None and bool(product(shape) >= fewest)


def _known(*numbers) -> bool:
    return all(type(v) in (int, float) for v in numbers)


# distributions: Builder, shape, dtype, device -> Node, row-major


def _fraction(b: Builder, words: Node, digits: int, dtype: torch.dtype, shift: float = 0.0) -> Node:
    """The lowest ``digits`` bits of ``words`` plus ``shift``, as a number below 1."""
    whole = b.cast(b.bitwise_and(words, (1 << digits) - 1), dtype)
    return b.mul(b.add(whole, shift) if shift else whole, 2.0**-digits)


def uniform(b: Builder, shape: tuple[IntExpr, ...], dtype: torch.dtype, device: torch.device) -> Node:
    """Uniform in [0, 1)."""
    return _fraction(b, philox.bits(b, shape, device, torch.int64 if dtype is torch.float64 else torch.int32),
                     _DIGITS[dtype], dtype)


def _open(b: Builder, shape: tuple[IntExpr, ...], dtype: torch.dtype, device: torch.device) -> Node:
    """Uniform in (0, 1), neither end included."""
    wide = dtype is torch.float64
    return _fraction(b, philox.bits(b, shape, device, torch.int64 if wide else torch.int32),
                     52 if wide else 23, dtype, 0.5)


# sin(pi w) / w in w * w on [0, 1/4], from Chebyshev's points: error of sin below 7e-9.
_SINE = (3.141592640077203, -5.167710076668337, 2.5500773865292525, -0.5982904112854502, 0.07765591228015914)


def _turned(b: Builder, words: Node) -> Node:
    """The float32 cosine of an angle of which int32 ``words`` are the 2^32nd parts of a turn. A library's would first
    bring any angle into range, at several times the cost."""
    half_turns = b.abs(b.cast(words, torch.float32))  # times 2^31: at most half a turn to either side
    w = b.fma(half_turns, b.lift(-2.0**-31, half_turns), b.lift(0.5, half_turns))
    z = b.mul(w, w)
    *lower, sine = (b.lift(c, w) for c in _SINE)
    for c in reversed(lower):
        sine = b.fma(z, sine, c)
    return b.mul(w, sine)


def normal(b: Builder, shape: tuple[IntExpr, ...], dtype: torch.dtype, device: torch.device) -> Node:
    """Mean 0, standard deviation 1, by the transformation of Box and Muller (1958): a pair of uniform numbers gives a
    cosine and a sine, which is the cosine of three quarters of a turn more. For float64, a pair for each."""
    if dtype is torch.float64:
        key = philox.seed(b, device)
        first, second = (philox.bits(b, shape, device, torch.int64, key, k, 2) for k in (0, 1))
        radius = b.sqrt(b.mul(b.log(_fraction(b, first, 53, dtype, 1.0)), -2.0))
        return b.mul(radius, b.cos(b.mul(_fraction(b, second, 53, dtype), 2 * math.pi)))
    words, odd = philox.pairs(b, shape, device)
    first, second = b.cast(words, torch.int32), b.cast(b.shr(words, 32), torch.int32)
    second = b.add(second, b.where(odd, b.lift(-1 << 30, second), 0))  # three quarters more, or one less
    radius = b.sqrt(b.mul(b.log(_fraction(b, first, 24, torch.float32, 1.0)), -2.0))
    return b.mul(radius, _turned(b, second))


def exponential(b: Builder, shape: tuple[IntExpr, ...], dtype: torch.dtype, device: torch.device) -> Node:
    """Rate 1; never 0, of which gumbel_softmax takes the logarithm."""
    return b.neg(b.log(_open(b, shape, torch.float32 if dtype in HALF else dtype, device)))


def integers(b: Builder, low: int, high: int, shape: tuple[IntExpr, ...], dtype: torch.dtype,
             device: torch.device) -> Node:
    """Uniform in low .. high-1."""
    n = high - low
    if n <= 1 << 31:  # the upper word of a product
        words = b.bitwise_and(b.cast(philox.bits(b, shape, device), torch.int64), (1 << 32) - 1)
        value = b.shr(b.mul(words, n), 32)
    else:
        value = b.remainder(b.bitwise_and(philox.bits(b, shape, device, torch.int64), (1 << 63) - 1), n)
    return b.cast(b.add(value, low) if low else value, dtype)


def keep(b: Builder, shape: tuple[IntExpr, ...], device: torch.device, p: float) -> Node:
    """True with probability ``p``, a bool tensor."""
    if p in (0, 1):
        return b.full(shape, p == 1, torch.bool, device)
    limit = min(round((1 - p) * 2.0**32), (1 << 32) - 1) - (1 << 31)
    return b.ge(philox.bits(b, shape, device), limit)


# new tensors


def _new_type(size: tuple[IntExpr, ...], dtype: torch.dtype | None, device: torch.device, special,
              memory=None) -> TensorType:
    """The type of a tensor to be drawn in kernels; None where the operator is called. ``special``: it requires grad, or
    lies in pinned memory."""
    dtype, device = dtype or torch.get_default_dtype(), resolve_device(device, torch.get_default_device())
    return None if special or memory not in (None, torch.strided) else TensorType.contiguous(size, dtype, device)


def _factory(name: str, distribution: Callable) -> None:
    def expand(b: Builder, *size: int, generator: object = None, names=None, out=None, dtype: torch.dtype | None = None,
               layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
               requires_grad: bool = False) -> object:
        t = _new_type(_size(size), dtype, device, requires_grad or pin_memory, layout)
        if t is None or names is not None or t.dtype not in FLOATS or not in_kernels(t.shape, t.device, generator):
            return NotImplemented
        return b.cast(distribution(b, t.shape, t.dtype, t.device), t.dtype)

    def expand_like(b: Builder, self: Node, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                    device: torch.device | None = None, pin_memory: bool | None = None, requires_grad: bool = False,
                    memory_format: torch.memory_format | None = None, generator=None):
        t = _like_type(self, dtype, device, memory_format)
        if (requires_grad or pin_memory or layout not in (None, torch.strided)
            or t.dtype not in FLOATS or not in_kernels(t.shape, t.device, generator)):
            return NotImplemented
        return _as_type(b, distribution(b, t.shape, t.dtype, t.device), t)

    op(name)(expand)
    op(name + "_like")(expand_like)


def _like_type(self: Node, dtype: torch.dtype, device: torch.device, memory_format: torch.memory_format) -> TensorType:
    t = self.type.replace(dtype=dtype or self.dtype, strides=layout.format_strides(self.type, memory_format))
    return t.replace(device=resolve_device(device, self.device))


def _as_type(b: Builder, value: Node, t: TensorType) -> Node:
    """``value`` in the dtype and with the strides of ``t``."""
    value = b.cast(value, t.dtype)
    value.type = t
    return value


_factory("rand", uniform)
_factory("randn", normal)


def _integer_bounds(dtype: torch.dtype, low: int, high: int) -> bool:
    """Whether integers in low .. high-1 can be drawn here as ``dtype``; eager raises for what the dtype cannot hold."""
    if (type(low) is not int or type(high) is not int or low >= high or high - low > 1 << 62
        or dtype.is_complex or dtype is torch.bool):
        return False
    most = 2 ** _DIGITS[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max
    return -most <= low and high - 1 <= most and (dtype.is_floating_point or torch.iinfo(dtype).min <= low)


@op("randint")
def randint(b: Builder, *bounds_and_size: int | tuple[int, ...], low=None, high=None,
            size: Sequence[IntExpr] | None = None, generator=None, dtype: torch.dtype | None = None,
            layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
            requires_grad: bool = False) -> Node:
    given = [*bounds_and_size]
    size = given.pop() if size is None and given else size
    if not given and high is None or not isinstance(size, (tuple, list)):
        return NotImplemented
    low, high = (given + [high] if high is not None else given) if len(given) + (high is not None) == 2 else (low or 0,
        high if high is not None else given[0])
    t = _new_type(_size((size,)), dtype or torch.int64, device, requires_grad or pin_memory, layout)
    if t is None or not in_kernels(t.shape, t.device, generator) or not _integer_bounds(t.dtype, low, high):
        return NotImplemented
    return integers(b, low, high, t.shape, t.dtype, t.device)


@op("randint_like")
def randint_like(b: Builder, self: Node, *bounds: object, low=None, high=None, dtype: torch.dtype | None = None,
                 layout: torch.layout | None = None, device: torch.device | None = None, pin_memory: bool | None = None,
                 requires_grad: bool = False, memory_format: torch.memory_format | None = None, generator=None):
    given = [*bounds, *(v for v in (low, high) if v is not None)]
    if not 1 <= len(given) <= 2:
        return NotImplemented
    low, high = given if len(given) == 2 else (0, given[0])
    t = _like_type(self, dtype, device, memory_format)
    if (requires_grad or pin_memory or layout not in (None, torch.strided)
        or not in_kernels(t.shape, t.device, generator) or not _integer_bounds(t.dtype, low, high)):
        return NotImplemented
    return _as_type(b, integers(b, low, high, t.shape, t.dtype, t.device), t)


@op("bernoulli")
def bernoulli(b: Builder, self: Node, p: float | int | None = None, *, generator: object = None) -> object:
    if not _known(p) or not 0 <= p <= 1 or self.dtype.is_complex or not in_kernels(self.shape, self.device, generator):
        return NotImplemented  # a tensor of probabilities is checked by eager
    return _as_type(b, keep(b, self.shape, self.device, p), TensorType.contiguous(self.shape, self.dtype, self.device))


@op("normal")
def normal_of(b: Builder, mean: Node, std: float = 1.0, size: Sequence[IntExpr] | None = None, *, generator=None,
              dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: torch.device | None = None,
              pin_memory: bool | None = None, requires_grad: bool = False) -> Node:
    of_tensor = isinstance(mean, Node)
    if not _known(std) or std < 0 or of_tensor is (size is not None) or not of_tensor and not _known(mean):
        return NotImplemented  # a tensor of deviations is checked by eager
    if size is None:
        t = TensorType.contiguous(mean.shape, mean.dtype, mean.device)
    else:
        # The default device says nothing here.
        t = _new_type(_size((size,)), dtype, device or "cpu", requires_grad or pin_memory, layout)
    if t is None or t.dtype not in FLOATS or not in_kernels(t.shape, t.device, generator):
        return NotImplemented
    return _as_type(b, _placed(b, normal(b, t.shape, t.dtype, t.device), mean, std), t)


def _placed(b: Builder, z: Node, mean: Node, std: float) -> Node:
    """``z * std + mean``, in the dtype of z."""
    z = b.mul(z, std)
    return b.add(z, b.cast(mean, z.dtype))


# fills in place

def _uniform_fill(b: Builder, t: Tracer, from_: float = 0.0, to: float = 1.0):
    if not _known(from_, to) or not from_ <= to or not all(abs(v) <= torch.finfo(t.dtype).max
                                                           for v in (from_, to, to - from_)):
        return NotImplemented
    return b.add(b.mul(uniform(b, t.shape, t.dtype, t.device), to - from_), from_)


def _normal_fill(b: Builder, t: Tracer, mean: float = 0.0, std: float = 1.0):
    return (_placed(b, normal(b, t.shape, t.dtype, t.device), mean, std) if _known(mean, std) and std >= 0
            else NotImplemented)


def _exponential_fill(b: Builder, t: Tracer, lambd: float = 1.0):
    return b.div(exponential(b, t.shape, t.dtype, t.device), lambd) if _known(lambd) and lambd > 0 else NotImplemented


def _one_by_one(b: Builder, self: Node, *args: object, **kwargs: object) -> Node:
    """A normal draw for a tensor with gaps, which eager makes number by number in the order of the memory, where it
    draws for 16 and more without gaps in blocks. The operator that makes a new tensor has none with gaps, but it goes
    one by one as well through a matrix that is not row-major."""
    shape, strides = self.type.shape, self.type.strides
    count = int(self.type.numel)
    rows = next((n for n in range(2, math.isqrt(count) + 1) if count % n == 0), None)
    if rows is None:
        raise Unsupported("a normal draw into a tensor with gaps, of a prime number of elements",
                          "draw into a new tensor, and copy it", kind="mutating-op")
    like = b.clone(b.full((rows, count // rows), 0, self.dtype, self.device), (1, rows))
    drawn = aten.call(b, "normal_functional", [like, *args], kwargs)
    order = sorted(range(len(shape)), key=lambda d: -hint(strides[d]))
    memory = b.reshape(b.permute(drawn, (1, 0)), tuple(shape[d] for d in order))
    return b.permute(memory, tuple(order.index(d) for d in range(len(shape))))


def _fill(name: str, functional: str, in_kernel: Callable | None = None) -> None:
    """An in-place method: the operator that gives a tensor like its first argument, and what kernels make of it."""

    def run(t: Tracer, self: TensorHandle, *args: float, generator: object = None, **kwargs: object) -> TensorHandle:
        value, b = NotImplemented, t.builder
        if in_kernel is not None and self.type.dtype in FLOATS and in_kernels(self.shape, self.device, generator):
            value = in_kernel(b, self.type, *args, **{"from_" if k == "from" else k: v for k, v in kwargs.items()})
        if value is not NotImplemented:
            value = b.cast(value, self.type.dtype)
        elif name == "normal_" and backend(self.device).draws_in_blocks and _loses_gaps(self.type):
            value = _one_by_one(b, self.node, *args, **kwargs, generator=generator)
        else:
            value = aten.call(b, functional, [self.node, *args], {**kwargs, "generator": generator})
        t.write(self, value)
        return self

    op(name, raw=True)(run)
    extern(functional)(_like_self)


def _loses_gaps(t: TensorType) -> bool:
    """Whether a copy of a tensor of 16 elements and more is row-major, as the tensor itself is not."""
    return bool(t.numel >= 16) and not t.is_contiguous and t.replace(strides=layout.preserved_strides(t)).is_contiguous


@op("bernoulli_", raw=True)
def bernoulli_(t: Tracer, self: TensorHandle, p: float | TensorHandle = 0.5, *, generator=None) -> TensorHandle:
    b = t.builder
    value = bernoulli(b, self.node, p, generator=generator)
    if value is NotImplemented:
        probability = p.node if isinstance(p, TensorHandle) else float(p)
        order = list(range(self.type.rank))
        if not isinstance(p, TensorHandle):  # number by number in the order of the memory; a new tensor is row-major
            order.sort(key=lambda d: -hint(self.type.strides[d]))
        value = aten.call(b, "bernoulli", [b.permute(self.node, tuple(order)), probability], {"generator": generator})
        value = b.permute(value, tuple(order.index(d) for d in range(len(order))))
    t.write(self, value)
    return self


@extern("bernoulli")
def _row_major(self, *args: object) -> TensorType:
    return TensorType.contiguous(self.shape, self.dtype, self.device)


@extern("normal")
def _of_tensors(mean: Node, std: float, *args: object):
    tensors = list(of_kind(TensorType, (mean, std)))
    if not tensors or args and args[0] is not None and not isinstance(args[0], torch.Generator):
        return NotImplemented
    return TensorType.contiguous(layout.broadcast_shapes(*(v.shape for v in tensors)),
                                 tensors[0].dtype, tensors[0].device)


@extern("rand_like", "randn_like", "randint_like", "dropout")
def _like_self(self, *args: object) -> object:
    """Random ops whose result is like their first argument, unless dtype, device or memory format are given."""
    if any(not isinstance(a, (int, float, TensorType)) and a is not None for a in args):
        return NotImplemented
    return self.replace(strides=layout.preserved_strides(self))


_fill("normal_", "normal_functional", _normal_fill)
_fill("uniform_", "uniform", _uniform_fill)
_fill("exponential_", "exponential", _exponential_fill)
for _name in ("random", "geometric", "cauchy", "log_normal"):
    _fill(f"{_name}_", _name)
