"""What ``jit::part_sums`` and ``jit::row_sums`` mean, on eager tensors: what a printed graph calls. They are the two
halves of a sum of rows at places that data decide, whose positions have been sorted by place (``passes.grouped``)."""

from __future__ import annotations

import torch

PART = 128  # positions whose sum is kept where all of them belong to one row


def part_sums(values: torch.Tensor, order: torch.Tensor, places: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """For each part of the positions in their order, the sum of their values, in single precision. It is read where
    all of them have one place. Places are rows of ``rows``."""
    if places.numel() and not (0 <= int(places[0]) and int(places[-1]) < rows):
        raise IndexError("index out of range")
    chosen = values.reshape(-1, width)[order].float()
    return torch.stack([p.sum(0) for p in chosen.split(PART)])


def row_sums(x: torch.Tensor | None, values: torch.Tensor, order: torch.Tensor, bounds: torch.Tensor,
             parts: torch.Tensor, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """``x``, or zeros of ``shape``, and the values of each row's positions, which are those in ``order`` from its
    bound to the next one's, added in single precision."""
    width = parts.shape[1]
    chosen = values.reshape(-1, width)[order].float()
    result = [chosen[first:last].sum(0) for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist())]
    total = torch.stack(result).reshape(shape)
    return (total if x is None else x.float() + total).to(dtype)
