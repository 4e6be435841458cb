"""scatter, index_add and their family, where kernels write to places that data decide; elsewhere the library's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph.build import is_number
from jit.graph.ir import Node, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.registry import op
from jit.graph.scattering import added, writes

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number


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
