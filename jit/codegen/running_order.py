"""In which order kernels and library calls run: each behind what it needs, else as in the program, and what makes more
memory than it frees as late as it is read."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .indexing import bytes_hint

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .groups import Group

_LABEL_BITS = 256  # room between the places of two groups in an order


def in_order(groups: list[Group], needs: Callable[[Group], Iterable[Group]], stored: set[Node]) -> list[Group]:
    """The groups in dependency order; among the ready ones, that which stands first in the program. ``needs``: what has
    to run before a group; ``stored``: the nodes that get a buffer."""
    waiting, ready, done, after = {}, [], [], {}  # type: ignore[var-annotated]
    for number, g in enumerate(groups):
        g.number = number
        needed = {id(h): h for h in needs(g) if h is not g}
        waiting[id(g)] = len(needed)
        for h in needed.values():
            after.setdefault(id(h), []).append(g)
        if not needed:
            heapq.heappush(ready, (g.position, g.number, g))
    while ready:
        g = heapq.heappop(ready)[2]
        done.append(g)
        for d in after.get(id(g), ()):
            waiting[id(d)] -= 1
            if not waiting[id(d)]:
                heapq.heappush(ready, (d.position, d.number, d))
    assert len(done) == len(groups), "the groups form a cycle"
    return _delayed(done, after, stored)


def _delayed(order: list[Group], after: dict[int, list[Group]], stored: set[Node]) -> list[Group]:
    """The order with kernels moved to their first reader, where they make more than they free. What a backward computes
    again from saved values could run at its very start, and would fill the memory until it is read. What only waits for
    a collective goes there too, or to the end."""
    label = {id(g): k << _LABEL_BITS for k, g in enumerate(order)}
    last: dict[Node, int] = {}
    for k, g in enumerate(order):
        last.update(dict.fromkeys(g.reads, k))
    keys = sorted(label.values())
    for k in reversed(range(len(order))):
        g = order[k]
        readers = after.get(id(g), ())
        if not readers and not g.waits:
            continue
        first = min([label[id(d)] for d in readers], default=len(order) << _LABEL_BITS)
        made = sum(bytes_hint(node) for node in {m.node for m in g.members} & stored)
        freed = sum(bytes_hint(node) for node in g.reads if last[node] == k)
        at = bisect.bisect_left(keys, first)
        low = keys[at - 1] if at else first - (1 << _LABEL_BITS)
        if (made > freed or g.waits) and low != label[id(g)] and first - low > 1:
            keys.remove(label[id(g)])
            label[id(g)] = (low + first) // 2
            bisect.insort(keys, label[id(g)])
    return sorted(order, key=lambda g: label[id(g)])
