"""softmax and the normalisation layers. Half types are computed in float32 and rounded once, as eager's kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

import torch

from jit import config
from jit.devices import backend
from jit.graph import conventions, layout
from jit.graph.build import HALF
from jit.graph.dims import product
from jit.graph.ir import Node, TensorType, contiguous_strides, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import several
from jit.graph.ops.arithmetic import clamp
from jit.graph.ops.reductions import vector_norm
from jit.graph.prim_info import info
from jit.graph.registry import extern, op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.handles import NamedResult, TensorHandle
    from jit.graph.tracer import Tracer


def with_strides(b: Builder, x: Node, strides: tuple[IntExpr, ...]) -> Node:
    """``x``, a node that was just made, stored with other strides."""
    if same_ints(x.type.strides, strides):
        return x
    if info(x.op).kind in ("input", "view"):
        return b.clone(x, strides)
    x.type = x.type.replace(strides=strides)
    return x


def in_order(b: Builder, x: Node) -> Node:
    """``x``, a node that was just made, stored contiguously, also where it is one slice of many."""
    strides = contiguous_strides(x.type.shape)
    return b.clone(x, strides) if b.slices else with_strides(b, x, strides)


@op("softmax", "special_softmax")
def softmax(b: Builder, self: Node, dim: IntExpr, dtype: torch.dtype | None = None) -> Node:
    x = b.cast(self, dtype or self.dtype)
    if not x.dtype.is_floating_point or _rounds_in_between(x, dim):
        return NotImplemented
    return _softmax(b, x, dim)


def _rounds_in_between(x: Node, dim: int) -> bool:
    """Whether eager's bits are asked for and its kernel, for a dimension that is not the last, would round
    intermediate values."""
    return (config.match_eager_rounding and x.dtype in HALF and backend(x.device).softmax_rounds
            and normalize_dim(dim, x.type.rank) < x.type.rank - 1)


@op("_softmax")
def softmax_half(b: Builder, self: Node, dim: int, half_to_float) -> Node:
    return softmax(b, self, dim, torch.float32 if half_to_float else None)


@op("_safe_softmax")
def safe_softmax(b: Builder, self: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """Rows that are all -inf give zeros."""
    found = softmax(b, self, dim, dtype)
    if found is NotImplemented or b.recording or not self.type.rank:
        return NotImplemented
    nothing = b.reduce("all", b.eq(self, float("-inf")), (normalize_dim(dim, self.type.rank),), True)
    return b.where(nothing, 0.0, found)


def _rows_back(name: str, rule: Callable) -> None:
    """The gradient of a softmax, called by its own name."""

    def expand(b: Builder, grad_output: Node, output: Node, dim: int, input_dtype: torch.dtype) -> Node:
        if b.recording or not grad_output.dtype.is_floating_point or grad_output.dtype is not input_dtype:
            return NotImplemented
        rank = grad_output.type.rank
        dims = (normalize_dim(dim, rank),) if rank else ()
        result = rule(b, b.opmath(grad_output), b.opmath(output), dims)
        result = b.cast(result, input_dtype)
        return in_order(b, result)

    op(name)(expand)


_rows_back("_softmax_backward_data", lambda b, g, y, dims: b.mul(
    b.sub(g, b.reduce("sum", b.mul(g, y), dims, True)), y))
_rows_back("_log_softmax_backward_data", lambda b, g, y, dims: b.sub(
    g, b.mul(b.exp(y), b.reduce("sum", g, dims, True))))


def _softmax(b: Builder, x: Node, dim: IntExpr) -> Node:
    d, dtype = normalize_dim(dim, x.type.rank), x.dtype
    if x.type.is_empty:
        return b.full(x.shape, 0, dtype, x.device)
    dims = (d,) if x.type.rank else ()
    x = b.opmath(x)
    e = b.exp(b.sub(x, b.reduce("amax", x, dims, True)))
    result = b.cast(b.marked(b.div(e, b.reduce("sum", e, dims, True)), "softmax"), dtype)
    return in_order(b, result)


@op("log_softmax", "special_log_softmax")
def log_softmax(b: Builder, self: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    x = b.cast(self, dtype or self.dtype)
    if not x.dtype.is_floating_point or _rounds_in_between(x, dim):
        return NotImplemented
    d, dtype = normalize_dim(dim, x.type.rank), x.dtype
    if x.type.is_empty:
        return b.full(x.shape, 0, dtype, x.device)
    dims = (d,) if x.type.rank else ()
    x = b.opmath(x)
    shifted = b.sub(x, b.reduce("amax", x, dims, True))
    result = b.cast(b.marked(b.sub(shifted, b.log(b.reduce("sum", b.exp(shifted), dims, True))), "log_softmax"), dtype)
    return in_order(b, result)


@op("_log_softmax")
def log_softmax_half(b: Builder, self: Node, dim: int, half_to_float) -> Node:
    return log_softmax(b, self, dim, torch.float32 if half_to_float else None)


# By which values are multiplied before they are added up for a mean, so that the sum of large ones is finite.
_SMALL = 2.0**-16


def _moments(b: Builder, x: Node, dims: tuple[int, ...], precise: bool = False) -> tuple[Node, ...]:
    """(mean, centred x, variance) with the dimensions kept. ``precise``: on a CPU both sums are taken in float64, as
    eager does in some places, and the variance is not rounded. Elsewhere on a CPU the mean does not overflow, as in
    eager, whose running mean stays among the values. ``mean_of`` knows these forms."""
    n = product(x.shape[d] for d in dims)
    wide_sums, dtype = backend(x.device).wide_moments, x.dtype
    if wide_sums and precise:
        mean = b.cast(b.div(b.total(b.cast(x, torch.float64), dims, dtype is torch.float32), n), dtype)
    elif wide_sums:
        mean = b.mul(b.div(b.reduce("sum", b.mul(x, _SMALL), dims, True), n), 1 / _SMALL)
    else:
        mean = b.div(b.reduce("sum", x, dims, True), n)
    centred = b.sub(x, mean)
    wide = b.cast(centred, torch.float64) if wide_sums and precise else centred
    return mean, centred, b.div(b.total(b.mul(wide, wide), dims, wide is not centred), n)


def _standardized(b: Builder, centred: Node, var: Node, eps: float, parameters: Sequence[object] = (),
                  by_row: bool = False) -> Node:
    """``centred / sqrt(var + eps)``, which has a gradient rule of its own. ``parameters``: what second derivatives have
    zeros for (see ``conventions``). ``by_row``: PyTorch's CPU kernel for the gradient multiplies by x itself, not by
    what is centred."""
    rstd = b.cast(b.rsqrt(b.add(var, float(eps))), centred.dtype)
    if parameters and b.recording:
        rstd = b.with_zero_gradients(rstd, parameters)
    return b.marked(b.mul(centred, rstd), "standardized", by_row=by_row)


def _mixed(self, *others) -> bool:
    """Whether dtypes differ in a way that eager refuses or treats in its own manner."""
    kinds = {o.dtype for o in others if o is not None}
    return bool(kinds) and kinds != {self.dtype} and not (self.dtype in HALF and kinds == {torch.float32})


@op("layer_norm")
def layer_norm(b: Builder, self: Node, normalized_shape: Sequence[IntExpr], weight: Node | None = None,
               bias: Node | None = None, eps: float = 1e-5, cudnn_enable: bool = True) -> Node:
    return native_layer_norm_parts(b, self, normalized_shape, weight, bias, eps)[0]


@op("native_layer_norm")
def native_layer_norm(b: Builder, self: Node, normalized_shape, weight: Node, bias: Node, eps: float):
    parts = native_layer_norm_parts(b, self, normalized_shape, weight, bias, eps)
    if parts is NotImplemented or self.dtype in HALF:
        return NotImplemented
    return parts


def native_layer_norm_parts(b: Builder, self: Node, normalized_shape: Sequence[IntExpr], weight: Node | None,
                            bias: Node | None, eps: float) -> tuple[Node, ...]:
    shape = tuple(several(normalized_shape))
    k = self.type.rank - len(shape)
    if k < 0 or not shape or not all(p == q for p, q in zip(self.shape[k:], shape)):
        raise RuntimeError(f"Given normalized_shape={list(shape)}, expected input with shape [*, "
                           f"{', '.join(map(str, shape))}], but got input of size{list(self.shape)}")
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and (p.type.rank != len(shape) or not all(a == c for a, c in zip(p.shape, shape))):
            raise RuntimeError(f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                               f"{list(p.shape)} and normalized_shape = {list(shape)}")
    if not self.dtype.is_floating_point or _mixed(self, weight, bias):
        return (NotImplemented,)
    dims = tuple(range(k, self.type.rank))
    x = b.opmath(self)
    mean, centred, var = _moments(b, x, dims)
    y = _standardized(b, centred, var, eps, by_row=True)
    rstd = y.inputs[1]
    if weight is not None:
        y = b.mul(y, b.opmath(weight))
    if bias is not None:
        y = b.add(y, b.opmath(bias))
    return in_order(b, b.cast(y, self.dtype)), mean, rstd


@op("rms_norm")
def rms_norm(b: Builder, self: Node, normalized_shape: tuple[IntExpr, ...] | list, weight: Node | None = None,
             eps: float | None = None) -> Node:
    shape = tuple(several(normalized_shape))
    k = self.type.rank - len(shape)
    if k < 0 or not shape or not all(p == q for p, q in zip(self.shape[k:], shape)):
        raise RuntimeError(f"Given normalized_shape={list(shape)}, expected input with shape [*, "
                           f"{', '.join(map(str, shape))}], but got input of size{list(self.shape)}")
    if not self.dtype.is_floating_point or _mixed(self, weight):
        return NotImplemented
    dims = tuple(range(k, self.type.rank))
    x = b.opmath(self)
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    square = b.div(b.reduce("sum", b.squared(x), dims, True), product(self.shape[d] for d in dims))
    if backend(self.device).rms_by_mean and (x.dtype is torch.float64 or not product(shape) % 4 == 0):
        # PyTorch's kernel for such rows goes by their mean, which is infinite and no number where an element is, and
        # then so is all of the row.
        square = b.add(square, b.detach(b.reduce("sum", b.mul(x, 0), dims, True)))
    y = b.mul(x, b.rsqrt(b.add(square, float(eps))))
    if weight is not None:
        y = b.mul(y, b.opmath(weight))
    keeps = backend(self.device).keeps_channels_last
    if keeps and y.type.is_contiguous:  # whatever strides products gave to dimensions of size 1
        return b.cast(y, self.dtype)
    last = keeps and layout.memory_format(self.type) == "channels_last"
    return with_strides(b, b.cast(y, self.dtype), layout.channels_last_strides(self.shape) if last
                        else contiguous_strides(self.shape))


def _channelwise(b: Builder, p: Node, rank: int) -> Node:
    """A (C,) parameter shaped to broadcast over (N, C, ...)."""
    return b.reshape(b.opmath(p), p.shape + (1,) * (rank - 2))


@op("group_norm")
def group_norm(b: Builder, self: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None,
               eps: float = 1e-5, cudnn_enabled: bool = True) -> Node:
    rank = self.type.rank
    if rank < 2 or not self.dtype.is_floating_point or _mixed(self, weight, bias):
        return NotImplemented
    n, c = self.shape[:2]
    if not c % num_groups == 0:
        raise RuntimeError("Expected number of channels in input to be divisible by num_groups, but got input of "
                           f"shape {list(self.shape)} and num_groups={num_groups}")
    keep = backend(self.device).keeps_channels_last and layout.memory_format(self.type) == "channels_last"
    out = layout.channels_last_strides(self.shape) if keep else contiguous_strides(self.shape)
    x = b.opmath(self)
    grouped = b.reshape(x, (n, num_groups, c // num_groups) + self.shape[2:])
    _, centred, var = _moments(b, grouped, tuple(range(2, grouped.type.rank)))
    parameters = [p for p in (weight, bias) if p is not None and b.recording
                  and conventions.statistics_lead_to_parameters()]
    y = b.reshape(_standardized(b, centred, var, eps, parameters, by_row=True), self.shape)
    if weight is not None:
        y = b.mul(y, _channelwise(b, weight, rank))
    if bias is not None:
        y = b.add(y, _channelwise(b, bias, rank))
    return with_strides(b, b.cast(y, self.dtype), out)


def _batch_norm_strides(x: TensorType, by_cudnn: bool) -> tuple:
    """Strides of a normalised ``x``: CUDA's kernels write as they read, but for cuDNN, which takes what has a weight
    and a bias."""
    if layout.memory_format(x) == "channels_last":
        return layout.channels_last_strides(x.shape)
    row_major = by_cudnn or backend(x.device).row_major_results
    return contiguous_strides(x.shape) if row_major else layout.preserved_strides(x)


@op("batch_norm", raw=True)
def batch_norm(t: Tracer, self: TensorHandle, weight: TensorHandle | None = None, bias: TensorHandle | None = None,
               running_mean: TensorHandle | None = None, running_var: TensorHandle | None = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
               cudnn_enabled: bool = True) -> TensorHandle:
    """Inference uses the running statistics. Training normalises with the batch's and updates the running ones in
    place."""
    handles = [h for h in (self, weight, bias, running_mean, running_var) if h is not None]
    b, x = t.builder, self.node
    nodes = [None if h is None else h.node for h in (weight, bias, running_mean, running_var)]
    rank = self.ndim
    if rank < 2 or not self.dtype.is_floating_point or any(n is not None
        and n.dtype is not x.dtype and not (x.dtype in HALF and n.dtype is torch.float32) for n in nodes):
        return t._call_aten("batch_norm", (self, weight, bias, running_mean,
                                           running_var, training, momentum, eps, cudnn_enabled), {})
    w, c, mean, var = nodes
    channels = x.shape[1]
    for n in nodes:
        if n is not None and not (n.type.rank == 1 and n.shape[0] == channels):
            raise RuntimeError(f"running_mean should contain {channels} elements not {n.shape}")
    if x.type.is_empty and (training or mean is not None and var is not None):
        return _batch_norm_of_nothing(t, self, weight, bias)
    wide = b.opmath(x)
    out = _batch_norm_strides(x.type, w is not None and c is not None and cudnn_enabled)
    if not training:
        if mean is None or var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
        scale = b.rsqrt(b.add(b.opmath(var), float(eps)))
        y = b.mul(b.sub(wide, _channelwise(b, mean, rank)), _channelwise(b, scale, rank))
    else:
        dims = (0, *range(2, rank))
        count = product(x.shape[d] for d in dims)
        if count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
        batch_mean, centred, batch_var = _moments(b, wide, dims, precise=True)
        y = _standardized(b, centred, batch_var, eps)
        for handle, batch, unbiased in ((running_mean, batch_mean, False), (running_var, batch_var, True)):
            if handle is None:
                continue
            flat = b.cast(b.reshape(batch, (channels,)), wide.dtype)
            if unbiased:
                flat = b.mul(flat, b.div(b.scalar(count, flat.dtype, flat.device), count - 1))
            old = b.opmath(handle.node)
            new = b.add(b.mul(flat, momentum), b.mul(old, 1.0 - momentum))
            t.write(handle, b.detach(b.cast(new, handle.dtype)), inplace=False)
    if w is not None:
        y = b.mul(y, _channelwise(b, w, rank))
    if c is not None:
        y = b.add(y, _channelwise(b, c, rank))
    y = with_strides(b, b.cast(y, x.dtype), out)
    return t.wrap(y, handles, False, 0)


def _batch_norm_of_nothing(t: Tracer, self: TensorHandle, weight: TensorHandle | None,
                           bias: Node | None) -> TensorHandle:
    """A copy, in which only the strides and the gradients' existence show what eager does; the running statistics
    stay."""
    call, y = t.call_op, t.call_op("clone", (self,), {})
    if weight is not None:
        y = call("mul", (y, call("select", (weight, 0, 0), {})), {})
    return y if bias is None else call("add", (y, call("select", (bias, 0, 0), {})), {})


@extern("_native_batch_norm_legit_functional", "native_batch_norm")
def native_batch_norm_types(x: Node, weight: Node, bias: Node, mean: Node, var, training, momentum, eps: float):
    """(normalised, batch mean, batch 1/std[, new running mean, new running variance]); without ``training`` the batch's
    statistics are empty."""
    if x.rank < 2 or x.dtype in HALF and not backend(x.device).types_half_statistics:
        return NotImplemented
    strides = _batch_norm_strides(x, False)
    # Of halves the CPU's statistics have the dtype of the parameters.
    like = next((t for t in (weight, bias, mean, var) if t is not None), x)
    saved = TensorType.contiguous(x.shape[1:2] if training else (0,), like.dtype, x.device)
    return (x.replace(strides=strides), saved, saved, *(s for s in (mean, var) if s is not None))


@extern("_batch_norm_with_update_functional")
def batch_norm_with_update_types(x: Node, weight: Node, bias: Node, mean: Node, var, momentum, eps: float):
    """(normalised, batch mean, batch 1/std, bytes reserved for the backward, new running mean, new running
    variance)."""
    types = native_batch_norm_types(x, weight, bias, mean, var, True, momentum, eps)
    if types is NotImplemented or not backend(x.device).reserves_nothing:
        return NotImplemented
    return (*types[:3], TensorType.contiguous((0,), torch.uint8, x.device), *types[3:])


def _with_statistics(name: str, functional: str, results: int) -> None:
    """A library form of batch norm that writes its running statistics: the functional form, then the writes."""

    def run(t: Tracer, self: TensorHandle, weight: Node, bias: Node, running_mean, running_var, *rest: object,
            **named: object) -> TensorHandle | NamedResult | tuple[TensorHandle, ...] | tuple:
        if running_mean is None or running_var is None:
            return t._call_aten(name, (self, weight, bias, running_mean, running_var, *rest), named)
        *values, mean, var = t._call_aten(functional, (self, weight, bias, running_mean, running_var, *rest), named)
        if rest[:1] != (False,) and named.get("training", True):
            t.write(running_mean, mean.node, inplace=False)
            t.write(running_var, var.node, inplace=False)
        return tuple(values[:results])

    op(name, raw=True)(run)


_with_statistics("native_batch_norm", "_native_batch_norm_legit_functional", 3)
_with_statistics("_native_batch_norm_legit", "_native_batch_norm_legit_functional", 3)
_with_statistics("_batch_norm_with_update", "_batch_norm_with_update_functional", 4)


@op("instance_norm", raw=True)
def instance_norm(t: Tracer, self: TensorHandle, weight: TensorHandle | None = None, bias: TensorHandle | None = None,
                  running_mean=None, running_var=None, use_input_stats: bool = True, momentum: float = 0.1,
                  eps: float = 1e-5, cudnn_enabled: bool = True) -> TensorHandle:
    if running_mean is not None and running_var is not None and self.ndim >= 2:
        return _instance_norm_with_statistics(t, self, (weight, bias, running_mean, running_var),
                                              use_input_stats, momentum, eps, cudnn_enabled)
    if running_mean is not None or not use_input_stats or self.ndim < 3:
        return t._call_aten("instance_norm", (self, weight, bias, running_mean,
                                              running_var, use_input_stats, momentum, eps, cudnn_enabled), {})
    if not self.dtype.is_floating_point:
        raise RuntimeError(f"instance_norm of {self.dtype}")
    handles = [h for h in (self, weight, bias) if h is not None]
    b, x = t.builder, self.node
    _, centred, var = _moments(b, b.opmath(x), tuple(range(2, self.ndim)), precise=True)
    y = _standardized(b, centred, var, eps)
    if weight is not None:
        y = b.mul(y, _channelwise(b, weight.node, self.ndim))
    if bias is not None:
        y = b.add(y, _channelwise(b, bias.node, self.ndim))
    return t.wrap(with_strides(b, b.cast(y, x.dtype), contiguous_strides(x.shape)), handles, False, 0)


def _instance_norm_with_statistics(t: Tracer, self: TensorHandle, channels, use_input_stats, momentum, eps: float,
                                   cudnn_enabled: bool):
    """As batch norm of (1, N * C, ...) with each of ``channels`` (weight, bias, running mean and variance) repeated N
    times: the library's operator changes the running ones without saying so. What they become is the mean over the
    batch."""
    call, n, c = t.call_op, *self.shape[:2]
    weight, bias, mean, var = (None if v is None else call("repeat", (v, (n,)), {}) for v in channels)
    flat = call("reshape", (self, (1, n * c, *self.shape[2:])), {})
    result = call("batch_norm", (flat, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn_enabled), {})
    for running, repeated in zip(channels[2:], (mean, var)):
        call("copy_", (running, call("mean", (call("reshape", (repeated, (n, c)), {}), 0), {})), {})
    return call("reshape", (result, self.shape), {})


@op("normalize")
def normalize(b: Builder, self: Node, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out=None) -> Node:
    if not self.dtype.is_floating_point:
        return NotImplemented
    dims = b.dims_of(self, dim)
    return b.div(self, b.expand(clamp(b, vector_norm(b, self, p, dims, True), float(eps)), self.shape))
