"""Convolutions in other words.

On CUDA:

``separate_bias``: the bias is added by a node of its own. The library adds it in a pass over the result, and sums it up
in the backward in another, slow one; an addition of ours fuses with what reads it, and its gradient with what makes it.
The values are the same: the library rounds the product before it adds.

``as_products``: a convolution with a kernel of one pixel, over channels-last images of a half type, is a matrix
product. The kernels are the same, and calling them takes the library a fifth of the time.

``patch_gradients``: the gradients of a convolution whose kernel moves by its own size, as of patches of images, are
matrix products with a copy of the images, patch by patch; the library's kernels for these take ten times as long.

``each_channels_gradients``: the gradient of the images of a convolution of each channel by itself is such a convolution
with the kernel turned round.

``weights_last``: the weights of convolutions over channels-last images are copied to that format by a kernel of ours;
the library would copy them by itself, slower, and kernels of ours read them so.

``wide_pixels``: images of a few channels, such as colours, are copied with zeros around them and for more channels, so
that what lies under a row of the kernel is one piece of memory.

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
from jit.graph.layout import channels_last_strides, is_channels_last
from jit.graph.nested import several
from jit.graph.op_info import op_info
from jit.graph.passes.rewrite import rebuilt

if TYPE_CHECKING:
    from jit.graph.build import Builder


def separate_bias(graph: Graph) -> Graph:
    """The graph with the biases of its convolutions apart, where the device wants it; the same graph when there is
    none."""
    return rebuilt(graph, _applies, _rewrite, ("aten_call",))


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
    return rebuilt(graph, lambda n: _is_pixelwise(n) or _is_gradient(n), _as_product,
                   ("aten_call", "getitem"))


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
            return b.view_node("reshape", made, {"shape": n.type.shape}, n.type.shape, n.type.strides)
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


def patch_gradients(graph: Graph) -> Graph:
    """The graph with matrix products in the place of gradients of convolutions of patches; the same graph when there
    are none."""
    return rebuilt(graph, lambda n: n.op == "getitem" and n.attrs["index"] < 2 and _divides(n.inputs[0]),
                   _of_patches, ("getitem",))


def _divides(n: Node) -> bool:
    """Whether a node is the gradients of a convolution of halves that divides images into patches."""
    if (n.op != "aten_call" or n.attrs["target"] != "aten::convolution_backward" or n.attrs["overload"]
        or len(n.inputs) != 3):
        return False
    _, stride, padding, dilation, transposed, _, groups, wanted = n.attrs["args"][3:]
    g, x, w = (i.type for i in n.inputs)
    if transposed or groups != 1 or wanted[2] or any(padding) or any(d != 1 for d in dilation):
        return False
    return (backend(x.device).convolves_backwards and x.dtype.itemsize == 2 and g.dtype is x.dtype is w.dtype
            and x.rank == w.rank == 4 and all(type(d) is int for t in (x, w, g) for d in t.shape[1:])
            and same_ints(_flat(stride), w.shape[2:]) and not same_ints(w.shape[2:], (1, 1))
            and all(a % s == 0 for a, s in zip(x.shape[2:], w.shape[2:])))


def _of_patches(b: Builder, n: Node) -> Node:
    g, x, w = n.inputs[0].inputs
    made, channels, *size = w.type.shape
    count, _, *grid = g.type.shape
    rows = _rows(b, g if is_channels_last(g.type.shape, g.type.strides)
                 else b.clone(g, channels_last_strides(g.type.shape)))
    like, device, dtype = n.type, n.type.device, n.type.dtype
    # Rows, rows of patches, columns, columns of patches.
    split = (grid[0], size[0], grid[1], size[1])
    if n.attrs["index"]:
        parts = b.permute(b.reshape(x, (count, channels, *split)), (0, 2, 4, 1, 3, 5))
        patches = b.reshape(parts, (product((count, *grid)), channels * size[0] * size[1]))
        weights = b.aten("aten::mm", "", (b.permute(rows, (1, 0)), patches),
                         TensorType.contiguous((made, patches.type.shape[1]), dtype, device))
        weights = b.reshape(weights, w.type.shape)
        return weights if same_ints(weights.type.strides, like.strides) else b.clone(weights, like.strides)
    images = b.aten("aten::mm", "", (rows, b.reshape(w, (made, channels * size[0] * size[1]))),
                    TensorType.contiguous((rows.type.shape[0], channels * size[0] * size[1]), dtype, device))
    images = b.reshape(images, (count, *grid, channels, *size))
    if is_channels_last(like.shape, like.strides):
        images = b.reshape(b.permute(images, (0, 1, 4, 2, 5, 3)), (count, *like.shape[2:], channels))
        images = b.permute(images, (0, 3, 1, 2))
    else:
        images = b.reshape(b.permute(images, (0, 3, 1, 4, 2, 5)), like.shape)
    return images if same_ints(images.type.strides, like.strides) else b.clone(images, like.strides)


def each_channels_gradients(graph: Graph) -> Graph:
    """The graph with convolutions in the place of gradients of images of convolutions of each channel by itself; the
    same graph when there are none."""
    return rebuilt(graph, lambda n: _is_each_channels(n) or n.op == "getitem" and n.attrs["index"] == 0
                   and _is_each_channels(n.inputs[0]), _turned_round, ("aten_call", "getitem"))


def _is_each_channels(n: Node) -> bool:
    """Whether a node is the gradients of a convolution of each channel by itself, one pixel at a time, over channels-
    last images of halves, with that of the images among them."""
    if (n.op != "aten_call" or n.attrs["target"] != "aten::convolution_backward" or n.attrs["overload"]
        or len(n.inputs) != 3):
        return False
    _, stride, padding, dilation, transposed, _, groups, wanted = n.attrs["args"][3:]
    g, x, w = (i.type for i in n.inputs)
    if transposed or not wanted[0] or x.rank != 4 or w.rank != 4 or not all(
            type(i) is int for v in (stride, padding, dilation, x.shape[1:], g.shape[1:], w.shape) for i in v):
        return False
    return (backend(x.device).convolves_backwards and x.dtype.itemsize == 2 and g.dtype is x.dtype is w.dtype
            and same_ints(w.shape[:2], (groups, 1)) and groups >= FEW and all(s == 1 for s in stride)
            and all(p <= d * (k - 1) for p, d, k in zip(padding, dilation, w.shape[2:]))
            and is_channels_last(g.shape, g.strides) and is_channels_last(x.shape, x.strides) and not g.is_empty)


def _turned_round(b: Builder, n: Node) -> Node:
    if n.op != "getitem":
        args, wanted = n.attrs["args"], (False, *n.attrs["args"][10][1:])
        return b.node(n.op, n.inputs, {**n.attrs, "args": (*args[:10], wanted)}, (None, *n.type[1:]))
    g, _, w = n.inputs[0].inputs
    _, stride, padding, dilation, _, _, groups, _ = n.inputs[0].attrs["args"][3:]
    padding = tuple([d * (k - 1) - p for p, d, k in zip(padding, dilation, w.type.shape[2:])])
    return b.aten("aten::conv2d", "", (g, b.flip(w, (2, 3)), None, stride, padding, dilation, groups), n.type)


def _is_image_convolution(n: Node, depthwise: bool = False) -> bool:
    """Whether a node is a convolution in one group, or with one for each channel, over channels-last images of a half
    type, where the device has kernels for these, with numbers known and no bias."""
    if n.op != "aten_call" or n.attrs["target"] not in ("aten::conv2d", "aten::convolution") or n.attrs["overload"]:
        return False
    _, _, bias, stride, padding, dilation, *transposed, groups = n.attrs["args"]
    if bias is not None or transposed and transposed[0] or len(n.inputs) != 2:
        return False
    if depthwise and not same_ints(n.inputs[1].type.shape[:2], (groups, 1)) or groups != 1 and not depthwise:
        return False
    if not all(type(i) is int for v in (stride, padding, dilation) for i in _flat(v)):
        return False
    x, w = (i.type for i in n.inputs)
    return (backend(x.device).convolves and x.dtype.itemsize == 2 and w.dtype is x.dtype and x.rank == w.rank == 4
            and all(type(d) is int for d in (*x.shape[1:], *w.shape)) and not x.is_empty
            and is_channels_last(x.shape, x.strides) and not same_ints(w.shape[2:], (1, 1)))


def weights_last(graph: Graph) -> Graph:
    """The graph with the weights of its convolutions in the channels-last format; the same graph where they are."""
    return rebuilt(graph, lambda n: _is_image_convolution(n) and n.inputs[1].type.shape[1] >= FEW
                   and not is_channels_last(n.inputs[1].type.shape, n.inputs[1].type.strides), _with_weights_last,
                   ("aten_call",))


def _with_weights_last(b: Builder, n: Node) -> Node:
    x, w = n.inputs
    made = b.clone(w, channels_last_strides(w.type.shape))
    return b.aten(n.attrs["target"], "", (x, made, *n.attrs["args"][2:]), n.type)


def channels_of_weights_last(graph: Graph) -> Graph:
    """The graph with the weights of convolutions of each channel by itself laid out with the channels as neighbours;
    the same graph when there are none."""
    return rebuilt(graph, lambda n: _is_image_convolution(n, True) and n.inputs[1].type.shape[0] >= FEW
                   and not same_ints(n.inputs[1].type.strides[:1], (1,)), _with_channels_of_weights_last,
                   ("aten_call",))


def _with_channels_of_weights_last(b: Builder, n: Node) -> Node:
    x, w = n.inputs
    channels, _, height, width = w.type.shape
    made = b.clone(w, (1, channels * height * width, channels * width, channels))
    return b.aten(n.attrs["target"], "", (x, made, *n.attrs["args"][2:]), n.type)


FEW = 16  # channels of an image; fewer are too short a piece of memory to be read one pixel at a time
VECTOR = 4  # elements, of which a pixel then has a multiple


def wide_pixels(graph: Graph) -> Graph:
    """The graph with images of few channels widened, where the kernel of a convolution covers several of their pixels
    in a row and reaches beyond the images; the same graph when there are none."""
    return rebuilt(graph, lambda n: _is_image_convolution(n) and 2 <= n.inputs[1].type.shape[1] < FEW
                   and any(_flat(n.attrs["args"][4])) and n.inputs[1].type.shape[3] * n.inputs[1].type.shape[1] >= FEW
                   and same_ints(_flat(n.attrs["args"][5])[-1:], (1,)), _with_wide_pixels, ("aten_call",))


def _with_wide_pixels(b: Builder, n: Node) -> Node:
    x, w = n.inputs
    args, more = n.attrs["args"], -w.type.shape[1] % VECTOR
    padding = 2 * _flat(args[4]) if len(_flat(args[4])) == 1 else _flat(args[4])
    image = b.pad(x, [(0, 0), (0, more), *((p, p) for p in padding)])
    weights = b.pad(w, [(0, 0), (0, more), (0, 0), (0, 0)]) if more else w
    image, weights = (t if is_channels_last(t.type.shape, t.type.strides)
                      else b.clone(t, channels_last_strides(t.type.shape)) for t in (image, weights))
    return b.aten(n.attrs["target"], "", (image, weights, None, args[3], (0, 0), *args[5:]), n.type)


def weights_as_sums(graph: Graph) -> Graph:
    """The graph with sums of products in the place of the gradients of weights that ``adds_apart`` names; the same
    graph when there is none."""
    return rebuilt(graph, lambda n: adds_apart(n) or _is_weight_gradient(n), _as_sum,
                   ("aten_call", "getitem"))


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
