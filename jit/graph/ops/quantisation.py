"""Values rounded to a scale and back, as training for quantised inference has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph.build import is_number
from jit.graph.ir import Node
from jit.graph.layout import normalize_dim
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number


def _rounded(b: Builder, x: Node, scale: Node | float, zero: Node | Number, low: int, high: int) -> Node:
    """``x`` as ``scale`` times a whole number, of which ``low`` to ``high`` are there when ``zero`` is added. The
    gradient passes where these limits do not bind."""
    scale = b.lift(float(scale), x) if is_number(scale) else b.cast(scale, x.dtype)
    zero = b.lift(float(zero), x) if is_number(zero) else b.cast(zero, x.dtype)
    whole = b.add(b.round(b.mul(x, b.reciprocal(scale))), zero)
    limited = b.fmin(b.fmax(whole, float(low)), float(high))  # of NaN the lower limit
    result = b.mul(b.sub(limited, zero), scale)
    return b.with_gradient(result, (x, lambda: b.eq(limited, whole)))


@op("fake_quantize_per_tensor_affine")
def fake_quantize_per_tensor_affine(b: Builder, self: Node, scale: Node | float, zero_point: Node | int,
                                    quant_min: int, quant_max: int) -> Node:
    single = all(is_number(v) or isinstance(v, Node) and v.type.numel == 1 and v.type.rank <= 1
                 for v in (scale, zero_point))
    if self.dtype is not torch.float32 or not single or isinstance(scale, Node) and b.recording:
        return NotImplemented
    flat = [b.reshape(v, ()) if isinstance(v, Node) else v for v in (scale, zero_point)]
    return _rounded(b, self, *flat, quant_min, quant_max)


@op("fake_quantize_per_channel_affine")
def fake_quantize_per_channel_affine(b: Builder, self: Node, scale: Node, zero_point: Node, axis: int, quant_min: int,
                                     quant_max: int) -> Node:
    if self.dtype is not torch.float32 or scale.type.rank != 1 or not self.type.rank:
        return NotImplemented
    d = normalize_dim(axis, self.type.rank)
    shape = tuple(n if k == d else 1 for k, n in enumerate(self.shape))
    if not scale.shape[0] == self.shape[d] or not zero_point.shape[0] == self.shape[d]:
        return NotImplemented
    return _rounded(b, self, b.reshape(scale, shape), b.reshape(zero_point, shape), quant_min, quant_max)
