"""Dropout under differentiation where PyTorch's operators draw: with a mask that is drawn once, by its generator in
eager's order, and saved."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import layout
from jit.graph.autodiff.rules import aten_vjp, training_form
from jit.graph.ir import Node, TensorType
from jit.graph.ops import random
from jit.graph.ops.dropouts import alpha_dropped, channels, scaled_by_mask

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr


def drawn(b: GradBuilder, x: Node, shape: tuple[IntExpr, ...], keep: float) -> Node:
    """True with probability ``keep``, of ``shape``, drawn from the generator of x's device in the order of memory."""
    bools = backend(x.type.device).draws_bool_masks  # of the first argument only the shape counts
    t = TensorType.contiguous(shape, torch.bool if bools else x.type.dtype, x.type.device)
    noise = b.call("bernoulli", (b.zeros(t), keep, None), t, "p", impure=True)
    return noise if t.dtype is torch.bool else b.ne(noise, 0)


def dropped(b: GradBuilder, x: Node, p: float) -> Node:
    """Dropout with probability ``p`` of a value of any strides."""
    if p == 0 or x.type.is_empty:
        return x
    if p == 1:
        return b.mul(x, 0.0)
    if random.in_kernels(x.type.shape, x.type.device):
        return scaled_by_mask(b, x, random.keep(b, x.type.shape, x.type.device, 1 - p), 1 / (1 - p))
    if backend(x.type.device).native_dropout:
        t = layout.empty_like(x.type)
        return b.call("native_dropout", (x, p, True), (t, t.replace(dtype=torch.bool)), impure=True)[0]
    strides = layout.preserved_strides(x.type)
    order = sorted(range(x.type.rank), key=functools.cmp_to_key(lambda a, b: layout.compared(strides[b], strides[a])))
    keep = drawn(b, x, tuple(x.type.shape[d] for d in order), 1 - p)
    back = [0] * len(order)
    for place, d in enumerate(order):
        back[d] = place
    return scaled_by_mask(b, x, b.permute(keep, back), 1 / (1 - p))


@training_form("dropout")
def dropout(b: GradBuilder, node: Node, x: Node, p: float, train: bool) -> Node:
    return dropped(b, x, p) if train else NotImplemented


@training_form("feature_dropout")
def feature_dropout(b: GradBuilder, node: Node, x: Node, p: float, train: bool) -> Node:
    """Whole channels of (N, C, ...) at once."""
    if not train or x.type.rank < 2 or p in (0, 1) or x.type.is_empty:
        return NotImplemented
    keep = drawn(b, x, channels(x), 1 - p)
    return scaled_by_mask(b, x, keep, 1 / (1 - p))


@training_form("alpha_dropout")
def alpha_dropout(b: GradBuilder, node: Node, x: Node, p: float, train: bool):
    if not train or p in (0, 1) or x.type.is_empty or not x.type.is_contiguous:
        return NotImplemented
    return alpha_dropped(b, x, drawn(b, x, x.type.shape, 1 - p), p)


@training_form("feature_alpha_dropout")
def feature_alpha_dropout(b: GradBuilder, node: Node, x: Node, p: float, train: bool):
    if not train or x.type.rank < 2 or p in (0, 1) or x.type.is_empty:
        return NotImplemented
    return alpha_dropped(b, x, drawn(b, x, channels(x), 1 - p), p)


@aten_vjp("native_dropout")
def native_dropout(b: GradBuilder, out: Node, g: Node, x: Node, p: float, train: bool) -> tuple[Callable, ...]:
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return (lambda: b.mul(b.mul(g[0], b.cast(b.result(out, 1), g[0].type.dtype)), scale),)


@aten_vjp("bernoulli", "normal_functional", "uniform", "exponential", "random",
          "geometric", "cauchy", "log_normal", "normal", "poisson", "rand_like", "randn_like", "randint_like")
def noise(b: GradBuilder, out: Node, g: Node, *args: object) -> tuple:
    """What was drawn does not depend on what was there before."""
    return ()
