"""scatter, index_add and their family, where kernels write to places that data decide; elsewhere the library's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.build import is_number
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.ops.indexing import depends_on_data
from jit.graph.registry import op
from jit.graph.scattering import added, writes

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer


def _fits(x: Node, index: Node, d: int) -> bool:
    """Whether a scatter along ``d`` is one that kernels do: over an index of known rank whose other sizes fit."""
    return (writes(x.type, False) and index.dtype is torch.int64 and index.type.rank == x.type.rank
            and not any(type(s) is int and s == 0 for s in index.shape)
            and all(k == d or same_ints((n,), (m,)) or type(n) is type(m) is int and n <= m
                    for k, (n, m) in enumerate(zip(index.shape, x.shape))))


def _part(b: Builder, source: Node, index: Node) -> Node | None:
    """The part of ``source`` that a scatter reads; None where its gradient is refused, or the sizes are not known."""
    if same_ints(source.shape, index.shape):
        return source
    if b.recording or source.type.rank != index.type.rank or not all(
            type(n) is type(m) is int and n <= m for n, m in zip(index.shape, source.shape)):
        return None
    for k, n in enumerate(index.shape):
        source = b.slice(source, k, 0, n)
    return source


@op("scatter")
def scatter(b: Builder, self: Node, dim: int, index: Node, src: Node | Number | None = None, *,
            value: Number | None = None, reduce: str | None = None) -> Node:
    d = normalize_dim(dim, self.type.rank)
    src = value if src is None else src
    if reduce is not None or not _fits(self, index, d):
        return NotImplemented
    if is_number(src):
        values = b.expand(b.full((1,) * self.type.rank, src, self.dtype, self.device), index.shape)
    elif not isinstance(src, Node) or src.dtype is not self.dtype or src.type.rank != index.type.rank:
        return NotImplemented
    else:
        values = _part(b, src, index)
    return NotImplemented if values is None else b.scatter(self, d, index, values, "set")


def _rows(self: Node, dim: int, index: Node, source: Node | None, adds: bool) -> int | None:
    """The dimension along which rows of ``source`` go to the rows ``index``; None where the library does that."""
    if (not writes(self.type, adds) or index.type.rank != 1 or index.dtype not in (torch.int64, torch.int32)
        or type(index.shape[0]) is int and index.shape[0] == 0):
        return None
    d = normalize_dim(dim, self.type.rank)
    fits = source is None or source.dtype is self.dtype and same_ints(
        source.shape, self.shape[:d] + index.shape + self.shape[d + 1 :])
    return d if fits else None


@op("index_add")
def index_add(b: Builder, self: Node, dim: int, index: Node, source: Node, *, alpha: Number = 1) -> Node:
    d = _rows(self, dim, index, source, True)
    if d is None or type(alpha) not in (int, float):
        return NotImplemented
    at = b.cast(index, torch.int64)
    scaled = source if alpha == 1 else b.mul(source, alpha)
    result = added(b, self, scaled, lambda x, v: b.put(x, (d,), [at], v, "sum", wrap=False))
    return b.contiguous(result)


@op("index_copy")
def index_copy(b: Builder, self: Node, dim: int, index: Node, source: Node) -> Node:
    d = _rows(self, dim, index, source, False)
    if d is None or index.dtype is not torch.int64:
        return NotImplemented
    return b.contiguous(b.put(self, (d,), [index], source, "set", wrap=False))


@op("index_fill")
def index_fill(b: Builder, self: Node, dim: int, index: Node, value: Number) -> Node:
    d = _rows(self, dim, index, None, False)
    if d is None or index.dtype is not torch.int64 or not is_number(value):
        return NotImplemented
    filled = b.full((1,) * self.type.rank, value, self.dtype, self.device)
    values = b.expand(filled, self.shape[:d] + index.shape + self.shape[d + 1 :])
    return b.put(self, (d,), [index], values, "set")


class _Extremes:
    """Floats as integers in their order, of which kernels take the larger or the smaller one at a place that data
    decide: each has a key of its own, and NaN is beyond all others, as eager's results are NaN where a value is."""

    def __init__(self, b: Builder, largest: bool, dtype: torch.dtype) -> None:
        self.b, self.combine, self.dtype = b, "max" if largest else "min", dtype
        ends = torch.iinfo(torch.int32 if dtype.is_floating_point or dtype.itemsize < 4 else torch.int64)
        self.type = torch.int32 if ends.bits == 32 else torch.int64
        self.none, self.nan = (ends.min, ends.max) if largest else (ends.max, ends.min)

    def keys(self, x: Node) -> Node:
        b = self.b
        if not self.dtype.is_floating_point:
            return b.cast(x, self.type)
        value = b.opmath(x)
        negative_zero = b.logical_and(b.eq(value, 0), b.signbit(value))
        return b.where(b.isnan(value), self.nan, b.sub(b.order_key(value), b.cast(negative_zero, self.type)))

    def values(self, keys: Node) -> Node:
        return self.b.cast(self.b.from_order_key(keys) if self.dtype.is_floating_point else keys, self.dtype)


_EXTREMES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32)


def _much_larger(x: Node, values: Node) -> bool:
    """Whether most of ``x`` stays as it is: to bring it into another form takes longer than what is done to it."""
    sizes = [dims.product(t.shape) for t in (x, values)]
    return all(type(n) is int for n in sizes) and sizes[0] > 4 * sizes[1]


def _reduced(b: Builder, x: Node, values: Node, how: str, include_self: bool, put: Callable) -> Node | None:
    """``x`` with ``values`` combined at places that data decide; ``put(x, values, combine)`` is how kernels do it. None
    where the library does."""
    if b.recording:
        return None
    if how in ("amax", "amin"):
        if x.dtype not in _EXTREMES or _much_larger(x, values):
            return None
        keys = _Extremes(b, how == "amax", x.dtype)
        start = keys.keys(x) if include_self else b.full(x.shape, keys.none, keys.type, x.device)
        found = put(start, keys.keys(values), keys.combine)
        return keys.values(found) if include_self else b.where(b.eq(found, keys.none), x, keys.values(found))
    if how not in ("sum", "mean") or x.dtype is not torch.float32:
        return None
    start = b.opmath(x) if include_self else b.full(x.shape, 0, torch.float32, x.device)
    total = put(start, b.opmath(values), "sum")
    if how == "sum" and include_self:
        return b.cast(total, x.dtype)
    ones = b.expand(b.full((1,) * values.type.rank, 1, torch.int32, x.device), values.shape)
    count = put(b.full(x.shape, int(include_self), torch.int32, x.device), ones, "sum")
    if how == "mean":
        total = b.div(total, b.cast(b.maximum(count, 1), torch.float32))
    result = b.cast(total, x.dtype)
    return result if include_self else b.where(b.eq(count, 0), x, result)


@op("scatter_reduce")
def scatter_reduce(b: Builder, self: Node, dim: int, index: Node, src: Node, reduce: str, *,
                   include_self: bool = True) -> Node:
    d = normalize_dim(dim, self.type.rank)
    if not _fits(self, index, d) or src.dtype is not self.dtype or src.type.rank != index.type.rank:
        return NotImplemented
    values = _part(b, src, index)
    found = None if values is None else _reduced(
        b, self, values, reduce, include_self, lambda x, v, combine: b.scatter(x, d, index, v, combine))
    return NotImplemented if found is None else b.contiguous(found)


@op("index_reduce")
def index_reduce(b: Builder, self: Node, dim: int, index: Node, source: Node, reduce: str, *,
                 include_self: bool = True) -> Node:
    d = _rows(self, dim, index, source, False)
    if d is None:
        return NotImplemented
    at = b.cast(index, torch.int64)
    found = _reduced(b, self, source, reduce, include_self,
                     lambda x, v, combine: b.put(x, (d,), [at], v, combine, wrap=False))
    return NotImplemented if found is None else b.contiguous(found)


def _quotient(b: Builder, x: Node, by: float) -> Node:
    """``x / by`` in float32, rounded as a division is, of numbers for which nothing overflows: the product with the
    reciprocal, corrected by what is left."""
    inverse = b.lift(float(1 / torch.tensor(by, dtype=torch.float32)), x)
    product = b.mul(x, inverse)
    return b.fma(b.fma(product, b.lift(-by, x), x), inverse, product)


@op("histc")
def histc(b: Builder, self: Node, bins: int = 100, min: Number = 0, max: Number = 0) -> Node:
    """Counts of the values in ``bins`` ranges of one width; what is outside of all, or NaN, goes to one more, which is
    left out. Ranges that the data decide are the library's, as it raises where they are not finite."""
    if (self.dtype is not torch.float32 or not writes(self.type) or not all(type(v) in (int, float) for v in (min, max))
        or not min < max or type(bins) is not int or bins <= 0 or b.recording):
        return NotImplemented
    x = b.reshape(self, (dims.product(self.shape),))
    inside = b.logical_and(b.ge(x, float(min)), b.le(x, float(max)))
    width = float(torch.tensor(max, dtype=x.dtype) - torch.tensor(min, dtype=x.dtype))
    at = _quotient(b, b.mul(b.sub(x, float(min)), float(bins)), width)
    bin = b.where(inside, b.minimum(b.cast(at, torch.int32), bins - 1), bins)
    bin = b.cast(bin, torch.int64)
    counts = _counts(b, bin, bins + 1, torch.int32)
    return b.cast(b.slice(counts, 0, 0, bins), self.dtype)


def _counts(b: Builder, places: Node, limit: int, dtype: torch.dtype) -> Node:
    """How often each number below ``limit`` occurs in ``places``, in which there are no others."""
    ones = b.expand(b.full((1,), 1, dtype, places.device), places.shape)
    return b.put(b.full((limit,), 0, dtype, places.device), (0,), [places], ones, "sum", wrap=False)


_COUNTED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MOST_NUMBERS = 4096  # that are counted next to a processor; see codegen/triton/counts.py


@op("bincount", raw=True)
def bincount(t: Tracer, self: TensorHandle, weights: TensorHandle | None = None, minlength: int = 0) -> TensorHandle:
    """As many counts as are wanted at least, of numbers that are taken to be below that and not negative. Where our
    kernels count, that it is so is found meanwhile: there is one more place, for all others, which has to stay empty.
    """
    counted = backend(self.device).atomics
    if (t.assume is None or weights is not None or type(minlength) is not int
        or not 0 < minlength or counted and minlength > _MOST_NUMBERS
        or self.type.rank != 1 or self.type.is_empty or self.dtype not in _COUNTED):
        raise depends_on_data()
    b = t.builder
    x = self.node if self.dtype.itemsize >= 4 else b.cast(self.node, torch.int32)
    inside = b.logical_and(b.ge(x, 0), b.lt(x, minlength))
    if not counted:  # the library counts, and is given only what is below
        if not t.assume(t.fresh(b.reduce("all", inside, (0,), False, torch.bool))):
            raise depends_on_data()
        below = b.where(inside, x, b.scalar(0, x.dtype, x.type.device))
        result = TensorType.contiguous((minlength,), torch.int64, self.device)
        return t.fresh(b.aten("aten::bincount", "", (below, None, minlength), result))
    place = b.where(inside, b.cast(x, torch.int32), minlength)
    counts = _counts(b, b.cast(place, torch.int64), minlength + 1, torch.int64)
    if not t.assume(t.fresh(b.eq(b.select(counts, 0, minlength), 0))):
        raise depends_on_data()
    return t.fresh(b.clone(b.slice(counts, 0, 0, minlength)))
