"""Switches that a program may ask for; setting one is a break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ..tables import add_pure, on_function
from ..tracked_state import covered, part, switch
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

switch("inference mode", torch.is_inference_mode_enabled, guard=covered)
switch("the default dtype", torch.get_default_dtype, guard=covered)
for _ask in (torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled,
             *torch_private.deterministic):
    switch("deterministic algorithms", _ask, guard=covered)
switch("anomaly mode", torch.is_anomaly_enabled, guard=part("switches"))
add_pure(torch_private.gpu_count)
switch("the current GPU", torch_private.current_gpu)


@on_function(torch.cuda.get_device_properties)
def gpu_properties(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """They never change; which GPU is the current one does, and is asked."""
    device = (args[0] if args else kwargs.get("device", Constant(None))).const(s)
    if device is None or isinstance(device, (str, torch.device)) and torch.device(device) == torch.device("cuda"):
        device = s.wrap_raw(torch.cuda.current_device).call(s, [], {}).const(s)
    return s.fold(torch.cuda.get_device_properties, [Constant(device)], {})
