"""Switches that a program may ask for; setting one is a break."""

from __future__ import annotations

import torch

from ... import torch_private
from ..tables import add_pure
from ..tracked_state import covered, part, switch

switch("inference mode", torch.is_inference_mode_enabled, guard=covered)
switch("the default dtype", torch.get_default_dtype, guard=covered)
for _ask in (torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled,
             *torch_private.deterministic):
    switch("deterministic algorithms", _ask, guard=covered)
switch("anomaly mode", torch.is_anomaly_enabled, guard=part("switches"))
add_pure(torch_private.gpu_count)
switch("the current GPU", torch_private.current_gpu)
