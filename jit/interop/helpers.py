"""Functions that nodes of a GraphModule call where a graph of ours relies on more than an operator of PyTorch says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..graph.printing import CUSTOM_GRADIENT

_namespace: dict = {"torch": torch}
exec(CUSTOM_GRADIENT, _namespace)


def restride(t: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """``t`` copied to memory with these strides."""
    return torch.empty_strided(size, stride, dtype=t.dtype, device=t.device).copy_(t)


def laid_out(t: torch.Tensor, *stride: int) -> torch.Tensor:
    """The result of a library call, with the strides that the graph relies on."""
    return t if t.stride() == stride else restride(t, t.shape, stride)


def custom_gradient(y: torch.Tensor, *partials: torch.Tensor) -> torch.Tensor:
    """``y``, with derivatives of the program's own."""
    return _namespace["_custom_gradient"](y, *partials)


def write(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write what the program has made of an input into it, which autograd does not record here."""
    with torch.no_grad():
        return target.copy_(value)
