"""The tables of gradient rules, and what rules are written with.

``@vjp("cumsum")`` registers ``fn(b, node, g)`` for a prim; those of pointwise prims stand beside their records
(``pointwise.py``). ``g`` is the gradient of ``node``'s value, the result a tuple with one entry for each input: a Node,
a function without arguments that makes one (called only if that gradient is wanted), None for zero, or UNDEFINED where
eager gives no gradient at all (``x.grad`` stays None). Entries of pointwise prims may have the node's shape; what was
broadcast is summed away by the caller.

``@aten_vjp("mm")`` registers ``fn(b, out, g, *args)`` for a library call, ``args`` in schema order. For an operator
with several results ``g`` is a tuple with None where there is no gradient, and ``out`` is ``b.result(node, i)``'s node.
The result has one entry for each argument, as above (a tuple for a list of tensors); missing entries are zero.
NotImplemented leaves the gradient to a replay of the operator.

``@training_form("dropout")`` registers ``fn(b, node, *args)`` that builds what stands for a library call when gradients
flow through it, such as a form that also gives the mask; a tuple for a call with several results. NotImplemented leaves
the call as it is.

``@composite_vjp("softmax")`` is for the result of a whole composite; see ``composites``.

Sources of the formulas and of the conventions where there is no derivative: PyTorch's tools/autograd/derivatives.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit.graph.build import Builder
from jit.graph.dims import Dim, structurally_equal
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.prim_info import PRIMS
from jit.graph.prims import reduced_shape

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.shape_env import ShapeEnv

UNDEFINED = object()
VJPS: dict[str, Callable] = {p.name: p.gradient for p in PRIMS.values() if p.gradient is not None}
ATEN_VJPS: dict[str, Callable] = {}
TRAINING_FORMS: dict[str, Callable] = {}
COMPOSITE_VJPS: dict[str, Callable] = {}


def _register(table: dict) -> Callable:
    def decorator(*names: str) -> Callable:
        def register(fn: Callable) -> Callable:
            for name in names:
                table[name] = fn
            return fn

        return register

    return decorator


vjp, aten_vjp, training_form = _register(VJPS), _register(ATEN_VJPS), _register(TRAINING_FORMS)
composite_vjp = _register(COMPOSITE_VJPS)


def is_one(size: IntExpr) -> bool:
    return type(size) is int and size == 1


class GradBuilder(Builder):
    """A Builder with what gradient rules need. ``carries`` are the nodes whose gradient is wanted."""

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__(env)
        self.carries: set = set()
        self._results: dict = {}

    def zeros(self, t: TensorType) -> Node:
        """Zeros of this type's shape, row-major."""
        return self.full(t.shape, 0, t.dtype, t.device)

    def result(self, node: Node, index: int) -> Node:
        """Result number ``index`` of a node with several."""
        found = self._results.get((node, index))
        if found is None:
            found = self._results[node, index] = self.node("getitem", (node,), {"index": index}, node.type[index])
        return found

    def note_result(self, node: Node) -> None:
        """Remember a ``getitem`` node, so that there is only one."""
        self._results.setdefault((node.inputs[0], node.attrs["index"]), node)

    def aten_results(self, node_or_results: tuple[Node | None, ...]) -> tuple[Node | None, ...]:
        """Remember the ``getitem`` nodes that ``aten`` has made."""
        for r in node_or_results:
            if r is not None:
                self.note_result(r)
        return node_or_results

    def pad(self, x: Node, pads: list[tuple[int, IntExpr]], value: int = 0) -> Node:
        return x if all(type(p) is int and p == 0 for pair in pads for p in pair) else super().pad(x, pads, value)

    def sum_to(self, g: Node, shape: tuple[IntExpr, ...]) -> Node:
        """``g`` summed over what broadcasting from ``shape`` added."""
        if same_ints(g.type.shape, shape):
            return g
        lead = g.type.rank - len(shape)
        dims = [d for d in range(g.type.rank) if d < lead or is_one(shape[d - lead]) and not is_one(g.type.shape[d])]
        if dims:
            g = self._sum(g, dims)
        return self.reshape(g, shape) if lead else g

    def _sum(self, g: Node, dims: list[int]) -> Node:
        """The sum with ``dims`` kept. Broadcast dimensions are multiplied instead."""
        if g.op == "expand":
            source = g.inputs[0]
            lead = g.type.rank - source.type.rank
            wide = [d for d in dims if d < lead or is_one(source.type.shape[d - lead])]
            if wide:
                count = 1
                for d in wide:
                    count = count * g.type.shape[d]
                narrow = self.reshape(source, (1,) * lead + source.type.shape)
                rest = [d for d in dims if d not in wide]
                kept = tuple(1 if d in wide else s for d, s in enumerate(g.type.shape))
                total = self.mul(self.expand(narrow, kept), count)
                return self.reduce("sum", total, rest, True) if rest else total
        return self.reduce("sum", g, dims, True)

    def restore(self, g: Node, node: Node) -> Node:
        """The gradient of a reduction with the reduced dimensions kept (of size 1)."""
        if node.attrs["keepdim"]:
            return g
        return self.reshape(g, reduced_shape(node.inputs[0].type.shape, node.attrs["dims"], True))

    def spread(self, g: Node, node: Node) -> Node:
        """The gradient of a reduction, expanded to its input's shape and in its dtype."""
        return self.expand(self.cast(self.restore(g, node), node.inputs[0].type.dtype), node.inputs[0].type.shape)

    def positions(self, shape: tuple[IntExpr, ...], dim: int, device: torch.device) -> Node:
        """The index along ``dim``, shaped to broadcast over ``shape``; int64."""
        line = self.iota(shape[dim], device=device)
        return self.reshape(line, tuple(s if d == dim else 1 for d, s in enumerate(shape)))

    def call(self, name: str, args: tuple[object, ...], type: TensorType | tuple[TensorType | None, ...],
             overload: str = "", impure: bool = False) -> Node | tuple[Node | None, ...]:
        """A library call ``aten::name`` with all arguments in schema order."""
        made = self.aten(f"aten::{name}", overload, tuple(args), type, impure)
        return self.aten_results(made) if isinstance(made, tuple) else made

    def t(self, x: Node) -> Node:
        """The last two dimensions exchanged."""
        return self.transpose(x, x.type.rank - 2, x.type.rank - 1)

    def scaled(self, g: Node, factor: float | int) -> Node:
        return g if isinstance(factor, (int, float)) and factor == 1 else self.mul(g, factor)


def resolved(entry: Node | Callable | None) -> Node | None:
    """A rule's entry as a Node or None."""
    return entry() if callable(entry) else entry


def is_transposed(t: TensorType) -> bool:
    """Whether a matrix is stored column by column."""
    return t.rank == 2 and not t.is_contiguous and is_one(t.strides[0]) and structurally_equal(t.strides[1], t.shape[0])


def is_differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


__all__ = ["Dim", "GradBuilder", "UNDEFINED", "aten_vjp", "composite_vjp",
           "is_differentiable", "is_one", "is_transposed", "resolved", "training_form", "vjp"]
