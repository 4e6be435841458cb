"""Convolutions in other words.

On CUDA:

``separate_bias``: the bias is added by a node of its own. The library adds it in a pass over the result, and sums it up
in the backward in another, slow one; an addition of ours fuses with what reads it, and its gradient with what makes it.
The values are the same: the library rounds the product before it adds.

``as_products``: a convolution with a kernel of one pixel, over channels-last images of a half type, is a matrix
product. The kernels are the same, and calling them takes the library a fifth of the time.

On the CPU:

``weights_as_sums``: the gradient of the weights of a convolution that has one channel in each group, over channels-
last images, is a sum of products over all pixels, taken by a kernel of ours. The library's is of up to ten times the
error, where its kernel for such convolutions does not serve: it adds float32 values in one chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


import torch

from jit.devices import backend
from jit.graph.dims import product
from jit.graph.ir import Graph, Node, Ref, TensorType, filled, same_ints
from jit.graph.layout import is_channels_last
from jit.graph.nested import several
from jit.graph.op_info import op_info
from jit.graph.passes.rewrite import rebuilt

if TYPE_CHECKING:
    from jit.graph.build import Builder


def separate_bias(graph: Graph) -> Graph:
    """The graph with the biases of its convolutions apart, where the device wants it; the same graph when there is
    none."""
    return rebuilt(graph, _applies, _rewrite)


def _applies(n: Node) -> bool:
    at = op_info(n.attrs["target"]).bias if n.op == "aten_call" else None
    return (at is not None and not n.several and backend(n.type.device).adds_bias_apart
            and n.type.dtype.is_floating_point and isinstance(n.attrs["args"][at], Ref))


def _rewrite(b: Builder, n: Node) -> Node | None:
    values = filled(n.attrs["args"], n.inputs)
    bias, spatial = values[2], values[1].type.rank - 2
    if bias.type.dtype is not n.type.dtype:
        return None
    plain = b.aten(n.attrs["target"], n.attrs["overload"], (*values[:2], None, *values[3:]), n.type)
    made = b.add(plain, b.reshape(bias, bias.type.shape + (1,) * spatial))
    return made if same_ints(made.type.strides, n.type.strides) else b.clone(made, n.type.strides)


def as_products(graph: Graph) -> Graph:
    """The graph with matrix products in the place of its convolutions of one pixel, where the device wants it; the same
    graph when there is none."""
    return rebuilt(graph, lambda n: _is_pixelwise(n) or _is_gradient(n), _as_product)


def _is_pixelwise(n: Node, backward: bool = False) -> bool:
    """Whether a node is a convolution (or the gradients of one) of one pixel with all its images channels-last."""
    names = ("aten::convolution_backward",) if backward else ("aten::conv2d", "aten::convolution")
    if n.op != "aten_call" or n.attrs["target"] not in names or n.attrs["overload"]:
        return False
    args = n.attrs["args"][1:-1] if backward else n.attrs["args"]
    _, _, bias, stride, padding, _, *transposed, groups = args
    if not backward and bias is not None or transposed and transposed[0] or groups != 1:
        return False
    if not all(s == 1 for s in _flat(stride)) or not all(p in (0, "valid", "same") for p in _flat(padding)):
        return False
    images, w = n.inputs[: 1 + backward], n.inputs[1 + backward].type
    t = images[-1].type
    return (backend(t.device).pixels_as_products and t.dtype.itemsize == 2 and w.dtype is t.dtype
            and t.rank == w.rank == 4 and same_ints(w.shape[2:], (1, 1))
            and w.is_contiguous and all(is_channels_last(i.type.shape, i.type.strides) for i in images))


def _flat(v: tuple[int, ...] | list) -> tuple:
    return tuple(several(v))


def _is_gradient(n: Node) -> bool:
    return n.op == "getitem" and n.attrs["index"] < 2 and _is_pixelwise(n.inputs[0], True)


def _as_product(b: Builder, n: Node) -> Node:
    if n.op == "getitem":
        g, x, w = n.inputs[0].inputs
        if n.attrs["index"]:
            made = b.aten("aten::mm", "", (b.permute(_rows(b, g), (1, 0)), _rows(b, x)),
                          TensorType.contiguous(w.type.shape[:2], w.type.dtype, w.type.device))
            return b.reshape(made, w.type.shape)
        return _images(b, b.permute(g, (0, 2, 3, 1)), _matrix(b, w), n.type)
    x, w = n.inputs[:2]
    return _images(b, b.permute(x, (0, 2, 3, 1)), b.permute(_matrix(b, w), (1, 0)), n.type)


def _matrix(b: Builder, w: Node) -> Node:
    return b.reshape(w, w.type.shape[:2])


def _rows(b: Builder, x: Node) -> Node:
    """Channels-last images as a matrix with a row per pixel."""
    n, c, h, w = x.type.shape
    return b.reshape(b.permute(x, (0, 2, 3, 1)), (product((n, h, w)), c))


def _images(b: Builder, x: Node, w: Node, like: TensorType) -> Node:
    """``x @ w`` for x of shape (N, H, W, C), with the channels back in their place."""
    n, h, width, _ = x.type.shape
    made = b.aten("aten::matmul", "", (x, w), TensorType.contiguous((n, h, width, w.type.shape[1]),
                                                                    like.dtype, like.device))
    return b.permute(made, (0, 3, 1, 2))


def weights_as_sums(graph: Graph) -> Graph:
    """The graph with sums of products in the place of the gradients of weights that ``adds_apart`` names; the same
    graph when there is none."""
    return rebuilt(graph, lambda n: adds_apart(n) or _is_weight_gradient(n), _as_sum)


def adds_apart(n: Node) -> bool:
    """Whether a node is the gradients of a CPU convolution of float32 channels-last images, with one channel in each
    group, for whose weights the library has no direct kernel: it has one for narrow kernels without holes that leave
    out no column."""
    if n.op != "aten_call" or n.attrs["target"] != "aten::convolution_backward" or not n.attrs["args"][10][1]:
        return False
    if len(n.inputs) != 3 or any(len(v) != 2 for v in n.attrs["args"][4:7]):
        return False  # a tensor that is two of the operands, or a number for both dimensions
    g, x, w = (i.type for i in n.inputs)
    stride, dilation, groups = (n.attrs["args"][i] for i in (4, 6, 9))
    if not backend(w.device).adds_in_chains or w.dtype is not torch.float32 or w.rank != 4:
        return False
    if g.is_symbolic or x.is_symbolic:
        return False
    if groups == 1 or not same_ints(w.shape[:2], (groups, 1)):
        return False
    if not all(is_channels_last(i.shape, i.strides) for i in (g, x)) or x.is_empty:
        return False
    return any(d != 1 for d in dilation) or w.shape[3] > 3 or stride[-1] > w.shape[3]


def _is_weight_gradient(n: Node) -> bool:
    return n.op == "getitem" and n.attrs["index"] == 1 and adds_apart(n.inputs[0])


def _as_sum(b: Builder, n: Node) -> Node:
    if n.op != "getitem":
        args = n.attrs["args"]
        attrs = {**n.attrs, "args": (*args[:10], (args[10][0], False, args[10][2]))}
        return b.node(n.op, n.inputs, attrs, (n.type[0], None, n.type[2]))
    g, x, _ = n.inputs[0].inputs
    stride, padding, dilation, transposed = n.inputs[0].attrs["args"][4:8]
    # The products are those of each pixel of the one with the pixels of the other that the kernel joins it to.
    at, image = (x, g) if transposed else (g, x)
    pads = ((0, 0), (0, 0), *((p, p) for p in padding))
    image = b.pad(image, pads) if any(padding) else b.clone(image, image.type.strides)
    batch, channel, *pixel = image.type.strides
    size = (*at.type.shape, *n.type.shape[2:])
    strides = (batch, channel, *(p * s for p, s in zip(pixel, stride)), *(p * d for p, d in zip(pixel, dilation)))
    windows = b.emit("as_strided", (image,), {"size": size, "stride": strides, "offset": 0})
    products = b.mul(windows, b.expand(b.reshape(at, (*at.type.shape, 1, 1)), size))
    total = b.reduce("sum", products, (0, 2, 3))
    return b.view_node("reshape", total, {"shape": n.type.shape}, n.type.shape, n.type.strides)
