"""Which steps of a plan may fail, and an order in which kernels may give inputs their new values where they lie.

A plan that raises has changed nothing, so that the call can be run again in eager. What may fail is told by one
property of a step, ``may_fail``: every library call, which may refuse values that it cannot compute with and needs
memory of its own, and a kernel that checks indices. A kernel writes an input directly where no such step comes after
it. Any other new value is copied into its input at the end, by the plan's commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..graph.prims import info
from .indexing import base_of

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .fusion import Group, Root
    from .planner import Storage


def may_fail(group: Group, storages: set[Node] | dict[Node, Storage]) -> bool:
    """Whether the step of a group may fail. ``storages``: what is kept in memory, and so not computed here."""
    return checks_indices(group, storages) if group.extern is None else group.extern.op == "aten_call"


def checks_indices(group: Group, storages: set[Node] | dict[Node, Storage]) -> bool:
    """Whether the kernel of a group reads at positions that tensors say."""
    seen, stack = set(), [] if group.extern is not None else [m.node for m in group.members]
    inner = set(stack)
    while stack:
        n = stack.pop()
        if info(n.op).checks:
            return True
        if n not in seen and (n in inner or n not in storages):
            seen.add(n)
            stack.extend(n.inputs)
    return False


def manners(node: Node) -> tuple:
    """What a run that fails has to know of a library call; see ``Plan``."""
    namespace = node.attrs["target"].partition("::")[0]
    return (() if node.repeatable else ("draws",)) + (("once",) if namespace not in ("aten", "prims", "jit") else ())


def writes_last(order: list[Group], roots: dict[Node, list[Root]], written: list[Node], stored: set[Node]) -> list:
    """``order`` with groups that make ``written`` values, and what reads these, moved behind the last step that may
    fail, where no such step needs them."""
    makers = {id(r.group) for n in written for r in roots.get(n, ())}
    last = max((k for k, g in enumerate(order) if may_fail(g, stored)), default=-1)
    if not any(id(g) in makers for g in order[:last]):
        return order
    extern = {g.extern: g for g in order if g.extern is not None}
    needed, moved = set(), set()  # of groups that may fail or are read by one; of those that go last
    for g in reversed(order):
        if id(g) in needed or may_fail(g, stored):
            needed.add(id(g))
            needed.update(id(h) for h in _read(g, roots, extern))
    for g in order:
        if id(g) in needed:
            continue
        if id(g) in makers or any(id(h) in moved for h in _read(g, roots, extern)):
            moved.add(id(g))
    return [g for g in order if id(g) not in moved] + [g for g in order if id(g) in moved]


def _read(group: Group, roots: dict[Node, list[Root]], extern: dict[Node, Group]) -> Iterator[Group | None]:
    """The groups whose results a group reads."""
    if group.extern is None:
        nodes = {node for m in group.members for node in m.reads}
    else:
        nodes = {base_of(i) for i in group.extern.inputs}
    for node in nodes:
        maker = extern.get(node.inputs[0] if node.op == "getitem" else node)
        if maker is not None:
            yield maker
        for r in roots.get(node, ()):
            if r.group is not group:
                yield r.group
