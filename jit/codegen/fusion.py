"""Which graph nodes share a kernel.

Roots and groups are described in ``groups.py``. All pointwise and indexing nodes that are no roots are *inlined* into
the trees of the roots that read them. A worklist of ties (``ties.py``) names the pairs of groups that may become one:
those of producers and consumers in program order, then those of siblings; ``fusable`` decides. Reachability between
groups is kept as bit sets, so a join that would make a cycle is seen at once and the whole pass stays near linear.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional

import torch

from .. import devices, observing, turns
from ..graph import windows
from ..graph.prim_info import BESIDE_ROWS, OF_A_PRODUCT, STORED
from ..graph.prims import REDUCTIONS, SCANS, SCATTERS, info, names
from . import indexing
from .groups import Group, LibraryCall, Root, Step
from .indexing import FIXED, LOOSE, VIEWS, base_of, is_one, numel_hint, same, size_hint
from .running_order import in_order
from .ties import Alike, Behind, ReadTogether, Siblings, Tie

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Graph, Node

SOURCES = names(is_source=True)
EXTERN = names(kind="input") | names(kind="call") | names(kind="part")
ROWS = REDUCTIONS | SCANS  # what needs all of a row
POSITIONS = names(gives_position=True)
IN_ORDER = POSITIONS | SCANS  # what depends on the order of a row

CHEAP_BEHIND_ROWS = 12    # the same of one that depends on reductions of rows too
CHEAP_TO_REPEAT = 3       # cost of a value that each of several readers may compute for itself from one tensor
SUMMED = (torch.float32, torch.float16, torch.bfloat16)  # what is added up in float32
MAX_TREE = 48             # nodes inlined into one root
MAX_MEMBERS = 48          # roots of a group
MAX_READS = 40            # tensors that a group reads
_IN_CHUNKS = "long rows are cut into chunks, and the results of whole rows are there in a second kernel alone"
MAX_CAT_INLINE = 4        # operands of a concatenation that is computed by selection in its reader


class Schedule:
    """The result: ``order`` is the groups and library calls in execution order; ``stored``: the nodes that get a
    buffer; ``roots``: node -> its roots; ``calls``: node -> the library call that makes it; ``refused``: two roots that
    could not be in one kernel, and why, where someone asks for a report."""

    def __init__(self) -> None:
        self.order, self.stored, self.roots, self.calls, self.refused = [], set(), {}, {}, []


def _uses(graph: Graph, numel: dict[Node, int]) -> tuple[dict[Node, dict], set[Node]]:
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
        if n.attrs.get(OF_A_PRODUCT) and n.op == "mul":
            wanted.add(base_of(n.inputs[1]))  # the vector, which is read for each element of the matrix
        if STORED in n.attrs:
            wanted.add(n)
        if n.op == "window":
            for i, times in zip(n.inputs, windows.reads(n)):
                users[base_of(i)][n] = users[base_of(i)].get(n, 0) + numel[n] * times
            continue
        for i in n.inputs:
            b = base_of(i)
            users[b][n] = users[b].get(n, 0) + numel[i if n.op in ROWS or n.op in SCATTERS or n.op == "cat" else n]
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

    def __init__(self, graph: Graph, users: dict[Node, dict[Node, int]], wanted: set[Node],
                 numel: dict[Node, int], repeated: Collection[Node] = frozenset()) -> None:
        self.cost, self.leaves, self.count, self.inlined = {}, {}, {}, set()
        self.repeated = repeated  # what all readers compute for themselves, whatever it reads
        # Results of reductions, and what is made of these alone -> the shapes and dimensions that were reduced.
        self.of_rows: dict[Node, frozenset] = {}
        self.users, self.wanted, self.numel = users, wanted, numel
        for n in graph.nodes:
            if n.op in VIEWS or n.op in EXTERN:
                continue
            if n.op in SOURCES:
                self.cost[n], self.leaves[n], self.count[n] = 0, frozenset(), 1
                self.inlined.add(n)
                continue
            cost, count, leaves, times = info(n.op).cost.repeat, 1, set(), 1
            if n.op == "window":  # all of its operand is computed for each place
                times = max(windows.reads(n))
                cost = cost * times
            for i in {base_of(i) for i in n.inputs}:
                if i in self.inlined:
                    cost, count = cost + self.cost[i] * times, count + self.count[i] * times
                    leaves |= self.leaves[i]
                else:
                    leaves.add(i)
            self.cost[n], self.leaves[n], self.count[n] = cost, leaves, count
            if n.op in REDUCTIONS:
                self.of_rows[n] = frozenset(((tuple(n.inputs[0].type.shape), tuple(sorted(n.attrs["dims"]))),))
            elif leaves and leaves <= self.of_rows.keys():
                self.of_rows[n] = frozenset().union(*[self.of_rows[l] for l in leaves])
            if _widens(n) and n not in wanted or self._inline(n):
                self.inlined.add(n)

    def _inline(self, n: Node) -> bool:
        users = self.users[n]
        size = max(self.numel[n], 1)
        if n.op in ROWS or n.op in SCATTERS or n in self.wanted:
            return False
        if OF_A_PRODUCT in n.attrs:
            return True
        if self.count[n] > MAX_TREE or len(self.leaves[n]) > 12:
            return False
        if n in self.repeated:
            return True
        if users and all(OF_A_PRODUCT in u.attrs for u in users):
            return True  # each reads other elements of it, or all vectors are multiplied by one
        cost = self.cost[n]
        if n.op == "cat" and (len(n.inputs) > MAX_CAT_INLINE or cost > 16 or len(users) != 1):
            return False
        if n.op == "constant_pad" and cost > 16 and len(users) != 1:
            return False
        reads = sum(users.values())
        if len(users) == 1 and reads <= size * 1.5:
            return not self._ends_rows(n)
        if len(users) == 1:
            # Computed more than once per element: by broadcasting, or through several views.
            if any(l.op in REDUCTIONS for l in self.leaves[n]) and reads > size * 2:
                return False
            return cost <= devices.backend(n.type.device).cheap_to_broadcast or reads <= size * 4 and cost <= 8
        big = [l for l in self.leaves[n] if self.numel[l] * 4 > size]
        if not big:
            return cost <= devices.backend(n.type.device).cheap_without_reads
        if len(big) != 1 or big[0].op in REDUCTIONS:
            return False
        # What follows a reduction of rows can share its kernel if it is not stored before.
        rows = devices.backend(n.type.device).repeats_behind_rows and any(
            l in self.of_rows and self.numel[l] > 1 for l in self.leaves[n])
        return cost <= (CHEAP_BEHIND_ROWS if rows and reads <= 3 * size else CHEAP_TO_REPEAT)


    def _ends_rows(self, n: Node) -> bool:
        """Whether several results of the same rows are made one value of each row, and these are reduced, or put
        elsewhere: stored is the one, and the rows' kernel finds it, with what it looks up for each row."""
        (reader,) = self.users[n]
        if info(reader.op).kind == "pointwise" or self.numel[n] <= 1:
            return False
        results = [l for l in self.leaves[n] if l in self.of_rows and self.numel[l] == self.numel[n]]
        return len(results) > 1 and len(set().union(*[self.of_rows[l] for l in results])) == 1


def _read_anyway(graph: Graph, trees: _Trees) -> set[Node]:
    """The cheap values with several readers, each of which reads what they are made of anyway, in step, but for one
    tensor: to compute them again there costs no more reads than to read them, and they need not be stored. Such is the
    gradient behind a relu that follows a norm: the sums over it and the gradient of the norm read it."""
    found, known = set(), {}

    def root(n: Node) -> Root:
        if n not in known:
            known[n] = Root(n, 0)
            _collect(known[n], trees.inlined)
        return known[n]

    for n in graph.nodes:
        turns.point()
        if (len(trees.users[n]) < 2 or n in trees.inlined or n in trees.wanted or info(n.op).kind != "pointwise"
            or trees.cost[n] > devices.backend(n.type.device).cheap_beside_reads):
            continue
        parts, leaves = _only_for(n, trees)
        big = [l for l in leaves if trees.numel[l] * 4 > trees.numel[n]]
        if len(big) > 1 and sum(trees.cost[p] for p in parts) <= devices.backend(n.type.device).cheap_beside_reads:
            readers = _roots_that_read(n, trees)
            if all(info(r.op).kind in ("pointwise", "reduction") for r in readers):
                kernels: dict = {}  # reductions over the same dimensions of it are one
                for r in map(root, readers):
                    kernels.setdefault((r.domain, r.reduced) if r.reduced else r, []).append(r)
                whole = Root(n, 0)
                _collect(whole, trees.inlined | parts)
                if all(_reads_anyway(k, whole, big) for k in kernels.values()):
                    found |= parts
    return found


def _only_for(n: Node, trees: _Trees) -> tuple[set[Node], set[Node]]:
    """``n`` with the pointwise values that nothing but it reads, and what all of these are made of."""
    parts, leaves = {n}, set(trees.leaves[n])
    while True:
        more = [l for l in leaves if info(l.op).kind == "pointwise" and l not in trees.wanted
                and parts.issuperset(_roots_that_read(l, trees))]
        if not more:
            return parts, leaves
        parts.update(more)
        leaves = {l for p in parts for l in trees.leaves[p]} - parts


def _roots_that_read(n: Node, trees: _Trees) -> list[Node]:
    found, seen, stack = [], set(), list(trees.users[n])
    while stack:
        u = stack.pop()
        if u not in seen:
            seen.add(u)
            if u in trees.inlined:
                stack += trees.users[u]
            if u not in trees.inlined or u in trees.wanted:
                found.append(u)
    return found


def _reads_anyway(readers: list[Root], n: Root, big: list[Node]) -> bool:
    """Whether a kernel of these roots reads ``n``, and all but one of ``big`` at the same place in each iteration."""
    aligns = {a for r in readers for a in r.reads.get(n.node, ())}
    (at,) = aligns if len(aligns) == 1 else (None,)
    if at is None:
        return False
    missing = 0
    for l in big:
        own = {None if a is None else tuple(d if d == FIXED else at[d] for d in a) for a in n.reads[l]}
        if own == {None} and n.through.get(l):
            views = {(v, tuple(d if d == FIXED else at[d] for d in a)) for v, a in n.through[l]}
            missing += not any(views <= r.through.get(l, set()) for r in readers)
            continue
        missing += None in own or not any(own <= r.reads.get(l, set()) for r in readers)
    return missing <= 1


def _collect(root: Root, inlined: set[Node]) -> None:
    """Fill ``root.reads`` and ``root.through`` by walking its tree with alignments, and ``root.size``."""
    reads, through, seen = {}, {}, set()
    identity = tuple(FIXED if is_one(s) else d for d, s in enumerate(root.domain))
    if root.node.op in ROWS and root.part is None:
        stack = [(root.node.inputs[0], identity)]
    elif root.part is not None:
        stack = [(root.source, identity)]
    else:
        stack = _operands(root.node, identity)
    stack = [(n, a, None) for n, a in stack]  # with the view of several dimensions as one through which it is read
    while stack:
        node, align, view = stack.pop()
        if (node, align) in seen:
            continue
        seen.add((node, align))
        if node.op in VIEWS:
            if node.op == "as_strided":
                reads.setdefault(base_of(node), set()).add(None)
                continue
            inner = indexing.view_alignment(node, align)
            merges = (node.op == "reshape" and inner is not None and LOOSE in inner and LOOSE not in align
                      and all(type(s) is int for s in (*node.type.shape, *node.type.strides)))
            view = ((node.type.shape, node.type.strides), align) if merges else None
            stack.append((node.inputs[0], inner, view))
        elif node in inlined:
            stack.extend((i, a, view if a == align else None) for i, a in _operands(node, align))
        else:
            reads.setdefault(node, set()).add(None if align is not None and LOOSE in align else align)
            if view is not None:
                through.setdefault(node, set()).add(view)
    root.reads, root.through, root.size = reads, through, len(seen)


def _operands(node: Node, align: tuple[int, ...] | None) -> list[tuple[Node, tuple[int, ...] | None]]:
    """The operands of a pointwise or indexing node with their alignments."""
    op = node.op
    if op == "clone":
        return [(node.inputs[0], align)]
    if op == "gather":
        (source, index), dim = node.inputs, node.attrs["dim"]
        beside = all(same(a, b) for d, (a, b) in enumerate(zip(source.type.shape, index.type.shape)) if d != dim)
        return [(source, indexing.loosened(align, (dim,)) if beside else None), (index, align)]
    if op == "index":
        first, rank = node.attrs["dims"][0], len(node.inputs[1].type.shape)
        inner = None if align is None else align[first : first + rank]
        return [(node.inputs[0], None)] + [(i, indexing.broadcast_alignment(i.type.shape, inner))
                                           for i in node.inputs[1:]]
    if op == "window":
        in_step = node.attrs["how"] in windows.IN_STEP
        return [(i, align if k and in_step else None) for k, i in enumerate(node.inputs)]
    if op == "scatter":
        return [(node.inputs[0], None), *((i, align) for i in node.inputs[1:])]
    if op == "put":
        first, rank = node.attrs["dims"][0], len(node.inputs[2].type.shape)
        inner = None if align is None else align[first : first + rank]
        return [(node.inputs[0], None), (node.inputs[1], align),
                *((i, indexing.broadcast_alignment(i.type.shape, inner)) for i in node.inputs[2:])]
    if info(op).kind == "copy":
        moved = indexing.loosened(align, _moved(node))
        return [(i, moved if len(i.type.shape) == len(node.type.shape) else None) for i in node.inputs]
    return [(i, indexing.broadcast_alignment(i.type.shape, align)) for i in node.inputs]


def _moved(node: Node) -> Collection[int]:
    """The dimensions along which a copy moves what it copies."""
    attrs = node.attrs
    return (attrs["dim"],) if "dim" in attrs else attrs.get("dims", range(len(node.type.shape)))


def inner_dim(root: Root) -> Optional[int]:
    """The domain dimension along which the largest tensor that the root reads lies contiguous."""
    best, size = None, -1
    for node, aligns in root.reads.items():
        views = [(node.type.strides, a) for a in aligns if a is not None and not node.several]
        views += [(strides, a) for (_, strides), a in root.through.get(node, ())]
        for strides, align in views:
            n = numel_hint(node.type.shape)
            if n > size:
                found = [(size_hint(s), d) for s, d in zip(strides, align) if d != FIXED]
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
        numel = {n: numel_hint(() if n.several else n.type.shape) for n in graph.nodes}
        self.users, self.wanted = _uses(graph, numel)
        trees = _Trees(graph, self.users, self.wanted, numel)
        repeated = _read_anyway(graph, trees)
        if repeated:
            trees = _Trees(graph, self.users, self.wanted, numel, repeated)
        self.inlined = trees.inlined
        self.roots = {}       # node -> its roots (several for the operands of a concatenation)
        self.calls = {}       # node of the library -> its call
        self.groups = {}      # id -> group or library call, in order
        self.by_bit = []      # bit number -> root or library call
        self.enabled = True
        self.why = ""         # the last two groups could not be joined
        self.refused = None if observing.observer() is None else []  # (root, root, why)

    # reachability

    def _new_bit(self, step: Step, maker: Root | LibraryCall) -> None:
        step.mask = 1 << len(self.by_bit)
        self.by_bit.append(maker)

    @staticmethod
    def _comes_behind(step: Step, other: Step, maker: Root | LibraryCall) -> None:
        """Note that ``step``, which is new and made for ``maker``, has to run behind another one."""
        step.anc |= other.mask | other.anc
        other.readers.append(maker)

    def _between(self, a: Group, b: Group) -> bool:
        """Whether a path from one group to the other goes through a third, which could run neither before nor after
        the two as one."""
        return any(h.anc & first.mask for first, second in ((a, b), (b, a)) if second.anc & first.mask
                   for m in second.members for node in m.reads for h in self._requires(node)
                   if h is not first and h is not second)

    # joining

    def fusable(self, a: Group, b: Group, tie: Tie) -> Optional[dict[int, int]]:
        """Dimension of ``b`` -> dimension of ``a`` with which the members of ``b`` can move to ``a``, or None. Changes
        nothing."""
        # A kernel has one device, and limits of size.
        if (a.device != b.device or len(a.members) + len(b.members) > MAX_MEMBERS
            or len(a.reads | b.reads) > MAX_READS):
            return self._apart("a kernel has one device, and limits of how much it computes and reads")
        # Siblings do not read each other.
        downstream = a.anc & b.mask or b.anc & a.mask
        if downstream and not tie.related:
            return self._apart("one needs a result of the other that has to be complete before")
        # Each loop of the one is a loop of the other; what reads the results of rows alone has no loops over rows.
        mapping = tie.mapping(a, b, self.roots)
        if mapping is None or len(mapping) != len(b.dims) or len(set(mapping.values())) != len(mapping):
            return self._apart("they go over different elements: the one reads what the other computes, or what both "
                               "read, in another order or another shape")
        whole = len(mapping) == len(a.dims)
        if not whole and (not tie.behind or b.reduced or not a.reduced.isdisjoint(mapping.values())
                          or len(b.dims) + len(a.reduced) != len(a.dims)):
            return self._apart("they go over spaces of different sizes")
        # The loops are of one length; those of a value and of what reads it in step are, by its type.
        if not tie.behind and not all(same(b.dims[x], a.dims[y]) for x, y in mapping.items()):
            return self._apart("they go over spaces of different sizes")
        # All reductions are over the same loops, and what depends on the order of these finds them in it.
        order = [mapping[x] for x in sorted(b.reduced)]
        if order and a.reduced and a.reduced != set(order):
            return self._apart("they reduce over different axes")
        if order != sorted(order) and any(m.node.op in POSITIONS for m in b.members):
            return self._apart("the position of an extremum depends on the order of the axes, which differs")
        if any(m.node.op in SCATTERS for g in (a, b) for m in g.members):
            return self._apart("one of them writes to places that data decide")
        # What is kept of a sorted row is another element than the one of the iteration.
        if tie.behind and any(m.kept is not None for m in a.members):
            return self._apart("one sorts rows, of which the other reads a part")
        # Loops that scan do not reduce, and only what reads a scan, or is read by it, or is one of the same rows,
        # shares them with it.
        if order or a.reduced and not tie.behind:
            scans = [any(m.node.op in SCANS and m.part is None for m in g.members) for g in (a, b)]
            beside = all(scans) and not tie.behind and a.reduced == set(order)
            if any(scans) and not beside and (not tie.behind or not scans[1]
                                              or any(m.node.op in REDUCTIONS for m in a.members)):
                return self._apart("one of them goes along rows in order, such as a cumulative sum, and the other "
                                   "reduces")
        # Rows are cut into chunks for all reductions or for none, and chunks know no order. The results of whole rows
        # are there in the second kernel alone, which does not visit elements.
        if tie.behind:
            (root,) = b.members
            if ((a.split if a.reduced else b.split)
                and (root.node.op in IN_ORDER or whole and self._comes_after(root, a))):
                return self._apart(_IN_CHUNKS)
        elif (order and a.reduced and bool(a.split) != bool(b.split)
              or downstream and (order or a.reduced) and (a.split or b.split)):
            return self._apart(_IN_CHUNKS)
        # What one reads of the other it reads in the iteration that computes it.
        if not tie.behind and not self._read_in_step(a, b, mapping):
            return self._apart("one reads elements that the other computes in another iteration")
        if self._between(a, b):
            return self._apart("something that has to run between them reads what the first writes, and the second "
                               "reads its result")
        return mapping

    def _apart(self, why: str) -> Optional[dict[int, int]]:
        """None: two groups cannot be joined, and why."""
        self.why = why
        return None

    def _comes_after(self, root: Root, g: Group) -> bool:
        """Whether a root needs the result of a row, were it in ``g``."""
        return any(q.group is g and (q.after or q.needs_row) for node in root.reads for q in self.roots.get(node, ()))

    def _join(self, a: Group, b: Group, mapping: dict[int, int]) -> None:
        """Move the members of ``b`` to ``a``."""
        a.split = a.split if a.reduced else b.split
        a.reduced = a.reduced or frozenset(mapping[x] for x in b.reduced)
        for m in b.members:
            m.group = a
            m.place = tuple([FIXED if p == FIXED else mapping[p] for p in m.place])
        changed = b.members if b.position > a.members[-1].position else a.members
        a.members += b.members
        if changed is a.members:
            a.members.sort(key=lambda m: (m.position, m.part or 0))
        a.reads |= b.reads
        a.position = min(a.position, b.position)
        b.members = []
        a.mask |= b.mask
        a.anc = (a.anc | b.anc) & ~a.mask
        everything = a.anc | a.mask
        del self.groups[id(b)]
        behind = {id(r.group): r for r in (*a.readers, *b.readers)}  # one of each group
        behind.pop(id(a), None)
        a.readers = list(behind.values())
        waiting = a.readers[:]
        while waiting:  # what comes behind a group has all that this one has
            d = waiting.pop().group
            if everything & ~d.anc:
                d.anc |= everything
                waiting += d.readers
        for m in changed:
            m.after = self._comes_after(m, a)

    def _alone(self, root: Root) -> None:
        """Give a root a group of its own."""
        g = root.group = Group(root.node.type.device)
        place = []
        for s in root.domain:
            place.append(FIXED if is_one(s) else len(g.dims))
            if place[-1] != FIXED:
                g.dims.append(s)
        root.place = tuple(place)
        g.reduced = frozenset(root.place[d] for d in root.reduced)
        g.members, g.reads, g.position = [root], set(root.reads), root.position
        if g.reduced and root.node.op not in IN_ORDER:
            inner = inner_dim(root)
            g.split = wants_split(g.device, g.dims, g.reduced, inner is None or root.place[inner] in g.reduced)
        for node in root.reads:
            for h in self._requires(node):
                self._comes_behind(g, h, root)
        self._new_bit(g, root)
        self.groups[id(g)] = g

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

    # ties

    def _join_along(self, ties: Iterable[Tie]) -> None:
        """Take ties one after the other, and join their groups where they are fusable."""
        for tie in ties:
            turns.point()
            a, b = tie.first.group, tie.second.group
            if a is not b:
                mapping = self.fusable(a, b, tie)
                if mapping is not None:
                    self._join(a, b, mapping)
                elif self.refused is not None:
                    self.refused.append((tie.first, tie.second, self.why))

    def _ties_of(self, root: Root) -> Iterator[Tie]:
        """A new root joins the last of its producers that it can, and then brings the others together."""
        producers = {id(q.group): q for node in root.reads for q in self.roots.get(node, ()) if q.part is None}
        for q in sorted(producers.values(), key=lambda q: -q.group.members[-1].position):
            yield Behind(q, root)
        for q in producers.values():
            yield ReadTogether(root, q)

    def _siblings(self) -> Iterator[Tie]:
        """Groups that write equal parts of one value, or read one tensor in step, over one space."""
        for parts in self.roots.values():
            for m in parts[1:]:
                if len(m.domain) == len(parts[0].domain) and all(map(same, m.domain, parts[0].domain)):
                    yield Siblings(parts[0], m, parts[0].out_align, m.out_align)
        readers = {}
        for g in self.groups.values():
            for m in g.members:
                for node, aligns in m.reads.items():
                    if node.several or node in self.roots and self.roots[node][0].group is g:
                        continue
                    views = {(None, a) for a in aligns} if None not in aligns else m.through.get(node, ())
                    if len(views) == 1:
                        ((view, align),) = views
                        if any(a != FIXED for a in align):
                            readers.setdefault((node, view), []).append((m, align))
        for (first, first_align), *others in readers.values():
            for m, align in others:
                g, other = first.group, m.group
                if (devices.backend(g.device).tiles_transposes and bool(g.reduced) != bool(other.reduced)
                    and any(map(_transposes, (g if other.reduced else other).members))):
                    continue  # loops without a reduction transpose by tiles
                yield Siblings(first, m, first_align, align)

    def _columns_beside_rows(self) -> None:
        """Kernels that reduce rows take along the sums over columns of what they read: the gradients of a norm's
        weights."""
        reading: dict = {}
        for g in self.groups.values():
            if (isinstance(g, Group) and g.reduced and not g.split
                and devices.backend(g.device).adds_columns_beside_rows
                and not any(m.node.op in IN_ORDER for m in g.members)):
                for node in g.reads:
                    reading.setdefault(node, []).append(g)
        for b in list(self.groups.values()):
            if not isinstance(b, Group) or b.split != "columns" and not self._sums_batches(b) or any(
                    m.needs_row and (m.node.op != "sum" or m.node.type.dtype not in SUMMED) for m in b.members):
                continue
            for a in {id(a): a for node in b.reads for a in reading.get(node, ())}.values():
                if self._take_along(a, b):
                    break

    @staticmethod
    def _sums_batches(b: Group) -> bool:
        """Whether a group was made to add up over a batch what rows beside it read (``by_rows``)."""
        return bool(b.reduced) and all(BESIDE_ROWS in m.node.attrs for m in b.members if m.needs_row)

    def _take_along(self, a: Group, b: Group) -> bool:
        """Let the kernel of ``a``, which reduces rows, take the sums over columns of ``b`` along, where it can."""
        mapping = self._columns_mapping(a, b)
        if mapping is None or b.mask & a.anc or not self._read_in_step(a, b, mapping) or self._between(a, b):
            return False
        known = [] if a.columns is None else a.columns.members
        sums = sum(m.needs_row for m in (*b.members, *known))
        width = 1 << (math.prod(a.dims[d] for d in a.reduced) - 1).bit_length()
        if width * sums * 4 > devices.backend(a.device).architecture().registers // 4:
            return False
        columns = a.columns = Group(a.device)
        columns.dims, columns.members, columns.split = a.dims, [*known, *b.members], b.split
        columns.reduced = frozenset(mapping[d] for d in b.reduced)
        self._join(a, b, mapping)
        return True

    def _columns_mapping(self, a: Group, b: Group) -> Optional[dict[int, int]]:
        """Dimension of ``b`` -> dimension of ``a``, by a tensor as large as both that they read in step; None where
        the columns of the one are not all that are the rows of the other."""
        if (a.device != b.device or len(a.dims) != len(b.dims) or len(a.members) + len(b.members) > MAX_MEMBERS
            or len(a.reads | b.reads) > MAX_READS or not all(type(a.dims[d]) is int for d in a.reduced)):
            return None
        batches = self._sums_batches(b)
        for m in b.members:
            for node, aligns in m.reads.items():
                for n in a.members:
                    if node in n.reads and len(aligns) == len(n.reads[node]) == 1:
                        (ours,), (theirs,) = aligns, n.reads[node]
                        if ours is theirs is None and len(m.through.get(node, ())) == len(n.through.get(node, ())) == 1:
                            ((view, ours),), ((other, theirs),) = m.through[node], n.through[node]
                            theirs = theirs if view == other else None
                        if ours is None or theirs is None:
                            continue
                        mapping = {m.place[d]: n.place[e] for d, e in zip(ours, theirs) if d != FIXED and e != FIXED}
                        summed = {mapping[d] for d in b.reduced if d in mapping}
                        rows = set(range(len(a.dims))) - a.reduced
                        if (len(mapping) == len(b.dims) == len(set(mapping.values()))
                            and all(same(b.dims[x], a.dims[y]) for x, y in mapping.items())
                            and (summed < rows if batches else summed == rows)):
                            return mapping
        return None

    def _updates(self) -> Iterator[Tie]:
        """Small kernels over one space that do nothing but make results and give inputs new values: the updates of an
        optimizer, which have no tensor in common."""
        written: dict = {}
        for o in self.graph.outputs:
            changed = written.setdefault(base_of(o.node), set())
            if o.mutates is not None:
                changed.add(self.graph.inputs[o.mutates])
        read = set().union(*(g.reads - {m.node for m in g.members} for g in self.groups.values()))
        alike: dict = {}
        for g in list(self.groups.values()):
            if not g.members or g.reduced or not all(m.node in written and m.node not in read and m.part is None
                                                     for m in g.members):
                continue
            if any(type(d) is not int for d in g.dims) or math.prod(g.dims) > devices.backend(g.device).largest_update:
                continue
            known = alike.setdefault((g.device, tuple(g.dims)), [])
            root, changed = g.members[0], set().union(*(written[m.node] for m in g.members))
            if known:
                other, others = known[-1]
                if not others & g.reads and not changed & other.group.reads:
                    yield Alike(other, root)
                    if root.group is other.group:
                        others |= changed
                        continue
            known.append((root, changed))

    # the whole

    def run(self) -> Schedule:
        impure = None
        for position, n in enumerate(self.graph.nodes):
            turns.point()
            if n.op in VIEWS or n.op == "input":
                continue
            if n.op in EXTERN:
                if n.op == "getitem":
                    self.calls[n] = self.calls[n.inputs[0]]
                    continue
                g = self.calls[n] = LibraryCall(n, position)
                self._new_bit(g, g)
                for i in n.inputs:
                    for r in self._requires(base_of(i)):
                        self._comes_behind(g, r, g)
                        g.needs.append(r)
                if n.impure:
                    if impure is not None:
                        self._comes_behind(g, impure, g)
                        g.needs.append(impure)
                    impure = g
                self.groups[id(g)] = g
            elif n not in self.inlined or n in self.wanted:
                if n.op == "cat":
                    parts = [k for k, i in enumerate(n.inputs) if not (len(i.type.shape) == 1
                                                                       and _is_zero(i.type.shape[0]))]
                    self.roots[n] = [Root(n, position, k) for k in parts or (0,)]
                else:
                    self.roots[n] = [Root(n, position)]
                for r in self.roots[n]:
                    _collect(r, self.inlined)
                    self._alone(r)
                    if self.enabled:
                        self._join_along(self._ties_of(r))
        if self.enabled:
            self._join_along(itertools.chain(self._siblings(), self._updates()))
            self._columns_beside_rows()
        return self._finish()

    def _requires(self, base: Node) -> list[Group]:
        """The groups that must have run before a base value can be used as a tensor."""
        if base.op in EXTERN:
            return [self.calls[base]] if base in self.calls else []
        return [r.group for r in self.roots[base]]

    def _finish(self) -> Schedule:
        s = Schedule()
        s.roots, s.calls, s.refused = self.roots, self.calls, self.refused or []
        stored = s.stored
        for n in self.wanted:
            if n.op not in EXTERN:
                stored.add(n)
        for g in self.groups.values():
            for m in g.members:
                for node, aligns in m.reads.items():
                    for q in self.roots.get(node, ()):
                        if q.group is not g or q.part is not None:
                            stored.add(node)
        s.order = in_order(list(self.groups.values()), self._needs, stored)
        return s

    def _needs(self, g: Group) -> Iterator[Group]:
        """The groups that have to run before one, some of them several times."""
        yield from map(self._alive, g.needs)
        for m in g.members:
            for node in m.reads:
                yield from self._requires(node)

    def _alive(self, g: Group) -> Group:
        """The group that an earlier noted group has become part of."""
        return self.by_bit[(g.mask & -g.mask).bit_length() - 1].group


def _is_zero(size: int) -> bool:
    return type(size) is int and size == 0


def fuse(graph: Graph, enabled: bool = True) -> Schedule:
    """Group the nodes of a graph. ``enabled=False`` gives each root a kernel of its own (for tests and debugging)."""
    fuser = _Fuser(graph)
    fuser.enabled = enabled
    return fuser.run()
