"""The joint graph in two: what the forward computes and saves, and what the backward computes from it.

Which values are saved is a minimum cut weighted by bytes. What is cheap to compute is computed again in the backward
where that saves memory; contractions, library calls, reductions, scans and random numbers never are. Inputs and outputs
of the primal graph are kept alive by others and cost nothing. Of a checkpointed region all but what others read may be
computed again, random numbers excepted; each region right before its gradients.

What library calls of both halves read lies in memory in both. Computed again it would be read and written once more for
nothing, so it is saved, as eager saves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jit.graph.autodiff.mincut import INFINITE, Network
from jit.graph.autodiff.reverse import Joint
from jit.graph import windows
from jit.graph.dims import hint
from jit.graph.ir import Graph, Loc, Node, Output, Part, ancestors
from jit.graph.passes import optimize, rewrite
from jit.graph.passes.dce import unmarked
from jit.graph.prim_info import info
from jit.graph.prims import POINTWISE, VIEWS, base_of
from jit.graph.printing import unbound_symbols

# The longest chain of cheap operations that is computed again; it keeps the backward from following a residual stream
# through a whole network.
LONGEST_CHAIN = 40


@dataclass
class Saves:
    """What the forward saves.

    Attributes:
        saved: for each saved input of the backward ("input", i), ("output", j) or ("extra", k).
        kept: for each saved input of the backward the id of the joint graph's node, as ``differentiate`` made it, whose
            value it is; None where that is not known.
    """

    saved: tuple
    kept: tuple


@dataclass
class Halves(Saves):
    """The two graphs.

    Attributes:
        forward: inputs are the primals; outputs are the primal outputs, then the extra saved values.
        backward: inputs are the saved values in the order of ``saved``, then the tangents; outputs are the gradients
            that are not None, in order.
        grads: for each differentiable input the position of its gradient among the backward's outputs, or None.
        depends: for each differentiable input the positions, in order of the tangents, of those that its gradient
            depends on.
        symbols: names of the size symbols that the backward needs and cannot read off its inputs.
    """

    forward: Graph
    backward: Graph
    grads: tuple
    symbols: tuple
    depends: tuple


def partition(joint: Joint, changed: tuple[int, ...] = (), loose: tuple[int, ...] = ()) -> Halves:
    """Divide a joint graph, optimised first. The inputs ``changed``, by position, are written when the forward
    has run; the outputs ``loose``, by position, may be written before the backward, which reads copies of them if it
    needs them."""
    graph = optimize(joint.graph)
    division = _Division(graph, joint, changed, loose)
    signs = division.signs()
    if signs:
        graph = rewrite.changed(graph, signs)
        division = _Division(graph, joint, changed, loose)
    primal_outputs, gradients = division.primal_outputs, division.gradients
    kept = division.kept(division.cut())

    returned = {o.node: j for j, o in reversed(list(enumerate(primal_outputs))) if o.mutates is None}
    mutated = {o.mutates for o in primal_outputs if o.mutates is not None} | set(changed)
    shown = {base_of(o.node) for o in primal_outputs}
    for j in loose:
        returned.pop(primal_outputs[j].node, None)
    saved, extras = [], []
    for n in kept:
        if n.op == "input" and n.attrs["index"] not in mutated:
            saved.append(("input", n.attrs["index"]))
        elif n in returned and base_of(n).op != "input":
            saved.append(("output", returned[n]))
        else:
            saved.append(("extra", len(extras)))
            extras.append(n)

    goals = [o.node for o in primal_outputs] + [n for n in graph.nodes if n.impure and n not in division.late]
    forward = _Forward(graph, graph.inputs[: joint.n_primals], primal_outputs, goals, extras, shown).run()
    backward = _Backward(graph, [*kept, *graph.inputs[joint.n_primals :]], gradients, division).run()
    grads = tuple(None if p is None else p - joint.n_outputs for p in joint.grads)
    return Halves(tuple(saved), tuple(_first(graph.origins, n.id) for n in kept), forward, backward, grads,
                  tuple(unbound_symbols(backward)), joint.depends)


class _Forward(Part):
    """The half that computes the ``outputs`` of the primal graph, and the ``extras``, which are saved; copies of those
    that are ``shown``: the program may change their memory."""

    def __init__(self, graph: Graph, inputs: Sequence[Node], outputs, goals, extras, shown) -> None:
        super().__init__(graph, inputs, goals + extras)
        self.primal, self.extras, self.shown = outputs, extras, shown

    def outputs(self) -> list[Output]:
        return [*(Output(self.new[o.node], o.mutates) for o in self.primal),
                *map(Output, map(self.saved, self.extras))]

    def saved(self, n: Node):
        made = self.new[n]
        return self.node("clone", (made,), {}, n.type) if n.op in ("input", *VIEWS) or n in self.shown else made


class _Backward(Part):
    """The half that computes ``gradients`` from the nodes ``inputs``. What does not depend on a tangent may raise, and
    has done so in the other half."""

    def __init__(self, graph: Graph, inputs: Sequence[Node], gradients, division) -> None:
        super().__init__(graph, inputs, division.goals)
        self.gradients, self.late, self.regions = gradients, division.late, division.regions

    def order(self) -> list:
        return _on_demand(self.graph.nodes, self.needed, self.late) if self.regions else super().order()

    def visit(self, n: Node) -> Node:
        return self.keep(n, attrs=n.attrs if n in self.late else unmarked(n.attrs))

    def outputs(self) -> list[Output]:
        return [Output(self.new[o.node]) for o in self.gradients]


def _first(origins: dict, id: int) -> int:
    while id in origins:
        id = origins[id]
    return id


def _on_demand(nodes, wanted, late) -> list:
    """``wanted`` in an order in which what does not depend on a tangent stands right before its first reader."""
    order, seen = [], set()
    for n in [*(n for n in nodes if n in late), *nodes]:
        stack = [n] if n in wanted else []
        while stack:
            m = stack[-1]
            missing = [i for i in m.inputs if i in wanted and i not in seen] if m not in seen else []
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if m not in seen:
                seen.add(m)
                order.append(m)
    return order


def region_of(n: Node) -> int:
    """The checkpointed region that a node is part of; 0: none."""
    return n.loc.region if isinstance(n.loc, Loc) else 0


def _found_once(n: Node) -> bool:
    """Whether a node is what the forward finds beside its result, and the backward is not to look for again."""
    return n.op == "window" and n.attrs["how"] in windows.ONCE


class _Division:
    def __init__(self, graph: Graph, joint: Joint, changed: tuple[int, ...], loose: tuple[int, ...]) -> None:
        self.graph = graph
        self.primal_outputs, self.gradients = graph.outputs[: joint.n_outputs], graph.outputs[joint.n_outputs :]
        primal_outputs, gradients = self.primal_outputs, self.gradients
        tangents = set(graph.inputs[joint.n_primals :])
        self.late = set(tangents)  # what depends on a tangent
        for n in graph.nodes:
            if not self.late.isdisjoint(n.inputs):
                self.late.add(n)
        self.early = ancestors([o.node for o in primal_outputs] + [
            n for n in graph.nodes if n not in self.late and (n.impure or _found_once(n))])
        self.mutated = {graph.inputs[o.mutates] for o in primal_outputs
                        if o.mutates is not None} | {graph.inputs[i] for i in changed}
        # These show what lies between the elements of an input, which is not in a copy of it.
        self.between = {n for n in graph.nodes if "place" in n.attrs and n.inputs[0] in self.mutated}
        self.returned = {o.node for o in primal_outputs if o.mutates is None
                         and base_of(o.node).op != "input"} - {primal_outputs[j].node for j in loose}
        self.goals = [o.node for o in gradients] + [n for n in graph.nodes if n.impure and n in self.late]
        needed = ancestors(self.goals)
        self.read = {i for n in needed if n in self.late for i in n.inputs if i not in self.late}
        self.read |= {o.node for o in gradients if o.node not in self.late}
        self.candidates = ancestors(self.read)
        self.exact = self._compared(graph)
        self.regions = any(region_of(n) for n in self.early)
        self.repeatable = self._repeatable([o.node for o in primal_outputs]) if self.regions else set()
        self.in_memory = self._read_by_library(self.early) & self._read_by_library(needed & self.late)

    @staticmethod
    def _compared(graph: Graph) -> set:
        """What is compared with an extremum of it, or with what a library call took from it, so that the gradient goes
        to where it came from: computed again, perhaps by other instructions or without rounding to a half type, it may
        be equal to nothing."""
        found = set()
        for n in graph.nodes:
            if n.op == "eq":
                for x, value in (n.inputs, n.inputs[::-1]):
                    while value.op in VIEWS or value.op == "cast":
                        value = value.inputs[0]
                    if info(value.op).gives_element or info(value.op).kind in ("call", "part"):
                        found.add(base_of(x))
        return found

    def _repeatable(self, results) -> set:
        """The nodes of checkpointed regions that nothing outside of their region reads."""
        inner = {n for n in self.early if region_of(n) and not n.impure}
        left = {n if n.op == "getitem" else base_of(n) for n in results}
        for n in self.early:
            left.update(i if i.op == "getitem" else base_of(i) for i in n.inputs if region_of(i) != region_of(n))
        return inner - left

    @staticmethod
    def _read_by_library(nodes: set) -> set:
        return {base_of(i) for n in nodes if info(n.op).kind == "call" for i in n.inputs}

    def _once(self, n: Node, depth: int = 0) -> bool:
        """Whether the forward alone computes ``n``, which ends a chain of ``depth`` cheap operations."""
        return (n.op == "input" or n in self.between or n.impure or n in self.early and n not in self.repeatable
                and (not info(n.op).repeatable or n in self.exact or n in self.in_memory or depth > LONGEST_CHAIN
                     or _found_once(n)))

    def signs(self) -> dict:
        """Changes of ``relu(z) <= 0`` to ``z <= 0``, which is the same for every value, where ``z`` is computed from
        inputs and results of the library that the backward reads anyway: the mask of a relu behind a norm then reads
        nothing."""
        found = [n for n in self.candidates if n.op == "le" and n not in self.early and n.inputs[0].op == "relu"
                 and (n.inputs[0] in self.in_memory or n.inputs[0] in self.returned) and info(n.inputs[1].op).constant
                 and n.inputs[1].attrs["value"] == 0]
        if not found:
            return {}
        others = self._origins(self.read.difference(found))
        return {n: {"inputs": (z, n.inputs[1])} for n in found for z in n.inputs[0].inputs
                if all(o in others and (o.op == "input" or info(o.op).kind in ("call", "part"))
                       for o in self._origins([z]) if self._bytes(o) * 4 > self._bytes(z))}

    def _origins(self, nodes: Iterable[Node]) -> set:
        """What the backward has to be given to compute ``nodes``."""
        found, seen, stack = set(), set(), list(nodes)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                if self._once(n):
                    found.add(n)
                else:
                    stack += n.inputs
        return found

    def _weight(self, n: Node) -> int:
        """What it costs to save ``n``, in bytes."""
        if n.several:
            return INFINITE
        if n.op == "input":
            return max(self._bytes(n), 1) if n in self.mutated else 0
        if n in self.returned:
            return 0
        if n.op in VIEWS and n not in self.between:
            return INFINITE  # the memory is saved, and the view made again
        return max(self._bytes(n), 1)

    @staticmethod
    def _bytes(n: Node) -> int:
        return hint(n.type.numel) * n.type.dtype.itemsize

    def cut(self) -> set:
        """The nodes to be saved."""
        network, entry, leave, depth = Network(), {}, {}, {}
        for n in self.graph.nodes:
            if n not in self.candidates or info(n.op).is_source:
                depth[n] = 0
                continue
            depth[n] = max((depth[i] for i in n.inputs), default=0) + (n.op in POINTWISE)
            once = self._once(n, depth[n])
            a, z = entry[n], leave[n] = network.vertex(), network.vertex()
            network.edge(a, z, self._weight(n))
            if once:
                depth[n] = 0
                network.edge(Network.SOURCE, a, INFINITE)  # so it does not matter what else leads there
            for i in () if once else n.inputs:
                if i in leave:
                    network.edge(leave[i], a, INFINITE)
            if n in self.read:
                network.edge(z, Network.SINK, INFINITE)
        late = network.sink_side()
        return {n for n in entry if entry[n] not in late and leave[n] in late}

    def kept(self, cut: set) -> list:
        """The members of the cut that the backward reads, inputs first, in program order."""
        used = ancestors(self.goals, cut)
        found = [n for n in self.graph.nodes if n in cut and n in used]
        return sorted(found, key=lambda n: n.op != "input")
