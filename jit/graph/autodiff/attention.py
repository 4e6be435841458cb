"""Attention under differentiation: the library's fused kernels with their saved row sums and their own backward
operators, else by matrix products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.autodiff.dropout import dropped
from jit.graph.autodiff.rules import aten_vjp, training_form
from jit.graph.build import HALF
from jit.graph.dims import ceil_div, hint, specialize
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.ops.externs import matmul, sdpa_is_fused
from jit.graph.ops.normalization import softmax

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # the numbers of torch_private.fused_attention_choice
MASK_ROWS = 8  # rows of a mask begin at multiples of it for the efficient kernel


@training_form("scaled_dot_product_attention")
def attention(b: GradBuilder, node: Node, q: Node, k: Node, v: Node, mask: Node | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Node:
    """(..., L, E), (..., S, E), (..., S, Ev) -> (..., L, Ev)"""
    carried = mask is not None and mask.type.dtype.is_floating_point and mask in b.carries
    if enable_gqa:
        k, v = _repeated(b, k, q), _repeated(b, v, q)
    choice = _choice(q, k, v, mask, dropout_p, is_causal, scale, carried)
    if choice == MATH and not torch.backends.cuda.math_sdp_enabled():
        raise Unsupported("every attention kernel that could run is switched off",
                          "leave SDPBackend.MATH on", kind="gradient")
    if choice == MATH:
        return _by_products(b, q, k, v, mask, dropout_p, is_causal, scale)
    return _FUSED[choice](b, q, k, v, mask, dropout_p, is_causal, scale)


def _choice(q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool, scale: float | None,
            mask_carries: bool) -> int:
    """Which kernel eager takes when gradients are recorded."""
    types = [t.type for t in (q, k, v)]
    kind = backend(types[0].device)
    if kind.plain_flash_attention:
        fused = sdpa_is_fused(*types, None if mask is None else mask.type, dropout_p, is_causal, False)
        return FLASH if fused and not mask_carries else MATH
    if not kind.asks_for_attention or types[0].rank != 4:
        return MATH

    def example(n: Node, grad):
        t = n.type
        return torch.empty_strided(tuple(map(hint, t.shape)), tuple(map(hint, t.strides)),
                                   dtype=t.dtype, device=t.device).requires_grad_(grad)

    with torch.enable_grad():
        tensors = [example(n, True) for n in (q, k, v)]
        bias = None if mask is None else example(mask, mask_carries)
        choice = int(torch_private.fused_attention_choice(*tensors, bias, dropout_p, is_causal, scale=scale))
    if choice not in _FUSED:
        return MATH
    if choice == EFFICIENT and mask is not None and mask_carries:
        return MATH
    return choice


def _repeated(b: GradBuilder, x: Node, q: Node) -> Node:
    """Keys or values (..., H, S, E) with each head repeated to the query's number of heads."""
    t = x.type
    heads, wanted = t.shape[-3], q.type.shape[-3]
    if same_ints((heads,), (wanted,)):
        return x
    at = t.rank - 2
    wide = b.expand(b.unsqueeze(x, at), t.shape[:at] + (wanted // heads,) + t.shape[at:])
    return b.reshape(wide, t.shape[:-3] + (wanted,) + t.shape[-2:])


# by matrix products


def _by_products(b: GradBuilder, q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool,
                 scale: float | None) -> Node:
    dtype = q.type.dtype
    if dtype in HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        q, k, v = b.opmath(q), b.opmath(k), b.opmath(v)
    factor = math.sqrt(1.0 / math.sqrt(specialize(q.type.shape[-1])) if scale is None else abs(scale))
    left = b.mul(q, factor if scale is None or scale >= 0 else -factor)
    scores = matmul(b, left, b.t(b.mul(k, factor)))
    if is_causal:
        rows, columns = scores.type.shape[-2:]
        row, column = b.unsqueeze(b.iota(rows, device=q.type.device), 1), b.iota(columns, device=q.type.device)
        scores = b.where(b.ge(row, column), scores, float("-inf"))
    if mask is not None:
        scores = (b.where(mask, scores, float("-inf")) if mask.type.dtype is torch.bool
                  else b.add(scores, b.cast(mask, scores.type.dtype)))
    weights = _safe_softmax(b, scores)
    if dropout_p > 0:
        weights = dropped(b, weights, dropout_p)
    return b.cast(matmul(b, weights, v), dtype)


def _safe_softmax(b: GradBuilder, x: Node) -> Node:
    """softmax over the last dimension; rows of nothing but -inf give zeros."""
    empty = b.eq(b.reduce("amax", b.detach(x), (x.type.rank - 1,), True), float("-inf"))
    return b.where(empty, 0.0, softmax(b, b.where(empty, 0.0, x), -1))


# fused


def _lengths(q: Node, k: Node) -> tuple:
    return q.type.shape[-2], k.type.shape[-2]


def _heads_last(shape: tuple[IntExpr, ...], dtype: torch.dtype, device: torch.device) -> TensorType:
    """(N, H, L, E) in memory as (N, L, H, E)."""
    n, h, length, e = shape
    return TensorType(tuple(shape), (length * h * e, e, h * e, 1), dtype, device)


def _like_query(q: Node, width: int) -> TensorType:
    t = q.type
    if same_ints(t.shape[-1:], (width,)):
        return layout.empty_like(t)
    return _heads_last(t.shape[:-1] + (width,), t.dtype, t.device)


def _cpu_flash(b: GradBuilder, q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool,
               scale: float | None) -> Node:
    n, h, length, _ = q.type.shape
    out = _like_query(q, v.type.shape[-1])
    sums = TensorType((n, h, length), (length * h, 1, h), torch.float32 if out.dtype in HALF else out.dtype, out.device)
    return b.call("_scaled_dot_product_flash_attention_for_cpu", (q, k, v, dropout_p, is_causal, mask, scale),
                  (out, sums))[0]


@aten_vjp("_scaled_dot_product_flash_attention_for_cpu")
def _cpu_flash_vjp(b: GradBuilder, out: Node, g: tuple[Node, None], q: Node, k: Node, v: Node, dropout_p: float = 0.0,
                   is_causal: bool = False, mask: Node | None = None, scale: float | None = None) -> tuple[Node, ...]:
    types = tuple(_heads_last(x.type.shape, x.type.dtype, x.type.device) for x in (q, k, v))
    args = (g[0], q, k, v, b.result(out, 0), b.result(out, 1), dropout_p, is_causal, mask, scale)
    return b.call("_scaled_dot_product_flash_attention_for_cpu_backward", args, types)


def _row_sums(q: Node) -> TensorType:
    n, h, length, _ = q.type.shape
    return TensorType.contiguous((n, h, length), torch.float32, q.type.device)


def _state(q: Node, *shape: object) -> TensorType:
    return TensorType.contiguous(shape, torch.int64, q.type.device)


def _flash(b: GradBuilder, q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool,
           scale: float | None) -> Node:
    """Heads whose width is no multiple of 8 are padded, as ``scaled_dot_product_attention`` does it."""
    width = specialize(q.type.shape[-1])
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    extra = -width % 8
    if extra:
        q, k, v = (b.pad(x, [(0, 0)] * 3 + [(0, extra)]) for x in (q, k, v))
    state = (TensorType.contiguous((2,), torch.uint64, q.type.device),
             TensorType.contiguous((), torch.uint64, q.type.device))
    types = (_like_query(q, v.type.shape[-1]), _row_sums(q), None, None, None, None, *state, None)
    out = b.call("_scaled_dot_product_flash_attention", (q, k, v, dropout_p, is_causal, False, scale),
                 types, impure=dropout_p > 0)[0]
    return b.slice(out, 3, 0, width) if extra else out


@aten_vjp("_scaled_dot_product_flash_attention")
def _flash_vjp(b: GradBuilder, out: Node, g: Node, q: Node, k: Node, v: Node, dropout_p: float = 0.0,
               is_causal: bool = False, debug: bool = False,
               scale: float | None = None) -> Node | tuple[Node | None, ...]:
    types = tuple(layout.empty_like(x.type) for x in (q, k, v))
    args = (g[0], q, k, v, b.result(out, 0), b.result(out, 1), None, None, *_lengths(q, k), dropout_p, is_causal,
            b.result(out, 6), b.result(out, 7), scale)
    return b.call("_scaled_dot_product_flash_attention_backward", args, types)


def _aligned(b: GradBuilder, mask: Node) -> Node:
    """The mask in memory whose rows begin at multiples of ``MASK_ROWS`` elements, as the kernel asks, and as
    ``scaled_dot_product_attention`` lays it out. Rows of a symbolic width are laid out whatever the width is, so that
    it is no fact: one program does for all."""
    def aligned() -> bool:
        *rows, last = mask.type.strides
        return same_ints((last, *(stride % MASK_ROWS for stride in rows)), (1,) + (0,) * len(rows))

    if not aligned():
        mask = b.clone(mask, layout.contiguous_strides(mask.type.shape))
    if aligned():
        return mask
    width, at = mask.type.shape[-1], mask.type.rank - 1
    wide = b.pad(mask, [(0, 0)] * at + [(0, ceil_div(width, MASK_ROWS) * MASK_ROWS - width)])
    return b.piece(wide, at, 0, width)


def _efficient(b: GradBuilder, q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool,
               scale: float | None) -> Node:
    n, h, length, _ = q.type.shape
    if mask is not None:
        keys = b.expand(mask, mask.type.shape[:-1] + k.type.shape[-2:-1])  # not along rows, which share memory
        mask = b.expand(_aligned(b, keys), (n, h, *_lengths(q, k)))
    aligned = (length + 31) // 32 * 32
    sums = TensorType.contiguous((n, h, aligned), torch.float32, q.type.device)
    types = (_heads_last(q.type.shape[:-1] + v.type.shape[-1:], q.type.dtype, q.type.device),
             sums, _state(q), _state(q))
    return b.call("_scaled_dot_product_efficient_attention", (q, k, v, mask, True, dropout_p, is_causal, scale),
                  types, impure=dropout_p > 0)[0]


@aten_vjp("_scaled_dot_product_efficient_attention")
def _efficient_vjp(b: GradBuilder, out: Node, g: Node, q: Node, k: Node, v: Node, mask: Node | None = None,
                   sums: bool = True, dropout_p: float = 0.0, is_causal: bool = False,
                   scale: float | None = None) -> Node | tuple[Node | None, ...]:
    types = tuple(_heads_last(x.type.shape, x.type.dtype, x.type.device) for x in (q, k, v))
    args = (g[0], q, k, v, mask, *(b.result(out, i) for i in range(4)),
            dropout_p, (True, True, True, False), is_causal, scale)
    return b.call("_scaled_dot_product_efficient_attention_backward", args, (*types, None))


def _cudnn(b: GradBuilder, q: Node, k: Node, v: Node, mask: Node | None, dropout_p: float, is_causal: bool,
           scale: float | None) -> Node:
    n, h, length, _ = q.type.shape
    sums = TensorType.contiguous((n, h, length, 1), torch.float32, q.type.device)
    types = (_like_query(q, v.type.shape[-1]), sums, None, None, None, None, _state(q), _state(q), None)
    return b.call("_scaled_dot_product_cudnn_attention", (q, k, v, mask, True, dropout_p, is_causal, False, scale),
                  types, impure=dropout_p > 0)[0]


@aten_vjp("_scaled_dot_product_cudnn_attention")
def _cudnn_vjp(b: GradBuilder, out: Node, g: Node, q: Node, k: Node, v: Node, mask: Node | None = None,
               sums: bool = True, dropout_p: float = 0.0, is_causal: bool = False, debug: bool = False,
               scale: float | None = None) -> Node | tuple[Node | None, ...]:
    types = tuple(layout.empty_like(x.type) for x in (q, k, v))
    args = (g[0], q, k, v, b.result(out, 0), b.result(out, 1), b.result(out, 6), b.result(out, 7), mask, None, None,
            *_lengths(q, k), dropout_p, is_causal, scale)
    return b.call("_scaled_dot_product_cudnn_attention_backward", args, types)


def _by_flash(b: GradBuilder, q: Node, *rest: object) -> Node:
    return (_cpu_flash if backend(q.type.device).plain_flash_attention else _flash)(b, q, *rest)


_FUSED = {FLASH: _by_flash, EFFICIENT: _efficient, CUDNN: _cudnn}

