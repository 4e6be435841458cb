"""The strides of a graph input over its size symbols."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from jit.graph.dims import Dim, equal

if TYPE_CHECKING:
    import torch

    from jit.graph.dims import IntExpr
    from jit.graph.shape_env import ShapeEnv


def symbolic_strides(example: torch.Tensor, shape: tuple[IntExpr, ...], env: ShapeEnv, origin,
                     varying: Collection[int] = ()) -> tuple[IntExpr, ...]:
    """Strides over the size symbols: a dimension whose stride continues another one is that one's stride times its
    size; that of another one is a symbol of its own if it may change with a size or is one of ``varying``. What they
    are is recorded in ``env``, and so is that a stride of its own continues none."""
    sizes, raw = tuple(example.shape), example.stride()
    strides: list = [None] * len(sizes)
    known: dict[int, object] = {1: 1, 0: 0}
    order = sorted(range(len(sizes)), key=lambda d: (raw[d], sizes[d] != 1, -d))
    for d in order:
        if raw[d] in known:
            strides[d] = known[raw[d]]
            env.bind(strides[d], (origin, "stride", d))
        elif d in varying or _depends(raw, sizes, shape, d):
            strides[d] = env.symbol(raw[d], (origin, "stride", d))
            for continued in known.values():
                equal(strides[d], continued)  # is recorded: no
            known[raw[d]] = strides[d]
        else:
            strides[d] = known[raw[d]] = raw[d]
        if sizes[d] > 1:
            known.setdefault(raw[d] * sizes[d], strides[d] * shape[d])
    return tuple(strides)


def _depends(raw: tuple[int, ...], sizes: tuple[IntExpr, ...], shape: tuple[IntExpr, ...], d: int) -> bool:
    """Whether a stride may change with a dynamic size: some faster dimension has a symbolic size."""
    return any(type(shape[k]) is Dim and raw[k] < raw[d] for k in range(len(sizes)))
