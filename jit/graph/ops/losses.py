"""Loss functions, as their aten ops take them: ``reduction`` is 0 (none), 1 (mean) or 2 (sum)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit import config
from jit.graph.build import HALF
from jit.graph.dims import product
from jit.graph.ir import Node, same_ints
from jit.graph.layout import iterator_strides, preserved_strides
from jit.graph.ops.activations import log_sigmoid_of
from jit.graph.ops.normalization import log_softmax
from jit.graph.ops.reductions import mean, sum_
from jit.graph.ops.special import xlogy
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder

NONE, MEAN, SUM = 0, 1, 2


def reduced(b: Builder, loss: Node, reduction: int) -> Node:
    return loss if reduction == NONE else mean(b, loss) if reduction == MEAN else sum_(b, loss)


def written_like(b: Builder, loss: Node, x: Node, reduction: int) -> Node:
    """``loss`` as kernels give it that write into a tensor like ``x``: of its dtype and, where the loss is not reduced,
    with its strides."""
    loss, strides = b.cast(loss, x.dtype), preserved_strides(x.type)
    return loss if reduction != NONE or same_ints(loss.type.strides, strides) else b.clone(loss, strides)


def _elementwise(name: str, fn: Callable) -> None:
    def expand(b: Builder, self: Node, target: Node, reduction: int = MEAN, *args: float) -> Node:
        x, y = b.promote(self, target)
        if name == "l1_loss" and torch.bool in (self.dtype, target.dtype):
            raise RuntimeError("l1_loss of bool")
        if (not x.dtype.is_floating_point or config.match_eager_rounding
            and x.dtype in HALF and name in ("huber_loss", "smooth_l1_loss")):
            return NotImplemented  # eager's kernels round in between in their own ways
        loss = fn(b, x, y, *args)
        if name != "l1_loss":  # the others are one kernel
            loss.type = loss.type.replace(strides=iterator_strides(loss.shape, (x.type, y.type)))
        result = reduced(b, written_like(b, loss, self, reduction) if name == "huber_loss" else loss, reduction)
        return _mean_square(b, result, b.sub(x, y)) if name == "mse_loss" and reduction == MEAN else result

    op(name)(expand)


def _mse(b: Builder, x: Node, y: Node) -> Node:
    return b.squared(b.sub(x, y))


def _mean_square(b: Builder, mean: Node, d: Node) -> Node:
    """``mean`` of ``d * d``, with the gradient ``d 2 / count``."""
    wide, d, count = mean.inputs[0] if mean.op == "cast" else mean, b.opmath(d), product(d.shape)
    return b.cast(b.with_gradient(wide, (d, lambda: b.mul(d, b.div(b.lift(2.0, d), count)))), mean.dtype)


def _limited(b: Builder, d: Node, slope: Node, at, most) -> Node:
    """``slope`` between -at and at, and ``most`` beyond."""
    return b.where(b.ge(d, at), b.lift(most, d), b.where(b.le(d, -at), b.lift(-most, d), slope))


def _huber(b: Builder, x: Node, y: Node, delta: float = 1.0) -> Node:
    d = b.sub(x, y)
    z = b.abs(d)
    loss = b.where(b.le(z, delta), b.mul(b.mul(z, z), 0.5), b.mul(b.sub(z, 0.5 * delta), delta))
    return b.with_gradient(loss, (d, lambda: _limited(b, d, d, delta, delta)))


def _smooth_l1(b: Builder, x: Node, y: Node, beta: float = 1.0) -> Node:
    d = b.sub(x, y)
    z = b.abs(d)
    if beta == 0:
        return z
    loss = b.where(b.lt(z, beta), b.div(b.mul(b.mul(z, 0.5), z), beta), b.sub(z, 0.5 * beta))
    return b.with_gradient(loss, (d, lambda: _limited(b, d, b.div(d, beta), beta, 1.0)))


_elementwise("mse_loss", _mse)
_elementwise("l1_loss", lambda b, x, y: b.abs(b.sub(x, y)))
_elementwise("huber_loss", _huber)
_elementwise("smooth_l1_loss", _smooth_l1)


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(b: Builder, self: Node, target: Node, weight: Node | None = None, pos_weight=None,
                                     reduction: int = MEAN) -> object:
    if self.dtype is not target.dtype or not self.dtype.is_floating_point:
        return NotImplemented
    log_sigmoid = b.cast(log_sigmoid_of(b, b.opmath(self)), self.dtype)
    one_minus = b.sub(b.lift(1.0, target), target)
    if pos_weight is not None:
        log_weight = b.add(b.mul(b.sub(pos_weight, 1.0), target), 1.0)
        loss = b.sub(b.mul(one_minus, self), b.mul(log_weight, log_sigmoid))
    else:
        loss = b.sub(b.mul(one_minus, self), log_sigmoid)

    def slope():
        sigmoid = b.sigmoid(self)
        if pos_weight is None:
            return b.sub(sigmoid, target)
        weighted = b.mul(pos_weight, target)
        return b.sub(b.mul(b.sub(b.add(weighted, 1.0), target), sigmoid), weighted)

    def slope_of_target():
        if pos_weight is None:
            return b.neg(self)
        return b.sub(b.cast(log_sigmoid_of(b, b.neg(b.opmath(self))), self.dtype), b.mul(log_sigmoid, pos_weight))

    loss = b.with_gradient(loss, (self, slope), (target, slope_of_target))
    if weight is not None:
        loss = b.mul(loss, weight)
    # Eager makes it of 1 - target.
    return reduced(b, loss if pos_weight is not None else written_like(b, loss, target, reduction), reduction)


def _nll(b: Builder, logp: Node, target: Node, weight: Node | None, reduction: int,
         ignore_index: int) -> tuple[Node, Node | None]:
    """``logp`` is (C,) or (N, C, d1...), ``target`` (), (1,) or (N, d1...) of class numbers. Returns (loss, total
    weight)."""
    rank = logp.type.rank
    class_dim = 0 if rank == 1 else 1
    if not logp.dtype.is_floating_point or target.dtype is not torch.int64 or rank == 0:
        return NotImplemented, None
    expected = logp.shape[:class_dim] + logp.shape[class_dim + 1 :]
    # Else the library refuses the backward.
    if rank == 1 and target.type.rank == 1 and logp.shape[0] == 1 and target.shape[0] == 1:
        target = b.reshape(target, ())
    if len(expected) != target.type.rank or not all(p == q for p, q in zip(expected, target.shape)):
        return NotImplemented, None
    keep = b.ne(target, ignore_index)
    safe = b.where(keep, target, 0)
    x = b.opmath(logp)
    picked = b.gather(x, class_dim, b.unsqueeze(safe, class_dim))
    picked = b.neg(b.drop_dim(picked, class_dim))
    if weight is not None:
        class_weight = b.index(b.opmath(weight), (0,), [safe])
        weights = b.where(keep, class_weight, 0.0)
        loss = b.where(keep, b.mul(picked, class_weight), 0.0)
    else:
        weights = b.cast(keep, x.dtype)
        loss = b.where(keep, picked, 0.0)
    if reduction == NONE:  # eager's kernels make a dense loss, whatever the layouts of scores and classes
        return b.contiguous(b.cast(loss, logp.dtype)), None
    total = b.reduce("sum", loss, None)
    if reduction == SUM:
        return b.cast(total, logp.dtype), b.reduce("sum", weights, None)
    denominator = b.reduce("sum", weights, None)
    return b.cast(b.div(total, denominator), logp.dtype), denominator


@op("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(b: Builder, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN,
             ignore_index: int = -100) -> Node:
    return _nll(b, self, target, weight, reduction, ignore_index)[0]


@op("cross_entropy_loss")
def cross_entropy_loss(b: Builder, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN,
                       ignore_index: int = -100, label_smoothing: float = 0.0) -> Node:
    rank = self.type.rank
    class_dim = 0 if rank == 1 else 1
    if target.dtype.is_floating_point:
        if target.type.rank != rank or weight is not None or not self.dtype.is_floating_point:
            return NotImplemented
        classes = self.shape[class_dim]
        if label_smoothing:
            target = b.add(b.mul(target, 1.0 - label_smoothing), label_smoothing / float(classes))
        logp = log_softmax(b, b.opmath(self), class_dim)
        loss = b.neg(b.reduce("sum", b.mul(logp, b.opmath(target)), (class_dim,)))
        if reduction == MEAN:
            count = product(self.shape) // classes
            return b.cast(b.div(b.reduce("sum", loss, None), count), self.dtype)
        return b.cast(loss if reduction == NONE else b.reduce("sum", loss, None), self.dtype)
    if not self.dtype.is_floating_point or rank == 0:
        return NotImplemented
    dtype = self.dtype
    logp = b.opmath(log_softmax(b, self, class_dim))
    loss, denominator = _nll(b, logp, target, weight, reduction, ignore_index)
    if loss is NotImplemented:
        return NotImplemented
    if label_smoothing:
        # (1 - s) * nll + s / C * (-sum over classes of weight * logp), ignored targets left out
        scaled = logp
        if weight is not None:
            scaled = b.mul(logp, b.reshape(b.opmath(weight), weight.shape + (1,) * (rank - 2) if rank > 1
                                           else weight.shape))
        smooth = b.neg(b.reduce("sum", scaled, (class_dim,)))
        smooth = b.where(b.ne(target, ignore_index), smooth, 0.0)
        if reduction == MEAN:
            smooth = b.div(b.reduce("sum", smooth, None), denominator)
        elif reduction == SUM:
            smooth = b.reduce("sum", smooth, None)
        loss = b.add(b.mul(loss, 1.0 - label_smoothing), b.mul(smooth,
                                                               label_smoothing / float(int(self.shape[class_dim]))))
    loss = b.cast(loss, dtype)
    return b.contiguous(loss) if reduction == NONE else loss


@op("kl_div")
def kl_div(b: Builder, self: Node, target: Node, reduction: int = MEAN, *, log_target: bool = False) -> object:
    if not self.dtype.is_floating_point or self.dtype is not target.dtype:
        return NotImplemented
    if log_target:
        loss = b.mul(b.exp(target), b.sub(target, self))
    else:
        loss = b.sub(xlogy(b, target, target), b.mul(target, self))
    return reduced(b, loss, reduction)
