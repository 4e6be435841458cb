"""The last step of planning: what a scheduled graph does becomes the runtime's plan, with slots, registers and
offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import devices, turns
from ..runtime.plan import Plan
from ..runtime.steps import Alloc, Arena, Copy, Temp, View
from . import indexing, memory
from .frees import with_frees
from .indexing import VIEWS, base_of
from .library_calls import out_form

if TYPE_CHECKING:
    from ..graph.ir import Node
    from ..runtime.steps import Step
    from .buffers import Storage
    from .planner import Planner


class PlanWriter:
    """Writes a plan; the steps of ``planned.py`` use it."""

    def __init__(self, planner: Planner) -> None:
        self.p, self.regs, self.buffers = planner, planner.regs, planner.buffers
        self.storages, self.new_slot = self.buffers.storages, self.buffers.new_slot
        self.compute, self.commit, self.begun, self.view_slots = [], [], set(), {}
        self.committing = False
        self.arena_slot, self.arenas = {}, {}
        self.pinned = set(range(len(planner.graph.inputs)))
        self.getitems = {}  # library call -> {number of a result: the node that stands for it}
        for n in planner.graph.nodes:
            if n.op == "getitem":
                self.getitems.setdefault(n.inputs[0], {})[n.attrs["index"]] = n

    def add(self, step: Step) -> None:
        """Add a step. From the first kernel on that writes an input, what does not raise belongs to the commit; what
        makes memory and names its parts comes before it."""
        (self.commit if self.committing and not step.may_raise else self.compute).append(step)

    def pinned_slot(self) -> int:
        """A new slot that is not freed."""
        slot = self.new_slot()
        self.pinned.add(slot)
        return slot

    # memory

    def lay_out_arenas(self) -> None:
        spans = {}
        seen = set()
        for s in [*self.storages.values(), *self.buffers.partial]:
            if s.kind == "temp" and id(s) not in seen:
                seen.add(id(s))
                spans.setdefault(s.type.device, []).append(memory.Span(s, s.nbytes, s.first, s.last))
        for device, found in spans.items():
            self.arenas[device] = memory.plan_arena(found, devices.backend(device).memory_alignment)
            slot = self.arena_slot[device] = self.pinned_slot()
            self.add(Arena(slot, device, self.regs.reg(self.arenas[device].nbytes)))

    def begin(self, s: Storage) -> int:
        """The slot of a storage, allocated at its first use."""
        if s.kind == "part" and id(s) not in self.begun:
            assert s.whole is not None
            self.begun.add(id(s))
            self.add(View(s.slot, self.begin(s.whole), self.regs.regs(s.type.shape), self.regs.regs(s.type.strides),
                          self.regs.reg(s.offset)))
        if s.kind in ("alloc", "temp") and id(s) not in self.begun:
            self.begun.add(id(s))
            t = s.type
            layout = (self.regs.regs(t.shape), self.regs.regs(t.strides))
            if s.kind == "alloc":
                self.add(Alloc(s.slot, t.dtype, t.device, *layout))
            else:
                offset = self.regs.reg(self.arenas[t.device].offsets[s])
                self.add(Temp(s.slot, self.arena_slot[t.device], offset, t.dtype, t.device, *layout))
        return s.slot

    def tensor(self, node: Node) -> int:
        """The slot that holds a node's value as a tensor: its storage's, or that of a view of it."""
        base = base_of(node)
        s = self.storages[base]
        slot = self.begin(s)
        t = node.type
        if node.op not in VIEWS and t == s.type:
            return slot
        if (t == s.type and type(indexing.offset_in_base(node)) is int
            and indexing.offset_in_base(node) == 0 and s.kind != "input"):
            return slot
        found = self.view_slots.get(node)
        if found is None:
            found = self.view_slots[node] = self.view(node, slot)
        return found

    def view(self, node: Node, source: int) -> int:
        """A new slot with ``node``'s value as a view of the storage in the slot ``source``."""
        slot = self.new_slot()
        offset = self.regs.reg(indexing.offset_in_base(node))
        self.add(View(slot, source, self.regs.regs(node.type.shape), self.regs.regs(node.type.strides), offset))
        return slot

    def results_of_graph(self) -> list:
        """The slots of the results. Two results are two objects, which a view of all of its memory, ``y[:]`` beside
        ``y``, would not be: a slot is one tensor, so only the memory's owner has it, and others get views of it."""
        nodes = [o.node for o in self.p.graph.outputs if o.mutates is None]
        slots = [self.tensor(n) for n in nodes]
        return [self.view(n, self.begin(self.storages[base_of(n)])) if n.op in VIEWS and slots.count(s) > 1
                else s for n, s in zip(nodes, slots)]

    # the whole

    def show_as_returned(self) -> None:
        """Give memory of ours the type in which alone it is returned, where that is another shape of all of it. The
        library's calls refuse a result of another shape than they compute."""
        returned = [o.node for o in self.p.graph.outputs]
        bases = [base_of(n) for n in returned]
        for n, base in zip(returned, bases):
            s = self.storages.get(base)
            if (n.op == "reshape" and n.inputs[0] is base and s is not None and s.kind == "alloc"
                and s.type == base.type and bases.count(base) == 1 and out_form(base) is None):
                s.type = n.type

    def write(self) -> Plan:
        p = self.p
        self.show_as_returned()
        self.lay_out_arenas()
        for step in p.steps:
            turns.point()
            step.write(self)
        copies = [Copy(o.mutates, self.tensor(o.node)) for o in p.graph.outputs
                  if o.mutates is not None and o not in self.buffers.direct]
        outputs = self.results_of_graph()
        compute, commit = with_frees((self.compute, [*self.commit, *copies]), {*outputs, *self.pinned},
                                     self.arena_slot.values())
        plan = Plan(n_inputs=len(p.graph.inputs), n_ints=len(self.regs.int_symbols), regs=tuple(self.regs.program),
                    n_slots=self.buffers.n_slots, compute=compute, outputs=tuple(outputs), commit=commit,
                    mutates=tuple(sorted(o.mutates for o in self.buffers.direct)),
                    aligned=tuple(sorted(p.aligned_inputs)), graphs=p.options.graphs)
        plan.check()
        return plan


def emit(planner: Planner) -> Plan:
    """The runtime Plan of a scheduled and compiled Planner."""
    return PlanWriter(planner).write()
