"""``torch.equal``: whether two tensors are the same, which programs ask for to take a shorter way.

Tensors of different sizes are not. Otherwise the answer is that of ``(a == b).all()``, which branches know how to
depend on. Where both are computed the same way from the same, they are equal unless there is a NaN among the elements:
that there is none is assumed, and checked behind the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...graph.dims import equal
from ...graph.ir import Node
from ..assumptions import assume
from ..tables import on_call, on_tensor_method
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_MOST = 200  # pairs of nodes that are compared


@on_call(torch.equal)
def equal_tensors(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or len(args) != 2 or not all(a.is_tensor for a in args) or s.asker.concerns(args, kwargs) or s.in_a_map:
        return s.torch_call(torch.equal, args, kwargs)
    a, b = (value.handle(s) for value in args)
    if a.dtype is not b.dtype or a.type.device != b.type.device:
        return s.torch_call(torch.equal, args, kwargs)
    if len(a.shape) != len(b.shape) or not all(map(equal, a.shape, b.shape)):
        return Constant(False)
    same = s.torch_call(torch.all, [s.torch_call(torch.eq, [v.detached(s) for v in args], {})], {})
    known = same.known(s)
    if known is not None:
        return Constant(bool(known))
    if _computed_alike(a.node, b.node) and assume(s, same, True):
        return Constant(True)
    return s.recording.read_later(bool, same, "move the branch out of the compiled function")


@on_tensor_method("equal")
def equal_to(s: Session, tensor: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return equal_tensors(s, [tensor, *args], kwargs)


@on_call(torch.Tensor.__eq__)
def compared(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """As a class or a mode calls it that was asked about ``==``."""
    if len(args) == 2 and args[0].is_tensor and not kwargs and not args[1].is_numeric:
        return Constant(NotImplemented)
    return s.torch_call(torch.Tensor.__eq__, args, kwargs)


def _computed_alike(a: Node, b: Node) -> bool:
    """Whether two nodes have the same value because the same is done to the same."""
    seen, todo = set(), [(a, b)]
    while todo:
        pair = x, y = todo.pop()
        if x is y or pair in seen:
            continue
        seen.add(pair)
        if (len(seen) > _MOST or x.op != y.op or x.op == "input" or x.impure or x.attrs != y.attrs
            or x.types != y.types or len(x.inputs) != len(y.inputs)):
            return False
        todo += zip(x.inputs, y.inputs)
    return True
