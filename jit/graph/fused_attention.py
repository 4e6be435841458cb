"""What ``jit::attention`` and its backward mean, on eager tensors: what a printed graph calls."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Callable

import torch


@functools.lru_cache(256)
def _function(text: str) -> Callable:
    scope: dict = {}
    exec(compile(text, "<scores of attention>", "exec"), scope)
    return scope["graph"]


@functools.lru_cache(256)
def _inputs(text: str) -> list[tuple[torch.dtype, list[int]]]:
    """(dtype, shape) of each of a graph's inputs, by its text."""
    return [(getattr(torch, kind), [int(n) for n in shape.split(",") if n.strip()])
            for kind, shape in re.findall(r"# x\d+: (\w+)\[([\d, ]*)\]", text)]


def _scores(q: torch.Tensor, k: torch.Tensor, text: str) -> torch.Tensor:
    """The products of queries and keys as the tree takes them."""
    dtype, shape = _inputs(text)[0]
    return torch.matmul(q.float(), k.float().transpose(-2, -1)).to(dtype).reshape(shape)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, leaves: Sequence[torch.Tensor],
              blocks: torch.Tensor | None, side: int, tree: str, full: str | None,
              safe: bool, far: bool) -> tuple[torch.Tensor, ...]:
    (x,) = _function(tree)(_scores(q, k, tree), *leaves)
    x = x.reshape(*q.shape[:-1], k.shape[-2])
    sums, largest = x.logsumexp(-1), x.amax(-1)
    rest = torch.where(sums == -math.inf, 0.0, (x - largest.unsqueeze(-1)).logsumexp(-1))
    weights = torch.softmax(x, -1)
    if safe:
        weights = torch.where((x == -math.inf).all(-1, True), 0.0, weights)
    return torch.matmul(weights.to(v.dtype), v), sums, largest, rest


def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, sums: torch.Tensor,
             rest: torch.Tensor | None, delta: torch.Tensor, leaves: Sequence[torch.Tensor],
             blocks: torch.Tensor | None, side: int, tree: str, full: str | None,
             safe: bool) -> tuple[torch.Tensor, ...]:
    """``tree`` takes the gradient of its result as a last argument, and gives that of the scores as a second result, if
    there is one."""
    s = _scores(q, k, tree)
    shape = (*q.shape[:-1], k.shape[-2])
    dtype, given = _inputs(tree)[-1]
    x = _function(tree)(s, *leaves, s.new_zeros(given, dtype=dtype))[0].reshape(shape)
    shifted = x - torch.where(sums == -math.inf, 0.0, sums).unsqueeze(-1)
    weights = torch.exp(shifted if rest is None else shifted - rest.unsqueeze(-1))
    dx = weights * (torch.matmul(g.float(), v.float().transpose(-2, -1)) - delta.unsqueeze(-1))
    found = _function(tree)(s, *leaves, dx.to(dtype).reshape(given))
    ds = (found[1] if len(found) > 1 else torch.zeros_like(dx)).float().reshape(shape)
    return (torch.matmul(ds, k.float()).to(q.dtype), torch.matmul(ds.transpose(-2, -1), q.float()).to(k.dtype),
            torch.matmul(weights.transpose(-2, -1), g.float()).to(v.dtype))
