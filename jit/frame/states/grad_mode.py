"""Whether autograd records: ``torch.no_grad`` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ..tables import on_call
from ..tracked_state import TrackedState
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def _tell_tracer(s: Session) -> None:
    s.tracer.set_grad_enabled(s.states.peek(GRAD_MODE))


GRAD_MODE = TrackedState("grad mode", torch.is_grad_enabled, enter=_tell_tracer,
                               exit=lambda value: (torch_private.set_grad_enabled, [Constant(value)]))


def is_on(s: Session) -> bool:
    """Whether autograd records at this point of the program."""
    return s.states.peek(GRAD_MODE)


def switch_to(s: Session, enabled: bool) -> None:
    if not enabled and any(level.duals is not None for level in s.levels):
        raise Unsupported("torch.no_grad among dual numbers, which have tangents there", kind="functorch")
    if enabled == is_on(s):
        s.states.uses[GRAD_MODE] += 1
    else:
        s.states.set(GRAD_MODE, enabled, torch_private.set_grad_enabled, [Constant(enabled)])


@on_call(torch_private.set_grad_enabled)
def set_grad_enabled(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if s.asker.overridden(args):  # modes see it
        logged = len(s.effects.log)
        result = s.asker.call(torch_private.set_grad_enabled, args, kwargs)
        switched = [effect.args for effect in s.effects.log[logged:] if effect.state is GRAD_MODE]
        if switched:  # inside of the call PyTorch's own switch was another
            s.set_entry(s.states.now, (GRAD_MODE,), switched[-1][0].truth(s))
            _tell_tracer(s)
        return result
    if kwargs or len(args) != 1 or args[0].pytype(s) is not bool:
        raise Unsupported("the grad mode is set to something else than a bool", kind="argument-error")
    switch_to(s, args[0].truth(s))
    return Constant(None)


@on_call(torch.is_grad_enabled)
def is_grad_enabled(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    return Constant(s.states.get(GRAD_MODE))
