"""Which library calls may be computed by the kernel that reads them, and what has to be changed for it.

This is done between fusion and the choice of memory. A call that a template can compute is *taken over* by the group
that is the first to read it: the call is a root of that group from then on, so that its operands are read, and, where
something else wants its result, stored like those of any other. Its reads are in step with nothing, hence no operand's
memory is ever used again for a result of the same kernel.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Callable

from .. import devices
from ..errors import Unsupported
from ..graph import dims
from ..graph.ir import Part
from ..graph.prims import SCATTERS
from . import fusion, lower
from .groups import Group, Root
from .indexing import FIXED, base_of, is_one
from .template import Candidate, templates_for

if TYPE_CHECKING:
    from ..graph.ir import Graph, Node
    from .fusion import Schedule
    from .groups import Step
    from .loops import Kernel


@dataclasses.dataclass
class Call:
    """A library call that may be taken over.

    Attributes:
        node: the call.
        group: the group that would compute it.
        kernel: what that would compute, in the language of loops.
        candidates: ways to do so.
        inputs: the values that the kernel reads.
        results: those that it makes.
    """

    graph: Graph
    node: Node
    group: Group
    kernel: Kernel
    candidates: list[Candidate]
    inputs: list[Node]
    results: list[Node]

    def alone(self) -> Graph:
        """The graph of the call and the group alone, from ``inputs`` to ``results``."""
        return Part(self.graph, self.inputs, self.results).run()


def take_over(graph: Graph, schedule: Schedule, choose: Callable[[Call], Candidate | None]) -> None:
    """Change a schedule so that kernels compute the calls for which ``choose`` gives a candidate."""
    first, others = _readers(graph, schedule)
    for node, reader in first.items():
        found = templates_for(node) if _suits(node, reader) else ()
        if not found:
            continue
        _join(schedule, node, reader, node in others)
        if _taken(graph, schedule, node, reader, found, choose):
            schedule.order.remove(schedule.calls.pop(node))
    for node, step in list(schedule.calls.items()):
        found = [t for t in templates_for(node) if t.alone] if _is_plain(node) else ()
        if not found:
            continue
        group = _apart(schedule, node)
        if _taken(graph, schedule, node, group, found, choose):
            schedule.order[schedule.order.index(step)] = group
            del schedule.calls[node]


def _taken(graph: Graph, schedule: Schedule, node: Node, g: Group, templates: list, choose: Callable) -> bool:
    """Whether ``choose`` gives a candidate for a group that was joined with a call; if not, they are parted again."""
    call = _call(graph, schedule, node, g, templates)
    chosen = choose(call) if call is not None else None
    if chosen is None:
        _part(schedule, node, g)
        return False
    g.calls, g.lay_out = {node: chosen.template}, chosen.lay_out
    return True


def _readers(graph: Graph, schedule: Schedule) -> tuple[dict[Node, Step], set[Node]]:
    """Library call -> the first step that reads it; the calls that others read as well, or that are results."""
    first, others = {}, {base_of(o.node) for o in graph.outputs}
    for step in schedule.order:
        for node in step.outside(schedule.roots):
            if node.op == "aten_call" and first.setdefault(node, step) is not step:
                others.add(node)
    return first, others


def _suits(node: Node, step: Step) -> bool:
    """Whether a step is one that may compute a call: a pointwise kernel, over elements that are there, on its device.
    What is scattered is written where data say."""
    return (bool(step.members) and _is_plain(node) and not step.reduced and not step.calls
            and not any(m.node.op in SCATTERS for m in step.members)
            and step.device == node.type.device and all(m.part is None for m in step.members)
            and not any(type(d) is int and d == 0 for d in step.dims))


def _is_plain(node: Node) -> bool:
    return node.op == "aten_call" and not node.impure and not node.several and not node.type.is_empty


def _join(schedule: Schedule, node: Node, g: Group, stored: bool) -> None:
    root = Root(node, schedule.calls[node].position)
    root.place, root.group = (FIXED,) * len(root.domain), g
    root.reads, root.size = {base_of(i): {None} for i in node.inputs}, 1
    g.members.append(root)
    g.reads |= set(root.reads)
    schedule.roots[node] = [root]
    if stored:
        schedule.stored.add(node)


def _apart(schedule: Schedule, node: Node) -> Group:
    """A group of a call alone."""
    group, shape = Group(node.type.device), node.type.shape
    group.position = schedule.calls[node].position
    _join(schedule, node, group, True)
    group.dims = [d for d in shape if not is_one(d)]
    places = iter(range(len(shape)))
    group.members[0].place = tuple([FIXED if is_one(d) else next(places) for d in shape])
    return group


def _part(schedule: Schedule, node: Node, g: Group) -> None:
    """Undo ``_join``."""
    g.members.remove(schedule.roots.pop(node)[0])
    g.reads = {n for m in g.members for n in m.reads}
    schedule.stored.discard(node)
    g.calls = {}


def _call(graph: Graph, schedule: Schedule, node: Node, g: Group, templates: list) -> Call | None:
    """What a group would compute with a call, and who can; None if nobody."""
    results = [m.node for m in g.members if m.node in schedule.stored]
    kernel, candidates, stored = None, [], node in schedule.stored
    architecture = devices.backend(node.type.device).architecture(node.type.device)
    for t in templates:
        g.calls = {node: t}
        try:
            found = _lowered(schedule, g, results)
        except Unsupported:
            continue
        if found is not None and stored and not _whole(found, node):
            return None
        problem = None if found is None else t.problem(found.kernel)
        if problem is not None:
            kernel = kernel or found.kernel
            candidates += [Candidate(t, c, t.cost(problem, c, architecture))
                           for c in t.configurations(problem, architecture)]
    if not candidates:
        return None
    return Call(graph, node, g, kernel, candidates, _inputs(schedule, node, g, results), results)


def _whole(lowered: lower.Lowered, node: Node) -> bool:
    """Whether a kernel stores every element of a call's result. It goes where its readers go: those of a part of the
    result, such as the queries among queries, keys and values, ask for that part alone."""
    buffer = lowered.kernel.buffers[lowered.arguments.index(node)].name
    index, = [s.index for s in lowered.kernel.body if s.stored == buffer]
    axes, step = [a for a in lowered.kernel.axes if not is_one(a.extent)], 1
    while axes:
        found = [a for a in axes if (k := dims.coefficient(index, a.name)) is not None
                 and dims.structurally_equal(k, step)]
        if not found:
            return False
        axes.remove(found[0])
        step = step * found[0].extent
    return dims.structurally_equal(step, node.type.numel)


def _lowered(schedule: Schedule, g: Group, results: list[Node]) -> lower.Lowered | None:
    """The kernel of a group, where each value has memory of its own."""

    def place(n: Node) -> lower.Place | None:
        if n in schedule.stored or n.op in fusion.EXTERN:
            return lower.Place(n, n.type.strides, 0, n.type.dtype)
        return None

    found = lower.lower_group(g, place, {n: place(n) for n in results}, "k")
    return found[0] if len(found) == 1 else None


def _inputs(schedule: Schedule, node: Node, g: Group, results: list[Node]) -> list[Node]:
    """The values that the kernel of a group with a call reads."""
    found, seen, stack = set(), set(), [*results, node]
    own = {m.node for m in g.members}
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n not in own and (n in schedule.stored or n.op in fusion.EXTERN):
            found.add(n)
        else:
            stack += n.inputs
    return sorted(found, key=lambda n: n.id)
