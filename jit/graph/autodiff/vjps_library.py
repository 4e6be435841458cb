"""Gradients of library operators by the library's own backward operators, and of scatters, sorts and selections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.graph import layout
from jit.graph.autodiff.rules import ATEN_VJPS, VJPS, aten_vjp, training_form
from jit.graph.ir import CHECKED, Node, TensorType, same_ints
from jit.graph.nested import several
from jit.graph.ops.externs import convolution as convolution_type
from jit.graph.ops.externs import convolution_backward

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr


def like(x: Node) -> TensorType:
    return layout.empty_like(x.type)


# convolutions


def _tuple(v: int | tuple[int, ...] | list, n: int) -> tuple[int, ...]:
    v = tuple(several(v))
    return v * n if len(v) == 1 else v


def _convolution(b: GradBuilder, g: Node, x: Node, w: Node, bias: Node | None, stride: tuple[IntExpr, ...],
                 padding: str | tuple[int, ...], dilation: tuple[int, ...], transposed: bool,
                 output_padding: int | tuple[int, ...], groups: int) -> tuple:
    n = w.type.rank - 2
    stride, dilation, output_padding = (_tuple(v, n) for v in (stride, dilation, output_padding))
    single = x.type.rank == n + 1
    source = image = b.unsqueeze(x, 0) if single else x
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, w.type.shape[2:])]
        padding = tuple(t // 2 for t in total)
        # As the forward does it: the padding of a convolution is symmetric.
        source = b.pad(source, [(0, 0)] * 2 + [(0, t % 2) for t in total])
    padding = _tuple(padding, n)
    if single:
        g = b.unsqueeze(g, 0)
    wanted = tuple(v is not None and v in b.carries for v in (x, w, bias))
    apart = wanted[2] and _sums_bias_apart(g)
    rest = (None if bias is None else bias.type.shape, stride, padding,
            dilation, transposed, output_padding, groups, (*wanted[:2], wanted[2] and not apart))
    gx = gw = gb = None
    if any(rest[-1]):
        gx, gw, gb = b.call("convolution_backward", (g, source, w, *rest),
                            convolution_backward(g.type, source.type, w.type, *rest))
    if apart:
        gb = b.reshape(b.sum_to(g, (1, g.type.shape[1], *(1,) * n)), (g.type.shape[1],))
    if gx is not None and source is not image:
        (gx,) = VJPS["constant_pad"](b, source, gx)
    return (b.drop_dim(gx, 0) if single and gx is not None else gx), gw, gb


def _sums_bias_apart(g: Node) -> bool:
    """Whether a bias's gradient is a sum of its own. A CPU library's sum is as exact as the layout that its
    convolution takes lets it be: some run in one chain of float32 additions over all pixels. On CUDA biases are added
    apart already in the forward, but for those of transposed convolutions, which are left to the library."""
    return backend(g.type.device).adds_in_chains


@aten_vjp("conv1d", "conv2d", "conv3d")
def conv(b: GradBuilder, out: Node, g: Node, x: Node, w: Node, bias: Node | None = None,
         stride: tuple[IntExpr, ...] = 1, padding: str | tuple[int, ...] = 0, dilation: tuple[int, ...] = 1,
         groups: int = 1) -> tuple:
    return _convolution(b, g, x, w, bias, stride, padding, dilation, False, 0, groups)


@aten_vjp("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(b: GradBuilder, out: Node, g: Node, x: Node, w: Node, bias: Node | None = None,
                   stride: tuple[IntExpr, ...] = 1, padding: tuple[int, ...] = 0, output_padding: tuple[int, ...] = 0,
                   groups: int = 1, dilation: tuple[int, ...] = 1) -> tuple[Node, ...]:
    return _convolution(b, g, x, w, bias, stride, padding, dilation, True, output_padding, groups)


@aten_vjp("convolution")
def convolution(b: GradBuilder, out: Node, g: Node, x: Node, w: Node, bias: Node | None, stride: Sequence[int],
                padding: Sequence[int], dilation: Sequence[int], transposed, output_padding, groups: int) -> tuple:
    return _convolution(b, g, x, w, bias, stride, padding, dilation, transposed, output_padding, groups)


@aten_vjp("convolution_backward")
def convolution_again(b: GradBuilder, out: Node, g: tuple[Node, Node | None, None], grad: Node, x: Node, w: Node,
                      bias_sizes: tuple[int, ...] | None, stride: tuple[IntExpr, ...], padding: tuple[int, ...],
                      dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...], groups: int,
                      wanted: tuple[bool, ...]) -> tuple[Callable, Callable | None, Callable]:
    """The gradient of a convolution's gradients: it is linear in images and in weights, so that each is a convolution
    or the gradient of one."""
    toward_x, toward_w, toward_bias = g
    how = (stride, padding, dilation, transposed, output_padding, groups)

    def of_grad() -> Node:
        parts = [b.call("convolution", (u, v, None, *how), convolution_type(u.type, v.type, None, *how))
                 for u, v in ((toward_x, w), (x, toward_w)) if u is not None and v is not None]
        if toward_bias is not None:
            parts.append(b.expand(b.reshape(toward_bias, toward_bias.type.shape + (1,) * (grad.type.rank - 2)),
                                  grad.type.shape))
        total = parts[0]
        for p in parts[1:]:
            total = b.add(total, p)
        return total

    def gradient(u: Node, v: Node, k: int) -> Node:
        rest = (None, *how, (k == 0, k == 1, False))
        return b.call("convolution_backward", (grad, u, v, *rest),
                      convolution_backward(grad.type, u.type, v.type, *rest))[k]

    return of_grad, toward_w and (lambda: gradient(x, toward_w, 0)), toward_x and (lambda: gradient(toward_x, w, 1))


# pooling and resizing


@training_form("max_pool2d", "max_pool3d")
def max_pool(b: GradBuilder, node: Node, x: Node, kernel: tuple[int, ...], stride: tuple[IntExpr, ...] = (),
             padding: tuple[int, ...] = 0, dilation: tuple[int, ...] = 1, ceil_mode: bool = False) -> Node:
    n = int(node.attrs["target"][-2])
    if x.type.rank != n + 2:
        return NotImplemented
    kernel, padding, dilation = (_tuple(v, n) for v in (kernel, padding, dilation))
    types = (node.type, node.type.replace(dtype=torch.int64))
    return b.call(f"max_pool{n}d_with_indices", (x, kernel, _tuple(stride, n) if stride else kernel,
                                                 padding, dilation, ceil_mode), types)[0]


@aten_vjp("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_vjp(b: GradBuilder, out: Node, g: tuple[Node, None], x: Node, kernel: tuple[int, ...],
                 stride: tuple[IntExpr, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
                 ceil_mode: bool) -> tuple[Callable, ...]:
    name = out.attrs["target"].removeprefix("aten::")
    return (lambda: b.call(f"{name}_backward", (g[0], x, kernel, stride,
                                                padding, dilation, ceil_mode, b.result(out, 1)), like(x)),)


@aten_vjp("avg_pool2d", "avg_pool3d")
def avg_pool(b: GradBuilder, out: Node, g: Node, x: Node, *args: bool | tuple[int, ...] | None) -> tuple[Callable, ...]:
    name = out.attrs["target"].removeprefix("aten::")
    kernel, stride, padding, ceil_mode, count_include_pad, divisor = (*args, (), 0,
                                                                      False, True, None)[:6] if len(args) == 1 else args
    return (lambda: b.call(f"{name}_backward", (g, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor),
                           like(x)),)


@aten_vjp("adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(b: GradBuilder, out: Node, g: Node, x: Node, size: tuple[IntExpr, ...]) -> tuple[Callable, ...]:
    name = out.attrs["target"].removeprefix("aten::")
    return (lambda: b.call(f"_{name}_backward", (g, x), like(x)),)


@aten_vjp("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: GradBuilder, out: Node, g: Node, x: Node, size: tuple[IntExpr, ...]) -> tuple[Callable, ...]:
    name = out.attrs["target"].removeprefix("aten::")
    return (lambda: b.call(f"{name}_backward", (g[0], x, b.result(out, 1)), like(x)),)


@aten_vjp("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
          "replication_pad2d", "replication_pad3d")
def pad(b: GradBuilder, out: Node, g: Node, x: Node, padding: Sequence[int]) -> tuple[Callable, ...]:
    name = out.attrs["target"].removeprefix("aten::")
    return (lambda: b.call(f"{name}_backward", (g, x, padding), like(x)),)


@aten_vjp("pad")
def pad_by_mode(b: GradBuilder, out: Node, g: Node, x: Node, padding: Sequence[int], mode: str = "constant",
                value: float | None = None) -> tuple[Callable, ...]:
    k = len(padding) // 2
    name = {"reflect": "reflection", "replicate": "replication"}.get(mode)
    if name is not None:
        return (lambda: b.call(f"{name}_pad{k}d_backward", (g, x, padding), like(x)),)
    if mode != "circular" or not all(type(p) is int and p >= 0 for p in padding):
        return NotImplemented

    def wrapped() -> Node:
        """What was copied from the other edge is added there."""
        total = g
        for j in range(k):
            d, (before, after) = x.type.rank - 1 - j, padding[2 * j : 2 * j + 2]
            n = x.type.shape[d]
            parts = [b.slice(total, d, before, n)]
            for start, width, (lo, hi) in ((0, before, (n - before, 0)), (before + n, after, (0, n - after))):
                if width:
                    around = [(lo, hi) if q == d else (0, 0) for q in range(x.type.rank)]
                    parts.append(b.pad(b.slice(total, d, start, width), around))
            total = parts[0]
            for p in parts[1:]:
                total = b.add(total, p)
        return total

    return (wrapped,)


def _row(b: GradBuilder, x: Node) -> Node:
    """A signal as an image of one row."""
    return b.unsqueeze(x, x.type.rank - 1)


@training_form("max_pool1d")
def max_pool1d(b: GradBuilder, node: Node, x: Node, kernel: tuple, stride: tuple = (), padding: tuple = (0,),
               dilation: tuple = (1,), ceil_mode: bool = False) -> Node:
    (k,), (s,), (p,), (d,) = (_tuple(v, 1) for v in (kernel, stride or kernel, padding, dilation))
    t = TensorType.contiguous((*node.type.shape[:-1], 1, node.type.shape[-1]), node.type.dtype, node.type.device)
    made = b.call("max_pool2d_with_indices", (_row(b, x), (1, k), (1, s), (0, p), (1, d), ceil_mode),
                  (t, t.replace(dtype=torch.int64)))[0]
    return b.drop_dim(made, t.rank - 2)


@aten_vjp("avg_pool1d")
def avg_pool1d(b: GradBuilder, out: Node, g: Node, x: Node, kernel: tuple, stride: tuple = (), padding: tuple = (0,),
               ceil_mode: bool = False, include: bool = True) -> tuple[Callable, ...]:
    (k,), (s,), (p,) = (_tuple(v, 1) for v in (kernel, stride or kernel, padding))

    def gradient() -> Node:
        row = _row(b, x)
        made = b.call("avg_pool2d_backward", (_row(b, g), row, (1, k), (1, s), (0, p), ceil_mode, include, None),
                      like(row))
        return b.drop_dim(made, made.type.rank - 2)

    return (gradient,)


@aten_vjp("adaptive_avg_pool1d")
def adaptive_avg_pool1d(b: GradBuilder, out: Node, g: Node, x: Node, size: tuple) -> tuple[Callable, ...]:
    def gradient() -> Node:
        row = _row(b, x)
        made = b.call("_adaptive_avg_pool2d_backward", (_row(b, g), row), like(row))
        return b.drop_dim(made, made.type.rank - 2)

    return (gradient,)


@aten_vjp("adaptive_max_pool1d")
def adaptive_max_pool1d(b: GradBuilder, out: Node, g: tuple[Node, None], x: Node, size: tuple) -> tuple[Callable, ...]:
    def gradient() -> Node:
        row = _row(b, x)
        made = b.call("adaptive_max_pool2d_backward", (_row(b, g[0]), row, _row(b, b.result(out, 1))), like(row))
        return b.drop_dim(made, made.type.rank - 2)

    return (gradient,)


def _resize(name: str) -> None:
    n = int(name.rstrip("_a").removesuffix("d")[-1])

    def rule(b: GradBuilder, out: Node, g: Node, x: Node, size: tuple[IntExpr, ...],
             *args: bool | None) -> tuple[Callable, ...]:
        if out.attrs["overload"] == "vec":
            *align, factors = args
            size, args = out.type.shape[2:], (*align, *(factors or (None,) * n))
        return (lambda: b.call(f"{name}_backward", (g, size, x.type.shape, *args), like(x)),)

    ATEN_VJPS[name] = rule


for _name in """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa""".split():
    _resize(_name)


# elementwise


@training_form("glu")
def glu(b: GradBuilder, node: Node, x: Node, dim: int = -1) -> Node:
    d = dim % x.type.rank
    half = x.type.shape[d] // 2
    value, gate = b.slice(x, d, 0, half), b.slice(x, d, half, half)
    s = b.sigmoid(gate)
    return b.emit("custom_gradient", (b.mul(value, s), value, s, gate,
                                      b.mul(b.mul(b.sub(b.lift(1.0, s), s), s), value)), {}, x.type.dtype)


@training_form("prelu", "_prelu_kernel")
def prelu(b: GradBuilder, node: Node, x: Node, w: Node) -> Node:
    if w.type.rank == 1 and x.type.rank > 1 and node.attrs["target"] == "aten::prelu":
        w = b.reshape(w, (1, w.type.shape[0]) + (1,) * (x.type.rank - 2))
    return b.where(b.gt(x, 0), x, b.mul(w, x))


# selections: values with their positions


def _placed(b: GradBuilder, x: Node, dim: int, index: Node, g: Node) -> Node:
    zeros = b.zeros(x.type)
    return b.call("scatter_add", (zeros, dim, index, g), zeros.type)


def _shared(b: GradBuilder, x: Node, value: Node, g: Node) -> Node:
    """The gradient of one element's value, shared evenly by all that have it."""
    hit = b.logical_or(b.eq(x, value), b.logical_and(b.isnan(x), b.isnan(value)))
    count = b.reduce("sum", b.cast(hit, torch.int64), tuple(range(x.type.rank)), False)
    return b.where(hit, b.div(g, b.cast(count, g.type.dtype)), 0)


@aten_vjp("topk", "sort", "kthvalue", "median", "mode", "nanmedian", "cummax", "cummin")
def selection(b: GradBuilder, out: Node, g: Node | tuple[Node, None], x: Node, *args: int) -> object:
    """Each value's gradient goes to the position that it was taken from."""
    name, rank = out.attrs["target"].removeprefix("aten::"), x.type.rank
    if name in ("median", "nanmedian") and not out.several and rank:
        return (lambda: _shared(b, x, out, g),)
    if not out.several or g[0] is None or not rank:
        return NotImplemented
    if name in ("topk", "kthvalue"):
        dim = args[1] if len(args) > 1 else -1
    elif name == "sort":
        dim = args[1] if out.attrs["overload"] == "stable" else args[0] if args else -1
    else:
        dim = args[0] if args else -1
    index, given = b.result(out, 1), g[0]
    if not isinstance(dim, int) or isinstance(dim, bool):
        return NotImplemented
    dim %= rank
    if index.type.rank < rank:
        index, given = b.unsqueeze(index, dim), b.unsqueeze(given, dim)
    return (lambda: _placed(b, x, dim, index, given),)


# scatters


def _filled(b: GradBuilder, g: Node, dim: int, index: Node) -> Node:
    """``g`` with zeros where something was written."""
    return b.call("scatter", (g, dim, index, 0), like(g), "value")


def _all_read(index: Node, source: Node) -> bool:
    """Whether a scatter reads all of its source. Where it does not the library's backward raises, as eager's does."""
    return index.type.rank == source.type.rank and same_ints(index.type.shape, source.type.shape)


@aten_vjp("scatter")
def scatter(b: GradBuilder, out: Node, g: Node, x: Node, dim: int, index: Node, value: Node,
            *reduce: object) -> tuple[Callable, None, None, Callable]:
    if reduce or isinstance(value, Node) and not _all_read(index, value):
        return NotImplemented
    return lambda: _filled(b, g, dim, index), None, None, lambda: b.gather(g, dim % max(g.type.rank, 1), index)


@aten_vjp("scatter_add")
def scatter_add(b: GradBuilder, out: Node, g: Node, x: Node, dim: int, index: Node, source: Node):
    if not _all_read(index, source):
        return NotImplemented
    return g, None, None, lambda: b.gather(g, dim % max(g.type.rank, 1), index)


@aten_vjp("index_add")
def index_add(b: GradBuilder, out: Node, g: Node, x: Node, dim: int, index: Node, source: Node,
              alpha: int = 1) -> tuple[Node, None, None, Callable]:
    if x.type.rank == 0 or source.type.rank == 0 or index.type.rank != 1:
        return NotImplemented

    def taken() -> Node:
        if x.type.is_empty:  # then the forward takes any index, and the library's backward does not
            rows = b.call("index_select", (g, dim, index), like(source))
            rows.attrs = {**rows.attrs, CHECKED: True}
            return rows
        return b.index(g, (dim % g.type.rank,), (index,))

    return g, None, None, lambda: b.scaled(taken(), alpha)


@aten_vjp("index_put", "_index_put_impl")
def index_put(b: GradBuilder, out: Node, g: Node, x: Node, at: tuple[Node, ...], values: Node, accumulate: bool = False,
              unsafe: bool = False) -> tuple[Callable, None, Callable]:
    dims = [d for d, i in enumerate(at) if i is not None]
    if (any(i is not None and i.type.dtype is not torch.int64 for i in at)
        or dims != list(range(dims[0], dims[0] + len(dims)))):
        return NotImplemented
    shapes = layout.broadcast_shapes(*(at[d].type.shape for d in dims))
    places = tuple(at[d] if same_ints(at[d].type.shape, shapes) else b.expand(at[d], shapes) for d in dims)

    def rest() -> Node:
        zero = b.full((), 0, g.type.dtype, g.type.device)
        return b.call("index_put", (g, at, zero, False), like(g))

    return (g if accumulate else rest), None, lambda: b.sum_to(b.index(g, dims, places), values.type.shape)


@aten_vjp("diagonal_scatter")
def diagonal_scatter(b: GradBuilder, out: Node, g: Node, x: Node, source: Node, offset: int = 0, dim1: int = 0,
                     dim2: int = 1) -> tuple[Callable, ...]:
    attrs = {"offset": offset, "dim1": dim1 % g.type.rank, "dim2": dim2 % g.type.rank}

    def rest() -> Node:
        rows, columns = (b.positions(g.type.shape, attrs[k], g.type.device) for k in ("dim1", "dim2"))
        return b.where(b.eq(b.add(rows, offset), columns), 0, g)

    return rest, lambda: b.emit("diagonal", (g,), attrs)


@aten_vjp("_to_copy")
def to_copy(b: GradBuilder, out: Node, g: Node, x: Node, *args: object) -> tuple[Callable, ...]:
    """Another device or dtype."""
    if g.type.device == x.type.device:
        return (lambda: b.cast(g, x.type.dtype),)
    back = g.type.replace(device=x.type.device)
    return (lambda: b.call("_to_copy", (g, None, None, x.type.device, None, False, None), back),)
