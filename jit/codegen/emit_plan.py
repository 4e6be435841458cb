"""The last step of planning: abstract steps with storages become the runtime's plan with slots, registers and
offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import devices
from ..graph import dims
from ..graph.ir import Ref
from ..graph.op_info import op_info
from ..runtime.plan import Plan
from . import failing, indexing, memory
from .indexing import VIEWS, base_of
from .library_calls import REPLAY, arguments_of
from .lower import ERROR
from .target import target_of

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .planner import Planner, Storage


KERNELS = ("call", "launch")  # the steps that run kernels


def out_form(node: Node) -> str | None:
    """The overload of a library call that writes into a given tensor, or None."""
    if node.op != "aten_call" or isinstance(node.type, tuple) or not devices.backend(node.type.device).memory:
        return None
    return op_info(node.attrs["target"]).out_form if node.attrs["overload"] == "" else None


class _PlanWriter:
    def __init__(self, planner: Planner) -> None:
        self.p, self.regs = planner, planner.regs
        self.steps, self.begun, self.view_slots = [], set(), {}
        self.arena_slot, self.arenas = {}, {}
        self.pinned = set(range(planner.n_inputs))
        self.commit = None  # the number of the first step that writes an input

    # memory

    def lay_out_arenas(self) -> None:
        spans = {}
        seen = set()
        for s in [*self.p.storages.values(), *self.p.extra_temps]:
            if s.kind == "temp" and id(s) not in seen:
                seen.add(id(s))
                spans.setdefault(s.type.device, []).append(memory.Span(s, s.nbytes, s.first, s.last))
        for device, found in spans.items():
            self.arenas[device] = memory.plan_arena(found, devices.backend(device).memory_alignment)
            self.arena_slot[device] = self.p.new_slot()
            self.pinned.add(self.arena_slot[device])
            self.steps.append(("arena", self.arena_slot[device], device, self.regs.reg(self.arenas[device].nbytes)))

    def begin(self, s: Storage) -> int:
        """The slot of a storage, allocated at its first use."""
        if s.kind in ("alloc", "temp") and id(s) not in self.begun:
            self.begun.add(id(s))
            t = s.type
            layout = (self.regs.regs(t.shape), self.regs.regs(t.strides))
            if s.kind == "alloc":
                self.steps.append(("alloc", s.slot, t.dtype, t.device, *layout))
            else:
                offset = self.regs.reg(self.arenas[t.device].offsets[s])
                self.steps.append(("temp", s.slot, self.arena_slot[t.device], offset, t.dtype, t.device, *layout))
        return s.slot

    def tensor(self, node: Node) -> int:
        """The slot that holds a node's value as a tensor: its storage's, or that of a view of it."""
        base = base_of(node)
        s = self.p.storages[base]
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
        slot = self.p.new_slot()
        offset = self.regs.reg(indexing.offset_in_base(node))
        self.steps.append(("view", slot, source, self.regs.regs(node.type.shape),
                           self.regs.regs(node.type.strides), offset))
        return slot

    def results_of_graph(self) -> list:
        """The slots of the results. Two results are two objects, which a view of all of its memory, ``y[:]`` beside
        ``y``, would not be: a slot is one tensor, so only the memory's owner has it, and others get views of it."""
        nodes = [o.node for o in self.p.graph.outputs if o.mutates is None]
        slots = [self.tensor(n) for n in nodes]
        return [self.view(n, self.begin(self.p.storages[base_of(n)])) if n.op in VIEWS and slots.count(s) > 1
                else s for n, s in zip(nodes, slots)]

    # steps

    def kernel(self, number: int, arguments: list[Storage | str], device: torch.device) -> None:
        kernel = self.p.launches[number]
        flag, traps = None, devices.backend(device).traps
        if ERROR in arguments:
            flag = self.p.new_slot()
            self.pinned.add(flag)
            if traps:  # the kernel stops by itself; it is given some valid memory
                self.steps.append(("alloc", flag, torch.int32, device, (), ()))
            else:
                self.steps.append(("flag", flag))
        slots = tuple(flag if a == ERROR else self.begin(a) for a in arguments)
        sizes = tuple(self.regs.symbol(n) for n in kernel.sizes)
        key = self.p.launch_keys[number]
        code = self.p.code[key]
        if self.p.options.target == "reference":
            self.steps.append(("call", code, slots, sizes))
        else:
            own = {a: dims.Sym(b) for a, b in zip(self.p.named[key].sizes, kernel.sizes)}
            self.steps.append(target_of(kernel.device).step(code, slots, sizes,
                                                            lambda e: self.regs.reg(dims.subst(e, own))))
        if flag is not None and not traps:
            self.steps.append(("check", flag, "index out of range in self"))

    def extern(self, node: Node) -> None:
        if node.op != "aten_call":
            return
        target, overload = node.attrs["target"], node.attrs["overload"]
        if target == REPLAY:
            self.replay(node)
            return
        args = self.arguments(target, overload, node.attrs["args"], node)
        form = out_form(node)
        if form:
            slot = self.begin(self.p.storages[node])
            self.steps.append(("aten", target, form, (*args, ("slot", slot)),
                               (self.p.new_slot(),), (None,), failing.manners(node)))
            return
        outs, expect = self.results(node)
        self.steps.append(("aten", target, overload, args, outs, expect, failing.manners(node)))

    def replay(self, node: Node) -> None:
        """The gradient of a library call by PyTorch's autograd; see ``graph.autodiff.replay``."""
        target, overload, template, wanted, present, *given = node.attrs["args"]
        args = self.arguments(target, overload, template, node)
        given = iter(given)
        tangents = tuple(self.tensor(node.inputs[next(given).index]) if p else None for p in present)
        outs, expect = self.results(node)
        self.steps.append(("vjp", target, overload, args, tuple(self.tensor(node.inputs[k]) for k in wanted),
                           tangents, outs, expect, () if node.repeatable else ("draws",)))

    def results(self, node: Node) -> tuple[tuple[int | None, ...], tuple[tuple | None, ...]]:
        """(slots of the results, their sizes, strides and dtypes, which the plan checks: what a run on meta tensors
        says of a kernel need not be so)."""
        types = node.types
        if isinstance(node.type, tuple):
            results = {n.attrs["index"]: n for n in self.p.getitems.get(node, ())}
            outs = [self.p.storages[results[i]].slot if i in results and results[i] in self.p.storages
                    else None for i in range(len(types))]
        else:
            outs = [self.p.storages[node].slot]
        expect = [None if t is None or o is None else (self.regs.regs(t.shape), self.regs.regs(t.strides), t.dtype)
                  for t, o in zip(types, outs)]
        return tuple(o if o is not None or t is None else self.p.new_slot() for o, t in zip(outs, types)), tuple(expect)

    def arguments(self, target: str, overload: str, given: tuple[object, ...], node: Node) -> tuple:
        """Argument records of an operator, one for each argument of its schema."""
        given = list(given)
        named = given.pop() if given and isinstance(given[-1], dict) else {}
        args = []
        for k, a in enumerate(arguments_of(target, overload)):
            if a.name in named:
                args.append(self.argument(named[a.name], node))
            elif k < len(given):
                args.append(self.argument(given[k], node))
            else:
                args.append(("const", a.default_value))
        return tuple(args)

    def argument(self, value: object, node: Node) -> tuple[str, object]:
        """One argument record of a library call."""
        if isinstance(value, Ref):
            return ("slot", self.tensor(node.inputs[value.index]))
        if isinstance(value, dims.Dim):
            return ("reg", self.regs.reg(value))
        if isinstance(value, (tuple, list)):
            if any(isinstance(v, Ref) for v in value):
                if all(isinstance(v, Ref) or v is None for v in value):
                    return ("slots", tuple(None if v is None else self.tensor(node.inputs[v.index]) for v in value))
                return ("list", tuple(self.argument(v, node) for v in value))
            if any(isinstance(v, dims.Dim) for v in value):
                if all(isinstance(v, (dims.Dim, int)) for v in value):
                    return ("regs", self.regs.regs(value))
                return ("list", tuple(self.argument(v, node) for v in value))
            return ("const", list(value))
        return ("const", value)

    # the whole

    def write(self) -> Plan:
        p = self.p
        p.getitems = {}
        for n in p.graph.nodes:
            if n.op == "getitem":
                p.getitems.setdefault(n.inputs[0], []).append(n)
        self.lay_out_arenas()
        for step in p.steps:
            if step[0] == "kernel":
                if self.commit is None and step[4] in p.committing:
                    self.commit = len(self.steps)
                self.kernel(*step[1:4])
            elif step[0] == "extern":
                self.extern(step[1])
            else:
                self.begin(step[1])
        copies = []
        for o in p.graph.outputs:
            if o.mutates is not None and o not in p.direct:
                copies.append(("copy", o.mutates, self.tensor(o.node)))
        outputs = self.results_of_graph()
        self.write_last(copies)
        self.free(set(outputs))
        return Plan(n_inputs=p.n_inputs, n_ints=len(self.regs.int_symbols),
                    regs=tuple(self.regs.program), n_slots=p.n_slots,
                    steps=tuple(self.steps), outputs=tuple(outputs), mutates=tuple(sorted(o.mutates for o in p.direct)),
                    commit=self.commit,
                    aligned=tuple(sorted(p.aligned_inputs())))

    def write_last(self, copies: list[tuple[str, int, int]]) -> None:
        """Part the steps: what makes memory and names its parts belongs before the commit, which is the kernels that
        write inputs, those that follow them, and ``copies``."""
        if self.commit is None:
            self.commit = len(self.steps)
        writing = self.steps[self.commit:]
        self.steps[self.commit:] = [step for step in writing if step[0] not in KERNELS]
        self.commit = len(self.steps)
        self.steps += [step for step in writing if step[0] in KERNELS] + copies

    def free(self, outputs: set[int]) -> None:
        """Release tensors behind their last use; parts of an arena hold nothing of their own."""
        last, temps = {}, set()
        for k, step in enumerate(self.steps):
            if step[0] in ("temp", "arena"):
                temps.add(step[1])
            for s in slots_of(step):
                last[s] = k
            if step[0] == "view" and step[2] in temps:
                temps.add(step[1])
        out = []
        dying = {}
        for s, k in last.items():
            if s not in outputs and s not in self.pinned and s not in temps:
                dying.setdefault(k, []).append(s)
        commit = self.commit
        for k, step in enumerate(self.steps):
            if k == commit:
                self.commit = len(out)
            out.append(step)
            out += [("free", s) for s in dying.get(k, ())]
        if commit == len(self.steps):
            self.commit = len(out)
        self.steps = out


def slots_of(step: tuple[object, ...]) -> tuple[int, ...] | list[int]:
    """Every slot that a plan step names."""
    kind = step[0]
    if kind in KERNELS:
        return step[2]
    if kind in ("aten", "vjp"):
        outs = step[4] if kind == "aten" else (*step[4], *step[5], *step[6])
        found = [s for s in outs if s is not None]
        stack = list(step[3])
        while stack:
            a = stack.pop()
            if a[0] == "slot":
                found.append(a[1])
            elif a[0] == "slots":
                found += [s for s in a[1] if s is not None]
            elif a[0] == "list":
                stack += a[1]
        return found
    if kind in ("view", "copy"):
        return step[1:3]
    return step[1:2]


def emit(planner: Planner) -> Plan:
    """The runtime Plan of a scheduled and compiled Planner."""
    return _PlanWriter(planner).write()
