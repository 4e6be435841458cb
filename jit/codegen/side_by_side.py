"""Kernels that stand next to each other in a plan and have nothing to do with one another, as one launch.

A small kernel takes a few microseconds, however little it does, and products with one vector, such as the query, key
and value of a token, each end with processors that have nothing left to do. As one launch their programs run side by
side. What each of them computes stays as it is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .. import devices
from . import lower
from .loops import Buffer, Kernel
from .planned import RunKernel

if TYPE_CHECKING:
    from .buffers import Storage
    from .joining import Step
    from .planner import Planner

MOST = 6  # kernels of a launch


def lay_side_by_side(planner: Planner) -> None:
    """Put such kernels of a planner together, where their device does that."""
    if not planner.options.fuse or planner.options.target == "reference":
        return
    found: list[list[tuple[Step, int]]] = []
    for step, time in zip(planner.steps, planner.times):
        if found and _fits(planner, [s for s, _ in found[-1]], step):
            found[-1].append((step, time))
        else:
            found.append([(step, time)])
    if all(len(steps) == 1 for steps in found):
        return
    launches, planner.launches, planner.launch_keys = planner.launches, [], []
    planner.steps, planner.times = [], []
    for steps in found:
        (step, first), (_, last) = steps[0], steps[-1]
        if isinstance(step, RunKernel):
            runs = [s for s, _ in steps if isinstance(s, RunKernel)]
            kernel = launches[step.number]
            if len(runs) > 1:
                _hold(runs, first, last)
                kernel = _together([launches[s.number] for s in runs])
            step = RunKernel(len(planner.launches), tuple(a for s in runs for a in s.arguments), step.device,
                             any(s.commits for s in runs))
            planner.launches.append(kernel)
            planner.launch_keys.append(planner.launch_key(kernel, step.arguments))
        planner.steps.append(step)
        planner.times.append(last)


def _fits(planner: Planner, others: list[Step], step: Step) -> bool:
    """Whether a kernel neither reads nor writes what the others write, nor writes what they read, and is of their
    kind."""
    if not isinstance(step, RunKernel) or not devices.backend(step.device).launches_side_by_side:
        return False
    runs = [s for s in (*others, step) if isinstance(s, RunKernel) and s.device == step.device]
    if len(runs) <= len(others) or len(runs) > MOST:
        return False
    kernel, before = planner.launches[step.number], [planner.launches[s.number] for s in runs[:-1]]
    if devices.backend(step.device).joins_launches and any(k.key == kernel.key for k in before):
        return False  # left to ``joining``
    read, written = _accessed(planner, runs[-1])
    for other in runs[:-1]:
        theirs, made = _accessed(planner, other)
        if written & (theirs | made) or read & made:
            return False
    kind = importlib.import_module(_module(step.device.type)).kind_of
    kinds = {kind(planner.launches[s.number]) for s in runs}
    return len(kinds) == 1 and None not in kinds


def _accessed(planner: Planner, step: RunKernel) -> tuple[set[int], set[int]]:
    """(what it reads, what it writes), by the identity of storages."""
    kernel = planner.launches[step.number]
    pairs = [(a, b) for a, b in zip(step.arguments, kernel.buffers) if a != lower.ERROR]
    return {id(a) for a, b in pairs if b.role != "out"}, {id(a) for a, b in pairs if b.role != "in"}


def _hold(steps: list[RunKernel], first: int, last: int) -> None:
    """The memory of all of them is needed from the first one to the last."""
    found: list[Storage] = [a for s in steps for a in s.arguments if a != lower.ERROR]
    for a in found:
        if a.kind != "input":
            a.first, a.last = min(a.first, first), max(a.last, last)


def _together(kernels: list[Kernel]) -> Kernel:
    buffers, names = [], []
    for i, k in enumerate(kernels):
        names.append(tuple(f"k{i}_{b.name}" for b in k.buffers))
        buffers += [Buffer(n, b.dtype, b.role) for n, b in zip(names[-1], k.buffers)]
    first = kernels[0]
    layout = importlib.import_module(_module(first.device)).SideBySide(tuple(kernels), tuple(names))
    return Kernel(first.name, (), (), tuple(buffers), (), (), first.device, layout)


def _module(device: str) -> str:
    return devices.of_type(device).emitter.removesuffix("target") + "side_by_side"

