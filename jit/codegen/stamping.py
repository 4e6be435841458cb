"""One plan for a graph of which parts have plans of their own, some of them done several times: the layers of a deep
network are compiled once, and the steps of their plan written once for each (``graph.repeats`` finds them).

The steps stay as they are but for their slots. All parts share one block of memory for what lives within a part; what
goes on from one part to another has a slot of its own, and is let go of behind the last step that names it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.plan import Plan
from ..runtime.steps import Arena, Argument, Free, fields_of

if TYPE_CHECKING:

    from ..graph.ir import Graph, Node
    from ..graph.repeats import Repeat
    from ..runtime.steps import Step
    from .planner import CompiledGraph
    from .registers import Registers


class Stamper:
    """Writes the plan of a whole graph. All plans of its parts have to be made with the same ``registers``."""

    def __init__(self, graph: Graph, registers: Registers) -> None:
        self.graph, self.registers = graph, registers
        self.slots: dict[Node, int] = {n: k for k, n in enumerate(graph.inputs)}  # of what goes on between parts
        self.new = itertools.count(len(graph.inputs)).__next__
        self.steps: list[Step] = []
        self.arenas: dict[Any, tuple[int, int, int]] = {}  # device -> slot, bytes, and place among the steps
        self.aligned: set[int] = set()
        self.every_aligned = False

    def stamp(self, plan: Plan, reads: Sequence[Node], results: Sequence[Node | None]) -> None:
        """Add the steps of a part: its inputs are ``reads``, its results are known as ``results`` from here on."""
        slots = dict(enumerate(self.slots[n] for n in reads))
        if plan.aligned is None:
            self.every_aligned = True
        else:
            self.aligned.update(slots[k] for k in plan.aligned if slots[k] < len(self.graph.inputs))

        def slot(old: int) -> int:
            found = slots.get(old)
            if found is None:
                found = slots[old] = self.new()
            return found

        for step in (*plan.compute, *plan.commit):
            if type(step) is Arena:
                slots[step.slot] = self.arena(step)
            else:
                self.steps.append(moved(step, slot))
        for node, old in zip(results, plan.outputs, strict=True):
            if node is not None:
                self.slots[node] = slot(old)

    def arena(self, step: Arena) -> int:
        """The slot of the block that all parts share on a device."""
        _, nbytes = self.registers.program[step.nbytes]
        if step.device in self.arenas:
            slot, most, place = self.arenas[step.device]
        else:
            slot, most, place = self.new(), 0, len(self.steps)
            self.steps.append(step)
        self.arenas[step.device] = slot, max(most, nbytes), place
        return slot

    def plan(self, graphs: str) -> Plan:
        """The whole plan. ``graphs``: see ``runtime.plan.Plan``."""
        for device, (slot, nbytes, place) in self.arenas.items():
            self.steps[place] = Arena(slot, device, self.registers.reg(nbytes))
        outputs = tuple(self.slots[o.node] for o in self.graph.outputs)
        between = set(self.slots.values()).difference(outputs, range(len(self.graph.inputs)))
        last: dict[int, int] = {}
        for k, step in enumerate(self.steps):
            last.update((slot, k) for slot in step.slots if slot in between)
        dying: dict[int, list[Step]] = {}
        for slot, k in last.items():
            dying.setdefault(k, []).append(Free(slot))
        compute = tuple(s for k, step in enumerate(self.steps) for s in (step, *dying.get(k, ())))
        plan = Plan(n_inputs=len(self.graph.inputs), n_ints=0, regs=tuple(self.registers.program), n_slots=self.new(),
                    compute=compute, outputs=outputs, aligned=None if self.every_aligned else tuple(sorted(self.aligned)),
                    graphs=graphs)
        plan.check()
        return plan


def stamped(graph: Graph, repeat: Repeat, parts: tuple[CompiledGraph, ...], registers: Registers,
            graphs: str) -> CompiledGraph:
    """The whole graph, of its three parts, each compiled with ``registers``."""
    stamper = Stamper(graph, registers)
    launches: list = []
    for part, compiled in zip((repeat.before, repeat.window, repeat.after), parts, strict=True):
        for reads, results in zip(part.reads, part.results, strict=True):
            stamper.stamp(compiled.plan, reads, results)
            launches += compiled.launches
    kernels = {name: (name, text) for compiled in parts for name, text in compiled.kernels}
    loops = {name: loop for compiled in parts for name, loop in compiled.loops.items()}
    return dataclasses.replace(parts[0], plan=stamper.plan(graphs), kernels=list(kernels.values()), loops=loops,
                               launches=launches)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a step or an argument, and whether they name slots."""
    named = {name for attribute in ("READS", "WRITES", "MAKES", "FREES", "SLOTS") for name in getattr(kind, attribute, ())}
    named |= {kind.WITHIN} if getattr(kind, "WITHIN", "") else set()
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
