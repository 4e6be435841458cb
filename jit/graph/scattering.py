"""Values written to, or added at, places that data decide: where kernels do it, and in which type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import backend

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.ir import Node, TensorType

_SUMS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def writes(t: TensorType, adds: bool = True) -> bool:
    """Whether kernels write into such a tensor in no order. Where the program wants sums in one order, the library
    does."""
    device = backend(t.device)
    return (device.atomics and t.rank > 0 and t.dtype in (_SUMS if adds else device.dtypes)
            and not torch.are_deterministic_algorithms_enabled()
            and not any(type(s) is int and s == 0 for s in t.shape))


def added(b: Builder, x: Node, values: Node, add: Callable) -> Node:
    """``add(x, values)`` in single precision for halves, rounded once."""
    return b.cast(add(b.opmath(x), b.opmath(values)), x.type.dtype)
