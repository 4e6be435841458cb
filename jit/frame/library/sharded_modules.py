"""Modules that FSDP shards (``fully_shard``): their hooks gather the parameters before the forward, give them back
behind it, and do the like in the backward. They are run by Python, so each such module's call is a break, and its
forward a graph of its own: between the hooks the parameters are plain tensors, the same ones at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...errors import Unsupported
from ...runtime import native, sharded_groups
from ..tables import on_refusal, when_loaded

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def _state(module: Any, states: type) -> Any:
    """What FSDP knows of a module that has hooks of its own, else None."""
    hooks = vars(module).get("_forward_pre_hooks") or {}  # none in a module that is being made
    owners = (getattr(hook, "__self__", None) for hook in hooks.values())
    return next((owner for owner in owners if isinstance(owner, states)), None)


@when_loaded("torch.distributed.fsdp")
def register() -> None:
    states = torch_private.fsdp_states()
    if states is None:
        return

    for hook in torch_private.fsdp_hooks(states):  # with all that they call
        native().quiet_code(hook.__code__)

    @on_refusal(torch.nn.Module.__call__, torch_private.module_call)
    def called(s: Session, args: list[Value]) -> None:
        module = getattr(args[0], "obj", None) if args else None
        if isinstance(module, torch.nn.Module) and (state := _state(module, states)) is not None:
            sharded_groups.lighten(state)
            raise Unsupported(f"the call of a {type(module).__name__}", kind="sharded-module")
