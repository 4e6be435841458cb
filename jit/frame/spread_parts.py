"""The parts that this process has of a compiled function's DTensor arguments, as inputs of its graph.

An argument that requires grad comes with its history: its gradient is a DTensor again. All of a graph get theirs by one
node of autograd, since one for each, which runs Python, takes the processor longer than most layers take a GPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial

from ..graph.ir import contiguous_strides
from ..torch_private import part_of, spec_of
from . import source as src

if TYPE_CHECKING:
    from .emit import Emitter


class Parts(torch.autograd.Function):
    """The parts of DTensors that are whole or divided, with a history that leads to these."""

    @staticmethod
    def forward(ctx: Any, *wholes: Any) -> tuple[torch.Tensor, ...]:
        ctx.specs = [spec_of(w) for w in wholes]
        ctx.set_materialize_grads(False)
        return tuple([part.view_as(part) for part in map(part_of, wholes)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        return tuple([None if g is None else _whole(g, spec) for g, spec in zip(gradients, ctx.specs)])


def _whole(gradient: torch.Tensor, spec: Any) -> Any:
    """The gradient of a DTensor, of which this process has a part."""
    meta = spec.tensor_meta
    if (not gradient.requires_grad and gradient.dtype == meta.dtype and gradient.is_contiguous()
            and meta.stride == contiguous_strides(meta.shape)):
        return DTensor(gradient, copy.copy(spec), requires_grad=False)
    order = sorted(range(len(meta.shape)), key=lambda d: -gradient.stride(d))
    strides, step = [0] * len(meta.shape), 1
    for d in reversed(order):
        strides[d], step = step, step * max(meta.shape[d], 1)
    return DTensor.from_local(gradient, spec.mesh, spec.placements, run_check=False, shape=meta.shape,
                              stride=tuple(strides))


def parts_of(*wholes: Any) -> tuple[torch.Tensor, ...]:
    return Parts.apply(*wholes)


def may_join(whole: Any) -> bool:
    """Whether a DTensor's part gets its history with others'."""
    return (whole.requires_grad and torch.is_grad_enabled()
            and not any(isinstance(p, Partial) for p in whole.placements))


def local_part(whole: Any) -> torch.Tensor:
    """With the history of the whole, where that is recorded."""
    return whole.to_local() if whole.requires_grad and torch.is_grad_enabled() else part_of(whole)


@dataclass(frozen=True)
class LocalPart(src.GetAttr):
    """The part of the DTensor ``of`` that this process has: another object at each call, where it has a history.
    ``joined``: it gets that together with the others of its graph."""

    joined: bool = False

    stays = False

    def load(self, e: Emitter) -> None:
        s = e.session
        if not self.joined:
            e.call(local_part, lambda: e.load_source_or_const(s.heap.by_source[self.of]))
            return
        joined = [v.source for v in s.recording.inputs if isinstance(v.source, LocalPart) and v.source.joined]
        e.load_source(JoinedParts(joined[0].of, tuple(j.of for j in joined)))
        e.load_const(joined.index(self))
        e.cmd("subscript")

    def __str__(self) -> str:
        return f"local({self.of})"


@dataclass(frozen=True)
class JoinedParts(src._Derived):
    """The tuple of the parts of several DTensors. No guard reads it."""

    wholes: tuple[src.Source, ...]

    stays = guarded = False

    def load(self, e: Emitter) -> None:
        values = [e.session.heap.by_source[whole] for whole in self.wholes]
        e.call(parts_of, *((lambda v=v: e.load_source_or_const(v)) for v in values))

    def __str__(self) -> str:
        return f"the parts of {', '.join(map(str, self.wholes))}"
