"""Direct writes: the kernel that makes an input's new value writes it there, and nothing is copied at the end.

That is possible where no later step may raise, which would find the input changed (see ``failing.py``), and where
nothing reads the old value any more but the kernel itself, each element before it writes it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..graph.ir import same_ints
from ..graph.prims import SCATTERS
from .buffers import in_step
from .failing import last_failing
from .indexing import unaliased

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Buffers, Storage
    from .groups import Root


def write_into_inputs(b: Buffers) -> None:
    """Give new values of inputs the storages of these inputs where that is possible; fills in ``direct`` and
    ``commits``."""
    number = {id(step): t for t, step in enumerate(b.schedule.order)}
    shown = Counter(unaliased(o.node) for o in b.graph.outputs)
    shared = Counter(b.storages.values())
    last = last_failing(b)
    for o in b.graph.outputs:
        n, roots = unaliased(o.node), b.schedule.roots.get(unaliased(o.node), ())
        # One kernel makes the value, for this output alone, behind all that may raise.
        if o.mutates is None or shown[n] != 1 or len(roots) != 1 or roots[0].part is not None:
            continue
        target, t = b.graph.inputs[o.mutates], number[id(roots[0].group)]
        if t > last and _fits(b, n, target, t, shared) and _reads_before_writing(b, roots[0], target, t):
            shared[b.storages[n]] -= 1
            b.storages[n] = b.storages[target]
            shared[b.storages[n]] += 1
            b.direct.add(o)
            b.commits.add(t)


def _fits(b: Buffers, n: Node, target: Node, t: int, shared: Counter[Storage]) -> bool:
    """Whether the memory of an input can be that of its new value ``n``, made by step ``t``. ``shared``: how many
    values each storage has."""
    end, s = len(b.schedule.order), b.storages.get(n)
    # The value is no result, and shares its memory with no other, nor with what the library has returned.
    if s is None or s.kind != "temp" or not b.aliased.isdisjoint((n, target)):
        return False
    if shared[s] != 1:
        return False
    # Who reads the new value expects its strides.
    if not same_ints(n.type.strides, target.type.strides) and b.uses[n] != [end]:
        return False
    return not any(t < reader < end for reader in b.uses.get(target, ()))


def _reads_before_writing(b: Buffers, root: Root, target: Node, t: int) -> bool:
    """Whether a kernel, step ``t``, that writes ``root`` into ``target`` has read each element of it by then."""
    group = root.group
    if root.node.op in SCATTERS:
        return _scattered_into(b, root, target)
    # What is stored along a reduced axis is stored in pieces, while others are still to be read.
    if any(p in group.reduced for p in root.out_place()):
        return False
    if t not in b.uses.get(target, ()):
        return True
    if group.reduced and any(target in m.reads for m in group.members if m is not root):
        return False
    return in_step(group, target, root, target.type.strides)


def _scattered_into(b: Buffers, root: Root, target: Node) -> bool:
    """Whether a scatter changes ``target`` itself, where it lies, and nothing else that it writes or goes by is made of
    it."""
    operand, *others = root.node.inputs
    if operand is not target or not same_ints(root.node.type.strides, target.type.strides):
        return False
    seen, stack = set(), list(others)
    while stack:
        n = stack.pop()
        if n is target:
            return False
        if n not in seen and n not in b.storages:
            seen.add(n)
            stack += n.inputs
    return True
