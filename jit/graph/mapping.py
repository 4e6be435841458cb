"""What the calls of ``torch.vmap`` in a program record: see ``maps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph import layout
from jit.graph.backward import unfolded
from jit.graph.maps import Batch
from jit.graph.prims import base_of

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.handles import TensorHandle
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer


def enter(tracer: Tracer, whole: TensorHandle, level: int) -> TensorHandle:
    """One slice along the first dimension, as the map's function sees it."""
    node, t = whole.node, whole.type
    slice_ = tracer.builder.node("mapped", (node,), {"level": level},
                                 t.replace(shape=t.shape[1:], strides=t.strides[1:]))
    return tracer.fresh(slice_, whole.requires_grad)


def collect(tracer: Tracer, part: TensorHandle, level: int, size: IntExpr) -> TensorHandle:
    """All slices of a result, one behind the other in the first dimension.

    Raises:
        Unsupported: where there is no rule for an operation.
    """
    node, t = part.node, part.type
    made = tracer.builder.node("collected", (node,), {"level": level, "size": size}, t.replace(
        shape=(size, *t.shape), strides=(t.numel, *t.strides)))
    tracer.set(tracer, "inner_gradients", True)
    settle(tracer, made)
    return tracer.fresh(made, part.requires_grad)


def shown(tracer: Tracer, part: TensorHandle, slice_: Node, whole: TensorHandle, level: int,
          size: IntExpr) -> TensorHandle | None:
    """All slices of a result that is a view of what is mapped, as a view of that; None where they are no view."""
    steps, node, start = [], part.node, tracer.builder.next_id
    while node is not slice_:
        steps.append(node)
        node = node.inputs[0]
    batch = Batch(tracer.builder, level, size)
    batch.done[slice_] = made = whole.node
    for n in reversed(steps):
        batch.done[n] = made = batch.visit(n)
    if base_of(made) is not base_of(whole.node):
        return None
    found = tracer.wrap(made, [whole], True, start)
    # A view of all of it, in the same order, is a tensor of its own.
    return tracer.wrap(tracer.builder.alias(made), [whole], True, start) if found is whole else found


def settle(tracer: Tracer, node: Node) -> None:
    """Give a ``collected`` node the strides that its operations give it."""
    node.attrs["settled"] = False
    _, new = unfolded(tracer)
    node.attrs["settled"] = True
    node.type = layout.empty_like(new[node].type)
