"""Which steps of a plan may fail, and an order in which kernels may give inputs their new values where they lie.

A plan that raises has changed nothing, so that the call can be run again in eager. What may fail is told by one
property of a step, ``may_fail`` (``groups.py``): every library call, and a kernel that checks indices. A kernel writes
an input directly where no such step comes after it. Any other new value is copied into its input at the end, by the
plan's commit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from ..graph.op_info import op_info
from ..graph.prims import info

if TYPE_CHECKING:
    from ..graph.ir import Graph, Node
    from .buffers import Buffers
    from .fusion import Schedule
    from .groups import Step


def manners(node: Node) -> tuple:
    """What a run that fails has to know of a library call; see ``Plan``."""
    target = node.attrs["target"]
    if op_info(target).waits:
        return ("once", "waits")
    if op_info(target.removesuffix("_")).apart:
        return ("once", "apart")
    namespace = target.partition("::")[0]
    return (() if node.repeatable else ("draws",)) + (("once",) if namespace not in ("aten", "prims", "jit") else ())


def checked(nodes: Iterable[Node], stored: Container[Node]) -> set[Node]:
    """The nodes, of all of a graph's in order, that check positions, or are computed from such ones by whatever reads
    them: from what is ``stored`` nothing is."""
    found: set[Node] = set()
    for n in nodes:
        if info(n.op).checks or n not in stored and not found.isdisjoint(n.inputs):
            found.add(n)
    return found


def last_failing(b: Buffers) -> int:
    """The number of the last step that may fail; -1 where none may."""
    found = checked(b.graph.nodes, b.storages)
    return max((t for t, step in enumerate(b.schedule.order) if step.may_fail(found)), default=-1)


def writes_last(graph: Graph, schedule: Schedule, written: list[Node]) -> list[Step]:
    """The order of a schedule with groups that make ``written`` values, and what reads these, moved behind the last
    step that may fail, where no such step needs them."""
    order, makers = schedule.order, {id(r.group) for n in written for r in schedule.roots.get(n, ())}
    if not makers:
        return order
    found = checked(graph.nodes, schedule.stored)
    fails = [step.may_fail(found) for step in order]
    last = max((k for k, fail in enumerate(fails) if fail), default=-1)
    if not any(id(step) in makers for step in order[:last]):
        return order
    needed, moved = set(), set()  # of steps that may fail or are read by one; of those that go last
    for step, fail in zip(reversed(order), reversed(fails)):
        if fail or id(step) in needed:
            needed.add(id(step))
            needed.update(id(other) for other in _read(step, schedule))
    for step in order:
        if id(step) not in needed and (id(step) in makers
                                       or any(id(other) in moved for other in _read(step, schedule))):
            moved.add(id(step))
    return [step for step in order if id(step) not in moved] + [step for step in order if id(step) in moved]


def _read(step: Step, schedule: Schedule) -> Iterator[Step]:
    """The steps whose results a step reads."""
    for node in step.reads:
        if node in schedule.calls:
            yield schedule.calls[node]
        for r in schedule.roots.get(node, ()):
            if r.group is not step:
                yield r.group
