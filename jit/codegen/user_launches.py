"""Launches of Triton kernels of the program's own in a plan: the step, and where its results lie.

In the graph such a kernel makes new memory of what it writes (``jit.runtime.user_kernels``). Here that memory is, where
nobody needs the old content any more, the very memory that it was given, as in eager: a temporary that is not read
later, or an input whose new value this is. Else the old content is copied first, if there is any.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.ir import Ref
from ..runtime.steps import Alloc, Copy, Launch, View
from ..runtime.user_kernels import Number, Pointer, spec_of
from ..runtime.user_kernels import Launch as LaunchSpec
from .failing import last_failing
from .indexing import base_of, offset_in_base, unaliased
from .library_calls import device_of, is_launched
from .planned import CallLibrary
from .triton.user_kernels import bits, capability_of, code_of

DIVISIBLE = 16

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Buffers
    from .emit_plan import PlanWriter
    from .planner import Planner


class Call:
    """What a node says. ``memory``: the values that it is given, None for memory that nobody has written;
    ``numbers``: see ``jit.runtime.user_kernels``."""

    def __init__(self, node: Node) -> None:
        name, memory, self.numbers = node.attrs["args"]
        self.node, self.spec = node, spec_of(name)
        assert isinstance(self.spec, LaunchSpec)
        self.memory: list[Node | None] = [node.inputs[m.index] if isinstance(m, Ref) else None for m in memory]


def call_of(node: Node) -> Call | None:
    """The launch that a node is, if it is one that plans launch."""
    return Call(node) if node.op == "aten_call" and is_launched(node) else None


# ---- memory ---------------------------------------------------------------------------------------------------------


def write_where_it_lies(b: Buffers) -> None:
    """Give what launches write the memory of what they read, where that is possible; fills in ``direct`` and
    ``commits`` as ``direct_writes`` does."""
    order = b.schedule.order
    last = last_failing(b)
    shown = Counter(unaliased(o.node) for o in b.graph.outputs)
    results: dict[Node, list[Node]] = {}
    for n in b.graph.nodes:
        if n.op == "getitem":
            results.setdefault(n.inputs[0], []).append(n)
    for t, step in enumerate(order):
        call = None if step.members else call_of(step.node)
        for n in results.get(step.node, ()) if call is not None else ():
            assert call is not None
            old = call.memory[call.spec.written[n.attrs["index"]]]
            if not _into_an_input(b, n, call, old, t, last, shown):
                _into_a_temporary(b, n, call, old, t)


def _into_an_input(b: Buffers, n: Node, call: Call, old: Node | None, t: int, last: int,
                   shown: Counter[Node]) -> bool:
    """Where the kernel makes the new value of an input, behind all that may fail."""
    o = next((o for o in b.graph.outputs if o.mutates is not None and unaliased(o.node) is n), None)
    if o is None or o.mutates is None or shown[n] != 1 or t <= last:
        return False
    target, s, end = b.graph.inputs[o.mutates], b.storages[n], len(b.schedule.order)
    if (s.kind != "temp" or not b.aliased.isdisjoint((n, target)) or n.type != target.type
            or sum(other is s for other in b.storages.values()) != 1
            or any(t < reader < end for reader in b.uses.get(target, ()))
            or any(m is not None and b.storages.get(unaliased(m)) is b.storages[target] and m is not old
                   for m in call.memory) or call.memory.count(old) > 1):
        return False
    if old is not target and target in call.memory:
        return False
    b.storages[n] = b.storages[target]
    b.direct.add(o)
    b.commits.add(t)
    return True


def _into_a_temporary(b: Buffers, n: Node, call: Call, old: Node | None, t: int) -> None:
    """Where the old value is not needed any more."""
    if old is None or call.memory.count(old) > 1 or old.type != n.type:
        return
    s, kept = b.storages[n], b.storages.get(old)
    if kept is None or kept is s or kept.last != t or kept.first >= t or kept.type != s.type or s.first != t:
        return
    if any(m is not None and m is not old and b.storages.get(m) is kept for m in call.memory):
        return
    if kept.kind == "extern":
        if kept.loose or not b.aliased.isdisjoint((old, n)):
            return
    elif kept.kind != "temp":
        return
    elif s.kind == "alloc":  # it outlives the call
        if sum(other is kept for other in b.storages.values()) != 1:
            return
        kept.kind = "alloc"
    kept.last = s.last
    b.storages.update((m, kept) for m, other in list(b.storages.items()) if other is s)


# ---- the step -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaunchUserKernel(CallLibrary):
    """A launch."""

    def write(self, writer: PlanWriter) -> None:
        call, regs = Call(self.node), writer.regs
        spec, storages = call.spec, writer.storages
        results = writer.getitems.get(self.node, {})
        given: list[int | None] = [None if m is None or k in spec.written else writer.tensor(m)
                                   for k, m in enumerate(call.memory)]
        unaligned = {k for k, m in enumerate(call.memory) if m is not None and not _aligned(writer.p, m)}
        written: list[int] = []
        for i, k in enumerate(spec.written):
            result, old = results.get(i), call.memory[k]
            own = None if result is None else storages.get(result)
            if own is None:  # nobody reads it
                slot = writer.new_slot()
                t = self.node.types[i]
                writer.add(Alloc(slot, t.dtype, t.device, regs.regs(t.shape), regs.regs(t.strides)))
            else:
                writer.committing |= own.kind == "input"
                slot = writer.begin(own)
                if own.kind != "input" or writer.p.options.unaligned.isdisjoint((own.slot,)):
                    unaligned.discard(k)
                    if own.kind == "input":
                        writer.p.aligned_inputs.add(own.slot)
                    elif own.kind == "extern" and own.loose:
                        unaligned.add(k)
                else:
                    unaligned.add(k)
            if old is not None and storages.get(unaliased(old)) is not own:
                writer.add(Copy(slot, writer.tensor(old)))
            given[k] = slot
            written.append(slot)
        code = code_of(spec, frozenset(unaligned), capability_of(device_of(self.node)))
        if code is None:
            raise NotImplementedError(f"{spec.kernel} cannot be launched for addresses that are not aligned")
        arguments = dict(spec.arguments)
        taken = [(name, arguments[name]) for name in code.parameters]
        pointers = tuple(self._place(writer, call, given, a) for _, a in taken if isinstance(a, Pointer))
        kinds = iter(code.kinds)
        ints = tuple(regs.reg(call.numbers[a.at]) if isinstance(a, Number) else regs.reg(bits(kind, a))
                     for (_, a), kind in zip([p for p in taken if not isinstance(p[1], Pointer)], kinds))
        ((_, at),) = spec.grids
        writer.add(Launch(code.kernel, pointers, ints, regs.regs(tuple(call.numbers[at: at + 3])), tuple(written),
                          code.kernel.name))

    @staticmethod
    def _place(writer: PlanWriter, call: Call, given: list[int | None], pointer: Pointer) -> int:
        """The slot that begins where an argument does."""
        slot, offset = given[pointer.memory], call.numbers[pointer.offset]
        assert slot is not None
        if type(offset) is int and offset == 0:
            return slot
        made = writer.new_slot()
        writer.add(View(made, slot, (), (), writer.regs.reg(offset)))
        return made


def _aligned(planner: Planner, node: Node) -> bool:
    """Whether a value lies at an address that kernels may take for an aligned one, on which is relied from here on."""
    storage, offset = planner.buffers.storages[base_of(node)], offset_in_base(node)
    if not planner.is_aligned(storage) or type(offset) is not int or offset * node.type.dtype.itemsize % DIVISIBLE:
        return False
    if storage.kind == "input":
        planner.aligned_inputs.add(storage.slot)
    return True
