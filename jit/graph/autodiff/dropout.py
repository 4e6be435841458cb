"""Dropout under differentiation: with a mask that is drawn once, by PyTorch's generator in eager's order, and saved."""

from __future__ import annotations

import torch

from jit.graph import layout
from jit.graph.autodiff.rules import aten_vjp, training_form
from jit.graph.dims import hint
from jit.graph.ir import Node, TensorType


def _no_elements(x: Node) -> bool:
    return any(type(s) is int and s == 0 for s in x.type.shape)


def drawn(b, x: Node, shape, keep: float) -> Node:
    """True with probability ``keep``, of ``shape``, drawn from the generator of x's device in the order of memory."""
    t = TensorType.contiguous(shape, torch.bool if x.type.device.type == "cpu" else x.type.dtype, x.type.device)
    # Only the shape of the first argument counts. On the CPU the numbers drawn do not depend on the dtype.
    noise = b.call("bernoulli", (b.zeros(t), keep, None), t, "p", impure=True)
    return noise if t.dtype is torch.bool else b.ne(noise, 0)


def dropped(b, x: Node, p: float) -> Node:
    """Dropout with probability ``p`` of a value of any strides."""
    if p == 0 or _no_elements(x):
        return x
    if p == 1:
        return b.mul(x, 0.0)
    if x.type.device.type == "cuda":
        t = x.type.replace(strides=layout.preserved_strides(x.type))
        return b.call("native_dropout", (x, p, True), (t, t.replace(dtype=torch.bool)), impure=True)[0]
    strides = layout.preserved_strides(x.type)
    order = sorted(range(x.type.rank), key=lambda d: -hint(strides[d]))
    keep = drawn(b, x, tuple(x.type.shape[d] for d in order), 1 - p)
    back = [0] * len(order)
    for place, d in enumerate(order):
        back[d] = place
    return scaled_by_mask(b, x, b.permute(keep, back), 1 / (1 - p))


def scaled_by_mask(b, x: Node, keep: Node, scale: float) -> Node:
    """``x * (keep * scale)``: NaN stays NaN where it is dropped, as in eager."""
    return b.mul(x, b.mul(b.cast(keep, x.type.dtype), scale))


@training_form("dropout")
def dropout(b, node, x, p, train):
    return dropped(b, x, p) if train else NotImplemented


@training_form("feature_dropout")
def feature_dropout(b, node, x, p, train):
    """Whole channels of (N, C, ...) at once."""
    if not train or x.type.rank < 2 or p in (0, 1) or _no_elements(x):
        return NotImplemented
    keep = drawn(b, x, x.type.shape[:2] + (1,) * (x.type.rank - 2), 1 - p)
    return scaled_by_mask(b, x, keep, 1 / (1 - p))


_ALPHA = 1.7580993408473766  # minus the value that selu tends to


def _alpha_dropped(b, x: Node, keep: Node, p: float) -> Node:
    """Dropped elements become that value; scale and shift keep the mean and the variance. Source: aten/src/ATen/native/Dropout.cpp."""
    scale = 1 / ((_ALPHA * _ALPHA * p + 1) * (1 - p)) ** 0.5
    kept = b.cast(keep, x.type.dtype)
    shift = b.add(b.mul(b.add(kept, -1), _ALPHA * scale), _ALPHA * scale * p)
    return b.add(b.mul(x, b.mul(kept, scale)), shift)


@training_form("alpha_dropout")
def alpha_dropout(b, node, x, p, train):
    if not train or p in (0, 1) or _no_elements(x) or not x.type.is_contiguous:
        return NotImplemented
    return _alpha_dropped(b, x, drawn(b, x, x.type.shape, 1 - p), p)


@training_form("feature_alpha_dropout")
def feature_alpha_dropout(b, node, x, p, train):
    if not train or x.type.rank < 2 or p in (0, 1) or _no_elements(x):
        return NotImplemented
    return _alpha_dropped(b, x, drawn(b, x, x.type.shape[:2] + (1,) * (x.type.rank - 2), 1 - p), p)


@aten_vjp("native_dropout")
def native_dropout(b, out, g, x, p, train):
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return (lambda: b.mul(b.mul(g[0], b.cast(b.result(out, 1), g[0].type.dtype)), scale),)


@aten_vjp("bernoulli", "normal_functional", "uniform", "exponential", "random", "geometric", "cauchy", "log_normal", "normal", "poisson", "rand_like", "randn_like", "randint_like")
def noise(b, out, g, *args):
    """What was drawn does not depend on what was there before."""
    return ()
