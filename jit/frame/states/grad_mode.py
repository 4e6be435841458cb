"""Whether autograd records: ``torch.no_grad`` and the like."""

from __future__ import annotations

import torch

from ... import torch_private
from ..tables import on_call
from ..tracked_state import TrackedState
from ..values.constant import Constant


def _tell_tracer(s):
    s.tracer.set_grad_enabled(s.states.peek(GRAD_MODE))


GRAD_MODE = TrackedState("grad mode", torch.is_grad_enabled, enter=_tell_tracer,
                               exit=lambda value: (torch_private.set_grad_enabled, [Constant(value)]))


def is_on(s) -> bool:
    """Whether autograd records at this point of the program."""
    return s.states.peek(GRAD_MODE)


def switch_to(s, enabled: bool):
    if enabled == is_on(s):
        s.states.uses[GRAD_MODE] += 1
    else:
        s.states.set(GRAD_MODE, enabled, torch_private.set_grad_enabled, [Constant(enabled)])


@on_call(torch_private.set_grad_enabled)
def set_grad_enabled(s, args, kwargs):
    switch_to(s, args[0].truth(s))
    return Constant(None)


@on_call(torch.is_grad_enabled)
def is_grad_enabled(s, args, kwargs):
    return Constant(s.states.get(GRAD_MODE))
