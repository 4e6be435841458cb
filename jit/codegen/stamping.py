"""One plan for a graph of which parts have plans of their own, some of them done several times: the layers of a deep
network are compiled once, and the steps of their plan written once for each (``graph.repeats`` finds them).

The steps stay as they are but for their slots. All parts share one block of memory for what lives within a part; what
goes on from one part to another has a slot of its own, and is let go of behind the last step that names it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.plan import Plan
from ..runtime.steps import Arena, Argument, Free, fields_of
from .described import Described, several_times

if TYPE_CHECKING:
    from ..graph.ir import TensorType
    from ..runtime.steps import Step
    from .planner import CompiledGraph
    from .registers import Registers


class Mismatch(ValueError):
    """A part takes something else than what it is given."""


class Stamper:
    """Writes the plan of a whole. Values that go on between parts have names of any kind, ``inputs`` are those that the
    whole is given. All plans of its parts have to be made with the same ``registers``.

    Attributes:
        types: by name, what each value that goes on between parts is.
    """

    def __init__(self, inputs: Sequence[Hashable], registers: Registers) -> None:
        self.n_inputs, self.registers = len(inputs), registers
        self.slots: dict[Hashable, int] = {name: k for k, name in enumerate(inputs)}  # of what goes on between parts
        self.types: dict[Hashable, TensorType] = {}
        self.new = itertools.count(len(inputs)).__next__
        self.steps: list[Step] = []
        self.named: list[Sequence[int]] = []  # of each step, the slots that it names
        self.of_parts: dict[int, list[tuple[Step, tuple[int, ...]]]] = {}  # of the plans of parts
        self.arenas: dict[Any, tuple[int, int, int]] = {}  # device -> slot, bytes, and place among the steps
        self.between: set[int] = set()
        self.aligned: set[int] = set()
        self.every_aligned = False
        self.launches: list = []
        self.times: dict[int, int] = {}  # id of a part -> how often it is done

    def stamp(self, part: CompiledGraph, reads: Sequence[Hashable], results: Sequence[Hashable]) -> None:
        """Add the steps of a part: it is given the values ``reads``, and its results are known as ``results`` from here
        on (None: nobody asks for it). Raises Mismatch."""
        plan = part.plan
        for name, wanted in zip(reads, part.takes, strict=True):
            if self.types.setdefault(name, wanted) != wanted:
                raise Mismatch(f"a part takes {wanted}, and is given {self.types[name]}")
        slots = dict(enumerate(self.slots[name] for name in reads))
        if plan.aligned is None:
            self.every_aligned = True
        else:
            self.aligned.update(slots[k] for k in plan.aligned if slots[k] < self.n_inputs)

        def slot(old: int) -> int:
            found = slots.get(old)
            if found is None:
                found = slots[old] = self.new()
            return found

        steps = self.of_parts.get(id(plan))
        if steps is None:
            steps = self.of_parts[id(plan)] = [(step, tuple(step.slots)) for step in (*plan.compute, *plan.commit)]
        for step, named in steps:
            if type(step) is Arena:
                slots[step.slot] = self.arena(step)
            else:
                self.steps.append(moved(step, slot))
                self.named.append([slots[s] for s in named])
        for name, old, made in zip(results, plan.outputs, part.gives, strict=True):
            self.between.add(slot(old))
            if name is not None:
                self.slots[name], self.types[name] = slot(old), made
        self.launches += part.launches
        self.times[id(part)] = self.times.get(id(part), 0) + 1

    def rename(self, name: Hashable, other: Hashable) -> None:
        """A value is known by another name too."""
        self.slots[other] = self.slots[name]
        if name in self.types:
            self.types[other] = self.types[name]

    def arena(self, step: Arena) -> int:
        """The slot of the block that all parts share on a device."""
        _, nbytes = self.registers.program[step.nbytes]
        if step.device in self.arenas:
            slot, most, place = self.arenas[step.device]
        else:
            slot, most, place = self.new(), 0, len(self.steps)
            self.steps.append(step)
            self.named.append(())
        self.arenas[step.device] = slot, max(most, nbytes), place
        return slot

    def plan(self, results: Sequence[Hashable], graphs: str) -> Plan:
        """The plan of the whole, which gives ``results``. ``graphs``: see ``runtime.plan.Plan``."""
        for device, (slot, nbytes, place) in self.arenas.items():
            self.steps[place] = Arena(slot, device, self.registers.reg(nbytes))
        outputs = tuple(self.slots[name] for name in results)
        between = self.between.difference(outputs, range(self.n_inputs))
        last: dict[int, int] = {}
        for k, named in enumerate(self.named):
            for slot in named:
                if slot in between:
                    last[slot] = k
        dying: dict[int, list[Step]] = {}
        for slot, k in last.items():
            dying.setdefault(k, []).append(Free(slot))
        compute = tuple(s for k, step in enumerate(self.steps) for s in (step, *dying.get(k, ())))
        plan = Plan(n_inputs=self.n_inputs, n_ints=0, regs=tuple(self.registers.program), n_slots=self.new(),
                    compute=compute, outputs=outputs, graphs=graphs,
                    aligned=None if self.every_aligned else tuple(sorted(self.aligned)))
        plan.check()
        return plan


def together(parts: Sequence[CompiledGraph], stamper: Stamper, results: Sequence[Hashable],
             graphs: str) -> CompiledGraph:
    """The whole that ``stamper`` has written of these parts."""
    kernels = {name: (name, text) for compiled in parts for name, text in compiled.kernels}
    loops = {name: loop for compiled in parts for name, loop in compiled.loops.items()}
    plan = stamper.plan(results, graphs)
    return dataclasses.replace(parts[0], plan=plan, kernels=list(kernels.values()), loops=loops,
                               launches=stamper.launches, described=_described(parts, stamper, plan))


def _described(parts: Sequence[CompiledGraph], stamper: Stamper, plan: Plan) -> Described | None:
    """What the whole does, part by part in the order in which each is first run, where someone asks for it."""
    by_id = {id(part): part for part in parts}
    found = [(by_id[of].described, times) for of, times in stamper.times.items()]
    return None if any(d is None for d, _ in found) else several_times(found, plan)  # type: ignore[arg-type]


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a step or an argument, and whether they name slots."""
    which = ("READS", "WRITES", "MAKES", "FREES", "SLOTS")
    named = {getattr(kind, "WITHIN", ""), *(name for part in which for name in getattr(kind, part, ()))}
    return tuple((name, name in named) for name in fields_of(kind))


def moved(step: Any, slot: Callable[[int], int]) -> Any:
    """A step, or an argument of an operator, with other slots."""
    return type(step)(*[_moved(getattr(step, name), slot) if is_slot else getattr(step, name)
                        for name, is_slot in _fields(type(step))])


def _moved(value: Any, slot: Callable[[int], int]) -> Any:
    if type(value) is int:
        return slot(value)
    if type(value) is tuple:
        return tuple([_moved(v, slot) for v in value])
    return moved(value, slot) if isinstance(value, Argument) else value
