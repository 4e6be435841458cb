"""Result types of contractions, convolutions and attention, which stay library calls. Rules work over Dims, without a
run on meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import aten, layout
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType, contiguous_strides, same_ints
from jit.graph.nested import several
from jit.graph.ops.reductions import mean
from jit.graph.registry import extern, op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import IntExpr


def _contiguous(shape: tuple[IntExpr, ...], like: TensorType) -> TensorType:
    return TensorType.contiguous(shape, like.dtype, like.device)


def _agree(a: IntExpr, b: Builder, message: str) -> None:
    if not a == b:
        raise RuntimeError(message)


def _same_dtype(*types: TensorType) -> None:
    """What eager refuses but for some of nothing, whose results have whichever dtype."""
    first = types[0].dtype
    for t in types[1:]:
        if t.dtype is not first:
            if any(t.is_empty for t in types):
                raise Unsupported("a product of two dtypes, of tensors without elements",
                                  "convert one of them", kind="unknown-function")
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {first} != {t.dtype}")


@extern("mm")
def mm(a: TensorType, c: TensorType) -> TensorType:
    if a.rank != 2 or c.rank != 2:
        raise RuntimeError("mat1 and mat2 must be matrices")
    _agree(a.shape[1], c.shape[0],
           f"mat1 and mat2 shapes cannot be multiplied ({a.shape[0]}x{a.shape[1]} and {c.shape[0]}x{c.shape[1]})")
    _same_dtype(a, c)
    return _contiguous((a.shape[0], c.shape[1]), a)


@extern("addmm")
def addmm(x: TensorType, a: TensorType, c: TensorType, beta: float | int = 1, alpha: int = 1) -> TensorType:
    return mm(a, c)


@extern("bmm")
def bmm(a: TensorType, c: TensorType) -> TensorType:
    if a.rank != 3 or c.rank != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    _agree(a.shape[0], c.shape[0], "Expected size for first two dimensions of batch2 tensor to match")
    _agree(a.shape[2], c.shape[1], f"Expected size for first two dimensions of batch2 tensor to be: [{a.shape[0]}, "
                                   f"{a.shape[2]}] but got: [{c.shape[0]}, {c.shape[1]}].")
    _same_dtype(a, c)
    return _contiguous((a.shape[0], a.shape[1], c.shape[2]), a)


@extern("baddbmm")
def baddbmm(x: TensorType, a: TensorType, c: TensorType, beta: int = 1, alpha: int = 1) -> TensorType:
    return bmm(a, c)


@extern("_grouped_mm")
def grouped_mm(a: TensorType, c: TensorType, offs: TensorType | None = None, bias: Node | None = None,
               out_dtype=None) -> TensorType:
    """Products of groups of rows, of columns or of matrices, whose ends are ``offs``; rows of the result begin at
    multiples of 16 bytes."""
    if (bias is not None or a.rank not in (2, 3) or c.rank not in (2, 3)
        or (offs is None) != (a.rank == c.rank == 3) or a.dtype is not c.dtype):
        return NotImplemented
    rows, columns = a.shape[-2], c.shape[-1]
    groups = {(2, 3): (), (3, 2): (), (2, 2): offs and offs.shape, (3, 3): a.shape[:1]}[a.rank, c.rank]
    dtype = out_dtype or a.dtype
    unit = max(16 // dtype.itemsize, 1)
    row = (columns + (unit - 1)) // unit * unit
    return TensorType((*groups, rows, columns), (rows * row, row, 1)[-2 - len(groups):], dtype, a.device)


@extern("mv")
def mv(a: TensorType, v: TensorType) -> TensorType:
    if a.rank != 2 or v.rank != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {a.rank}, {v.rank}")
    _agree(a.shape[1], v.shape[0],
           f"size mismatch, got input ({a.shape[0]}), mat ({a.shape[0]}x{a.shape[1]}), vec ({v.shape[0]})")
    _same_dtype(a, v)
    return _contiguous(a.shape[:1], a)


@extern("addmv")
def addmv(x: Node, a, v, beta: int = 1, alpha: int = 1) -> TensorType:
    _same_dtype(x, a, v)
    return mv(a, v)


@extern("dot", "vdot")
def dot(a: TensorType, v: TensorType) -> TensorType:
    if a.rank != 1 or v.rank != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.rank}D and {v.rank}D tensors")
    _agree(a.shape[0], v.shape[0], f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{v.shape[0]}] "
                                   "to have the same number of elements")
    _same_dtype(a, v)
    return _contiguous((), a)


@op("matmul")
def matmul(b: Builder, self: Node, other: Node) -> Node:
    """By ranks, as ``aten::matmul`` does it: dot, mv, mm with folded leading dimensions, or bmm over broadcast
    batches."""
    x, y = self, other
    if not isinstance(x, Node) or not isinstance(y, Node):
        raise TypeError("matmul(): argument 'other' must be Tensor")
    rx, ry = x.type.rank, y.type.rank
    if rx == 0 or ry == 0:
        raise RuntimeError("both arguments to matmul need to be at least 1D, but they are " + f"{rx}D and {ry}D")
    _same_dtype(x.type, y.type)
    if x.device != y.device:
        raise Unsupported("a product of tensors on two devices", kind="device")
    if rx == 1 and ry == 1:
        return b.aten("aten::dot", "", (x, y), dot(x.type, y.type))
    if rx == 2 and ry == 1:
        return b.aten("aten::mv", "", (x, y), mv(x.type, y.type))
    if rx == 1 and ry == 2:
        return b.aten("aten::mv", "", (b.transpose(y, 0, 1), x), mv(b.transpose(y, 0, 1).type, x.type))
    if rx == 2 and ry == 2:
        return b.aten("aten::mm", "", (x, y), mm(x.type, y.type))
    if ry == 1:
        column = matmul(b, x, b.unsqueeze(y, 1))
        return b.drop_dim(column, column.type.rank - 1)
    if rx == 1:
        row = matmul(b, b.unsqueeze(x, 0), y)
        return b.drop_dim(row, row.type.rank - 2)
    if ry == 2:
        k = x.shape[-1]
        _agree(k, y.shape[0],
               f"mat1 and mat2 shapes cannot be multiplied ({product(x.shape[:-1])}x{k} and {y.shape[0]}x{y.shape[1]})")
        flat = b.reshape(x, (product(x.shape[:-1]), k))
        result = b.aten("aten::mm", "", (flat, y), mm(flat.type, y.type))
        return b.reshape(result, x.shape[:-1] + y.shape[1:])
    batch = layout.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    _agree(x.shape[-1], y.shape[-2],
           f"Expected size for first two dimensions of batch2 tensor to match, got {list(x.shape)} and {list(y.shape)}")
    n = product(batch)
    fx = b.reshape(b.expand(x, batch + x.shape[-2:]), (n,) + x.shape[-2:])
    fy = b.reshape(b.expand(y, batch + y.shape[-2:]), (n,) + y.shape[-2:])
    result = b.aten("aten::bmm", "", (fx, fy), bmm(fx.type, fy.type))
    return b.reshape(result, batch + (x.shape[-2], y.shape[-1]))


@op("rmatmul")
def rmatmul(b: Builder, self: Node, other: Node | Number) -> Node:
    return matmul(b, other, self)


@extern("linear")
def linear(x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
    if w.rank != 2 or x.rank < 1:
        return NotImplemented
    _agree(x.shape[-1], w.shape[1], f"mat1 and mat2 shapes cannot be multiplied ({product(x.shape[:-1])}x{x.shape[-1]} "
                                    f"and {w.shape[1]}x{w.shape[0]})")
    _same_dtype(*(t for t in (x, w, bias) if t is not None))
    if bias is not None and bias.rank == 1 and not same_ints(bias.shape, (1,)):
        _agree(bias.shape[0], w.shape[0],
               f"The expanded size of the tensor ({w.shape[0]}) must match the existing size ({bias.shape[0]})")
    return _contiguous(x.shape[:-1] + w.shape[:1], x)


def _tuple(v: int | Sequence[int], n: int) -> tuple[int, ...]:
    v = tuple(several(v))
    return v * n if len(v) == 1 else v


def conv_output(x: TensorType, w: TensorType, stride: Sequence[IntExpr], padding: Sequence[int],
                dilation: Sequence[int], transposed: bool = False, output_padding: int | Sequence[int] = 0,
                groups: int = 1) -> tuple[IntExpr, ...]:
    """Shape of a convolution of (N, C, ...) or (C, ...)."""
    n = w.rank - 2
    stride, padding, dilation, output_padding = (_tuple(v, n) for v in (stride, padding, dilation, output_padding))
    lead = x.shape[: x.rank - n - 1]
    channels = x.shape[x.rank - n - 1]
    spatial = x.shape[x.rank - n :]
    kernel = w.shape[2:]
    if transposed:
        out = w.shape[1] * groups
        _agree(channels, w.shape[0], f"Given transposed=1, weight of size {list(w.shape)}, expected "
                                     f"input{list(x.shape)} to have {w.shape[0]} channels, but got {channels} channels "
                                     "instead")
        sizes = tuple((s - 1) * st - 2 * p + d * (k - 1) + op_ + 1
                      for s, st, p, d, k, op_ in zip(spatial, stride, padding, dilation, kernel, output_padding))
    else:
        out = w.shape[0]
        _agree(channels, w.shape[1] * groups, f"Given groups={groups}, weight of size {list(w.shape)}, expected "
                                              f"input{list(x.shape)} to have {w.shape[1] * groups} channels, but got "
                                              f"{channels} channels instead")
        sizes = tuple((s + 2 * p - d * (k - 1) - 1) // st + 1 for s, st,
                      p, d, k in zip(spatial, stride, padding, dilation, kernel))
    for s in sizes:
        if not s > 0:
            raise RuntimeError("Calculated padded input size per channel is smaller than the kernel size. Kernel size "
                               "can't be greater than actual input size")
    return lead + (out,) + sizes


def _conv_type(x: TensorType, w: TensorType, shape: tuple[IntExpr, ...]) -> TensorType:
    channels_last = x.rank in (4, 5) and "channels_last" in (layout.memory_format(x), layout.memory_format(w))
    strides = layout.channels_last_strides(shape) if channels_last else contiguous_strides(shape)
    return TensorType(shape, strides, x.dtype, x.device)


@extern("conv1d", "conv2d", "conv3d")
def conv(x: TensorType, w: TensorType, bias: TensorType | None, stride: Sequence[IntExpr], padding: str | Sequence[int],
         dilation: Sequence[int], groups: int) -> TensorType:
    if x.rank not in (w.rank, w.rank - 1):
        return NotImplemented
    if padding == "same":
        if any(s != 1 for s in _tuple(stride, w.rank - 2)):
            return NotImplemented
        valid = conv_output(x, w, stride, 0, dilation, groups=groups) if all(k == 1 for k in w.shape[2:]) else None
        shape = valid or x.shape[: x.rank - w.rank + 1] + w.shape[:1] + x.shape[x.rank - w.rank + 2 :]
        return _conv_type(x, w, shape)
    if padding == "valid":
        padding = 0
    _same_dtype(*(t for t in (x, w, bias) if t is not None))
    shape = conv_output(x, w, stride, padding, dilation, groups=groups)
    return _conv_type(x, w, shape)


@extern("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(x: TensorType, w: TensorType, bias: TensorType | None, stride: Sequence[IntExpr], padding: list[int],
                   output_padding: list[int], groups: int, dilation: list[int]) -> TensorType:
    if x.rank not in (w.rank, w.rank - 1):
        return NotImplemented
    _same_dtype(*(t for t in (x, w, bias) if t is not None))
    return _conv_type(x, w, conv_output(x, w, stride, padding, dilation, True, output_padding, groups))


@extern("convolution")
def convolution(x: TensorType, w: TensorType, bias: Node, stride: tuple[IntExpr, ...], padding: tuple[int, ...],
                dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...],
                groups: int) -> TensorType:
    return _conv_type(x, w, conv_output(x, w, stride, padding, dilation, transposed, output_padding, groups))


@extern("convolution_backward")
def convolution_backward(g: TensorType, x: TensorType, w: TensorType, bias_sizes: Sequence[int] | None,
                         stride: Sequence[IntExpr], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                         output_padding: Sequence[int], groups: int, wanted: Sequence[bool]) -> tuple:
    """The gradients of input, weight and bias, None where not wanted: the first two channels-last as soon as one of the
    operands is; for an empty batch laid out as the operands are."""
    last, empty = ("channels_last" in (layout.memory_format(x), layout.memory_format(w)),
                   any(type(s) is int and s == 0 for s in x.shape[:2]))

    def laid_out(t: TensorType) -> TensorType:
        if empty:
            return t.replace(strides=layout.preserved_strides(t))
        return t.replace(strides=layout.channels_last_strides(t.shape) if last and t.rank in (4, 5)
                         else contiguous_strides(t.shape))

    bias = _contiguous(tuple(bias_sizes), x) if wanted[2] else None
    return laid_out(x) if wanted[0] else None, laid_out(w) if wanted[1] else None, bias


@op("scaled_dot_product_attention")
def sdpa(b: Builder, query: Node, key: Node, value: Node, attn_mask: Node | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Node:
    """(..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev) by the library's fused kernels.

    A boolean mask becomes the additive one here, once for all layers that share it. A mask whose last dimension is not
    dense would keep CUDA's fused kernels from being used, so it is laid out first; the result then takes the strides
    that eager's would have.
    """
    q, k, v = query.type, key.type, value.type
    if b.attention == "other":
        raise Unsupported("scaled_dot_product_attention with a choice of kernels made in the graph",
                          "make it around the call", kind="global-state")
    announced = sdpa_type(q, k, v, attn_mask and attn_mask.type, dropout_p, is_causal, enable_gqa)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = b.where(attn_mask, b.scalar(0.0, q.dtype, q.device), b.scalar(float("-inf"), q.dtype, q.device))
    if b.attention == "math":
        given = (query, key, value, attn_mask, float(dropout_p), bool(is_causal), None)
        return aten.call(b, "_scaled_dot_product_attention_math", given,
                         {"scale": scale, "enable_gqa": bool(enable_gqa)})[0]
    if attn_mask is not None and backend(q.device).dense_masks and not same_ints(attn_mask.type.strides[-1:], (1,)):
        attn_mask = b.clone(attn_mask, layout.contiguous_strides(attn_mask.shape))
    produced = sdpa_type(q, k, v, attn_mask and attn_mask.type, dropout_p, is_causal, enable_gqa)
    args = (query, key, value, attn_mask, float(dropout_p), bool(is_causal), scale, bool(enable_gqa))
    result = b.aten("aten::scaled_dot_product_attention", "", args, produced, impure=dropout_p > 0)
    return result if same_ints(produced.strides, announced.strides) else b.clone(result, announced.strides)


def sdpa_type(q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, dropout_p: float, is_causal: bool,
              enable_gqa: bool) -> TensorType:
    """The result's type. The fused kernels (rank 4) follow the query's layout or return a transposed (N, L, H, Ev)
    tensor; the composed form returns a row-major one."""
    if min(q.rank, k.rank, v.rank) < 2:
        raise RuntimeError("scaled_dot_product_attention: Expected query, key and value to all be at least 2 "
                           "dimensional")
    _same_dtype(q, k, v)
    _agree(q.shape[-1], k.shape[-1], f"mat1 and mat2 shapes cannot be multiplied ({list(q.shape)} and {list(k.shape)})")
    _agree(k.shape[-2], v.shape[-2], f"key and value lengths differ: {list(k.shape)} and {list(v.shape)}")
    if enable_gqa:
        shape = q.shape[:-1] + v.shape[-1:]
    else:
        shape = layout.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2]) + (q.shape[-2], v.shape[-1])
    if len(shape) == 4 and sdpa_is_fused(q, k, v, mask, dropout_p, is_causal, enable_gqa):
        if backend(q.device).transposed_attention and q.dtype is torch.float32:
            n, h, length, e = shape
            return TensorType(shape, (length * h * e, e, h * e, 1), q.dtype, q.device)
        return q.replace(strides=layout.preserved_strides(q))
    return _contiguous(shape, q)


def sdpa_is_fused(q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, dropout_p: float,
                  is_causal: bool, enable_gqa: bool) -> bool:
    """Whether eager picks a fused kernel. Where the guess is wrong, the runtime lays the result out as was
    announced."""
    if q.rank != 4 or not (same_ints(q.shape[-1:], v.shape[-1:]) and same_ints(q.shape[-1:], k.shape[-1:])):
        return False
    if not torch.backends.cuda.flash_sdp_enabled():
        return False
    if not all(same_ints(t.strides[-1:], (1,)) for t in (q, k, v)):
        return False
    if not enable_gqa and not (same_ints(q.shape[:2], k.shape[:2]) and same_ints(q.shape[:2], v.shape[:2])):
        return False
    if backend(q.device).plain_flash_attention:
        return dropout_p == 0 and (mask is None or mask.rank in (2, 4))
    if mask is not None and (enable_gqa or is_causal or not same_ints(mask.strides[-1:], (1,))):
        return False
    width = q.shape[-1]
    if type(width) is not int:
        return False
    if q.dtype in (torch.float16, torch.bfloat16):
        return width % 8 == 0
    return q.dtype is torch.float32 and width % 4 == 0 and not enable_gqa


@op("adaptive_avg_pool2d")
def adaptive_avg_pool2d(b: Builder, self: Node, output_size: int) -> object:
    size = _tuple(output_size, 2)
    if size != (1, 1) or self.type.rank not in (3, 4) or not self.dtype.is_floating_point:
        return NotImplemented
    node = mean(b, self, (-2, -1), True)
    if self.type.rank == 4 and layout.memory_format(self.type) == "channels_last":
        node.type = node.type.replace(strides=layout.channels_last_strides(node.shape))
    return node


def _sorted(results: tuple[str, ...]) -> Callable:
    """The type rule of a sort: its ``results`` are laid out as the operand, without gaps."""

    def rule(x: TensorType, *options: int) -> tuple[TensorType, ...]:
        dim = next((v for v in options if type(v) is int), -1)
        if x.dtype.is_complex or not -max(x.rank, 1) <= dim < max(x.rank, 1):
            return NotImplemented
        strides = layout.preserved_strides(x)
        found = {"values": x.replace(strides=strides), "indices": x.replace(strides=strides, dtype=torch.int64)}
        return tuple(found[r] for r in results) if len(results) > 1 else found[results[0]]

    return rule


extern("sort")(_sorted(("values", "indices")))
extern("argsort")(_sorted(("indices",)))
extern("msort")(_sorted(("values",)))
