"""The types of operators that pad and resize images, which stay calls of the library until kernels are planned (see
``passes.windows``): sizes that may be symbols, and the layouts of the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jit.devices import backend
from jit.graph import layout
from jit.graph.dims import Dim, IntExpr, env_of
from jit.graph.ir import TensorType, contiguous_strides
from jit.graph.nested import several
from jit.graph.registry import extern


def _scaled(n: IntExpr, factor: float) -> IntExpr | None:
    """A size times a factor, rounded down; None where that is no number and has no symbol."""
    if type(n) is not Dim:
        return int(n * factor)
    if not math.isfinite(factor):
        return None
    env = env_of(n)
    return n * int(factor) if factor == int(factor) else None if env is None else env.scaled(n, factor)


def laid_out(x: TensorType, shape: tuple, follows: bool) -> TensorType:
    """``x`` with another shape: channels-last where ``x`` is, and ``follows`` says so, else row-major."""
    last = follows and layout.memory_format(x) == "channels_last"
    return x.replace(shape=shape, strides=layout.channels_last_strides(shape) if last else contiguous_strides(shape))


@extern("pad")
def pad(x: TensorType, padding: Sequence[int], mode: str = "constant", value: object = None) -> TensorType:
    k = len(padding) // 2
    if mode not in ("reflect", "replicate") or len(padding) % 2 or not k < x.rank <= k + 2 or k > 3:
        return NotImplemented
    shape = list(x.shape)
    for d in range(k):
        shape[-1 - d] = shape[-1 - d] + padding[2 * d] + padding[2 * d + 1]
    return laid_out(x, tuple(shape), backend(x.device).keeps_channels_last and x.rank == k + 2)


@extern("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_trilinear3d", "upsample_bicubic2d")
def resize(x: TensorType, size: Sequence | None, *options: object) -> TensorType:
    """(N, C, ...) of a new ``size``, or as many times as large as the last option says."""
    if size is None:
        factors = tuple(several(options[-1])) if options else ()
        if len(factors) != x.rank - 2 or not all(type(f) in (int, float) for f in factors):
            return NotImplemented
        found = [_scaled(n, f) for n, f in zip(x.shape[2:], factors)]
        if None in found:
            return NotImplemented
        size = found
    if len(size) != x.rank - 2:
        return NotImplemented
    return laid_out(x, (*x.shape[:2], *size), True)
