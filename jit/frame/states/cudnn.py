"""The switches of ``torch.backends.cudnn``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import devices, torch_private
from ..tables import on_module_attribute
from ..tracked_state import calls_library, part, switch

if TYPE_CHECKING:
    from ..session import Session


def _calls_cudnn(node) -> bool:
    types = node.type if type(node.type) is tuple else (node.type,)
    return calls_library(node) and any(t is not None and "cudnn" in devices.backend(t.device).libraries for t in types)


for _name, _functions in torch_private.cudnn_switches.items():
    switch(f"torch.backends.cudnn.{_name}", *_functions, matters=_calls_cudnn,
           guard=part("switches") if _name in ("enabled", "benchmark") else None)


@on_module_attribute(torch.backends.ContextProp)
def context_property(s: Session, owner, raw, name):
    """A property of such a module: what it asks."""
    return s.calls.call_builtin(raw.getter, [], {})
