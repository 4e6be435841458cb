"""Running products, extrema and logarithms of sums of exponentials; sorted rows and what is read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph.build import is_number
from jit.graph.dims import Dim
from jit.graph.handles import NamedResult
from jit.graph.ir import Node, TensorType, contiguous_strides
from jit.graph.layout import normalize_dim
from jit.graph.registry import extern, op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr


def _in_kernels(x: Node) -> bool:
    """Whether kernels scan such a tensor: one that has dimensions and elements."""
    device = backend(x.device)
    return (device.emitter is not None and device.memory and x.dtype in device.dtypes and x.type.rank > 0
            and not any(type(s) is int and s == 0 for s in x.shape))


def _accumulated(b: Builder, x: Node) -> Node:
    """In the type in which eager's kernel accumulates: on CPUs double for single precision."""
    return b.cast(x, torch.float64) if backend(x.device).wide_partials and x.dtype.is_floating_point else b.opmath(x)


@op("cumprod")
def cumprod(b: Builder, self: Node, dim: int, *, dtype: torch.dtype | None = None) -> Node:
    if dtype is None:
        dtype = self.dtype if self.dtype.is_floating_point else torch.int64
    x = b.cast(self, dtype)
    if not _in_kernels(x) or dtype is torch.bool or b.recording and dtype is not torch.float64 and x is not b.opmath(x):
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    if b.recording and backend(x.device).wide_partials:
        return NotImplemented  # the gradient reads the result in the type that it is accumulated in
    return b.cast(b.scan("cumprod", _accumulated(b, x), d), dtype)


@op("logcumsumexp")
def logcumsumexp(b: Builder, self: Node, dim: int) -> Node:
    if not _in_kernels(self) or not self.dtype.is_floating_point or b.recording:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    return b.cast(b.scan("logcumsumexp", _accumulated(b, self), d), self.dtype)


def _running(name: str) -> None:
    def expand(b: Builder, self: Node, dim: int) -> NamedResult:
        if not _in_kernels(self) or self.dtype is torch.bool:
            return NotImplemented
        d = normalize_dim(dim, self.type.rank)
        return NamedResult(getattr(torch.return_types, name), ("values", "indices"),
                           (b.scan(name, self, d), b.scan(f"{name}_at", self, d)))

    op(name)(expand)


_running("cummax")
_running("cummin")


# sorted rows: keys with the position in their lower bits, so that equal values keep their order

_NARROW = (torch.int8, torch.uint8, torch.int16, torch.bool)


def _short(dtype: torch.dtype) -> bool:
    """Whether keys of 32 bits hold a value and its position."""
    return dtype is torch.bfloat16 or dtype in _NARROW


class _Keys:
    """The rows of ``x`` along ``dim`` as keys to sort. ``above``: the bits of a key below those of the value: the
    position, and whether the value is -0."""

    def __init__(self, b: Builder, x: Node, dim: int, descending: bool) -> None:
        self.b, self.x, self.descending = b, x, descending
        short = _short(x.dtype)
        self.dtype = torch.int32 if short else torch.int64
        self.below = 16 if short else 20
        value = b.opmath(x)
        positions = b.iota(x.shape[dim], device=x.device)
        positions = b.reshape(positions, tuple(x.shape[dim] if d == dim else 1 for d in range(x.type.rank)))
        positions = b.cast(positions, self.dtype)
        low = b.shl(positions, 1)
        if x.dtype.is_floating_point:
            zero = b.logical_and(b.eq(value, 0), b.signbit(value))
            low = b.bitwise_or(low, b.cast(zero, self.dtype))
            key = b.order_key(value)
            key = b.shr(key, 16) if short else b.cast(key, self.dtype)
        else:
            key = b.cast(value, self.dtype)
        key = b.bitwise_not(key) if descending else key
        self.keys = b.bitwise_or(b.shl(key, self.below), low)

    def values(self, keys: Node) -> Node:
        b, dtype = self.b, self.x.dtype
        key = b.shr(keys, self.below)
        key = b.bitwise_not(key) if self.descending else key
        if not dtype.is_floating_point:
            return b.cast(key, dtype)
        key = b.shl(key, 16) if self.dtype is torch.int32 else b.cast(key, torch.int32)
        if self.dtype is torch.int32:  # the bits that the type does not have are those of the key's sign
            key = b.where(b.lt(key, 0), b.bitwise_or(key, 0xFFFF), key)
        value = b.from_order_key(key)
        zero = b.ne(b.bitwise_and(keys, 1), 0)
        return b.cast(b.where(zero, -0.0, value), dtype)

    def positions(self, keys: Node) -> Node:
        b = self.b
        return b.cast(b.bitwise_and(b.shr(keys, 1), (1 << self.below - 1) - 1), torch.int64)


def _sortable(b: Builder, x: Node, dim: int) -> bool:
    """Whether kernels sort these rows: short ones, along the last dimension, of values that leave room for a position
    in a key."""
    size = x.shape[dim] if x.type.rank else 1
    fits = x.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, *_NARROW)
    return (fits and _in_kernels(x) and dim == x.type.rank - 1 and type(size) is int
            and 1 < size <= backend(x.device).longest_sorted * (2 if _short(x.dtype) else 1))


def _gathering(b: Builder, x: Node, dim: int, found: Node, at: Node) -> Node:
    """Values that were picked from ``x``, whose gradients go to the places ``at``, where they were."""
    return b.gather(x, dim, at) if b.recording else found


def _sorted(b: Builder, x: Node, dim: int, descending: bool) -> tuple[Node, Node]:
    keys = _Keys(b, x, dim, descending)
    found = b.sort_keys(keys.keys, dim)
    at = keys.positions(found)
    return _gathering(b, x, dim, keys.values(found), at), at


def _laid_out(b: Builder, x: Node) -> bool:
    return x.type.is_contiguous


@op("sort")
def sort(b: Builder, self: Node, *args: int | bool, dim: int = -1, descending: bool = False,
         stable: bool | None = None) -> NamedResult:
    args = list(args)
    if args and type(args[0]) is bool:
        return NotImplemented
    if args:
        dim = args.pop(0)
    if args:
        descending = args.pop(0)
    if args or not is_number(dim):
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    if not _sortable(b, self, d) or not _laid_out(b, self):
        return NotImplemented
    return NamedResult(torch.return_types.sort, ("values", "indices"), _sorted(b, self, d, bool(descending)))


@op("argsort")
def argsort(b: Builder, self: Node, *args: int | bool, dim: int = -1, descending: bool = False,
            stable: bool | None = None) -> Node:
    found = sort(b, self, *args, dim=dim, descending=descending, stable=stable)
    return NotImplemented if found is NotImplemented else found[1]


@extern("topk")
def topk_type(self: TensorType, k: IntExpr, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple:
    """The types of the library's result of symbolic sizes: a run at a few sizes cannot tell ``k`` from a number."""
    if not self.rank or not (self.is_symbolic or type(k) is Dim):
        return NotImplemented
    d = normalize_dim(dim, self.rank)
    if not k >= 0 or not k <= self.shape[d]:
        return NotImplemented
    shape = (*self.shape[:d], k, *self.shape[d + 1:])
    values = self.replace(shape=shape, strides=contiguous_strides(shape))
    return values, values.replace(dtype=torch.int64)


@op("topk")
def topk(b: Builder, self: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> NamedResult:
    d = normalize_dim(dim, self.type.rank)
    if type(k) is not int or not _sortable(b, self, d) or not 0 < k <= self.shape[d]:
        return NotImplemented
    keys = _Keys(b, self, d, bool(largest))
    found = b.sort_keys(keys.keys, d, 0, k)
    at = keys.positions(found)
    return NamedResult(torch.return_types.topk, ("values", "indices"),
                       (_gathering(b, self, d, keys.values(found), at), at))


def _picked(b: Builder, name: str, x: Node, d: int, number: int, keepdim: bool) -> NamedResult:
    """The element that is number ``number`` of each row in ascending order."""
    keys = _Keys(b, x, d, False)
    found = b.sort_keys(keys.keys, d, number, 1)
    at = keys.positions(found)
    values = _gathering(b, x, d, keys.values(found), at)
    parts = (values, at) if keepdim else (b.drop_dim(values, d), b.drop_dim(at, d))
    return NamedResult(getattr(torch.return_types, name), ("values", "indices"), parts)


def _median(name: str) -> None:
    def expand(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False) -> NamedResult:
        if dim is None or not is_number(dim):
            return NotImplemented
        d = normalize_dim(dim, self.type.rank)
        if not _sortable(b, self, d):
            return NotImplemented
        size = self.shape[d]
        found = _picked(b, name, self, d, (size - 1) // 2, keepdim)
        if not self.dtype.is_floating_point:
            return found
        if b.recording:
            return NotImplemented
        # Where there is a NaN, the first.
        nan = b.reduce("any", b.isnan(self), (d,), keepdim)
        values = b.where(nan, b.lift(float("nan"), found[0]), found[0])
        at = b.where(nan, b.reduce("argmax", self, (d,), keepdim), found[1])
        return NamedResult(found.cls, found.fields, (values, at))

    op(name)(expand)


_median("median")


@op("kthvalue")
def kthvalue(b: Builder, self: Node, k: int, dim: int = -1, keepdim: bool = False) -> NamedResult:
    d = normalize_dim(dim, self.type.rank)
    if type(k) is not int or not _sortable(b, self, d) or not 1 <= k <= self.shape[d]:
        return NotImplemented
    return _picked(b, "kthvalue", self, d, k - 1, keepdim)
