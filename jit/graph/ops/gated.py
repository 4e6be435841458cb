"""Activations with a gate or a learned slope, and similarities: expansions that fuse where eager calls a kernel for
each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit import config
from jit.graph import layout
from jit.graph.build import HALF, is_number
from jit.graph.ir import Node
from jit.graph.layout import normalize_dim
from jit.graph.ops.losses import MEAN, reduced, written_like
from jit.graph.ops.ranking_losses import floating
from jit.graph.ops.reductions import sum_, vector_norm
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder


@op("glu")
def glu(b: Builder, self: Node, dim: int = -1):
    """The first half times the sigmoid of the second."""
    if not self.dtype.is_floating_point or self.type.rank == 0:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    size = self.shape[d]
    if not size % 2 == 0:
        raise RuntimeError(f"Halving dimension must be even, but dimension {d} is size {size}")
    half = size // 2
    parts = [b.slice(self, d, k * half, half) for k in (0, 1)]
    x, gate = map(b.opmath, parts)
    s = b.sigmoid(gate)
    y = b.with_gradient(b.mul(x, s), (x, lambda: s), (gate, lambda: b.mul(b.mul(b.sub(b.lift(1.0, s), s), s), x)))
    y = b.cast(y, self.dtype)
    y.type = y.type.replace(strides=layout.iterator_strides(y.shape, [p.type for p in parts]))
    return y


@op("prelu")
def prelu(b: Builder, self: Node, weight: Node) -> object:
    if not self.dtype.is_floating_point or weight.dtype is not self.dtype or weight.type.rank > 1:
        return NotImplemented
    if weight.type.rank == 1 and not weight.shape[0] == 1:
        if not self.type.rank:
            return NotImplemented  # refused
        channels = self.shape[1] if self.type.rank > 1 else 1
        if not weight.shape[0] == channels:
            raise RuntimeError("Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                               f"{weight.shape[0]} and channel size = {channels}.")
    w = b.opmath(weight)
    if w.type.rank == 1:
        rest = (1,) * (self.type.rank - 2)
        w = b.reshape(w, (1, w.shape[0], *rest) if self.type.rank > 1 else (w.shape[0],) * self.type.rank)
    x = b.opmath(self)
    y = b.cast(b.where(b.gt(x, 0.0), x, b.mul(w, x)), self.dtype)
    strides = layout.preserved_strides(self.type)
    y.type = y.type.replace(strides=strides)
    return y


@op("cosine_similarity")
def cosine_similarity(b: Builder, x1, x2, dim: int = 1, eps: float = 1e-8):
    """sum(x1 / max(|x1|, eps) * x2 / max(|x2|, eps)); the gradient is that of the norms, also where they are below
    eps."""
    if x1.dtype is not x2.dtype or not x1.dtype.is_floating_point or config.match_eager_rounding and x1.dtype in HALF:
        return NotImplemented
    shape = layout.broadcast_shapes(x1.shape, x2.shape)
    if not shape or any(type(s) is int and s == 0 for s in shape):
        return NotImplemented
    x, y = (b.expand(b.opmath(v), shape) for v in (x1, x2))
    d = normalize_dim(dim, len(shape))
    least = torch.tensor(eps, dtype=x1.dtype).item()  # zero for float16 and the usual eps, as in eager

    def unit(v):
        length = vector_norm(b, v, 2, (d,), True)
        limited = b.maximum(length, least)
        return b.div(v, b.with_gradient(limited, (length, lambda: b.full(length.shape,
                                                                         1, length.dtype, length.device))))

    return b.cast(b.reduce("sum", b.mul(unit(x), unit(y)), (d,)), x1.dtype)


@op("soft_margin_loss")
def soft_margin_loss(b: Builder, self: Node, target: Node, reduction: int = MEAN) -> object:
    if not floating(self, target):
        return NotImplemented
    return reduced(b, written_like(b, b.log1p(b.exp(b.neg(b.mul(self, target)))), self, reduction), reduction)


@op("poisson_nll_loss")
def poisson_nll_loss(b: Builder, self: Node, target: Node, log_input: bool, full: bool, eps: float,
                     reduction: int) -> object:
    if not floating(self, target) or full:
        return NotImplemented
    if log_input:
        loss = b.sub(b.exp(self), b.mul(target, self))
    else:
        loss = b.sub(self, b.mul(target, b.log(b.add(self, float(eps)))))
    return reduced(b, loss, reduction)


# sums and means without NaN


def _without_nan(b: Builder, x: Node) -> Node:
    """``x`` with zeros for NaN. The gradient is multiplied by zero there."""
    undefined = b.isnan(x)
    return b.with_gradient(b.where(undefined, 0.0, x), (x, lambda: b.where(undefined, 0.0, b.lift(1.0, x))))


@op("nansum")
def nansum(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False, *,
           dtype: torch.dtype | None = None) -> Node:
    if not self.dtype.is_floating_point:
        return sum_(b, self, dim, keepdim, dtype=dtype)
    return sum_(b, _without_nan(b, self), dim, keepdim, dtype=dtype)


@op("nanmean")
def nanmean(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False, *,
            dtype: torch.dtype | None = None) -> Node:
    if not self.dtype.is_floating_point or dtype is not None and not is_number(dim) and not dtype.is_floating_point:
        return NotImplemented
    total = sum_(b, _without_nan(b, self), dim, keepdim, dtype=dtype)
    count = sum_(b, b.logical_not(b.isnan(self)), dim, keepdim)
    return b.div(total, b.cast(count, total.dtype))
