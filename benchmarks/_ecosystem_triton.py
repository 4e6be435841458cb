"""Triton kernels of a user's, for the rows of benchmarks/ecosystem.py that need a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_scaled(x, y, out, scale, n, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + scale * tl.load(y + at % columns, mask=inside), mask=inside)


def add_scaled(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """``x + scale * y`` for a contiguous matrix and a row."""
    out = torch.empty_like(x)
    n = x.numel()
    _add_scaled[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, scale, n, y.numel(), BLOCK=1024)
    return out


@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4, 8)], key=["columns"])
@triton.jit
def _row_softmax(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    values = tl.load(x + start + at, mask=at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + start + at, values / tl.sum(values, 0), mask=at < columns)


@torch.library.triton_op("ecosystem::row_softmax", mutates_args=())
def row_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row of a contiguous matrix."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(_row_softmax)[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
