"""Convolutions of images as statements of loops: what all templates for them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...graph.dims import nonnegative
from ...graph.ir import filled
from ..lower import register_dtype
from ..template import Template

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ...graph.ir import Node
    from ..lower import Emitter


class Parts(NamedTuple):
    """The operands of a convolution, and its numbers, each for (rows, columns)."""

    images: Node
    weights: Node
    bias: Node | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def parts(node: Node) -> Parts | None:
    """What a library call convolves; None for other calls, and where a number is not known."""
    if (node.op != "aten_call" or node.attrs["overload"] != "" or node.several
        or node.attrs["target"] not in ("aten::conv2d", "aten::convolution")):
        return None
    x, w, bias, stride, padding, dilation, *transposed, groups = filled(node.attrs["args"], node.inputs)
    if transposed and (transposed[0] or any(transposed[1])) or x.type.rank != 4 or w.type.rank != 4:
        return None
    numbers = [tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (stride, padding, dilation)]
    numbers = [2 * v if len(v) == 1 else v for v in numbers]
    if not all(type(i) is int and (i > 0 or k == 1) for k, v in enumerate(numbers) for i in v):
        return None  # the padding is a word, or a number is a symbol
    if not all(type(d) is int for d in (*w.type.shape, groups)):
        return None
    return Parts(x, w, bias, *numbers, groups)


class Convolution(Template):
    """A convolution of images, in which all channels of an image make each channel of the result, and a bias if there
    is one."""

    def matches(self, node: Node) -> bool:
        found = parts(node)
        return found is not None and self.takes_groups(found) and node.type.dtype.is_floating_point and all(
            t is None or t.type.dtype is node.type.dtype for t in found[:3])

    def takes_groups(self, found: Parts) -> bool:
        return found.groups == 1

    def value(self, e: Emitter, node: Node, index: tuple[IntExpr, ...]) -> str:
        p = parts(node)
        dtype = register_dtype(node.type.dtype)
        batch, channel, *place = index
        # The sum runs in the order in which the weights lie in memory.
        order = sorted((1, 2, 3), key=lambda d: -p.weights.type.strides[d])
        along = {d: e.b.axis(p.weights.type.shape[d], "r") for d in order if d > 1 or p.groups == 1}
        at, inside = [], None
        for k, (i, size) in enumerate(zip(place, p.images.type.shape[2:])):
            at.append(i * p.stride[k] + along[2 + k] * p.dilation[k] - p.padding[k])
            if p.padding[k] or not nonnegative(size - 1 - at[k]):
                inside = e.both(inside, e.within(at[k], 0, size))
        # With a group for each channel, a channel is made of one.
        left = e.value(p.images, (batch, along.get(1, channel), *at), inside)
        right = e.value(p.weights, (channel, along.get(1, 0), along[2], along[3]))
        total = e.b.reduce("sum", e.compute("mul", left, right, dtype=dtype))
        if p.bias is None:
            return total
        return e.compute("add", total, e.value(p.bias, (channel,)), dtype=dtype)


class Depthwise(Convolution):
    """A convolution of each channel by itself."""

    def takes_groups(self, found: Parts) -> bool:
        groups, (made, each, *_) = found.groups, found.weights.type.shape
        return groups > 1 and groups == made and each == 1
