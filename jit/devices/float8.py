"""How this PyTorch rounds to 8-bit floating point types, which is the same on all devices."""

from __future__ import annotations

import functools

import torch


@functools.cache
def saturates() -> bool:
    """Whether numbers that float8_e4m3fn cannot hold become its largest one, as from torch 2.13 on; before, NaN."""
    return torch.full((1,), 1e4, dtype=torch.float32, device="cpu").to(torch.float8_e4m3fn).float().item() == 448
