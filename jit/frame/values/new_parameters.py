"""``torch.nn.Parameter(...)`` made while capturing: a leaf, which gets its own gradient. It may be initialised,
registered, stored and returned; the graph has no leaves of its own, so that its use where gradients are recorded is a
break, behind which it is a real one."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...errors import Unsupported
from ..states import grad_mode
from .base import Value
from .constant import Constant
from .tensor import TensorValue

if TYPE_CHECKING:
    from ...graph.tracer import TensorHandle
    from ..emit import Emitter
    from ..session import Session

# What autograd says of a leaf that nothing was done with; None: whether it requires grad.
_OF_A_LEAF = {"requires_grad": None, "is_leaf": True, "grad_fn": None, "grad": None, "retains_grad": False}
_WITHOUT_HISTORY = (torch.Tensor.detach, torch.detach)


class NewParameter(TensorValue):
    """``tracked``: whether it requires grad; its handle does not."""

    def __init__(self, handle: TensorHandle, tracked: bool) -> None:
        super().__init__(handle)
        self.cls, self.tracked = torch.nn.Parameter, tracked

    def getattr(self, s: Session, name: str) -> Value:
        if name not in _OF_A_LEAF or self.grad is not None or s.asker.concerns([self], {}):
            return super().getattr(s, name)
        return self.plain_attribute(s, name)

    def plain_attribute(self, s: Session, name: str) -> Value:
        if name not in _OF_A_LEAF or self.grad is not None:
            found = super().plain_attribute(s, name)
            if self.tracked and grad_mode.is_on(s) and name != "data" and _holds_tensor(found):
                raise _refusal()
            return found
        return Constant(self.tracked if name == "requires_grad" else _OF_A_LEAF[name])

    def lower(self, s: Session) -> Any:
        if self.tracked and grad_mode.is_on(s):
            s.set_field(s.recording, "leaves_used", s.recording.leaves_used + 1)
        return super().lower(s)

    def emit(self, e: Emitter) -> None:
        e.call(parameter_of, e.local(e.graph_output(self)), e.const(self.tracked))


def refuse_tracked(fn: object, result: Value) -> None:
    """Raises Unsupported for a call with such a parameter, where gradients are recorded, that gives a tensor, or
    nothing, as a change does, which eager refuses."""
    if fn not in _WITHOUT_HISTORY and (result.is_none or _holds_tensor(result)):
        raise _refusal()


def refuse_error() -> None:
    """Raises Unsupported for such a call that raises: eager may say before that a leaf may not be changed in place."""
    raise _refusal()


def refuse_leaves(s: Session, values: Iterable[Value]) -> None:
    """Raises Unsupported where such parameters are given to what looks at gradients in a way of its own."""
    if s.recording.new_leaves and grad_mode.is_on(s) and any(map(functools.partial(_holds_leaf, s), values)):
        raise _refusal()


def _holds_leaf(s: Session, v: Value) -> bool:
    if type(v) is NewParameter:
        return v.tracked
    parts = v.load(s).values() if v.is_mapping else v.nested(s) or ()
    return any(_holds_leaf(s, e[1] if v.is_mapping else e) for e in parts)


def _refusal() -> Unsupported:
    return Unsupported("a parameter that is made here is used where gradients are recorded",
                       "make it outside the compiled function", kind="autograd")


def _holds_tensor(v: Value) -> bool:
    return v.is_tensor or any(_holds_tensor(e) for e in getattr(v, "_elements", None) or ())


def parameter_of(tensor: torch.Tensor, tracked: bool) -> torch.nn.Parameter:
    """A parameter over the memory of a tensor."""
    return torch_private.make_subclass(torch.nn.Parameter, tensor, tracked)
