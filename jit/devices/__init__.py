"""The kinds of devices that plans run on: ``backend(device)`` is the object that knows what depends on one.

A kind is a file with a subclass of ``Backend`` and a call of ``register``. Nothing here imports a room of the package,
so every room may ask.
"""

from __future__ import annotations

import torch

from jit.devices.architecture import Architecture
from jit.devices.backend import Backend, Problem
from jit.devices.cpu import Cpu
from jit.devices.cuda import Cuda
from jit.devices.meta import Meta

__all__ = ["Architecture", "Backend", "Problem", "backend", "of_type", "register", "registered", "unregister"]

_BACKENDS: dict = {}  # name of the kind -> Backend
_UNKNOWN = Backend()


def register(found: Backend) -> Backend:
    """Make a kind of device known, or put another object in the place of the one that is."""
    _BACKENDS[found.type] = found
    return found


def unregister(name: str) -> None:
    """Forget a kind of device."""
    del _BACKENDS[name]


def registered() -> tuple:
    """The backends of all known kinds."""
    return tuple(_BACKENDS.values())


def of_type(name: str) -> Backend:
    """The backend of a kind, by the name that ``torch.device.type`` has for it; one that is not ``known`` for others.
    """
    return _BACKENDS.get(name, _UNKNOWN)


def backend(device: torch.device) -> Backend:
    """The backend of a device."""
    return _BACKENDS.get(device.type, _UNKNOWN)


for _kind in (Cpu, Cuda, Meta):
    register(_kind())
