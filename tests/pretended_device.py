"""Another kind of device, made of the CPU's kernels: what has to be written for one."""

import dataclasses

import torch

from jit.devices.cpu import Cpu

PLACE = torch.device("privateuseone", 0)


class Pretend(Cpu):
    """PyTorch has no tensors on it here, so that everything but the memory is asked of this class."""

    type = "privateuseone"
    host = False
    memory_alignment = 128


def on_host(plan):
    """A plan with memory of the CPU in the place of memory of the device."""
    return dataclasses.replace(plan, steps=tuple(tuple(torch.device("cpu") if v == PLACE else v for v in step)
                                                 for step in plan.steps))
