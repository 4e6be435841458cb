"""What the operators mean that add rows at places that data decide, on eager tensors: what a printed graph calls. A row
has a range of positions of its own, with the values that it gets in it, in no order (``passes.grouped``)."""

from __future__ import annotations

import torch

from jit.graph.prims import PART


def _places(index: torch.Tensor, rows: int, wrap: bool) -> torch.Tensor:
    if wrap:
        index = torch.where(index < 0, index + rows, index)
    if index.numel() and not (0 <= int(index.min()) and int(index.max()) < rows):
        raise IndexError("index out of range")
    return index.long()


def _kept(index: torch.Tensor, skipped: int | None) -> torch.Tensor:
    every = torch.arange(index.numel(), device=index.device)
    return every if skipped is None else every[index != skipped]


def place_ranks(index: torch.Tensor, rows: int, wrap: bool,
                skipped: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How often each row is named, and how many names there are in all; which of the names of its row each one is;
    and where a row's range begins. ``skipped``: a name that does not count."""
    at = _places(index, rows, wrap)
    ranks, kept = torch.zeros_like(at), _kept(index, skipped)
    counts = torch.bincount(at[kept], minlength=rows)
    starts = counts.cumsum(0) - counts
    order = kept[torch.argsort(at[kept], stable=True)]
    ranks[order] = torch.arange(order.numel(), device=at.device) - starts[at[order]]
    return torch.cat((counts, counts.sum(0, True))).int(), ranks.int(), starts.int()


def place_order(index: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, wrap: bool,
                skipped: int | None) -> torch.Tensor:
    """Which name each position has."""
    at, kept = _places(index, starts.numel(), wrap), _kept(index, skipped)
    order = torch.zeros_like(ranks)
    order[starts[at[kept]].long() + ranks[kept]] = kept.int()
    return order


def part_sums(values: torch.Tensor, order: torch.Tensor, index: torch.Tensor, starts: torch.Tensor,
              counts: torch.Tensor, wrap: bool, width: int) -> torch.Tensor:
    """For each part of the positions, the sum of their values, in single precision. It is read where all of them
    belong to one row."""
    chosen = values.reshape(-1, width)[order.long()].float()
    return torch.stack([p.sum(0) for p in chosen.split(PART)])


def row_sums(x: torch.Tensor | None, values: torch.Tensor, order: torch.Tensor, starts: torch.Tensor,
             counts: torch.Tensor, parts: torch.Tensor, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """``x``, or zeros of ``shape``, and the values of each row's positions, added in single precision."""
    chosen = values.reshape(-1, parts.shape[1])[order.long()].float()
    total = torch.stack([chosen[s : s + n].sum(0) for s, n in zip(starts.tolist(), counts.tolist())]).reshape(shape)
    return (total if x is None else x.float() + total).to(dtype)
