"""What the steps of plans take, as PyTorch's profiler measures them in further runs of a call.

Each run of a plan is a range in the profile, in which its kernels and library calls stand in order by the names that
the report gives them, too (``jit.shown``). On a GPU a step's time is that of the device's kernels which it launches, on
a CPU that of its range.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from .. import devices
from . import model

_WARM, _CALLS = 3, 5  # calls that are not measured, and that are


def measured(report: model.Report, call: Callable[[], object]) -> model.Report:
    """The report with the median time of each step over some calls. Values and gradients are computed in each:
    ``call`` makes one and gives its result; nothing is added to the ``grad`` of tensors."""
    for _ in range(_WARM):
        _run(call)
    places = {step.device: devices.backend(torch.device(step.device))
              for r in report.regions for p in r.plans for step in p.steps if step.device}
    with profiled([*places.values()]) as ranges:
        for _ in range(_CALLS):
            _run(call)
    return timed(report, ranges)


@contextlib.contextmanager
def profiled(places: Sequence[devices.Backend]) -> Iterator[dict[str, list]]:
    """Profile what is run inside, on the CPU and in ``places``. Gives a dictionary that is filled at the end: the name
    of a plan's runs -> the profiler's ranges of them."""
    asked = {getattr(ProfilerActivity, name) for name in ["CPU", *(b.activity for b in places if b.activity)]}
    ranges: dict[str, list] = {}
    profiler = profile(activities=asked & supported_activities(), acc_events=True)
    with profiler:
        try:
            yield ranges
        finally:
            for place in places:
                place.settle()
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CPU and event.name.startswith("jit "):
            ranges.setdefault(event.name, []).append(event)


def timed(report: model.Report, ranges: Mapping[str, Sequence[Any]]) -> model.Report:
    """The report with the median time of each step over the ranges that ``profiled`` has found."""
    regions = tuple(dataclasses.replace(r, plans=tuple(_timed(p, ranges.get(p.name, ())) for p in r.plans))
                    for r in report.regions)
    return dataclasses.replace(report, regions=regions, measured=True)


def _run(call: Callable[[], object]) -> None:
    results = [t for t in _tensors(call()) if t.requires_grad and t.grad_fn is not None]
    leaves = _leaves(results)
    if leaves:
        torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], allow_unused=True)


def _tensors(result: object) -> list[torch.Tensor]:
    """The tensors in a result, however deep in containers and objects with fields."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in _tensors(part)]
    if isinstance(result, dict):
        return [t for part in result.values() for t in _tensors(part)]
    return []


def _leaves(results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that the gradients of results are gathered in."""
    found: dict[int, torch.Tensor] = {}
    waiting, seen = [t.grad_fn for t in results], set()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        waiting += [n for n, _ in node.next_functions]
    return list(found.values())


def _timed(plan: model.PlanReport, ranges: Sequence[Any]) -> model.PlanReport:
    """A plan with times from the ranges of this name: those in which most of its steps stand."""
    aligned = [_aligned(plan.steps, event) for event in ranges]
    most = max(map(len, aligned), default=0)
    taken = [found for found in aligned if len(found) == most]
    steps = []
    for k, step in enumerate(plan.steps):
        seconds = [found[k] for found in taken if k in found]
        steps.append(dataclasses.replace(step, seconds=statistics.median(seconds)) if seconds else step)
    return dataclasses.replace(plan, steps=tuple(steps))


def _aligned(steps: Sequence[model.Step], event: Any) -> dict[int, float]:
    """Number of a step -> seconds, of one run of their plan. A step that is done several times, once in each layer,
    has the mean of these."""
    order = [k for _, part in itertools.groupby(range(len(steps)), lambda k: (steps[k].part, steps[k].times))
             for group in [list(part)] for k in group * steps[group[0]].times]
    names = [_shown(steps[k]) for k in order]
    there = set(names)
    children = [e for e in event.cpu_children if e.name in there or e.name.startswith("aten::")]
    found: dict[int, list[float]] = {}
    matcher = difflib.SequenceMatcher(None, names, [e.name for e in children], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        # A library call may go by another name, such as addmm for linear.
        if tag == "equal" or (tag == "replace" and b - a == d - c
                              and all(steps[k].kind == model.LIBRARY for k in order[a:b])):
            for k, child in zip(order[a:b], children[c:d]):
                found.setdefault(k, []).append(_seconds(child, steps[k]))
    return {k: statistics.fmean(seconds) for k, seconds in found.items()}


def _shown(step: model.Step) -> str:
    return f"aten::{step.name}" if step.kind == model.LIBRARY and "::" not in step.name else step.name


def _seconds(event: Any, step: model.Step) -> float:
    own = step.device and devices.backend(torch.device(step.device)).activity  # runs there by itself
    return (event.device_time_total if own else event.cpu_time_total) / 1e6
