"""What may raise raises for all that it is given, also where only a part of its result is read.

A kernel computes the elements that somebody reads: of ``table[i][:2]`` it would look at two of the indices. Where the
readers of such an operation may not read all that its checks depend on, it becomes the library call that does the same;
so it does where the result has no elements and no kernel is made.
"""

from __future__ import annotations

from jit.graph.dims import structurally_equal
from jit.graph.ir import CHECKED, Graph, Node, same_ints
from jit.graph.passes.dce import unmarked
from jit.graph.passes.rewrite import changed
from jit.graph.prim_info import info
from jit.graph.prims import SCATTERS, library_form


def keep_checks(graph: Graph) -> Graph:
    checked, changes = [n for n in graph.nodes if CHECKED in n.attrs and n.op != "aten_call"], {}
    reads = _Reads(graph) if checked else None
    for n in checked:
        if n.type.is_empty or not reads.all_of(n, _checked_dims(n)):
            target, overload, args = library_form(n)
            changes[n] = {"op": "aten_call",
                          "attrs": {**unmarked(n.attrs), "target": target, "overload": overload, "args": args}}
    return changed(graph, changes)


def _checked_dims(n: Node) -> frozenset:
    """The dimensions of the result along which the checks of ``n`` differ: those of the index tensors. What is put to
    places is put there, and checked, whichever of the results are read."""
    if n.op in SCATTERS:
        return frozenset()
    if n.op == "index":
        first = n.attrs["dims"][0]
        return frozenset(range(first, first + n.inputs[1].type.rank))
    return frozenset(range(n.type.rank))


class _Reads:
    """How much of each value of a graph is read."""

    def __init__(self, graph: Graph) -> None:
        self.users, self.outputs, self.found = graph.users(), {o.node for o in graph.outputs}, {}

    def all_of(self, n: Node, dims: frozenset) -> bool:
        """Whether, for each position along ``dims``, some element of ``n`` there is read for certain."""
        if any(structurally_equal(size, 0) for size in n.type.shape):
            return False  # kernels do nothing for it
        if n in self.outputs:
            return True
        key = n, dims
        if key not in self.found:
            self.found[key] = any(self._by(u, n, dims) for u in self.users[n])
        return self.found[key]

    def _by(self, u: Node, n: Node, dims: frozenset) -> bool:
        """The same for one reader ``u``."""
        p = info(u.op)
        if p.kind == "call":
            return True
        if p.same_dims:
            return self.all_of(u, dims)
        if p.kind == "pointwise" or u.op == "expand":
            lead = u.type.rank - n.type.rank
            return self.all_of(u, frozenset(lead + d for d in dims))
        if p.kind == "reduction":
            gone = u.attrs["dims"]
            place = (lambda d: d) if u.attrs["keepdim"] else (lambda d: d - sum(g < d for g in gone))
            return self.all_of(u, frozenset(place(d) for d in dims if d not in gone))
        if u.op == "permute":
            return self.all_of(u, frozenset(u.attrs["dims"].index(d) for d in dims))
        if u.op == "slice":
            whole = u.attrs["dim"] not in dims or same_ints((u.attrs["start"], u.attrs["length"], u.attrs["step"]),
                                                            (0, n.type.shape[u.attrs["dim"]], 1))
            return whole and self.all_of(u, dims)
        if u.op == "reshape":
            return self.all_of(u, _reshaped(n, u, dims))
        if p.kind == "index":
            if n is u.inputs[0]:  # the indices say what is read of it
                return False
            return self.all_of(u, _checked_dims(u))
        if p.kind == "gradient":
            return n is u.inputs[0] and self.all_of(u, dims)
        return u.op == "cat" and self.all_of(u, dims | {u.attrs["dim"]})


def _reshaped(n: Node, u: Node, dims: frozenset) -> frozenset:
    """The dimensions of the view ``u`` of ``n`` that ``dims`` became: the same ones up to where the shapes begin to
    differ, from both ends; all else."""
    a, b = n.type.shape, u.type.shape
    first = 0
    while first < min(len(a), len(b)) and structurally_equal(a[first], b[first]):
        first += 1
    last = 0
    while last < min(len(a), len(b)) - first and structurally_equal(a[-1 - last], b[-1 - last]):
        last += 1
    moved = {d if d < first else d - len(a) + len(b) for d in dims if d < first or d >= len(a) - last}
    if any(first <= d < len(a) - last for d in dims):
        moved.update(range(first, len(b) - last))
    return frozenset(moved)
