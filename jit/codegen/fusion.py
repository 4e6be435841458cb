"""Which graph nodes share a kernel.

Roots and groups are described in ``groups.py``. All pointwise and indexing nodes that are no roots are *inlined* into
the trees of the roots that read them. Groups grow from producers to consumers in program order, then siblings that read
the same tensor are joined. Reachability between groups is kept as bit sets, so a join that would make a cycle is seen
at once and the whole pass stays near linear.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from .. import devices
from ..graph.prims import REDUCTIONS, info, names
from . import indexing
from .groups import Group, LibraryCall, Root
from .indexing import FIXED, VIEWS, base_of, is_one, numel_hint, same, size_hint

if TYPE_CHECKING:
    import torch
    from ..graph.dims import IntExpr
    from ..graph.ir import Graph, Node

SOURCES = names(is_source=True)
EXTERN = names(kind="input") | names(kind="call") | names(kind="part")
ROWS = REDUCTIONS | names(kind="scan")  # what needs all of a row
POSITIONS = names(gives_position=True)
IN_ORDER = POSITIONS | names(kind="scan")  # what depends on the order of a row

CHEAP_TO_REPEAT = 3       # cost of a value that each of several readers may compute for itself from one tensor
_LABEL_BITS = 256        # room between the places of two groups in an order
MAX_TREE = 48             # nodes inlined into one root
MAX_MEMBERS = 48          # roots of a group
MAX_READS = 40            # tensors that a group reads
MAX_CAT_INLINE = 4        # operands of a concatenation that is computed by selection in its reader


class Schedule:
    """The result: ``order`` is the groups and library calls in execution order; ``stored``: the nodes that get a
    buffer; ``roots``: node -> its roots; ``calls``: node -> the library call that makes it."""

    def __init__(self) -> None:
        self.order, self.stored, self.roots, self.calls = [], set(), {}, {}


def _edge_numel(user: Node, index: int) -> int:
    """How many times a reader evaluates its operand number ``index``."""
    if user.op in ROWS or user.op == "cat":
        return numel_hint(user.inputs[index].type.shape)
    return numel_hint(user.type.shape)


def _uses(graph: Graph) -> tuple[dict[Node, dict], set[Node]]:
    """Base node -> {reader: edge size}, the values wanted as tensors, and the values of graph outputs."""
    users = {n: {} for n in graph.nodes}
    wanted = set()
    for n in graph.nodes:
        if n.op in VIEWS or n.op == "input":
            if n.op == "as_strided":
                wanted.add(base_of(n))
            continue
        if n.op in EXTERN:
            for i in n.inputs:
                wanted.add(base_of(i))
                users[base_of(i)][n] = 0
            continue
        for k, i in enumerate(n.inputs):
            b = base_of(i)
            users[b][n] = users[b].get(n, 0) + _edge_numel(n, k)
    for o in graph.outputs:
        wanted.add(base_of(o.node))
    for n in reversed(graph.nodes):
        if _widens(n) and n not in wanted:
            read = users[base_of(n.inputs[0])]
            del read[n]
            for reader, size in users[n].items():
                read[reader] = read.get(reader, 0) + size
    return users, wanted


def _widens(n: Node) -> bool:
    """Whether a node is a cast to a wider dtype: what is cast is stored, if need be, and never the result."""
    return n.op == "cast" and n.inputs[0].op not in SOURCES and n.inputs[0].type.dtype.itemsize < n.type.dtype.itemsize


class _Trees:
    """Decides in program order which nodes are roots, with the cost and the leaves of the tree below each."""

    def __init__(self, graph: Graph, users: dict[Node, dict[Node, int]], wanted: set[Node]) -> None:
        self.cost, self.leaves, self.count, self.inlined = {}, {}, {}, set()
        self.users, self.wanted = users, wanted
        for n in graph.nodes:
            if n.op in VIEWS or n.op in EXTERN:
                continue
            if n.op in SOURCES:
                self.cost[n], self.leaves[n], self.count[n] = 0, frozenset(), 1
                self.inlined.add(n)
                continue
            cost, count, leaves = info(n.op).cost.repeat, 1, set()
            for i in {base_of(i) for i in n.inputs}:
                if i in self.inlined:
                    cost, count = cost + self.cost[i], count + self.count[i]
                    leaves |= self.leaves[i]
                else:
                    leaves.add(i)
            self.cost[n], self.leaves[n], self.count[n] = cost, leaves, count
            if _widens(n) and n not in wanted or self._inline(n):
                self.inlined.add(n)

    def _inline(self, n: Node) -> bool:
        if (n.op in ROWS or n in self.wanted
            or self.count[n] > MAX_TREE or len(self.leaves[n]) > 12):
            return False
        users = self.users[n]
        size = max(numel_hint(n.type.shape), 1)
        cost = self.cost[n]
        if n.op == "cat" and (len(n.inputs) > MAX_CAT_INLINE or cost > 16 or len(users) != 1):
            return False
        if n.op == "constant_pad" and cost > 16 and len(users) != 1:
            return False
        reads = sum(users.values())
        if len(users) == 1 and reads <= size * 1.5:
            return True
        if len(users) == 1:
            # Computed more than once per element: by broadcasting, or through several views.
            if any(l.op in REDUCTIONS for l in self.leaves[n]) and reads > size * 2:
                return False
            return cost <= devices.backend(n.type.device).cheap_to_broadcast or reads <= size * 4 and cost <= 8
        big = [l for l in self.leaves[n] if numel_hint(l.type.shape if not isinstance(l.type, tuple)
                                                       else ()) * 4 > size]
        if not big:
            return cost <= devices.backend(n.type.device).cheap_without_reads
        return len(big) == 1 and cost <= CHEAP_TO_REPEAT and not any(l.op in REDUCTIONS for l in big)


def _collect(root: Root, inlined: set[Node]) -> None:
    """Fill ``root.reads`` by walking its tree with alignments, and ``root.size``."""
    reads, seen = {}, set()
    identity = tuple(FIXED if is_one(s) else d for d, s in enumerate(root.domain))
    if root.node.op in ROWS and root.part is None:
        stack = [(root.node.inputs[0], identity)]
    elif root.part is not None:
        stack = [(root.source, identity)]
    else:
        stack = _operands(root.node, identity)
    while stack:
        node, align = stack.pop()
        if (node, align) in seen:
            continue
        seen.add((node, align))
        if node.op in VIEWS:
            if node.op == "as_strided":
                reads.setdefault(base_of(node), set()).add(None)
            else:
                stack.append((node.inputs[0], indexing.view_alignment(node, align)))
        elif node in inlined:
            stack.extend(_operands(node, align))
        else:
            reads.setdefault(node, set()).add(align)
    root.reads, root.size = reads, len(seen)


def _operands(node: Node, align: tuple[int, ...] | None) -> list[tuple[Node, tuple[int, ...] | None]]:
    """The operands of a pointwise or indexing node with their alignments."""
    op = node.op
    if op == "clone":
        return [(node.inputs[0], align)]
    if op == "gather":
        return [(node.inputs[0], None), (node.inputs[1], align)]
    if op == "index":
        first, rank = node.attrs["dims"][0], len(node.inputs[1].type.shape)
        inner = None if align is None else align[first : first + rank]
        return [(node.inputs[0], None)] + [(i, indexing.broadcast_alignment(i.type.shape, inner))
                                           for i in node.inputs[1:]]
    if info(op).kind == "copy":
        return [(i, None) for i in node.inputs]
    return [(i, indexing.broadcast_alignment(i.type.shape, align)) for i in node.inputs]


def inner_dim(root: Root) -> Optional[int]:
    """The domain dimension along which the largest tensor that the root reads lies contiguous."""
    best, size = None, -1
    for node, aligns in root.reads.items():
        for align in aligns:
            if align is None or isinstance(node.type, tuple):
                continue
            n = numel_hint(node.type.shape)
            if n > size:
                found = [(size_hint(s), d) for s, d in zip(node.type.strides, align) if d != FIXED]
                if found:
                    best, size = min(found)[1], n
    if best is None:
        wide = [d for d, s in enumerate(root.domain) if not is_one(s)]
        best = wide[-1] if wide else None
    return best


def _transposes(root: Root) -> bool:
    """Whether a pointwise root is stored along another dimension than the largest tensor that it reads."""
    stored = [(size_hint(s), d) for s, d in zip(root.strides, root.out_align) if d != FIXED]
    return bool(stored) and bool(root.reads) and min(stored)[1] != inner_dim(root)


def wants_split(device: torch.device, dims: list[IntExpr], reduced: frozenset[int], inner_reduced: bool) -> str | None:
    """Whether a reduction has too few rows for the machine and rows long enough to be cut into a second parallel axis:
    None, "rows" (the contiguous dimension is reduced) or "columns"."""
    rows, row = 1, 1
    for d, s in enumerate(dims):
        if d in reduced:
            row *= size_hint(s)
        else:
            rows *= size_hint(s)
    few = devices.backend(device).splits(rows, row, inner_reduced)
    return ("rows" if inner_reduced else "columns") if few else None


class _Fuser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users, self.wanted = _uses(graph)
        self.trees = _Trees(graph, self.users, self.wanted)
        self.inlined = self.trees.inlined
        self.roots = {}       # node -> its roots (several for the operands of a concatenation)
        self.calls = {}       # node of the library -> its call
        self.groups = []
        self.by_bit = []      # bit number -> root or library call
        self.enabled = True

    # reachability

    def _new_bit(self, group: Group) -> int:
        bit = 1 << len(self.by_bit)
        self.by_bit.append(group)
        group.mask |= bit
        return bit

    def _link(self, g: Group, anc: int) -> None:
        """Record that ``g``, and what runs after it, depends on the roots ``anc`` (closed under ancestors)."""
        g.anc |= anc & ~g.mask
        everything = g.anc | g.mask
        for d in self.groups:
            if d.anc & g.mask:
                d.anc |= everything

    def _producers(self, root: Root) -> tuple[dict[int, Group], list[tuple]]:
        """The groups that must run before a root, with the (producer root, alignment) pairs that could join."""
        groups, edges = {}, []
        for node, aligns in root.reads.items():
            if node in self.calls:
                groups[id(self.calls[node])] = self.calls[node]
            for q in self.roots.get(node, ()):
                groups[id(q.group)] = q.group
                if q.part is None:
                    edges.append((q, aligns))
        return groups, edges

    # joining

    def _mapping(self, root: Root, g: Group, q: Root, align: tuple[int, ...] | None) -> dict[int, int] | None:
        """Domain dimension -> group dimension for a root that reads member ``q`` with this alignment, or None."""
        if align is None:
            return None
        place, mapping = q.out_place(), {}
        for k, d in enumerate(align):
            if d == FIXED:
                continue
            if place[k] == FIXED or mapping.setdefault(d, place[k]) != place[k]:
                return None
        free = [d for d, s in enumerate(root.domain) if not is_one(s) and d not in mapping]
        if free:
            spare = [x for x in sorted(g.reduced) if x not in mapping.values()]
            if len(spare) != len(free):
                return None
            for d, x in zip(free, spare):
                if not same(root.domain[d], g.dims[x]):
                    return None
                mapping[d] = x
        if len(set(mapping.values())) != len(mapping):
            return None
        return mapping

    def _joins(self, root: Root, g: Group) -> tuple[dict[int, int], bool, frozenset[int], str | None] | None:
        """The place (domain -> group dimension) with which ``root`` can join ``g``, or None. Changes nothing."""
        if g.device != root.node.type.device or len(g.members) >= MAX_MEMBERS:
            return None
        if len(g.reads | set(root.reads)) > MAX_READS:
            return None
        found, after = None, False
        for node, aligns in root.reads.items():
            for q in self.roots.get(node, ()):
                if q.group is not g:
                    continue
                if q.part is not None:
                    return None
                after = after or q.after or q.needs_row
                for align in aligns:
                    mapping = self._mapping(root, g, q, align)
                    if mapping is None or (found is not None and mapping != found):
                        return None
                    found = mapping
        if found is None:
            return None
        return self._check_join(root, g, found, after)

    def _check_join(self, root: Root, g: Group, mapping: dict[int, int],
                    after: bool) -> tuple[dict[int, int], bool, frozenset[int], str | None] | None:
        cover = set(mapping.values())
        everything = set(range(len(g.dims)))
        element = cover == everything
        if not element and cover != everything - g.reduced:
            return None
        reduced = g.reduced
        if root.needs_row:
            mine = frozenset(mapping[d] for d in root.reduced)
            if not element or (g.reduced and mine != g.reduced):
                return None
            if root.node.op == "cumsum" and (len(mine) != 1 or any(m.node.op in REDUCTIONS for m in g.members)):
                return None
            if root.node.op in REDUCTIONS and any(m.node.op == "cumsum" and m.part is None for m in g.members):
                return None
            order = [mapping[d] for d in root.reduced]
            if order != sorted(order) and root.node.op in POSITIONS:
                return None
            reduced = mine
        split = g.split
        if root.needs_row and not g.reduced:
            split = self._splits(root, g.device, g.dims, reduced, mapping)
        if split and ((element and after) or root.node.op in IN_ORDER):
            return None
        return mapping, after, reduced, split

    def _splits(self, root: Root, device: torch.device, dims: list[IntExpr], reduced: frozenset[int],
                mapping: dict[int, int]) -> str | None:
        if root.node.op in IN_ORDER:
            return None
        inner = inner_dim(root)
        return wants_split(device, dims, reduced, inner is None or mapping.get(inner) in reduced)

    def _add(self, root: Root, g: Group, mapping: dict[int, int], after: bool, reduced: frozenset[int],
             split: str | None) -> None:
        root.group, root.after = g, after
        root.place = tuple(FIXED if is_one(s) else mapping[d] for d, s in enumerate(root.domain))
        g.reduced, g.split = reduced, split
        g.members.append(root)
        g.reads |= set(root.reads)
        root.bit = self._new_bit(g)
        self.by_bit[-1] = root

    def _alone(self, root: Root) -> Group:
        g = Group(root.node.type.device)
        mapping = {}
        for d, s in enumerate(root.domain):
            if not is_one(s):
                mapping[d] = len(g.dims)
                g.dims.append(s)
        reduced = frozenset(mapping[d] for d in root.reduced)
        split = self._splits(root, g.device, g.dims, reduced, mapping) if reduced else None
        g.position = root.position
        self._add(root, g, mapping, False, reduced, split)
        self.groups.append(g)
        return g

    def _place_root(self, root: Root) -> Group:
        groups, edges = self._producers(root)
        anc = 0
        for g in groups.values():
            anc |= g.mask | g.anc
        candidates = {id(q.group): q.group for q, aligns in edges}
        joined = None
        if self.enabled:
            for g in sorted(candidates.values(), key=lambda g: -g.members[-1].position):
                if any(h is not g and h.anc & g.mask for h in groups.values()):
                    continue
                place = self._joins(root, g)
                if place is not None:
                    self._add(root, g, *place)
                    joined = g
                    break
        if joined is None:
            joined = self._alone(root)
            joined.anc = anc
        else:
            self._link(joined, anc)
        if self.enabled:
            for g in candidates.values():
                if g is not joined and g.members:
                    self._merge_by_read(joined, g, root)
        return joined

    def _merge_by_read(self, g: Group, other: Group, root: Root) -> None:
        """Join the group of another producer of ``root`` to the group ``g`` that it is in, when ``root`` reads it in
        step."""
        mapping = None
        for node, aligns in root.reads.items():
            for q in self.roots.get(node, ()):
                if q.group is not other or q.part is not None:
                    if q.group is other:
                        return
                    continue
                for align in aligns:
                    if align is None:
                        return
                    one = {}
                    for k, d in enumerate(align):
                        x = q.out_place()[k]
                        if d != FIXED and x != FIXED:
                            one[x] = root.place[d]
                    if mapping is not None and one != mapping:
                        return
                    mapping = one
        if mapping is not None:
            # ``root`` reads a reduction's result: what was reduced to it is paired with what its own group reduces.
            free, spare = [[d for d in sorted(h.reduced) if d not in known]
                           for h, known in ((other, mapping.keys()), (g, mapping.values()))]
            if len(free) == len(spare):
                mapping.update(zip(free, spare))
            self._merge(g, other, mapping, related=True)

    def _merge(self, g: Group, other: Group, mapping: dict[int, int], related: bool) -> bool:
        """Move the members of ``other`` to ``g``; ``mapping``: dimension of ``other`` -> dimension of ``g``. Returns
        whether it was done."""
        if g.device != other.device or len(g.members) + len(other.members) > MAX_MEMBERS:
            return False
        if (len(mapping) != len(other.dims) or len(other.dims) != len(g.dims)
            or len(set(mapping.values())) != len(mapping)):
            return False
        if not all(same(other.dims[x], g.dims[y]) for x, y in mapping.items()):
            return False
        moved = frozenset(mapping[x] for x in other.reduced)
        if moved and g.reduced and moved != g.reduced:
            return False
        if len(g.reads | other.reads) > MAX_READS:
            return False
        if any(m.node.op == "cumsum" and m.part is None for m in g.members + other.members) and (moved or g.reduced):
            return False
        if moved and g.reduced and bool(g.split) != bool(other.split):
            return False
        order = [mapping[x] for x in sorted(other.reduced)]
        if order != sorted(order) and any(m.node.op in POSITIONS for m in other.members):
            return False
        if not self._read_in_step(g, other, mapping):
            return False
        both = g.mask | other.mask
        for d in self.groups:
            if d.anc & both and (g.anc | other.anc) & d.mask and d is not g and d is not other:
                return False
        downstream = (other.anc & g.mask) or (g.anc & other.mask)
        if downstream and not related:
            return False
        if downstream and (moved or g.reduced):
            # A chain of row computations across the two: reductions of one must not be fed by ``after`` values of a
            # split other.
            if g.split or other.split:
                return False
        for m in other.members:
            m.group = g
            m.place = tuple(FIXED if p == FIXED else mapping[p] for p in m.place)
            self.by_bit[m.bit.bit_length() - 1] = m
        g.members = sorted(g.members + other.members, key=lambda m: (m.position, m.part or 0))
        g.reduced, g.split = g.reduced or moved, g.split or other.split
        g.reads |= other.reads
        g.position = min(g.position, other.position)
        other.members = []
        g.mask = both
        g.anc = (g.anc | other.anc) & ~both
        for d in self.groups:
            if d.anc & both and d is not g:
                d.anc |= g.anc | both
        for m in g.members:
            m.after = any(
                q.group is g and (q.after or q.needs_row) for node in m.reads for q in self.roots.get(node, ()))
        self.groups.remove(other)
        return True

    def _read_in_step(self, g: Group, other: Group, mapping: dict[int, int]) -> bool:
        """Whether every read between the members of two groups would be of the same iteration's value once they are
        one."""

        def moved(m: Root, place: Sequence[int]) -> tuple[int, ...]:
            return tuple(p if p == FIXED or m.group is g else mapping[p] for p in place)

        for m in g.members + other.members:
            for node, aligns in m.reads.items():
                for q in self.roots.get(node, ()):
                    if q.group is m.group or (q.group is not g and q.group is not other):
                        continue
                    if q.part is not None:
                        return False
                    place = moved(q, q.out_place())
                    for align in aligns:
                        if align is None or moved(m, [FIXED if d == FIXED else m.place[d] for d in align]) != place:
                            return False
        return True

    # siblings

    def _siblings(self) -> None:
        """Join groups without a path between them that read one tensor in step over one space, or that write equal
        parts of one."""
        for parts in self.roots.values():
            for m in parts[1:]:
                first = parts[0]
                if (m.group is not first.group and len(m.domain) == len(first.domain)
                    and all(map(same, m.domain, first.domain))):
                    mapping = {x: y for x, y in zip(m.place, first.place) if x != FIXED}
                    self._merge(first.group, m.group, mapping, related=False)
        readers = {}
        for g in self.groups:
            for m in g.members:
                for node, aligns in m.reads.items():
                    if None in aligns or len(aligns) != 1 or (node in self.roots and self.roots[node][0].group is g):
                        continue
                    (align,) = aligns
                    if all(a == FIXED for a in align) or isinstance(node.type, tuple):
                        continue
                    readers.setdefault(node, []).append((m, align))
        for node, found in readers.items():
            if len(found) < 2 or len({id(m.group) for m, _ in found}) < 2:
                continue
            first, first_align = found[0]
            for m, align in found[1:]:
                g, other = first.group, m.group
                if g is other or len(g.dims) != len(other.dims):
                    continue
                if (devices.backend(g.device).tiles_transposes and bool(g.reduced) != bool(other.reduced)
                    and any(map(_transposes, (g if other.reduced else other).members))):
                    continue  # loops without a reduction transpose by tiles
                mapping = {}
                for k, d in enumerate(align):
                    if d != FIXED and first_align[k] != FIXED:
                        mapping[m.place[d]] = first.place[first_align[k]]
                self._merge(g, other, mapping, related=False)

    def _updates(self) -> None:
        """Join small kernels over one space that do nothing but make results and give inputs new values: the updates of
        an optimizer, which have no tensor in common."""
        written: dict = {}
        for o in self.graph.outputs:
            changed = written.setdefault(base_of(o.node), set())
            if o.mutates is not None:
                changed.add(self.graph.inputs[o.mutates])
        read = set().union(*(g.reads - {m.node for m in g.members} for g in self.groups))
        alike: dict = {}
        for g in list(self.groups):
            if not g.members or g.reduced or not all(m.node in written and m.node not in read and m.part is None
                                                            for m in g.members):
                continue
            if any(type(d) is not int for d in g.dims) or math.prod(g.dims) > devices.backend(g.device).largest_update:
                continue
            known = alike.setdefault((g.device, tuple(g.dims)), [])
            changed = set().union(*(written[m.node] for m in g.members))
            if known:
                other, others = known[-1]
                if (not others & g.reads and not changed & other.reads
                    and self._merge(other, g, {d: d for d in range(len(g.dims))}, related=False)):
                    others |= changed
                    continue
            known.append((g, changed))

    # the whole

    def run(self) -> Schedule:
        impure = None
        for position, n in enumerate(self.graph.nodes):
            if n.op in VIEWS or n.op == "input":
                continue
            if n.op in EXTERN:
                if n.op == "getitem":
                    self.calls[n] = self.calls[n.inputs[0]]
                    continue
                g = self.calls[n] = LibraryCall(n, position)
                self._new_bit(g)
                for i in n.inputs:
                    for r in self._requires(base_of(i)):
                        g.anc |= r.mask | r.anc
                        g.needs.append(r)
                if n.impure:
                    if impure is not None:
                        g.anc |= impure.mask | impure.anc
                        g.needs.append(impure)
                    impure = g
                self.groups.append(g)
            elif n not in self.inlined or n in self.wanted:
                if n.op == "cat":
                    parts = [k for k, i in enumerate(n.inputs) if not (len(i.type.shape) == 1
                                                                       and _is_zero(i.type.shape[0]))]
                    self.roots[n] = [Root(n, position, k) for k in parts or (0,)]
                else:
                    self.roots[n] = [Root(n, position)]
                for r in self.roots[n]:
                    _collect(r, self.inlined)
                    self._place_root(r)
        if self.enabled:
            self._siblings()
            self._updates()
        return self._finish()

    def _requires(self, base: Node) -> list[Group]:
        """The groups that must have run before a base value can be used as a tensor."""
        if base.op in EXTERN:
            return [self.calls[base]] if base in self.calls else []
        return [r.group for r in self.roots[base]]

    def _finish(self) -> Schedule:
        s = Schedule()
        s.roots, s.calls = self.roots, self.calls
        stored = s.stored
        for n in self.wanted:
            if n.op not in EXTERN:
                stored.add(n)
        for g in self.groups:
            for m in g.members:
                for node, aligns in m.reads.items():
                    for q in self.roots.get(node, ()):
                        if q.group is not g or q.part is not None:
                            stored.add(node)
        s.order = self._topological(stored)
        return s

    def _topological(self, stored: set[Node]) -> list[Group]:
        """Groups in dependency order; among the ready ones, that which stands first in the program."""
        waiting, ready, done, after = {}, [], [], {}
        for number, g in enumerate(self.groups):
            g.number = number
            needs = {id(h): h for n in g.needs for h in [self._alive(n)]}
            for m in g.members:
                for node in m.reads:
                    for h in self._requires(node):
                        if h is not g:
                            needs[id(h)] = h
            waiting[id(g)] = len(needs)
            for h in needs.values():
                after.setdefault(id(h), []).append(g)
            if not needs:
                heapq.heappush(ready, (g.position, g.number, g))
        while ready:
            g = heapq.heappop(ready)[2]
            done.append(g)
            for d in after.get(id(g), ()):
                waiting[id(d)] -= 1
                if not waiting[id(d)]:
                    heapq.heappush(ready, (d.position, d.number, d))
        assert len(done) == len(self.groups), "the groups form a cycle"
        return self._delayed(done, after, stored)

    @staticmethod
    def _delayed(order: list[Group], after: dict[int, list[Group]], stored: set[Node]) -> list:
        """The order with kernels moved to their first reader, where they make more than they free. What a backward
        computes again from saved values could run at its very start, and would fill the memory until it is read."""
        label = {id(g): k << _LABEL_BITS for k, g in enumerate(order)}
        last = {}
        for k, g in enumerate(order):
            last.update(dict.fromkeys(g.reads, k))
        keys = sorted(label.values())
        for k in reversed(range(len(order))):
            g = order[k]
            readers = after.get(id(g), ())
            if not readers:
                continue
            first = min(label[id(d)] for d in readers)
            made = sum(_bytes(node) for node in {m.node for m in g.members} & stored)
            freed = sum(_bytes(node) for node in g.reads if last[node] == k)
            at = bisect.bisect_left(keys, first)
            low = keys[at - 1] if at else first - (1 << _LABEL_BITS)
            if made > freed and low != label[id(g)] and first - low > 1:
                keys.remove(label[id(g)])
                label[id(g)] = (low + first) // 2
                bisect.insort(keys, label[id(g)])
        return sorted(order, key=lambda g: label[id(g)])

    def _alive(self, g: Group) -> Group:
        """The group that an earlier noted group has become part of."""
        return self.by_bit[(g.mask & -g.mask).bit_length() - 1].group


def _bytes(node: Node) -> int:
    return 0 if isinstance(node.type, tuple) else numel_hint(node.type.shape) * node.type.dtype.itemsize


def _is_zero(size: int) -> bool:
    return type(size) is int and size == 0


def fuse(graph: Graph, enabled: bool = True) -> Schedule:
    """Group the nodes of a graph. ``enabled=False`` gives each root a kernel of its own (for tests and debugging)."""
    fuser = _Fuser(graph)
    fuser.enabled = enabled
    return fuser.run()
