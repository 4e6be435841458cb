"""Dropout. Its mask is a function of a seed (see ``philox``): a backward makes it again and saves eight bytes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph import changes, layout
from jit.graph.ir import Node
from jit.graph.ops.random import in_kernels, keep
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer


def scaled_by_mask(b: Builder, x: Node, kept: Node, scale: float) -> Node:
    """``x * (kept * scale)``: NaN stays NaN where it is dropped, as in eager."""
    return b.mul(x, b.mul(b.cast(kept, x.type.dtype), scale))


_ALPHA = 1.7580993408473766  # minus the value that selu tends to


def alpha_dropped(b: Builder, x: Node, kept: Node, p: float) -> Node:
    """Dropped elements become that value; scale and shift keep the mean and the variance. Source:
    aten/src/ATen/native/Dropout.cpp."""
    scale = 1 / ((_ALPHA * _ALPHA * p + 1) * (1 - p)) ** 0.5
    kept = b.cast(kept, x.type.dtype)
    shift = b.add(b.mul(b.add(kept, -1), _ALPHA * scale), _ALPHA * scale * p)
    return b.add(b.mul(x, b.mul(kept, scale)), shift)


def channels(x: Node) -> tuple:
    """The shape of a mask of whole channels of (N, C, ...)."""
    return x.type.shape[:2] + (1,) * (x.type.rank - 2)


def _dropout(name: str, features: bool, alpha: bool) -> None:
    def expand(b: Builder, self: Node, p: float | int = 0.5, train: bool = True) -> object:
        if p < 0 or p > 1:
            raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not train or p == 0:
            return self
        p, shape = float(p), channels(self) if features else self.shape
        if (p == 1 or self.type.is_empty or self.dtype.is_complex or not in_kernels(shape, self.device)
            or features and self.type.rank < 2):
            return NotImplemented
        mask = keep(b, shape, self.device, 1 - p)
        result = alpha_dropped(b, self, mask, p) if alpha else scaled_by_mask(b, self, mask, 1 / (1 - p))
        if not features and not alpha:
            result.type = result.type.replace(strides=layout.preserved_strides(self.type))
        return result

    op(name, alias=True)(expand)


_dropout("dropout", False, False)
_dropout("feature_dropout", True, False)
_dropout("alpha_dropout", False, True)
_dropout("feature_alpha_dropout", True, True)


@op("native_dropout")
def native_dropout(b: Builder, input, p, train=None):
    p = float(p)
    if (train is False or not 0 < p < 1 or input.type.is_empty or input.dtype.is_complex
        or not in_kernels(input.shape, input.device)):
        return NotImplemented
    mask = keep(b, input.shape, input.device, 1 - p)
    result = scaled_by_mask(b, input, mask, 1 / (1 - p))
    strides = layout.preserved_strides(input.type)
    result.type = result.type.replace(strides=strides)
    shown = b.clone(mask, strides)
    return result, shown


@op("native_dropout_backward")
def native_dropout_backward(b: Builder, grad_output: Node, mask: Node, scale: float) -> Node:
    if b.recording or mask.dtype is not torch.bool or not grad_output.dtype.is_floating_point:
        return NotImplemented
    return scaled_by_mask(b, grad_output, mask, float(scale))


@op("dropout_", raw=True)
def dropout_(t: Tracer, self: TensorHandle, p: float = 0.5, train: bool = True):
    """Where eager's numbers are asked for: its form in place draws the mask with ``bernoulli_`` on every device."""
    if not train or not 0 < p < 1 or self.type.is_empty or self.dtype.is_complex or in_kernels(self.shape, self.device):
        return changes.inplace(t, "dropout", (self, p, train), {})
    kept = t.call_op("bernoulli_", (t.call_op("empty_like", (self,), {}), 1 - p), {})
    return t.call_op("mul_", (self, t.call_op("div", (kept, 1 - p), {})), {})
