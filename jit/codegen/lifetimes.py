"""From which step of a schedule to which one each value's memory is needed, and of which kind that memory is.

A value that the caller gets, or whose memory the library may share, has a tensor of its own; any other one that a
kernel makes has a part of the arena.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .buffers import nbytes
from .indexing import VIEWS, base_of, offset_in_base
from .library_calls import computed_here, out_form

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Buffers


def find_lifetimes(b: Buffers) -> None:
    """Fill in ``storages``, ``uses`` and ``aliased``."""
    order, stored, end = b.schedule.order, b.schedule.stored, len(b.schedule.order)
    for n in b.graph.inputs:
        b.storages[n] = b.add("input", n.type)
    parts: dict = {}
    for n in b.graph.nodes:
        if n.op == "getitem":
            parts.setdefault(n.inputs[0], []).append(n)
    for t, step in enumerate(order):
        for n in step.library_results(parts):
            s = b.storages[n] = b.add("extern", n.type, t)
            s.loose = step.may_alias
        for n in step.outside(b.schedule.roots):
            b.uses.setdefault(n, []).append(t)
        if step.may_alias:
            b.aliased |= step.reads
    own = {base_of(o.node) for o in b.graph.outputs if o.mutates is None}
    for n in [*own, *[base_of(o.node) for o in b.graph.outputs if o.mutates is not None]]:
        b.uses.setdefault(n, []).append(end)
    own |= b.aliased
    wholes = set(_seeds(b))
    for n, s in list(b.storages.items()):
        if s.kind == "extern":
            s.last = max([s.first, *b.uses.get(n, ())])
            if n not in wholes and (out_form(n) or computed_here(n)):  # it writes into memory of ours
                s.kind, s.nbytes = "alloc" if n in own else "temp", nbytes(n.type)
    for t, step in enumerate(order):
        for n in [m.node for m in step.members if m.node in stored]:
            if n not in b.storages:
                s = b.storages[n] = b.add("alloc" if n in own else "temp", n.type, t, max([t, *b.uses.get(n, ())]))
                s.nbytes = nbytes(n.type)
            b.storages[n].last = max(b.storages[n].last, t)


def _seeds(b: Buffers) -> list[Node]:
    """Give each seed that was drawn with others memory of its own, a part of theirs: a kernel that reads it is the same
    one for all. -> those that were drawn with others."""
    found = []
    for seed in [n.inputs[0] for n in b.graph.nodes if n.op == "random_bits"]:
        while seed.op in VIEWS and seed.op != "slice":
            seed = seed.inputs[0]
        whole = b.storages.get(seed.inputs[0]) if seed.op == "slice" and seed not in b.storages else None
        if whole is not None and whole.kind in ("input", "extern") and type(seed.attrs["start"]) is int:
            s = b.storages[seed] = b.add("part", seed.type)
            s.whole, s.offset, s.loose, whole.loose = whole, offset_in_base(seed), True, True
            found.append(seed.inputs[0])
    return found
