"""Pointwise values in the shape of the rows that they are made from.

A group norm reduces ``(n, groups, channels of a group, ...)``, and what follows is written over ``(n, channels, ...)``.
Loops over the one cannot be loops over the other, so that the statistics would be a kernel of their own, and their
tensor read twice. Here what follows is computed over the dimensions of the rows, from operands that are views, and its
result is a view: the memory is the same. In a backward the statistics are given, and what is reduced over the
dimensions of rows tells which these are; sums over the others go over them too, so that all read in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .. import devices
from ..graph.ir import Graph, TensorType, Transform
from ..graph.prims import POINTWISE, REDUCTIONS
from .indexing import VIEWS, is_one, same, segments, size_hint
from .prepare import live_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph.dims import IntExpr
    from ..graph.ir import Node

COMPUTED = POINTWISE | {"cast"}


def refined(graph: Graph) -> Graph:
    """The graph with pointwise values in the shape of the rows that they are made from, where the device wants it, or
    the same graph where there is none."""
    if not any(n.inputs[0].op in COMPUTED and devices.backend(n.type.device).refines_views
               for n in graph.of_ops(("reshape",))):
        return graph
    found = _Refined(graph)
    made = found.run()
    if not found.changed:
        return graph
    live = live_nodes(made)
    return made.replace([n for n in made.nodes if n in live])


def _owners(fine: Sequence[IntExpr], coarse: Sequence[IntExpr]) -> Optional[list]:
    """For each dimension of ``fine`` the one of ``coarse`` that it is a part of, None for one of size 1; None where the
    first shape does not split the second, or is no other."""
    owner: list[Optional[int]] = [None] * len(fine)
    for parts, whole in segments(tuple(fine), tuple(coarse)):
        if len(whole) != 1:
            return None
        for d in parts:
            owner[d] = whole[0]
    return owner if any(owner.count(d) > 1 for d in owner if d is not None) else None


SHORTEST_RUN = 32  # elements


def _in_short_runs(t: TensorType, shape: Sequence[IntExpr], owner: list) -> bool:
    """Whether what lies side by side in memory is split into few elements, as the groups of channels-last images are:
    rows of those are read in two steps (``graph.passes.short_runs``)."""
    wide = [d for d, s in enumerate(t.shape) if not is_one(s)]
    inner = min(wide, key=lambda d: size_hint(t.strides[d]), default=None)
    parts = [k for k, d in enumerate(owner) if d == inner]
    return len(parts) > 1 and size_hint(shape[parts[-1]]) < SHORTEST_RUN


def shape_key(t: TensorType) -> tuple:
    """A shape as a key, by which equal ones of fixed sizes are found."""
    return tuple([s if type(s) is int else id(s) for s in t.shape])


class _Refined(Transform):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.changed = False
        self.after: set[Node] = set()  # what depends on a reduction through pointwise operations and views
        self.fine: set[Node] = set()  # what has been refined
        self.rows = {shape_key(n.inputs[0].type) for n in graph.nodes if n.op in REDUCTIONS}
        self.wanted = self._wanted(graph)

    def _wanted(self, graph: Graph) -> dict:
        """What is read as rows, and what that is computed from -> their shape."""
        found: dict = {}
        for n in graph.nodes:
            if n.op == "reshape" and n.inputs[0].op in COMPUTED and shape_key(n.type) in self.rows:
                coarse, stack = n.inputs[0].type, [n.inputs[0]]
                owner = _owners(n.type.shape, coarse.shape)
                while stack and owner is not None and not _in_short_runs(coarse, n.type.shape, owner):
                    m = stack.pop()
                    if m not in found and not m.several and shape_key(m.type) == shape_key(coarse):
                        found[m] = n.type.shape
                        stack += m.inputs if m.op in COMPUTED else ()
        return found

    def visit(self, n: Node) -> Node:
        inputs, made = self.operands(n), None
        if n.op in COMPUTED and not n.several:
            made = self._over_rows(n, inputs)
        elif n.op == "sum":
            made = self._sum(n, inputs[0])
        elif n.op == "reshape" and inputs[0].op == "reshape" and inputs[0].inputs[0] in self.fine:
            (source,) = inputs[0].inputs
            same_ = shape_key(source.type) == shape_key(n.type)
            made = source if same_ else self.node("reshape", (source,), n.attrs, n.type)
        if made is None:
            made = self.keep(n, inputs)
        if n.op in REDUCTIONS or (n.op in COMPUTED or n.op in VIEWS) and any(i in self.after for i in inputs):
            self.after.add(made)
        return made

    def _over_rows(self, n: Node, inputs: tuple) -> Node | None:
        shapes = [self.wanted[n]] if n in self.wanted else [
            i.inputs[0].type.shape for i in inputs if i.op == "reshape" and self._is_of_rows(i)
            and len(i.type.shape) == len(n.type.shape) and all(map(same, i.type.shape, n.type.shape))]
        for shape in shapes:
            owner = _owners(shape, n.type.shape)
            if owner is None or _in_short_runs(n.type, shape, owner) and not any(
                    i.op == "reshape" and i.inputs[0] in self.fine for i in inputs):
                continue
            operands = tuple([self._split(x, n, shape, owner) for x in inputs])
            fine = self.node(n.op, operands, n.attrs, _split_type(n.type, n.type.shape, shape, owner))
            self.after.add(fine)
            self.fine.add(fine)
            self.changed = True
            return self.node("reshape", (fine,), {"shape": n.type.shape}, n.type)
        return None

    def _is_of_rows(self, view: Node) -> bool:
        (source,) = view.inputs
        return source in self.fine or source.op in COMPUTED and (
            view in self.after or shape_key(source.type) in self.rows)

    def _sum(self, n: Node, x: Node) -> Node | None:
        """A sum over a view of what is computed over rows, as one over these."""
        shape = self.wanted.get(n.inputs[0])
        if x.op == "reshape" and x.inputs[0].op in COMPUTED and shape_key(x.inputs[0].type) in self.rows:
            shape = x.inputs[0].type.shape
        owner = None if shape is None else _owners(shape, x.type.shape)
        if shape is None or owner is None or _in_short_runs(x.type, shape, owner):
            return None
        source = self._split(x, n.inputs[0], shape, owner)
        over = {d % len(x.type.shape) for d in n.attrs["dims"]}
        found = tuple([k for k, d in enumerate(owner) if d in over])
        shape = tuple([1 if k in found else s for k, s in enumerate(source.type.shape)])
        t = TensorType.contiguous(shape, n.type.dtype, n.type.device)
        self.changed = True
        fine = self.node("sum", (source,), {**n.attrs, "dims": found, "keepdim": True}, t)
        self.fine.add(fine)
        return self.node("reshape", (fine,), {"shape": n.type.shape}, n.type)

    def _split(self, x: Node, n: Node, shape: Sequence[IntExpr], owner: list) -> Node:
        """An operand of ``n`` as a view over the dimensions of ``shape``."""
        source = x.inputs[0] if x.op == "reshape" else None
        if (source is not None and len(x.type.shape) == len(n.type.shape) and all(map(same, x.type.shape, n.type.shape))
            and len(source.type.shape) == len(shape) and all(map(same, source.type.shape, shape))):
            return source
        if not x.type.shape:
            return x
        type_ = _split_type(x.type, n.type.shape, shape, owner)
        return self.node("reshape", (x,), {"shape": type_.shape}, type_)


def _split_type(t: TensorType, coarse: Sequence[IntExpr], fine: Sequence[IntExpr], owner: list) -> TensorType:
    """The type of a value that is broadcast to the shape ``coarse`` as a view that is broadcast to ``fine``."""
    missing = len(coarse) - len(t.shape)
    shape, strides, step = [], [], {}
    for size, d in reversed(list(zip(fine, owner))):
        k = -1 if d is None else d - missing
        if k < 0 or is_one(t.shape[k]):
            shape.append(1)
            strides.append(0)
        else:
            shape.append(size)
            strides.append(step.get(k, t.strides[k]))
            step[k] = strides[-1] * size
    return t.replace(shape=tuple(reversed(shape)), strides=tuple(reversed(strides)))
