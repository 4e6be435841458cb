"""Launches of one kernel that need nothing of each other become one launch, each with its own memory.

A launch costs the processor, and the GPU between two kernels, more than many kernels take: the updates of an optimizer,
the norms of hundreds of gradients, the second stages of split sums. So each kernel waits until something that does not
wait needs what it makes, or changes what it reads; runs of kernels that are compiled as one and wait together become
one step. What they read stays in memory for so long, which is bounded.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterable, Optional

from .. import devices
from ..graph import dims
from . import sizes
from .indexing import base_of, numel_hint, size_hint
from .lower import ERROR
from .planned import CallLibrary, RunKernel, RunTogether, Touch
from .target import joins, target_of

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Storage
    from .loops import Kernel
    from .planner import Planner

    Step = CallLibrary | RunKernel | Touch
    Part = Optional[tuple[int, int]]  # the first and the last element of a part of a storage; None: it may be all

MOST_HELD = 16 << 20  # bytes that are kept for kernels that wait, beyond the time when they would be given up
MOST_GENERAL = 16 << 20  # bytes that a run reads and writes; one of more takes long enough, and has a kernel of its own
ALIGNMENT = 16  # bytes, of addresses that kernels may rely on


class _Memory:
    """Parts of storages."""

    def __init__(self) -> None:
        self.parts: dict[Storage, set[Part]] = {}

    def add(self, storage: Storage, part: Part = None) -> None:
        self.parts.setdefault(storage, set()).add(part)

    def update(self, other: _Memory) -> None:
        for storage, parts in other.parts.items():
            self.parts.setdefault(storage, set()).update(parts)

    def meets(self, other: _Memory) -> bool:
        """Whether an element may be in both."""
        return any(a is None or b is None or a[0] <= b[1] and b[0] <= a[1]
                   for storage in self.parts.keys() & other.parts.keys()
                   for a in self.parts[storage] for b in other.parts[storage])


@dataclass
class _Run:
    """A run that waits: the number of its step, its kernel with other places to begin at, these places, the key of that
    kernel; and the kernel for other sizes, with its own."""

    step: int
    kernel: Kernel
    offsets: tuple[int, ...]
    key: tuple
    general: Kernel
    values: dict[str, int]


@dataclass(eq=False)
class _Waiting:
    """Runs of one kernel that wait for others, and those waiting that come first."""

    runs: list[_Run] = field(default_factory=list)
    reads: _Memory = field(default_factory=_Memory)
    writes: _Memory = field(default_factory=_Memory)
    before: set[_Waiting] = field(default_factory=set)

    def allows(self, reads: _Memory, writes: _Memory) -> bool:
        """Whether a later step with this memory may be done before them, or with them."""
        return not (reads.meets(self.writes) or writes.meets(self.writes) or writes.meets(self.reads))

    def follows(self, other: _Waiting) -> bool:
        """Whether they need that others come first."""
        return other in self.before or any(w.follows(other) for w in self.before)


class _Joining:
    """One walk over the steps of a planner."""

    def __init__(self, p: Planner) -> None:
        self.p, self.touched = p, _touched(p)
        self.last: dict[Storage, int] = {}
        for k, (reads, writes) in enumerate(self.touched):
            self.last.update(dict.fromkeys((*reads.parts, *writes.parts), k))
        kept = [base_of(o.node) for o in p.graph.outputs] + ([] if p.options.owns_inputs else p.graph.inputs)
        self.last.update((p.buffers.storages[n], len(p.steps)) for n in kept)  # the caller has them anyway
        self.waiting: dict[tuple, _Waiting] = {}
        self.now, self.steps, self.times = 0, [], []

    def walk(self) -> list:
        p = self.p
        for self.now, step in enumerate(p.steps):
            memory = self.touched[self.now]
            others = [(key, w) for key, w in self.waiting.items() if _unknown(step) or not w.allows(*memory)]
            if isinstance(step, RunKernel) and _joins(p, step):
                self.wait(step, *memory, [w for _, w in others])
            else:
                for key, _ in others:
                    self.end(key)
                self.add(step)
        for key in list(self.waiting):
            self.end(key)
        return self.steps

    def add(self, step: Step | RunTogether) -> None:
        self.steps.append(step)
        self.times.append(self.p.times[self.now])

    def wait(self, step: RunKernel, reads: _Memory, writes: _Memory, others: list[_Waiting]) -> None:
        """Let a run of a kernel wait, behind ``others``."""
        kernel, offsets = _from_its_first(self.p.launches[step.number])
        general, values = sizes.general(kernel) if _traffic(kernel) <= MOST_GENERAL else (kernel, {})
        run = _Run(self.now, kernel, offsets, _key(self.p, step, kernel, offsets), general, values)
        key = _key(self.p, step, general, offsets) if values else run.key
        mine = self.waiting.get(key)
        if mine is not None and (mine in others or any(w.follows(mine) for w in others)):
            self.end(key)
        mine = self.waiting.setdefault(key, _Waiting())
        mine.before.update(w for w in others if w in self.waiting.values())
        mine.runs.append(run)
        mine.reads.update(reads)
        mine.writes.update(writes)
        while self.waiting and self.held(self.waiting.values()) > MOST_HELD:
            most = max(self.waiting, key=lambda key: self.held([self.waiting[key]]))
            self.end(most)

    def held(self, waiting: Iterable[_Waiting]) -> int:
        """Bytes that are kept for kernels that wait alone."""
        kept = {s for w in waiting for s in w.reads.parts if self.last[s] < self.now}
        return sum(numel_hint(s.type.shape) * s.type.dtype.itemsize for s in kept)

    def end(self, key: tuple) -> None:
        """Let what waits be done, and first what has to come first."""
        found = self.waiting.get(key)
        if found is None:
            return
        for other in [k for k, w in self.waiting.items() if w in found.before]:
            self.end(other)
        del self.waiting[key]
        runs = sorted(found.runs, key=lambda run: -math.prod(run.values.values()))  # the first says how it is laid out
        steps = tuple(self.p.steps[run.step] for run in runs)
        for s in (s for step in steps for s in step.arguments):
            s.last = max(s.last, self.p.times[self.now])
        if len(runs) == 1:
            self.add(steps[0])
            return
        alike = all(run.key == runs[0].key for run in runs)
        key = runs[0].key if alike else key
        self.add(RunTogether(steps, tuple(run.kernel if alike else run.general for run in runs),
                             tuple(run.offsets for run in runs), tuple({} if alike else run.values for run in runs),
                             key))
        if joins(runs[0].kernel.device) and self.p.options.target != "reference":
            words = 1 << (len(runs) - 1).bit_length()  # few different kernels
            self.p.joined[key] = max(self.p.joined.get(key, 0), words)


def join_launches(p: Planner) -> None:
    """Replace runs of kernels among the steps of a planner, and let the memory that they need live as long."""
    if any(isinstance(step, RunKernel) and _joins(p, step) for step in p.steps):
        joining = _Joining(p)
        p.steps, p.times = joining.walk(), joining.times


def _joins(p: Planner, step: RunKernel) -> bool:
    """Whether several runs of its kernel may be one."""
    kernel = p.launches[step.number]
    return (devices.backend(step.device).joins_launches and kernel.layout is None
            and ERROR not in step.arguments
            and (not joins(kernel.device) or target_of(kernel.device).may_join(kernel)))


def _from_its_first(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with buffers that begin where it first reads or writes them, and these places: of kernels that write
    parts of one tensor, each writes its own."""
    offsets: dict[str, int] = {}
    for s in kernel.body:
        if s.accessed:
            e = s.expression
            offsets.setdefault(s.accessed, e if type(e) is int else e.const)
    if not any(offsets.values()):
        return kernel, (0,) * len(kernel.buffers)
    body = tuple(s.mapped(lambda e, at=offsets[s.accessed]: e - at) if s.accessed else s for s in kernel.body)
    return dataclasses.replace(kernel, body=body), tuple(offsets.get(b.name, 0) for b in kernel.buffers)


def _traffic(kernel: Kernel) -> int:
    """About how many bytes a kernel reads and writes."""
    extent = {a.name: size_hint(a.extent) for a in kernel.axes + kernel.raxes}
    return sum(kernel.buffer_of[s.accessed].dtype.itemsize * math.prod(extent[n] for n in s.symbols if n in extent)
               for s in kernel.body if s.accessed)


def _key(p: Planner, step: RunKernel, kernel: Kernel, offsets: tuple[int, ...]) -> tuple:
    """What is compiled for runs at once: the structure, and which pointers may not be aligned. Of single elements it
    does not matter."""
    loose = set(p.launch_keys[step.number][1])
    single = {b.name: True for b in kernel.buffers}
    for s in kernel.body:
        if s.accessed:
            single[s.accessed] &= type(s.expression) is int
    for i, (b, offset) in enumerate(zip(kernel.buffers, offsets)):
        if single[b.name] or offset * b.dtype.itemsize % ALIGNMENT:
            loose.add(i)
    return kernel.key, tuple(sorted(loose)), "together"


def _touched(p: Planner) -> list[tuple[_Memory, _Memory]]:
    """What each step reads, and what it writes."""
    parts: dict[Node, list[Node]] = {}
    for n in p.graph.nodes:
        if n.op == "getitem":
            parts.setdefault(n.inputs[0], []).append(n)
    storages, found = p.buffers.storages, []
    for step in p.steps:
        reads, writes = _Memory(), _Memory()
        if isinstance(step, RunKernel):
            kernel = p.launches[step.number]
            places = _places(kernel)
            for s, b in zip(step.arguments, kernel.buffers):
                if s != ERROR:
                    if b.role != "out":
                        reads.add(s, places.get(b.name))
                    if b.role != "in":
                        writes.add(s, places.get(b.name))
            for s in step.arguments[len(kernel.buffers):]:  # what its layout uses
                writes.add(s)
        elif isinstance(step, Touch):
            writes.add(step.storage)
        else:
            for n in (base_of(i) for i in step.node.inputs):
                if n in storages:
                    reads.add(storages[n])
            for n in (step.node, *parts.get(step.node, ())):
                if n in storages:
                    writes.add(storages[n])
        found.append((reads, writes))
    return found


def _places(kernel: Kernel) -> dict[str, Part]:
    """Buffer -> the elements that a kernel reads and writes there lie between these."""
    found: dict[str, Part] = {}
    for s in kernel.body:
        if s.accessed:
            low, high = dims.bounds(s.expression)
            if s.accessed in found and found[s.accessed] is None or low is None or high is None:
                found[s.accessed] = None
            else:
                known = found.get(s.accessed, (low, high))
                found[s.accessed] = min(known[0], low), max(known[1], high)
    return found


def _unknown(step: Step) -> bool:
    """Whether a step may do more than can be seen."""
    return isinstance(step, CallLibrary) and not step.node.attrs.get("target", "aten::").startswith(
        ("aten::", "prims::", "jit::"))
