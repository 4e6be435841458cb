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
    host = torch.device("cpu")

    def moved(step):
        places = {f.name: host for f in dataclasses.fields(step) if getattr(step, f.name) == PLACE}
        return dataclasses.replace(step, **places)

    return dataclasses.replace(plan, compute=tuple(map(moved, plan.compute)), commit=tuple(map(moved, plan.commit)))
