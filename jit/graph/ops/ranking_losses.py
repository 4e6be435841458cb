"""Losses that compare pairs and triples, as PyTorch composes them. Sources: aten/src/ATen/native/Loss.cpp and
Distance.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit import config
from jit.graph.build import HALF, is_number
from jit.graph.ops.arithmetic import clamp
from jit.graph.ops.losses import MEAN, reduced
from jit.graph.ops.reductions import vector_norm
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.ir import Node

_EPSILON = 1e-12


def _above_zero(b: Builder, x: Node) -> Node:
    return clamp(b, x, 0)


def floating(*tensors) -> bool:
    """Whether all are of one floating dtype. Half types round after each step in eager, and are left to it where that
    is asked for."""
    dtype = tensors[0].dtype
    return (dtype in (torch.float32, torch.float64) or dtype in HALF and not config.match_eager_rounding) and all(
        t.dtype is dtype for t in tensors)


@op("hinge_embedding_loss")
def hinge_embedding_loss(b: Builder, self: Node, target: Node, margin: float = 1.0, reduction: int = MEAN) -> Node:
    if not floating(self):
        return NotImplemented
    far = b.where(b.ne(target, 1), _above_zero(b, b.sub(b.lift(float(margin), self), self)), 0.0)
    near = b.where(b.ne(target, -1), self, 0.0)
    return reduced(b, b.add(far, near), reduction)


@op("cosine_embedding_loss")
def cosine_embedding_loss(b: Builder, input1: Node, input2: Node, target: Node, margin: int | float = 0.0,
                          reduction: int = MEAN) -> object:
    if (not floating(input1, input2) or input1.dtype in HALF  # in which epsilon is zero
        or target.type.rank > 1
        or not input1.type.rank == input2.type.rank == target.type.rank + 1):
        return NotImplemented
    dims = (target.type.rank,)

    def dot(x: Node, y: Node) -> Node:
        return b.reduce("sum", b.mul(x, y), dims)

    lengths = b.mul(b.add(dot(input1, input1), _EPSILON), b.add(dot(input2, input2), _EPSILON))
    cosine = b.div(dot(input1, input2), b.sqrt(lengths))
    alike = b.where(b.eq(target, 1), b.sub(b.lift(1.0, cosine), cosine), 0.0)
    unlike = b.where(b.eq(target, -1), _above_zero(b, b.sub(cosine, float(margin))), 0.0)
    return reduced(b, b.add(alike, unlike), reduction)


@op("margin_ranking_loss")
def margin_ranking_loss(b: Builder, input1: Node, input2: Node, target: Node, margin: int | float = 0.0,
                        reduction: int = MEAN) -> object:
    if not floating(input1, input2, target):
        return NotImplemented
    return reduced(b, _above_zero(b, b.add(b.mul(b.neg(target), b.sub(input1, input2)), float(margin))), reduction)


def distance(b: Builder, x1: Node, x2: Node, p: int, eps: float, keepdim: bool) -> Node:
    """The ``p``-norm of ``x1 - x2 + eps`` over the last dimension."""
    d = b.add(b.sub(x1, x2), float(eps))
    return vector_norm(b, d, float(p), (d.type.rank - 1,), keepdim)


@op("pairwise_distance")
def pairwise_distance(b: Builder, x1, x2, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
    if not floating(x1, x2) or not is_number(p) or not max(x1.type.rank, x2.type.rank):
        return NotImplemented
    if x1.type.is_empty or x2.type.is_empty:
        return NotImplemented
    return distance(b, x1, x2, p, eps, keepdim)


@op("triplet_margin_loss")
def triplet_margin_loss(b: Builder, anchor: Node, positive: Node, negative: Node, margin: float = 1.0,
                        p: int | float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: int = MEAN) -> object:
    tensors = (anchor, positive, negative)
    if (not floating(*tensors) or not anchor.type.rank == positive.type.rank == negative.type.rank
        or not anchor.type.rank):
        return NotImplemented
    if any(t.type.is_empty for t in tensors):
        return NotImplemented
    near, far = distance(b, anchor, positive, p, eps, False), distance(b, anchor, negative, p, eps, False)
    if swap:
        far = b.minimum(far, distance(b, positive, negative, p, eps, False))
    return reduced(b, _above_zero(b, b.sub(b.add(near, float(margin)), far)), reduction)
