"""What a plan asks of an emitter: the module that a device's ``Backend`` names.

A target has two functions:

``begin_kernels(kernels, aligned) -> finish``, where ``finish() -> {kernel's name: (code, text)}``: machine code for
loop kernels with distinct names, with its source. What takes long goes on meanwhile in processes of its own, if it can,
and ``finish`` waits for it. ``aligned``: kernel's name -> names of its buffers whose addresses are multiples of the
backend's ``pointer_alignment``; all of them where a kernel is absent. Raises Unsupported where a kernel has no form
for the device, CompileError where a tool fails.

``step(code, slots, ints, written, number) -> step``: the step of a plan that runs the code, which writes the memory of
the slots ``written``. ``number`` gives the register that holds an expression over the kernel's sizes.

It may have ``function_of(kernel, code) -> str``: the name of the function in the binary, for reports; and
``expects_kernels()``: kernels will be asked for soon. What takes a while to start is started.

That of a device with ``Backend.joins_launches`` has more (without it, the runs that could be one are separate steps):
``may_join(kernel) -> bool``: whether several runs of a kernel can be one step; the argument ``joined`` of
``begin_kernels``: kernel's name -> how many runs at most are to be one, where they are; and ``joined_step(code,
slots, ints, written, numbers) -> step`` for that, with a tuple of slots, one of ints and a ``number`` for each run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import devices
from ..graph.dims import env_of

if TYPE_CHECKING:
    from .loops import Kernel


def target_of(device_type: str):
    """The target for kernels of a kind of device."""
    return importlib.import_module(devices.of_type(device_type).emitter)


def joins(device_type: str) -> bool:
    """Whether several runs of a kernel can be one step there."""
    return hasattr(target_of(device_type), "joined_step")


def relied_on(kernels: Iterable[Kernel]) -> list:
    """What the captures of these kernels rely on of their sizes. An emitter adds nothing to it: which text is best is
    no reason to compile anew."""
    found = [env_of(a.extent) for k in kernels for a in (*k.axes, *k.raxes)]
    return [p for env in {id(env): env for env in found if env is not None}.values() for p in env.guards]
