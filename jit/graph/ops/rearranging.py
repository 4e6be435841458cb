"""Copies that only move elements: pixel and channel shuffles, diagonals, rotations, stacks of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.devices import backend
from jit.graph import layout
from jit.graph.build import is_number
from jit.graph.handles import overlaps_itself
from jit.graph.ir import Node, TensorType, contiguous_strides
from jit.graph.layout import normalize_dim
from jit.graph.nested import unpacked
from jit.graph.ops.copies import cat
from jit.graph.ops.views import slice_bounds
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

def _shuffled(b: Builder, source: Node, x: Node, shape: tuple[IntExpr, ...]) -> Node:
    """``x``, a view of ``source``, in new memory with ``shape``: row-major, or channels-last where the device's kernels
    follow the source in that."""
    y = b.reshape(b.clone(x, layout.contiguous_strides(x.shape)), shape)
    if backend(source.device).keeps_channels_last and layout.memory_format(source.type) == "channels_last":
        y = b.clone(y, layout.channels_last_strides(y.shape))
    return y


@op("pixel_shuffle")
def pixel_shuffle(b: Builder, self: Node, upscale_factor) -> Node:
    """(..., C r r, H, W) -> (..., C, H r, W r)"""
    r, rank = upscale_factor, self.type.rank
    if rank < 3 or r <= 0 or not self.shape[-3] % (r * r) == 0:
        raise RuntimeError("pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
                           f"upscale_factor, but input.size(-3)={self.shape[-3:-2]}")
    lead, (c, h, w) = self.shape[:-3], self.shape[-3:]
    x = b.reshape(self, (*lead, c // (r * r), r, r, h, w))
    n = len(lead)
    x = b.permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return _shuffled(b, self, x, (*lead, c // (r * r), h * r, w * r))


@op("pixel_unshuffle")
def pixel_unshuffle(b: Builder, self: Node, downscale_factor: int) -> Node:
    """(..., C, H r, W r) -> (..., C r r, H, W)"""
    r, rank = downscale_factor, self.type.rank
    if rank < 3 or r <= 0 or not self.shape[-2] % r == 0 or not self.shape[-1] % r == 0:
        raise RuntimeError("pixel_unshuffle expects height and width to be divisible by downscale_factor, but they "
                           f"are {self.shape[-2:]}")
    lead, (c, h, w) = self.shape[:-3], self.shape[-3:]
    x = b.reshape(self, (*lead, c, h // r, r, w // r, r))
    n = len(lead)
    x = b.permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return _shuffled(b, self, x, (*lead, c * r * r, h // r, w // r))


@op("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(b: Builder, self: Node, groups: int) -> Node:
    """(N, G C, ...) with the channels in the order that goes through the groups first."""
    rank = self.type.rank
    if rank < 3 or groups <= 0 or not self.shape[1] % groups == 0:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {self.shape[1:2]} channels and "
                           f"{groups} groups.")
    n, c, *rest = self.shape
    x = b.transpose(b.reshape(self, (n, groups, c // groups, *rest)), 1, 2)
    return _shuffled(b, self, x, self.shape)


@op("diag_embed")
def diag_embed(b: Builder, self: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """The last dimension on a diagonal of zeros."""
    rank = self.type.rank + 1
    d1, d2 = normalize_dim(dim1, rank), normalize_dim(dim2, rank)
    if d1 == d2 or self.type.rank == 0 or not is_number(offset):
        return NotImplemented
    size = self.shape[-1] + abs(offset)
    # One value for each row of the matrix, zero where the diagonal does not reach it, spread along the row.
    first = max(-offset, 0)
    pads = [(0, 0)] * (self.type.rank - 1) + [(first, size - first - self.shape[-1])]
    line = b.pad(self, pads) if offset else self
    order = [d for d in range(rank) if d not in (d1, d2)]
    source = {d: k for k, d in enumerate(order)}
    line = b.permute(line, [source[d] if d in source else self.type.rank - 1 for d in range(rank) if d != d2])
    line = b.unsqueeze(line, d2)
    shape = tuple(self.shape[source[d]] if d in source else size for d in range(rank))

    def position(d: int) -> Node:
        return b.reshape(b.iota(size, device=self.device), tuple(size if k == d else 1 for k in range(rank)))

    on = b.eq(b.add(position(d1), offset), position(d2))
    y = b.where(on, b.expand(line, shape), b.scalar(0, self.dtype, self.device))
    y.type = TensorType.contiguous(shape, self.dtype, self.device)
    return y


@op("diag")
def diag(b: Builder, self: Node, diagonal: int = 0) -> Node:
    if self.type.rank == 1:
        return diag_embed(b, self, diagonal)
    if self.type.rank != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {self.type.rank}D")
    part = b.emit("diagonal", (self,), {"offset": diagonal, "dim1": 0, "dim2": 1})
    return b.clone(part, contiguous_strides(part.shape))


@op("diagflat")
def diagflat(b: Builder, self: Node, offset: int = 0) -> Node:
    return diag_embed(b, b.reshape(self, (self.type.numel,)), offset)


@op("rot90")
def rot90(b: Builder, self: Node, k: int = 1, dims=(0, 1)) -> Node:
    if len(dims) != 2 or self.type.rank < 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    d1, d2 = (normalize_dim(d, self.type.rank) for d in dims)
    if d1 == d2:
        raise RuntimeError(f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    k %= 4
    if k == 0:
        return b.clone(self, layout.contiguous_strides(self.shape))
    if k == 2:
        return b.flip(self, (d1, d2))
    turned = b.flip(self, (d2,) if k == 1 else (d1,))
    return b.transpose(turned, d1, d2)


def _columns(x: Node, b: Builder) -> Node:
    return b.reshape(x, (x.type.numel, 1)) if x.type.rank <= 1 else x


@op("column_stack")
def column_stack(b: Builder, tensors: list[Node]) -> Node:
    return cat(b, [_columns(x, b) for x in tensors], 1)


@op("dstack")
def dstack(b: Builder, tensors: list[Node]) -> Node:
    def deep(x: Node) -> Node:
        if x.type.rank <= 1:
            return b.reshape(x, (1, x.type.numel, 1))
        return b.unsqueeze(x, 2) if x.type.rank == 2 else x

    return cat(b, [deep(x) for x in tensors], 2)


@op("select_scatter")
def select_scatter(b: Builder, self: Node, src: Node, dim: int, index: int) -> Node:
    d = normalize_dim(dim, self.type.rank)
    size = self.shape[d]
    if (not is_number(index) or not (-size <= index < size) or src.dtype is not self.dtype
        or src.type.rank != self.type.rank - 1):
        return NotImplemented
    return _replaced(b, self, b.unsqueeze(src, d), d, index + size if index < 0 else index, 1)


def _replaced(b: Builder, x: Node, part: Node, d: int, start: int, length: int) -> Node:
    """``x`` with ``length`` positions from ``start`` along ``d`` replaced."""
    shape = (*x.shape[:d], length, *x.shape[d + 1 :])
    if not len(part.shape) == len(shape) or not all(p == q for p, q in zip(part.shape, shape)):
        return NotImplemented
    y = b.cat([b.slice(x, d, 0, start), part, b.slice(x, d, start + length, x.shape[d] - start - length)], d)
    strides = layout.preserved_strides(x.type) if overlaps_itself(x.type) else x.type.strides
    y.type = TensorType(x.shape, strides, x.dtype, x.device)
    return y


@op("slice_scatter")
def slice_scatter(b: Builder, self: Node, src, dim: int = 0, start=None, end=None, step: int = 1):
    if step != 1 or src.dtype is not self.dtype or self.type.rank == 0:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    first, length = slice_bounds(start, end, 1, self.shape[d])
    return _replaced(b, self, src, d, first, length)


@op("block_diag", raw=False)
def block_diag(b: Builder, *tensors: tuple[Node, ...]) -> Node:
    tensors = unpacked(tensors)
    if any(t.type.rank > 2 or t.dtype is not tensors[0].dtype for t in tensors):
        return NotImplemented
    blocks = [b.reshape(t, (1, t.type.numel)) if t.type.rank < 2 else t for t in tensors]
    width, rows, at = sum(t.shape[1] for t in blocks), [], 0
    for t in blocks:
        rows.append(b.pad(t, [(0, 0), (at, width - at - t.shape[1])]))
        at = at + t.shape[1]
    return cat(b, rows, 0)


