"""Reverse mode: from a graph to the joint graph of its values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jit import torch_private
from jit.errors import Unsupported
from jit.graph import layout, pairs
from jit.graph.autodiff.recorded import GRADIENT, RECORDED, recorded, recorded_vjp
from jit.graph.autodiff.replay import draws, replay, replay_call
from jit.graph.autodiff.rules import (
    ATEN_VJPS, COMPOSITE_VJPS, TRAINING_FORMS, UNDEFINED, VJPS, GradBuilder, is_differentiable, resolved,
)
from jit.graph.autodiff.vjps_reductions import centred_square
from jit.graph.dims import hint, structurally_equal
from jit.graph.functions import computed, differentiated, parts
from jit.graph.gradient_paths import carrying, may_carry
from jit.graph.ir import Graph, Node, Output, Ref, TensorType, Transform, filled, operator, same_ints
from jit.graph.nested import refilled, several
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.passes.gradients import without_gradients
from jit.graph.prim_info import info
from jit.graph.prims import VIEWS, base_of


@dataclass
class Joint:
    """A graph of values and gradients. Inputs: the primals, then the tangents. Outputs: those of the primal graph, in
    order (the ones that write into inputs too), then the gradients.

    Attributes:
        graph: the joint graph.
        n_primals: how many inputs are primals.
        n_outputs: how many outputs are the primal graph's.
        tangents: the positions of the primal outputs that have a tangent, in the order of the tangent inputs. A tangent
            has its output's shape and dtype, and the strides of ``torch.empty_like`` of it.
        wrt: the positions of the primals that gradients are taken with respect to, in order.
        grads: for each of ``wrt`` the position of its gradient among the joint graph's outputs; None where nothing that
            has a tangent depends on it.
        depends: for each of ``wrt`` the positions in ``tangents`` of the outputs that it reaches.
        copies: node of the primal graph -> its copy; a tuple of them where a training form stands for a node with
            several results.
    """

    graph: Graph
    n_primals: int
    n_outputs: int
    tangents: tuple
    wrt: tuple
    grads: tuple
    depends: tuple
    copies: dict = field(default_factory=dict)


def differentiate(graph: Graph, wrt: Sequence[int], tangents: tuple[int, ...]) -> Joint:
    """The joint graph of ``graph`` for gradients with respect to the inputs ``wrt`` of the outputs ``tangents``
    (positions of both).

    A value has a gradient when its dtype is floating, one of its operands has one, and no ``detach`` lies between. The
    graph that is given is not changed.

    Raises:
        Unsupported: an operation on the way has no gradient here; kind "gradient".
    """
    joint = Reverse(graph, tuple(wrt), tuple(tangents)).joint()
    joint.graph = eliminate_dead_nodes(without_gradients(joint.graph))
    return joint


def carrying_outputs(graph: Graph, wrt: Sequence[int]) -> tuple:
    """The positions of the returned outputs through which gradients reach the inputs ``wrt``, in order."""
    found = carrying(graph.nodes, [graph.inputs[i] for i in wrt if is_differentiable(graph.inputs[i].type.dtype)])
    return tuple(k for k, o in enumerate(graph.outputs) if o.mutates is None and o.node in found)


def _is_complex(n: Node) -> bool:
    """Whether the node gives or takes complex numbers."""
    return (any(t is not None and t.dtype.is_complex for t in n.types)
            or any(not i.several and i.type.dtype.is_complex for i in n.inputs))


class Sweep(Transform):
    """A graph through which gradients are sent while it is made."""

    apart = True

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, builder=GradBuilder(graph.env))
        self.carries = self.b.carries
        self.found: dict = {}      # node -> its gradient's contributions, in the order of discovery
        self.slices: dict = {}     # node -> [(dim, start, length, gradient)] of slices of it
        self.touched: set = set()  # nodes whose gradient is defined, be it zero
        self.reached: set = set()  # nodes that a tangent reaches without a gradient of theirs being defined
        self.tangent_inputs: list = []
        self.reach: dict = {}      # node with a backward of its own -> the tangents that reach it

    def keep(self, n: Node, *args: object, **kwargs: object) -> Node:
        made = super().keep(n, *args, **kwargs)
        if made.op == "getitem":
            self.b.note_result(made)
        return made

    def training_form(self, n: Node, inputs: Sequence[Node]):
        name = n.attrs["target"].removeprefix("aten::")
        rule = TRAINING_FORMS.get(name)
        if rule is None and name not in ATEN_VJPS and draws(n):
            rule = recorded  # a second run in the backward would draw other numbers
        if rule is None:
            return None
        b = self.b
        first = len(b.nodes)
        made = rule(b, n, *filled(n.attrs["args"], inputs))
        if made is NotImplemented:
            del b.nodes[first:]
            return None
        made = refilled(made, [self.laid_out(m, t) for m, t in zip(several(made), n.types)])
        for m in b.nodes[first:]:
            if m.op != "detach" and any(i in self.carries for i in m.inputs) and may_carry(m):
                self.carries.add(m)
        return made

    def laid_out(self, made: Node, t: TensorType) -> Node:
        return made if same_ints(made.type.strides, t.strides) else self.b.clone(made, t.strides)

    # gradients

    def count(self, node: Node, g: Node | None) -> None:
        """Count ``g`` (None: zero) towards the gradient of ``node``."""
        if node not in self.carries:
            return
        self.touched.add(node)
        if g is not None:
            if g.type.dtype is not node.type.dtype:
                if g.type.dtype.is_complex or node.type.dtype.is_complex:
                    raise Unsupported("a gradient between real and complex numbers",
                                      "compute it outside the compiled function", kind="gradient")
                g = self.b.cast(g, node.type.dtype)
            self.found.setdefault(node, []).append(g)

    def gradient(self, node: Node) -> Node | None:
        """The gradient of ``node``: the sum of what was found."""
        parts = self.found.pop(node, [])
        slices = self.slices.pop(node, None)
        if slices:
            parts += self.join(node, slices)
        if not parts:
            return None
        total = parts[0]
        for p in parts[1:]:
            total = pairs.added(self.b, total, p) if total.dtype.is_complex else self.b.add(total, p)
        return total

    def join(self, node: Node, slices) -> list:
        """Gradients of slices of ``node`` as gradients of all of it: one concatenation if they lie side by side."""
        b, shape = self.b, node.type.shape
        dim = slices[0][0].attrs["dim"]
        ordered = sorted(slices, key=lambda s: _position(s[0].attrs["start"]))
        at, parts = 0, []
        for n, g in ordered:
            a = n.attrs
            if a["dim"] != dim or not same_ints((a["step"],), (1,)) or not structurally_equal(a["start"], at):
                break
            parts.append(g)
            at = a["start"] + a["length"]
        else:
            if len(parts) > 1 and structurally_equal(at, shape[dim]):
                return [b.cat(parts, dim)]
        return [resolved(VJPS["slice"](b, n, g)[0]) for n, g in slices]

    def send(self, node: Node) -> None:
        """Send the gradient of ``node`` on to its inputs."""
        b = self.b
        b.loc = node.loc
        if node.several:
            given = tuple(self.gradient(b.result(node, i)) if t is not None and (node, i) in b._results else None
                          for i, t in enumerate(node.type))
            (self.send_function if node.op == "autograd_function" else self.send_call)(node, given)
            return
        if node.op == "input":
            return
        g = self.gradient(node)
        if not info(node.op).complex_gradient and _is_complex(node):
            raise Unsupported(f"the gradient of {node.op} of complex numbers",
                              "compute it outside the compiled function", kind="gradient")
        if node.op == "getitem":
            source = node.inputs[0]
            self.touched.add(source)
            if g is not None:
                self.found[node] = [g]
            return
        if g is None:
            for i in node.inputs:
                self.count(i, None)
            return
        if node.op == "aten_call":
            self.send_call(node, g)
            return
        if node.op == "slice" and node.inputs[0] in self.carries:
            self.touched.add(node.inputs[0])
            self.slices.setdefault(node.inputs[0], []).append((node, g))
            return
        squared = centred_square(node)
        if squared is not None and squared[0] in self.carries:
            # d/dx of sum((x - mean)^2) is 2 (x - mean): the mean's own share is zero.
            x, centred = squared
            self.count(x, b.mul(b.mul(b.spread(g, node), 2), centred))
            return
        whole = COMPOSITE_VJPS.get(node.attrs.get("grad"))
        pairs = NotImplemented if whole is None else whole(b, node, g)
        if pairs is not NotImplemented:
            for i, value in pairs:
                self.count(i, value)
            return
        if node.op == "as_strided":
            # The formula asks for the tensor's layout alone, from the start of its base: the tensor itself, or a copy
            # that is kept of it, may begin elsewhere.
            (x,) = node.inputs
            size, stride, offset = (node.attrs["size"], node.attrs["stride"],
                                    node.attrs.get("place", node.attrs["offset"]))
            start = node.attrs.get("start", 0)
            places = ((start, x.shape, x.type.strides), (offset, size, stride))
            ends = [first + 1 + sum((n - 1) * s for n, s in zip(sizes, steps))
                    for first, sizes, steps in places if not any(type(n) is int and n == 0 for n in sizes)]
            memory = b.clone(b.full((sum(ends),), 0, x.dtype, x.device))
            like = b.emit("as_strided", (memory,), {"size": x.shape, "stride": x.type.strides, "offset": start})
            args = (Ref(0), size, stride, offset)
            for _, value in replay_call(b, "aten::as_strided", "", args, (like,), g, {like}):
                self.count(x, value)
            return
        rule = VJPS.get(node.op)
        if rule is None:
            raise Unsupported(f"{node.op} has no gradient here", "compute it outside the compiled function",
                              kind="gradient")
        entries = rule(b, node, g)
        for i, entry in zip(node.inputs, entries):
            if i not in self.carries or entry is UNDEFINED:
                continue
            value = resolved(entry)
            if value is not None and info(node.op).kind == "pointwise":
                value = b.sum_to(value, i.type.shape)
            self.count(i, value)

    def pass_on(self, node: Node) -> None:
        """Eager's graph is walked behind a node without a gradient too: functions with a backward of their own run
        there, on zeros."""
        if node.op == "autograd_function":
            self.send_function(node, (None,) * len(node.type))
        else:
            self.reached.update(i for i in node.inputs if i in self.carries)

    def send_function(self, node: Node, given: dict) -> None:
        """A function with a backward of its own: the backward, on the gradients that were found, and zeros for
        others."""
        b = self.b
        results, arguments, tangents, gradients = parts(node)
        values = {}
        for t, g in zip(tangents, given):
            g = b.zeros(t.type) if g is None else g
            values[t] = g if same_ints(g.type.strides, t.type.strides) else b.clone(g, t.type.strides)
        substituted(b, gradients, values)
        gates = self.reach.get(node, ())
        for x, g in zip(arguments, gradients):
            if g is None:
                if x in self.carries:
                    self.reached.add(x)
                continue
            g = values.get(g, g)
            if 0 < len(gates) < len(self.tangent_inputs):
                g = b.node("gate", (g, *(self.tangent_inputs[t] for t in gates)), {}, g.type)
            self.count(x, b.sum_to(g, x.type.shape))

    def send_call(self, node: Node, given: dict) -> None:
        """A library call: its own rule, or a replay."""
        b, args = self.b, filled(node.attrs["args"], node.inputs)
        some = any(g is not None for g in several(given))
        if not some:
            for i in node.inputs:
                self.count(i, None)
            return
        target, overload = node.attrs["target"], node.attrs["overload"]
        of_torch = target.startswith("aten::")
        named = zip(torch_private.schema(operator(target, overload)).arguments, args) if of_torch else ()
        if any(v is True and a.name in ("sparse", "sparse_grad") for a, v in named):
            raise Unsupported(f"the sparse gradient of {target[6:]}",
                              "compute it outside the compiled function, or ask for a dense gradient", kind="gradient")
        rule = ATEN_VJPS.get(target.removeprefix("aten::"))
        if target.startswith(RECORDED) and target != GRADIENT:
            rule = recorded_vjp
        entries = NotImplemented if rule is None or _is_complex(node) else rule(b, node, given, *args)
        if entries is NotImplemented:
            for i, value in replay(b, node, given, self.carries):
                self.count(i, value)
            return
        self.add_arguments(args, entries)

    def add_arguments(self, args: tuple[object, ...], entries) -> None:
        for k, arg in enumerate(args):
            if isinstance(arg, Node) and arg in self.carries:
                self.count(arg, resolved(entries[k]) if k < len(entries) else None)
            elif isinstance(arg, tuple):
                self.add_arguments(arg, entries[k] if k < len(entries) and entries[k] is not None else ())


class Reverse(Sweep):
    """The joint graph: the primal graph with the forms that training needs, then its gradients."""

    def __init__(self, graph: Graph, wrt: tuple, tangents: tuple) -> None:
        super().__init__(graph)
        self.wrt, self.tangents = wrt, tangents
        self.sources = {graph.inputs[position] for position in wrt}

    def joint(self) -> Joint:
        graph = self.run()
        return Joint(graph, len(self.graph.inputs), len(self.graph.outputs), self.tangents, self.wrt,
                     tuple(self.grads), self.depends, self.new)

    def outputs(self) -> list[Output]:
        """Those of the primal graph, then the gradients, which are computed here."""
        b, inputs, primal_nodes, primal_outputs = self.b, list(self.inputs), list(self.nodes), super().outputs()
        b.loc = None
        for position in self.tangents:
            value = primal_outputs[position].node
            self.count(value, self.input(layout.empty_like(value.type)))
        self.tangent_inputs = self.inputs[len(inputs):]
        if len(self.tangents) > 1:
            functions = [n for n in primal_nodes if n.op == "autograd_function" and n in self.carries]
            self.reach = self.reach_of(functions, primal_nodes, primal_outputs)
        for node in reversed(primal_nodes):
            if node in self.carries and node in self.touched:
                self.send(node)
            elif node in self.reached:
                self.pass_on(node)
        b.loc = None
        outputs, self.grads, taken = list(primal_outputs), [], {}
        for position in self.wrt:
            node = inputs[position]
            if node not in self.touched:
                self.grads.append(None)
                continue
            self.grads.append(len(outputs))
            g = self.gradient(node)
            outputs.append(Output(self.own_memory(b.zeros(node.type) if g is None else g, node, taken)))
        found = self.reach_of([inputs[position] for position in self.wrt], primal_nodes, primal_outputs)
        self.depends = tuple(found[inputs[position]] for position in self.wrt)
        return outputs

    def reach_of(self, sources: list[Node], primal_nodes: list[Node], primal_outputs: list[Output]) -> dict:
        """For each of the nodes ``sources``, the positions of the tangents that reach it. The backward of a function of
        the program's own may end a way; where nothing comes to one, it is given zeros."""
        bits = {n: 0 for n in primal_nodes}  # node -> the sources that a gradient of it reaches
        ended = {n: 0 for n in primal_nodes}  # the same where the way has ended behind it
        for k, n in enumerate(sources):
            bits[n] |= 1 << k
        for n in primal_nodes:
            if n in self.carries:
                for i in differentiated(n):
                    if i in self.carries:
                        bits[n] |= bits[i]
                for i in n.inputs:
                    if i in self.carries:
                        ended[n] |= ended[i]
                if n.op == "autograd_function":
                    bits[n] |= ended[n]
                    ended[n] = bits[n]
        ends = [bits[primal_outputs[p].node] for p in self.tangents]
        return {n: tuple(t for t, end in enumerate(ends) if end >> k & 1) for k, n in enumerate(sources)}

    def entry(self, n: Node) -> Node | None:
        made = super().entry(n)
        if n in self.sources and is_differentiable(n.type.dtype):
            self.carries.add(made)
        return made

    def visit(self, n: Node) -> Node:
        inputs = self.operands(n)
        carries = n.op != "detach" and any(i in self.carries for i in inputs) and may_carry(n)
        made = self.training_form(n, inputs) if carries and n.op == "aten_call" else None
        if made is None:
            made = self.keep(n, inputs)
            if carries:
                self.carries.add(made)
        return made

    def own_memory(self, g: Node, primal: Node, taken: dict) -> Node:
        """``g`` as an output: a tensor of its own, laid out as its primal is."""
        b, base = self.b, base_of(g)
        if (g.op in VIEWS and (info(base.op).kind in ("input", "number") or base in taken)
            or base in taken and taken[base] is not g):
            g = b.clone(g, layout.preserved_strides(primal.type))
            base = g
        elif info(g.op).kind == "number":
            g = base = b.clone(g, ())
        elif g.op == "expand":
            g = base = b.clone(g, layout.preserved_strides(primal.type))
        taken[base] = g
        return g


def _position(start: int) -> int:
    return hint(start)


def substituted(b: GradBuilder, nodes: tuple[Node, ...], values: dict) -> None:
    """Build ``nodes`` (some None) again with other nodes in place of the keys of ``values``, to which what is made is
    added."""
    for n in computed([n for n in nodes if n is not None], min(n.id for n in values)):
        if n not in values and any(i in values for i in n.inputs):
            values[n] = made = b.node(n.op, tuple(values.get(i, i) for i in n.inputs), n.attrs, n.type)
            if n.op == "getitem":
                b.note_result(made)
