"""In-place reuse: an elementwise result takes the memory of an operand that dies with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.prims import SCATTERS
from .buffers import in_step

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .buffers import Buffers, Storage


def reuse_in_place(b: Buffers) -> None:
    """Give results of kernels the storages of operands that no later step reads, where the kernel reads each element
    before it stores the result's of the same place."""
    storages = b.storages
    values: dict[Storage, list[Node]] = {}  # in each
    for n, s in storages.items():
        values.setdefault(s, []).append(n)
    for t, group in enumerate(b.schedule.order):
        taken = set()
        for m in group.members:
            s = storages.get(m.node)
            # A kernel with reductions may read its row again after it has stored some of it; a scatter writes anywhere.
            if m.node.op in SCATTERS:
                continue
            if s is None or group.reduced or s.kind not in ("temp", "alloc") or m.part is not None or s.first != t:
                continue
            for source in m.reads:
                old = storages.get(source)
                if old is None or old.last != t or old.first == t or old in taken or old.dtype is not s.dtype:
                    continue
                if old.kind == "extern":  # a tensor of its own, unless it may be part of another
                    if old.loose or source in b.aliased or m.node in b.aliased:
                        continue
                elif old.kind != "temp" or s.kind != "temp":
                    continue
                if in_step(group, source, m, m.node.type.strides):
                    old.last = s.last
                    moved = values.pop(s)
                    values[old] += moved
                    storages.update(dict.fromkeys(moved, old))
                    taken.add(old)
                    break
