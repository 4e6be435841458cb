"""What this PyTorch does where versions differ: which gradient a function has at corners and ties, how limits count.
Eager is asked, once, by a small trial of each."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Callable

import torch

from jit import torch_private


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Autograd on, with nothing of the program's in its way."""
    keep = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)  # in place of the program's
    with torch.inference_mode(False), torch.enable_grad(), torch_private.WithoutAutocast(), keep:
        yield


def _gradients(fn: Callable, *values: list[float]) -> list:
    """Eager's gradients of the sum of ``fn`` of tensors with these values: a list of numbers for each argument."""
    with _recording():
        tensors = [torch.tensor(v, dtype=torch.float32, device="cpu", requires_grad=True) for v in values]
        return [g.tolist() for g in torch.autograd.grad(fn(*tensors).sum(), tensors)]


@functools.cache
def clamp_passes_at_numbers() -> bool:
    """Whether the gradient of ``x.clamp(0, 1)`` passes where x is 0 or 1: up to torch 2.13 it does."""
    return _gradients(lambda x: torch.clamp(x, 0, 1), [0.0]) == [[1.0]]


@functools.cache
def clamp_shares_with_tensors() -> bool:
    """Whether x and a limit that is a tensor share the gradient where they are equal, as from torch 2.14 on; before x
    has all of it."""
    return _gradients(torch.clamp, [0.0], [0.0], [1.0])[0] == [0.5]


@functools.cache
def clamp_keeps_to_range() -> bool:
    """Whether a limit that the dtype cannot hold is the nearest number that it can, as from torch 2.15 on; before it
    wraps around, or raises."""
    return torch.zeros(1, dtype=torch.uint8, device="cpu").clamp(min=-1).item() == 0


@functools.cache
def softshrink_rounds_limits() -> bool:
    """Whether ``softshrink`` of halves rounds its limit to their dtype on CPUs, as from torch 2.15 on."""
    return torch.nn.functional.softshrink(torch.full((1,), 0.1, dtype=torch.bfloat16, device="cpu"), 0.1).item() == 0


@functools.cache
def statistics_lead_to_parameters() -> bool:
    """Whether the mean and the deviation that group norm keeps for its backward lead to all its inputs, as from torch
    2.14 on: the second derivatives by its weight and bias are zeros then, and not undefined."""
    with _recording():
        x, w, b = (torch.ones(shape, device="cpu", requires_grad=True) for shape in ((1, 1, 2), 1, 1))
        g, = torch.autograd.grad(torch.group_norm(x, 1, w, b).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), b, allow_unused=True)[0] is not None


@functools.cache
def fmax_shares() -> bool:
    """Whether equal operands of ``fmax`` and ``fmin`` share the gradient, as from torch 2.14 on; before the first has
    all of it."""
    return _gradients(torch.fmax, [0.0], [0.0])[0] == [0.5]


@functools.cache
def fmax_passes_to_nan() -> bool:
    """Whether both operands of ``fmax`` and ``fmin`` have all of the gradient where one is NaN: of torch 2.14 alone."""
    return _gradients(torch.fmax, [math.nan], [0.0])[0] == [1.0]
