"""Statements for kernels that are laid out by themselves, of no group of the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from .. import devices
from . import loops
from .lower import Emitter

if TYPE_CHECKING:
    import torch


class _Nothing:
    calls: dict = {}


class Apart(Emitter):
    """Builds the statements of values that lie in memory; ``places`` as for ``Emitter``. Axes are made by hand."""

    def __init__(self, places: Callable, device: torch.device) -> None:
        self.group, self.places, self.stored, self.stage, self.tail = _Nothing, places, {}, None, None
        self.backend, self.b = devices.backend(device), loops.KernelBuilder(device.type)
        self.arguments, self._buffers, self._memo, self._rounded, self.members, self.called = [], {}, {}, {}, {}, {}
