"""What was traced between two points, and once more with other tensors in the place of some.

The nodes of a stretch, and what autograd has to be told of its operations, say all that tracing them has done where
no memory was written that was there before. So the same operations on tensors of the same types are traced by copying
them: nothing is asked again of what each operation means.
"""

from __future__ import annotations

import bisect
import weakref
from typing import TYPE_CHECKING, Callable

from jit.graph.handles import Base, TensorHandle, next_number
from jit.graph.ir import Node
from jit.graph.nested import replaced
from jit.graph.prims import VIEWS
from jit.graph.probe import Described

if TYPE_CHECKING:
    from jit.graph.ir import Loc
    from jit.graph.tracer import Tracer

# What may become another while a stretch is traced: it is said of memory, and copied.
_COPIED = frozenset(("restricted", "fragile"))


def state_of(tracer: Tracer) -> list:
    """What operations depend on, beside their operands: things that are replaced, and never changed."""
    t = tracer
    return [t.grad_enabled, t.below, t.inference, t.unfolding, t.written_before, t.forward_mode, t.captured_before,
            t.inner_leaves, t.inner_gradients, t.spent, t.apart, t.depth, t.made_leaves, t.wrote_unseen, t.either,
            len(t.regions), t.places, t.steps_aside, t.doubted, t.builder.slices, t.builder.attention,
            *(part for kind in t.autocast.items() for part in kind)]


def is_same(before: list, now: list) -> bool:
    """Whether all things of a state are the same, or equal numbers."""
    return len(before) == len(now) and all(a is b or type(a) is type(b) is int and a == b for a, b in zip(before, now))


class Mark:
    """A point in what is traced."""

    def __init__(self, tracer: Tracer) -> None:
        self.nodes, self.events = len(tracer.builder.nodes), len(tracer.events)
        self.changes, self.env = tracer.journal.watch(), tracer.env.journal.watch()
        self.state = state_of(tracer)


def is_plain(handle: TensorHandle) -> bool:
    """Whether a tensor is nothing but its type, its views and whether it requires grad: no input, and nothing that is
    said of its memory beside that."""
    base = handle.base
    return (base.input is None and base.region is None and base.frozen is None and not base.shadows
            and base.physical is None and base.mapped is None and handle.member is None
            and handle.physical is None and not handle.stale and handle._version == base.version
            and not any(step.call for step in handle.chain))


def outline(handle: TensorHandle) -> tuple:
    """What two plain tensors have in common for which the same is traced."""
    base = handle.base
    return (handle.type, base.type, handle._grad, handle._leaf, base.grad, base.carries, base.fragile,
            tuple([(step.op, step.type, step.restricted, tuple(step.attrs.items()))
                   for step in handle.chain]))


class Stretch:
    """What was traced since ``begin``.

    Attributes:
        copyable: whether it may be copied.
        handles: those of its nodes that are graph inputs, and their handles.
        memory: that of these, and whether it is still fragile.
    """

    def __init__(self, tracer: Tracer, begin: Mark, results: list[TensorHandle]) -> None:
        b = tracer.builder
        self.end = len(b.nodes)
        self.nodes, self.events = b.nodes[begin.nodes:], tracer.events[begin.events:]
        self.ids = [n.id for n in self.nodes]
        self.handles = {h.node: h for h in tracer.inputs[_inputs_before(tracer, self.nodes):]}
        self.needs_grad = tracer.needs_grad
        self.changes = tracer.journal.watch()
        self.memory = {h.base: h.base.fragile for h in self.handles.values()}
        own = set(self.nodes)
        self.copyable = (
            only_said(begin.changes.new()) and begin.env.new() == [] and is_same(begin.state, state_of(tracer))
            # A function of ours holds descriptions of its own.
            and not any(event.wrote or type(event.fn).__module__.startswith("jit.") for event in self.events)
            and not any(h.base.mutated or h.base.region is not None for h in self.handles.values())
            and all(h.base.node not in own or is_plain(h) for h in results))

    def still_there(self, tracer: Tracer) -> bool:
        """Whether it was not taken back, and nothing was written since this was last asked."""
        nodes = tracer.builder.nodes
        if self.nodes and not (len(nodes) >= self.end and nodes[self.end - 1] is self.nodes[-1]):
            return False
        return only_said(self.changes.new())


def only_said(changes: list[tuple] | None) -> bool:
    """Whether nothing was changed but what a copy has too."""
    return changes is not None and all(type(c[0]) is Base and c[1] in _COPIED for c in changes)


def _inputs_before(tracer: Tracer, nodes: list[Node]) -> int:
    return len(tracer.inputs) - sum(n.op == "input" for n in nodes)


class Copy:
    """One copy of a stretch.

    Args:
        given: (a tensor that the stretch was given, the one in its place) of each that is another.
        make_input: from a graph input's handle to the handle of the tensor in its place; None where there is none.
        place: from a node's source position to that of its copy.
    """

    def __init__(self, tracer: Tracer, stretch: Stretch, given: list[tuple[TensorHandle, TensorHandle]],
                 make_input: Callable, place: Callable[[Loc | None], Loc | None]) -> None:
        self.tracer, self.stretch, self.make_input, self.place = tracer, stretch, make_input, place
        self.nodes: dict[Node, Node] = {}
        self.bases: dict[Base, Base] = {}
        self.numbers: dict[int, int] = {}
        self.descriptions: dict[Described, Described] = {}
        for old, new in given:
            self.stands_for(old, new)

    def stands_for(self, old: TensorHandle, new: TensorHandle) -> None:
        """Also what the tensors are views of, step by step."""
        self.bases[old.base], self.numbers[old.number] = new.base, new.number
        a, b = old._node, new._node
        while a not in self.nodes:
            self.nodes[a] = b
            if a.op not in VIEWS or b.op != a.op:
                break
            a, b = a.inputs[0], b.inputs[0]
        self.nodes[old.base.node] = new.base.node

    def run(self) -> bool:
        """Trace it. False where an input is of another type than the one in whose place it stands: what was traced
        then has to be taken back."""
        s, t, b = self.stretch, self.tracer, self.tracer.builder
        made, moved = self.nodes, b.moved
        starts = []  # the number of the first node that was made for each
        for n in s.nodes:
            starts.append(b.next_id)
            if n.op == "input":
                old = s.handles[n]
                new = self.make_input(old)
                if new is None or not _alike(old, new):
                    return False
                self.stands_for(old, new)
                continue
            b.loc = self.place(n.loc)
            copied = made[n] = b.node(n.op, tuple([made.get(i, i) for i in n.inputs]), n.attrs, n.type)
            if n in moved:
                moved.add(copied)
        starts.append(b.next_id)

        def number(id: int) -> int:
            return starts[bisect.bisect_left(s.ids, id)] if id else 0

        for event in s.events:
            args, kwargs = replaced(Described, self.described, [event.args, event.kwargs])
            t.events.append(event._replace(
                args=args, kwargs=kwargs, read=[self.described(d) for d in event.read],
                made=tuple([(self.base(base), made.get(node, node)) for base, node in event.made]),
                loc=self.place(event.loc), numbers=tuple(map(self.number, event.numbers)),
                nodes=(number(event.nodes[0]), number(event.nodes[1]))))
        for old, fragile in s.memory.items():
            new = self.bases[old]
            if new.fragile and not fragile:
                t.set(new, "fragile", False)
        t.needs_grad = t.needs_grad or s.needs_grad
        return True

    def number(self, old: int) -> int:
        """The number of the handle in the place of another."""
        new = self.numbers.get(old)
        if new is None:
            new = self.numbers[old] = next_number()
        return new

    def base(self, old: Base) -> Base:
        """The memory in the place of another."""
        new = self.bases.get(old)
        if new is None:
            if old.node not in self.nodes:
                return old  # it was there before, and is the same one for both
            new = self.bases[old] = Base(self.nodes[old.node], carries=old.carries)
            new.grad, new.fragile = old.grad, old.fragile
        return new

    def described(self, old: Described) -> Described:
        new = self.descriptions.get(old)
        if new is not None:
            return new
        new = self.descriptions[old] = Described.__new__(Described)
        new.type, new.requires_grad, new.is_conj = old.type, old.requires_grad, old.is_conj
        new.base = self.base(old.base)
        new.number = old.number if new.base is old.base else self.number(old.number)
        return new

    def handle(self, old: TensorHandle) -> TensorHandle:
        """The tensor in the place of a result of the stretch."""
        base = self.base(old.base)
        new = TensorHandle(self.tracer, base, old.chain, self.nodes.get(old._node, old._node), old._grad)
        new._leaf, new.number = old._leaf, self.number(old.number)
        if any(step.restricted for step in old.chain):
            self.tracer.set(base, "restricted", (*base.restricted, weakref.ref(new)))
        return new


def _alike(old: TensorHandle, new: TensorHandle) -> bool:
    """Whether the same is traced for two inputs."""
    return (old.type == new.type and old._grad == new._grad and old._leaf == new._leaf
            and old.base.example.requires_grad == new.base.example.requires_grad  # type: ignore[union-attr]
            and old.base.example.is_inference() == new.base.example.is_inference()  # type: ignore[union-attr]
            and new.base.region is None and not new.base.mutated and not new.chain)


