"""``torch.autograd.Function`` where no gradient is recorded: its ``forward``, inlined, with a context that only keeps what it is given."""

from __future__ import annotations

import torch

from ...errors import Unsupported
from ..tables import on_function
from ..values.tensor import TensorValue


class Context:
    """What ``forward`` and ``setup_context`` do to their ``ctx``, without a backward that would look at it."""

    def __init__(self, n):
        self.needs_input_grad = (False,) * n

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors):
        pass

    def mark_non_differentiable(self, *tensors):
        pass

    def set_materialize_grads(self, value):
        pass


def _forward_with_context(cls, *args):
    return cls.forward(Context(len(args)), *args)


def _forward_then_context(cls, *args):
    output = cls.forward(*args)
    cls.setup_context(Context(len(args)), args, output)
    return output


@on_function(torch.autograd.Function.apply.__func__)
def apply(s, args, kwargs):
    cls, *given = args
    if kwargs or any(isinstance(v, TensorValue) and v.handle(s).requires_grad for v in given) and s.grad_mode:
        return s.inline(s.wrap_raw(torch.autograd.Function.apply.__func__), args, kwargs)
    known = cls.const(s)
    later = known.setup_context is not torch.autograd.Function.setup_context
    result = s.inline(s.wrap_raw(_forward_then_context if later else _forward_with_context), args, {})
    outputs = [result] if isinstance(result, TensorValue) else result.items_list(s)
    if any(o is v for o in outputs for v in given if isinstance(v, TensorValue)):
        raise Unsupported("an autograd.Function that returns one of its inputs", kind="c-call")  # which is a new tensor there
    return result
