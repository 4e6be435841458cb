"""``Tensor.register_hook`` of a tensor that the program has just computed: where the hook only computes, it is a part
of the graph of gradients, as the backward of a ``torch.autograd.Function`` that does nothing to the tensor itself is.
Only linear ones can be differentiated again, as eager does it, and only they are taken.

A hook sees the whole gradient of its tensor, so this holds only while nothing else has been computed from it. A hook
that does more, or a handle that is used, is left to eager, as are hooks of tensors from outside, which stay there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import RemovableHandle

from ...errors import NeedsEager, Unsupported
from ...graph.functions import FunctionTrace
from ...graph.ir import same_ints
from ..speculation import reachable
from ..states import grad_mode
from ..states.grad_mode import GRAD_MODE
from ..tables import on_tensor_method
from ..values.base import Raised, Value

if TYPE_CHECKING:
    from ...graph.handles import TensorHandle
    from ..session import Session
    from ..values.tensor import TensorValue


def _break(why: str) -> Unsupported:
    return Unsupported(f"a hook on a gradient {why}", kind="autograd")


class UnusedHandle(Value):
    """What ``register_hook`` gives, where the program drops it."""

    def pytype(self, s: Session) -> type:
        return RemovableHandle

    def needed(self, *args: object, **kwargs: object) -> None:
        raise _break("whose handle is used")

    getattr = own_attr = truth = hash_key = setattr = call = const = emit = needed


@on_tensor_method("register_hook")
def register_hook(s: Session, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    handle = tensor.handle(s)
    if len(args) != 1 or kwargs or not handle.requires_grad:
        return s.torch_call(torch.Tensor.register_hook, [tensor, *args], kwargs)  # a break, or eager's own error
    if tensor.obj is not None or handle.is_leaf:
        raise _break("of a tensor from outside, or of a leaf")
    node = handle.node
    if any(node in n.inputs for n in s.tracer.builder.nodes):
        # Behind a break, the hook would see the gradient of what is computed from then on.
        raise NeedsEager("a hook on the gradient of a tensor that something has been computed from", kind="autograd")
    if not s.tracer.grad_enabled or handle.chain or handle.base.frozen is not None:
        raise _break("of a view, or outside of grad mode")
    trace = FunctionTrace(s.tracer, [handle], [handle])
    found, second = _followed(s, args[0], s.recording.tensor_of(trace.tangents[0]))
    given = trace.tangents[0] if found is None else found
    t = handle.type
    if given.dtype is not t.dtype or given.type.device != t.device or not same_ints(given.shape, t.shape):
        raise _break("that gives a gradient of another type")
    made, = trace.finish([given], second)
    call = made.node.inputs[0]
    if call.attrs["second"] is None:
        raise _break("that is not linear, so that the gradients of what it gives are others")
    call.attrs = {**call.attrs, "hook": True}
    s.tracer.set(handle.base, "node", made.node)
    s.tracer.set(handle, "_node", made.node)
    return UnusedHandle()


def _followed(s: Session, hook: Value, gradient: Value) -> tuple[TensorHandle | None, str | None]:
    """-> what the hook gives for a gradient, or None, and how that can be differentiated (``graph.functions``)."""
    before = reachable([hook])
    done, mark = len(s.effects.log), s.journal.checkpoint()
    calls = s.states.uses[GRAD_MODE]
    try:
        with s.states.told(GRAD_MODE, False):
            result = hook.call(s, [gradient], {})
    except Raised as raised:
        raise _break(f"that raises {raised.value.cls.__name__}") from None
    finally:
        s.tracer.set_grad_enabled(grad_mode.is_on(s))
    if s.effects.since(done) or any(id(holder) in before for holder, *_ in s.journal.changes_since(mark)):
        raise _break("that does more than to compute")
    second = "traced" if s.states.uses[GRAD_MODE] == calls else None
    if result.is_const() and result.const(s) is None:
        return None, second
    if not result.is_tensor:
        raise _break("that gives what is no tensor")
    return result.handle(s), second
