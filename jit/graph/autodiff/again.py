"""Gradients of gradients: the gradients of a graph as a graph of its own, which is differentiated like any other, and
so on.

That graph computes the gradients from the inputs and the tangents, the forward included, because the way of second
derivatives leads through the forward. The values that the first forward has saved are inputs of it too, and no node
reads them: a gradient flows through the operations that have made them. When it has been differentiated they are put in
the place of the nodes whose values they are (``settled``), and what only led to them is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jit.errors import Unsupported
from jit.graph.autodiff.reverse import Joint, Reverse, carrying_outputs
from jit.graph.ir import Graph, Node, Output, Transform
from jit.graph.passes.cse import node_key
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.gradients import without_gradients
from jit.graph.prim_info import info
from jit.graph.prims import base_of, strides_agree


@dataclass
class Differentiated:
    """A graph whose gradients a plan computes, and what the plan's forward has saved for them.

    Attributes:
        graph: before it was differentiated; it is not changed any more.
        wrt: the positions of the inputs that gradients are taken with respect to.
        tangents: the positions of the outputs that have one.
        given: node -> position of the input that has its value, as in ``Gradients``.
        kept: for each saved value the id of the node of ``Reverse(graph, wrt, tangents).run()`` that it is the
            value of; None for an input itself.
        types: the types of the saved values.
        changed: the positions of inputs that are written when the forward has run.
    """

    graph: Graph
    wrt: tuple
    tangents: tuple
    kept: tuple
    types: tuple
    given: dict = field(default_factory=dict)
    changed: frozenset = frozenset()


@dataclass
class Gradients:
    """The graph of gradients. Its inputs: those of the graph, the tangents that are given, the saved values.

    Attributes:
        graph: what it is; its outputs are the gradients.
        grads: for each of the differentiated graph's ``wrt`` the position of its gradient among the outputs, or None.
        wrt: the positions of the inputs through which the gradients can be differentiated, of those that were asked
            for.
        tangents: the positions of the outputs that depend on them.
        given: node -> position of the input that has its value.
    """

    graph: Graph
    grads: tuple
    wrt: tuple
    tangents: tuple
    given: dict


def gradients(source: Differentiated, present: tuple[bool, ...], wanted: tuple[bool, ...],
              needs: tuple[bool, ...]) -> Gradients:
    """The graph of the gradients of ``source``.

    Args:
        present: for each of its tangents whether it is given.
        wanted: for each of its ``wrt`` whether the gradient is.
        needs: for each input of the graph, then for each given tangent, whether the gradients are to be differentiable
            with respect to it.

    Raises:
        Unsupported: an operation on the way has no gradient here; kind "gradient".
    """
    if any(n.op == "autograd_function" for n in source.graph.nodes):
        raise Unsupported("double backward of a torch.autograd.Function", kind="gradient")
    carrying = {source.graph.inputs[i] for i in source.wrt}
    for n in source.graph.nodes:
        if n.op != "detach" and any(i in carrying for i in n.inputs):
            carrying.add(n)
            if n.op == "prod":
                raise Unsupported("double backward of prod, whose gradient has another formula where an element is "
                                  "zero",
                                  kind="gradient")
            if info(n.op).flat:
                raise Unsupported(f"double backward of {n.op}: eager's is zero, and depends on what comes before",
                                  kind="gradient")
    joint = Reverse(source.graph, source.wrt, tuple(t for t, p in zip(source.tangents, present) if p)).joint()
    graph = joint.graph
    # Values behind the primal graph have other ids when other tangents are given.
    own = {n.id: n for n in graph.nodes} if all(present) else {n.id: n
                                                               for n in joint.copies.values() if isinstance(n, Node)}
    given = {joint.copies[n]: at for n, at in source.given.items() if n in joint.copies}
    for at, id in enumerate(source.kept, len(graph.inputs)):
        if own.get(id) is not None:
            given[own[id]] = at
    found = {}
    for k, (position, w) in enumerate(zip(joint.grads, wanted)):
        if w and position is not None:
            found[k] = graph.outputs[position].node
    made = _Gradients(graph, source.types, found.values()).run()
    numbers = {k: at for at, k in enumerate(found)}
    wrt = tuple(i for i, n in enumerate(needs) if n)
    return Gradients(made, tuple(numbers.get(k) for k in range(len(wanted))), wrt, carrying_outputs(made, wrt), given)


class _Gradients(Transform):
    """The graph with further inputs, of these ``types``, and the nodes ``results`` as outputs."""

    def __init__(self, graph: Graph, types, results) -> None:
        super().__init__(graph, graph.inputs)
        self.types, self.results = types, results

    def order(self) -> Iterable[Node]:
        for t in self.types:
            self.input(t)
        return super().order()

    def outputs(self) -> list[Output]:
        return [Output(self.new[n]) for n in self.results]


def differentiated_again(graph: Graph, wrt: tuple[int, ...], tangents: tuple[int, ...], given: dict,
                         changed: frozenset) -> Joint:
    """``differentiate`` for the graph of a ``Gradients``.

    Raises:
        Unsupported: an operation has no gradient here; or a value would have to be computed that can not be computed
            again.
    """
    joint = Reverse(graph, tuple(wrt), tuple(tangents)).joint()
    joint.graph = settled(joint.graph, {joint.copies[n]: at for n, at in given.items()}, changed)
    return joint


def settled(graph: Graph, given: dict, changed: frozenset = frozenset()) -> Graph:
    """The graph that reads the inputs at the positions ``given[node]`` where the values of these nodes are read, and of
    others that compute the same."""
    return _deterministic(without_gradients(_Settled(graph, given).run()), changed)


class _Settled(Transform):
    def __init__(self, graph: Graph, given: dict) -> None:
        super().__init__(graph, graph.inputs)
        self.numbers, self.places = _numbers(graph), {}
        for n, at in given.items():
            self.places.setdefault(self.numbers[n], at)

    def order(self) -> Iterable[Node]:
        found: dict = {}
        for n in self.graph.nodes:
            at = self.places.get(self.numbers[n]) if not n.several else None
            if at is None or n is self.graph.inputs[at]:
                continue
            key, source = (at, n.type.strides), self.inputs[at]
            if key not in found:
                found[key] = (source if strides_agree(source.type, n.type)
                              else self.node("clone", (source,), {}, n.type))
            self.new[n] = found[key]
        return super().order()

    def output(self, o: Output) -> Node:
        node = self.new[o.node]
        # A result is a tensor of its own.
        return self.node("clone", (node,), {}, o.node.type) if base_of(node).op == "input" else node


def _deterministic(graph: Graph, changed: frozenset) -> Graph:
    """Without what draws random numbers, which nothing may read any more."""
    live, kept = {o.node for o in graph.outputs}, []
    for n in reversed(graph.nodes):
        if n not in live and n.op != "input":
            continue
        if n.impure:
            raise Unsupported("double backward needs random numbers that were not saved", kind="gradient")
        if n in live and n.op == "input" and n.attrs["index"] in changed:
            raise Unsupported("double backward needs an input as it was before it was changed in place",
                              "clone() it first", kind="gradient")
        live.update(n.inputs)
        kept.append(n)
    return eliminate_dead_nodes(graph.replace(kept[::-1]))


def _numbers(graph: Graph) -> dict:
    """Node -> a node that computes the same value from the same inputs."""
    numbers, seen = {}, {}
    for n in graph.nodes:
        if n.op == "input" or n.impure:
            numbers[n] = n
            continue
        same = (numbers[n.inputs[0]] if n.op in ("detach", "alias", "custom_gradient") and n.inputs[0].type == n.type
                else None)
        if same is None:
            plain = {k: v for k, v in n.attrs.items() if k not in ("grad", "one_hot", "exponent")}
            same = seen.setdefault(node_key(n.replace(inputs=tuple([numbers[i] for i in n.inputs]), attrs=plain)), n)
        numbers[n] = same
    return numbers
