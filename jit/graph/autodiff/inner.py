"""Gradients and maps that the program itself asks for: each ``gradient`` node of a graph becomes the operations that
compute it, and each ``collected`` node those of all slices (``maps``), in program order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph.autodiff.reverse import Sweep
from jit.graph.functions import computed
from jit.graph.handles import overlaps_itself
from jit.graph.gradient_paths import carrying, parts, passed
from jit.graph.ir import Graph, Node, same_ints
from jit.graph.maps import Batch, without_slices
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.ir import TensorType


def expand_gradients(graph: Graph) -> Graph:
    """A graph with operations in the place of the ``gradient`` nodes of ``graph``, which is not changed. It may be
    differentiated once more.

    Raises:
        Unsupported: an operation on the way has no gradient here; kind "gradient".
    """
    made = _Inner(graph).run()
    left = without_slices(made.nodes)
    if len(left) < len(made.nodes):
        if not {o.node for o in made.outputs} <= set(left):
            raise Unsupported("a tensor from inside of torch.vmap is used behind it", "return it", kind="functorch")
        made.nodes[:] = left
    return made


def expanded_nodes(graph: Graph) -> tuple:
    """The nodes of ``expand_gradients(graph)``, and a mapping from the nodes of ``graph`` to them."""
    inner = _Inner(graph)
    inner.run()
    return inner.nodes, inner.new


class Unfolding:
    """``expanded_nodes`` of a graph that grows: each node is visited once. Calls have the form that gradients need."""

    def __init__(self, graph: Graph) -> None:
        self.inner, self.seen, self.last = _Inner(graph), 0, None
        self.inner.trained = _All()

    def follows(self, nodes: list[Node]) -> bool:
        """Whether nodes begin with those that were visited."""
        return self.seen <= len(nodes) and (not self.seen or nodes[self.seen - 1] is self.last)

    def go_on(self, nodes: list[Node]) -> None:
        """Visit what has come since."""
        inner = self.inner
        for n in nodes[self.seen:]:
            inner.b.loc = n.loc
            if n.op == "input":
                made = inner.entry(n)
            elif n.op == "getitem" and type(inner.new.get(n.inputs[0])) is tuple:
                made = inner.new[n.inputs[0]][n.attrs["index"]]
            else:
                made = inner.visit(n)
            if made is not None:
                inner.new[n] = made
            self.seen, self.last = self.seen + 1, n


class _All(set):
    def __contains__(self, n: object) -> bool:
        return True


class _Inner(Sweep):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.maps: dict[int, Batch] = {}
        self.trained: set = set()  # nodes through which gradients flow
        for n in graph.nodes:
            if n.op == "gradient":
                roots, _, wrt = parts(n)
                self.trained |= passed(roots, carrying(_before(graph.nodes, n), wrt))

    def visit(self, n: Node) -> Node:
        if n.op == "gradient":
            return self.gradients(n)
        if n.op == "collected":
            level = n.attrs["level"]
            batch = self.maps.setdefault(level, Batch(self.b, level, n.attrs["size"]))
            self.b.loc = n.loc
            made = batch.collected(self.new[n.inputs[0]])
            return self.laid_out(made, n.type) if n.attrs["settled"] else made
        inputs = self.operands(n)
        made = self.training_form(n, inputs) if n in self.trained and n.op == "aten_call" else None
        return self.keep(n, inputs) if made is None else made

    def gradients(self, call: Node) -> tuple:
        """The values of a ``gradient`` node, each in memory of its own."""
        b = self.b
        roots, tangents, wrt = ([self.new[n] for n in nodes] for nodes in parts(call))
        ends = computed(roots, 0)
        self.carries.clear()
        self.carries |= carrying(ends, wrt)
        self.found, self.slices, self.touched, self.reached = {}, {}, set(), set()
        self.tangent_inputs, self.reach = [], {}
        first = b.next_id
        for root, t in zip(roots, tangents):
            self.count(root, t)
        sources, found = set(wrt), {}
        for node in reversed(ends):
            if node in sources and node in self.touched:
                g = found[node] = self.gradient(node)
                if g is not None:
                    self.found[node] = [g]
            if node.op == "detach":
                continue
            if node in self.carries and node in self.touched:
                self.send(node)
            elif node in self.reached:
                self.pass_on(node)
        b.loc = call.loc
        taken: set = set()
        return tuple([self.owned(found, node, t, first, taken) for node, t in zip(wrt, call.type)])

    def owned(self, found: dict[Node, Node], node: Node, t: TensorType, first: int, taken: set) -> Node:
        if node not in found:
            raise Unsupported("a gradient that is not defined", kind="gradient")
        g = found[node]
        if g is None:
            g = self.b.zeros(t)
        if (info(g.op).kind in ("view", "number") or g.id < first
            or g in taken or not same_ints(g.type.strides, t.strides)):
            g = self.b.clone(g, t.strides) if not overlaps_itself(t) else self.expanded(g, t)
        taken.add(g)
        return g

    def expanded(self, g: Node, t: TensorType) -> Node:
        """A gradient that eager expands, in memory of its own."""
        b = self.b
        repeated = [type(s) is int and s == 0 and not (type(n) is int and n == 1) for n, s in zip(t.shape, t.strides)]
        for d, r in enumerate(repeated):
            if r:
                g = b.slice(g, d, 0, 1)
        strides = [1 if r else s for r, s in zip(repeated, t.strides)]
        return b.expand(b.clone(g, strides), t.shape)


def _before(nodes: list[Node], call: Node) -> list:
    return nodes[: nodes.index(call)]
