"""Type rules of pools and of the windows of images, for sizes that are symbols: a size of the result is a quotient of
that of the argument, which no run at a few sizes can tell. For plain sizes a run tells it all, errors included.

Source of the sizes: ``pooling_output_shape`` in ATen (``aten/src/ATen/native/Pool.h``).
"""

from __future__ import annotations

import torch

from jit.graph.dims import FloorDiv, IntExpr, Min, ceil_div, product
from jit.graph.ir import TensorType, contiguous_strides
from jit.graph.ops.spatial import laid_out
from jit.graph.registry import extern


def _numbers(given: object, rank: int, default: tuple = ()) -> tuple:
    """A number for each of ``rank`` axes, of one for all or one for each."""
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return default if not values else values * rank if len(values) == 1 else values


def _places(size: IntExpr, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> IntExpr:
    """How many windows fit along an axis."""
    reach = size + (2 * padding - dilation * (kernel - 1) - 1)
    if not ceil:
        return FloorDiv(reach, stride) + 1
    return Min(ceil_div(reach, stride), FloorDiv(size + padding - 1, stride)) + 1  # the last one has to start inside


def _pooled(x: TensorType, rank: int, kernel: object, stride: object, padding: object, dilation: object,
            ceil: bool) -> TensorType:
    """The type of a pool over the last ``rank`` axes; NotImplemented where a run has to tell it."""
    k = _numbers(kernel, rank)
    axes = (k, _numbers(stride, rank, k), _numbers(padding, rank), _numbers(dilation, rank))
    if (not x.is_symbolic or x.rank not in (rank + 1, rank + 2)
            or not all(len(a) == rank and all(type(n) is int for n in a) for a in axes)
            or not all(n > 0 for n in (*axes[0], *axes[1], *axes[3]))
            or not all(0 <= p <= n // 2 for n, p in zip(axes[0], axes[2]))):
        return NotImplemented
    if rank != 2 and not x.is_contiguous:
        return NotImplemented
    reached = [n + (2 * p - d * (k - 1) - 1) for n, k, _, p, d in zip(x.shape[-rank:], *axes)]
    if not all(r >= 0 for r in reached) or not all(n >= 1 for n in x.shape):
        return NotImplemented
    shape = (*x.shape[:-rank], *(_places(n, *a, ceil) for n, *a in zip(x.shape[-rank:], *axes)))
    return laid_out(x, shape, rank == 2)


def _add_pools(rank: int) -> None:
    def largest(x: TensorType, kernel: object, stride: object = (), padding: object = 0, dilation: object = 1,
                ceil_mode: bool = False) -> TensorType:
        return _pooled(x, rank, kernel, stride, padding, dilation, ceil_mode)

    def with_positions(x: TensorType, *args: object) -> tuple[TensorType, TensorType]:
        values = largest(x, *args)
        return values if values is NotImplemented else (values, values.replace(dtype=torch.int64))

    def mean(x: TensorType, kernel: object, stride: object = (), padding: object = 0, ceil_mode: bool = False,
             *rest: object) -> TensorType:
        return _pooled(x, rank, kernel, stride, padding, 1, ceil_mode)

    extern(f"max_pool{rank}d")(largest)
    extern(f"avg_pool{rank}d")(mean)
    if rank > 1:
        extern(f"max_pool{rank}d_with_indices")(with_positions)


for _rank in (1, 2, 3):
    _add_pools(_rank)


@extern("im2col")
def im2col(x: TensorType, kernel: object, dilation: object, padding: object, stride: object) -> TensorType:
    """(N, C, H, W) -> (N, C * kernel's elements, windows)."""
    axes = [_numbers(a, 2) for a in (kernel, stride, padding, dilation)]
    if not x.is_symbolic or x.rank not in (3, 4) or not all(n > 0 for a in (axes[0], axes[1], axes[3]) for n in a):
        return NotImplemented
    if not all(n + (2 * p - d * (k - 1) - 1) >= 0 for n, k, _, p, d in zip(x.shape[-2:], *axes)):
        return NotImplemented
    if not all(n >= 1 for n in x.shape):
        return NotImplemented
    windows = product(_places(n, *a, False) for n, *a in zip(x.shape[-2:], *axes))
    shape = (*x.shape[:-3], x.shape[-3] * product(axes[0]), windows)
    return x.replace(shape=shape, strides=contiguous_strides(shape))
