"""What a scheduled graph does, a class for each kind of step, before anything has a slot or a register: each step
writes its own part of the runtime's plan. See ``emit_plan`` for the writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable

import torch

from .. import devices
from ..by_class import by_class
from ..graph import dims
from ..graph.ir import Ref
from ..runtime.steps import Alloc, Argument, Aten, Call, Check, Const, Flag, Reg, Regs, Several, Slot, Slots, View, Vjp
from . import failing
from .library_calls import REPLAY, arguments_of, out_form
from .lower import ERROR
from .target import target_of

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Storage
    from .emit_plan import PlanWriter
    from .loops import Kernel


@dataclass(frozen=True)
class Touch:
    """Memory that nothing writes, since it has no elements."""

    storage: Storage

    def write(self, writer: PlanWriter) -> None:
        writer.begin(self.storage)


@dataclass(frozen=True)
class RunKernel:
    """A run of the loop kernel ``number`` on storages, or ``ERROR`` for where it reports an index out of range.
    ``commits``: whether it writes an input, with which the plan's commit begins."""

    number: int
    arguments: tuple[Storage | str, ...]
    device: torch.device
    commits: bool = False

    def write(self, writer: PlanWriter, name: str = "") -> None:
        """``name``: of the step, where it is not of this run alone."""
        p, regs = writer.p, writer.regs
        name = name or p.name_of((self,))
        kernel, key = p.launches[self.number], p.launch_keys[self.number]
        flag, traps = None, devices.backend(self.device).traps
        writer.committing |= self.commits
        if ERROR in self.arguments:
            flag = writer.pinned_slot()
            # A kernel that stops by itself is given some valid memory.
            writer.add(Alloc(flag, torch.int32, self.device, (), ()) if traps else Flag(flag))
        slots = tuple(flag if a == ERROR else writer.begin(a) for a in self.arguments)
        sizes = tuple(regs.symbol(n) for n in kernel.sizes)
        written = tuple(s for s, b in zip(slots, kernel.buffers) if b.role != "in")
        if p.options.target == "reference":
            writer.add(Call(p.code[key], slots, sizes, written, name))
        else:
            step = target_of(kernel.device).step(p.code[key], slots, sizes, written, _number(writer, key, kernel))
            writer.add(replace(step, name=name))
        if flag is not None and not traps:
            writer.add(Check(flag, "index out of range in self"))


@dataclass(frozen=True)
class RunTogether:
    """Runs of loop kernels that need nothing of each other as one step (``joining``): one kernel, ``key``, that reads
    and writes from other places of the storages on. ``kernels``: it for each run, with that one's sizes; ``offsets``:
    these places, in elements, of each run; ``values``: what is known of each one's sizes."""

    runs: tuple[RunKernel, ...]
    kernels: tuple[Kernel, ...]
    offsets: tuple[tuple[int, ...], ...]
    values: tuple[dict[str, int], ...]
    key: tuple

    @property
    def arguments(self) -> tuple[Storage, ...]:
        """Those of all runs."""
        return tuple(a for run in self.runs for a in run.arguments)

    def write(self, writer: PlanWriter) -> None:
        p, regs = writer.p, writer.regs
        name = p.name_of(self.runs)
        if self.key not in p.joined:  # in any order
            for run in reversed(self.runs):
                run.write(writer, name)
            return
        slots = tuple(tuple(map(self._place, [writer] * len(offsets), run.arguments, offsets))
                      for run, offsets in zip(self.runs, self.offsets))
        writer.committing |= any(run.commits for run in self.runs)
        ints = tuple(tuple(regs.reg(values[n]) if n in values else regs.symbol(n) for n in kernel.sizes)
                     for kernel, values in zip(self.kernels, self.values))
        written = tuple(s for of_one in slots for s, b in zip(of_one, self.kernels[0].buffers) if b.role != "in")
        numbers = [_number(writer, self.key, kernel, values) for kernel, values in zip(self.kernels, self.values)]
        step = target_of(self.kernels[0].device).joined_step(p.code[self.key], slots, ints, written, numbers)
        writer.add(replace(step, name=name))

    @staticmethod
    def _place(writer: PlanWriter, storage: Storage, offset: int) -> int:
        slot = writer.begin(storage)
        if offset == 0:
            return slot
        source, slot = slot, writer.new_slot()
        writer.add(View(slot, source, (), (), writer.regs.reg(offset)))
        return slot


def _number(writer: PlanWriter, key: tuple, kernel: Kernel,
            values: Mapping[str, int] = MappingProxyType({})) -> Callable:
    """What gives the register of an expression over the sizes of what is compiled, for one of its runs. ``values``:
    those of sizes that are known."""
    own = {a: values.get(b, dims.Sym(b)) for a, b in zip(writer.p.named[key].sizes, kernel.sizes)}
    return lambda e: writer.regs.reg(dims.subst(e, own))


@dataclass(frozen=True)
class CallLibrary:
    """A call of an operator of the library."""

    node: Node

    def write(self, writer: PlanWriter) -> None:
        node = self.node
        if node.op != "aten_call":
            return
        target, overload, given = node.attrs["target"], node.attrs["overload"], node.attrs["args"]
        if target == REPLAY:
            self._write_gradient(writer)
            return
        args, form = _arguments(writer, target, overload, given, node), out_form(node)
        if form:
            slot = writer.begin(writer.storages[node])
            writer.add(Aten(target, form, (*args, Slot(slot)), (writer.new_slot(),), (None,), failing.manners(node),
                            (slot,)))
        else:
            writer.add(Aten(target, overload, args, *self._results(writer), failing.manners(node)))

    def _write_gradient(self, writer: PlanWriter) -> None:
        """The gradient of a library call by PyTorch's autograd; see ``graph.autodiff.replay``."""
        node = self.node
        target, overload, template, wanted, present, *given = node.attrs["args"]
        args, rest = _arguments(writer, target, overload, template, node), iter(given)
        tangents = tuple(writer.tensor(node.inputs[next(rest).index]) if p else None for p in present)
        outs, expect = self._results(writer)
        writer.add(Vjp(target, overload, args, tuple(writer.tensor(node.inputs[k]) for k in wanted), tangents, outs,
                       expect, () if node.repeatable else ("draws",)))

    def _results(self, writer: PlanWriter) -> tuple[tuple[int | None, ...], tuple[tuple | None, ...]]:
        """(slots of the results, their sizes, strides and dtypes, which the plan checks: what a run on meta tensors
        says of a kernel need not be so)."""
        node, regs, storages = self.node, writer.regs, writer.storages
        results = writer.getitems.get(node, {}) if node.several else {0: node}
        outs = [storages[results[i]].slot if results.get(i) in storages else None for i in range(len(node.types))]
        expect = tuple(None if t is None or o is None else (regs.regs(t.shape), regs.regs(t.strides), t.dtype)
                       for t, o in zip(node.types, outs))
        return tuple(o if o is not None or t is None else writer.new_slot() for o, t in zip(outs, node.types)), expect


def _arguments(writer: PlanWriter, target: str, overload: str, given: tuple[object, ...],
               node: Node) -> tuple[Argument, ...]:
    """The arguments of an operator, one for each of its schema."""
    positional = list(given)
    named = positional.pop() if positional and isinstance(positional[-1], dict) else {}
    return tuple(_argument(writer, named[a.name] if a.name in named else positional[k], node)
                 if a.name in named or k < len(positional) else Const(a.default_value)
                 for k, a in enumerate(arguments_of(target, overload)))


def _argument(writer: PlanWriter, value: object, node: Node) -> Argument:
    write = by_class(_ARGUMENTS, value)
    return Const(value) if write is None else write(writer, value, node)


def _list_argument(writer: PlanWriter, values: tuple | list, node: Node) -> Argument:
    kinds = set(map(type, values))
    if not kinds & {Ref, dims.Dim}:
        return Const(list(values))
    if kinds <= {Ref, type(None)}:
        return Slots(tuple(None if v is None else writer.tensor(node.inputs[v.index]) for v in values))
    if kinds <= {dims.Dim, int, bool}:
        return Regs(writer.regs.regs(values))
    return Several(tuple(_argument(writer, v, node) for v in values))


_ARGUMENTS: dict[type, Callable] = {
    Ref: lambda writer, ref, node: Slot(writer.tensor(node.inputs[ref.index])),
    dims.Dim: lambda writer, size, node: Reg(writer.regs.reg(size)),
    list: _list_argument, tuple: _list_argument,
}
