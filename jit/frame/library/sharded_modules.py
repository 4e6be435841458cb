"""Modules that FSDP shards (``fully_shard``): their hooks gather the parameters before the forward, give them back
behind it, and do the like in the backward. They are run by Python, so each such module's call is a break, and its
forward a graph of its own: between the hooks the parameters are plain tensors, the same ones at each call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from ...errors import Unsupported
from ..tables import on_refusal, when_loaded

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


@when_loaded("torch.distributed.fsdp")
def register() -> None:
    sharded = getattr(sys.modules["torch.distributed.fsdp"], "FSDPModule", None)  # of FSDP2
    if sharded is None:
        return

    @on_refusal(torch.nn.Module.__call__, torch.nn.Module._call_impl)
    def called(s: Session, args: list[Value]) -> None:
        if args and args[0].is_object and issubclass(args[0].cls, sharded):
            raise Unsupported(f"the call of a {args[0].cls.__name__}", kind="sharded-module")
