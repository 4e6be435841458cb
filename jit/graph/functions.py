"""Functions that bring their own backward (``torch.autograd.Function``) as one node of the graph.

The backward is traced right after the forward, on *tangent* nodes that stand for the gradients it will be given. The
node ``autograd_function`` holds all of it together: inputs are the results, the differentiable arguments, the tangents,
one for each result, and the gradients; its value is the results once more. Differentiation (``autodiff.reverse``) puts
the gradients that it has found in the place of the tangents. Where nothing is differentiated the results are what is
left.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.handles import Base, StandIn, TensorHandle
from jit.graph.ir import Node, same_ints
from jit.graph.op_info import op_info
from jit.graph.prim_info import IN_ALL, IN_EACH, IN_FIRST, info

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer

_keys = count()


def differentiated(node: Node) -> tuple:
    """The inputs of a node to which it passes gradients on. A function's own backward may give nothing to an
    argument."""
    if node.op != "autograd_function":
        return node.inputs
    _, arguments, _, gradients = parts(node)
    return tuple(x for x, g in zip(arguments, gradients) if g is not None)


def is_hooked(node: Node) -> bool:
    """Whether it is a tensor with a hook on its gradient, which whoever asks for that gradient is to see."""
    return node.op == "getitem" and "hook" in node.inputs[0].attrs


def parts(node: Node) -> tuple:
    """(results, arguments, tangents, gradients) of an ``autograd_function`` node; the gradients one for each argument,
    with None where there is none."""
    n, m = node.attrs["results"], node.attrs["arguments"]
    given = node.inputs
    found = iter(given[2 * n + m:])
    return (given[:n], given[n: n + m], given[n + m: 2 * n + m],
            tuple(next(found) if present else None for present in node.attrs["present"]))


class FunctionTrace:
    """The recording of one call, on a Tracer.

    Args:
        arguments: handles of the differentiable tensor arguments, as often as they are passed.
        results: handles of the results that have a gradient, made by the forward under no_grad.
    """

    def __init__(self, tracer: Tracer, arguments: list[TensorHandle], results: list[TensorHandle]) -> None:
        self.tracer, self.arguments = tracer, list(arguments)
        b = tracer.builder
        before = {h.base for h in self.arguments} | {h.base for h in tracer.inputs}
        if len({h.base for h in results}) != len(results):
            raise Unsupported("an autograd.Function of which two results share memory",
                              "clone() one of them", kind="autograd")
        self.shown = [(h.base, h.type.strides) if h.base in before else None for h in results]
        self.results = [self._own(h.node) for h in results]
        self.start, self.events = b.next_id, len(tracer.events)
        self.mark = tracer.journal.checkpoint()
        self.tangents = []
        for node in self.results:
            t = b.node("tangent", (), {"key": next(_keys)}, layout.empty_like(node.type))
            self.tangents.append(TensorHandle(tracer, Base(t), (), t, True))
            self.tangents[-1].is_leaf = False
        self.first = b.next_id

    def _own(self, node: Node) -> Node:
        """The node as memory of its own, behind which no gradient flows."""
        b = self.tracer.builder
        while node.op == "detach":
            node = node.inputs[0]
        if info(node.op).kind in ("view", "input", "number", "part"):
            node = b.clone(node, node.type.strides)
        return node

    def saved_result(self, index: int) -> TensorHandle:
        """Result number ``index`` as the backward reads it: with a gradient."""
        handle = TensorHandle(self.tracer, Base(self.results[index]), (), self.results[index], True)
        handle.is_leaf = False
        return handle

    def finish(self, gradients: list[TensorHandle], second: str | None) -> list:
        """The handles of the results. ``gradients``: a handle or None for each argument. ``second``: the gradient of
        the gradient is what was "traced"; an error ("once"); or not known (None), as it is for a backward that is not
        linear: gradients of gradients run it more often than eager does, and add up.

        Raises Unsupported for a backward that is more than a function of its arguments.
        """
        tracer, b = self.tracer, self.tracer.builder
        for obj, name, old in tracer.journal.changes_since(self.mark):
            if name == "node" and isinstance(obj, Base) and old.id < self.first:
                raise Unsupported("a backward that changes tensors in place", "clone() them first", kind="autograd")
        made = [n for n in b.nodes if n.id >= self.start]
        if not all(n.repeatable for n in made):
            raise Unsupported("a backward that draws random numbers", "draw them in the forward, and save them",
                              kind="autograd")
        found = []
        for h, g in zip(self.arguments, gradients):
            if g is None:
                continue
            if (g.type.device != h.type.device or g.type.dtype.is_complex != h.type.dtype.is_complex
                or not _sums_to(g.type.shape, h.type.shape)):
                raise Unsupported(f"a backward that gives a gradient of type {g.type} for {h.type}",
                                  "give it the shape of the argument", kind="autograd")
            found.append(g.node)
        arguments = [h.node for h in self.arguments]
        if second == "traced" and not is_linear(found, [t.base.node for t in self.tangents]):
            second = None
        attrs = {"results": len(self.results), "arguments": len(arguments),
                 "present": tuple(g is not None for g in gradients), "second": second}
        inputs = (*self.results, *arguments, *(t.base.node for t in self.tangents), *found)
        call = b.node("autograd_function", inputs, attrs, tuple(n.type for n in self.results))
        return [self._result(b.node("getitem", (call,), {"index": i}, n.type), shown)
                for i, (n, shown) in enumerate(zip(self.results, self.shown))]

    def _result(self, node: Node, shown: tuple[Base, tuple[int, ...]] | None) -> TensorHandle:
        handle = self.tracer.fresh(node, True)
        self.tracer.needs_grad = True
        if shown is not None:  # a view of an argument, for which this copy stands
            handle.base.frozen = StandIn(*shown)
            shown[0].shadows.append(weakref.ref(handle))
        return handle


def _sums_to(shape: tuple[IntExpr, ...], target: tuple[int, ...]) -> bool:
    """Whether a gradient of ``shape`` can be summed to ``target``."""
    lead = len(shape) - len(target)
    return lead >= 0 and all(same_ints((s,), (t,)) or same_ints((t,), (1,)) for s, t in zip(shape[lead:], target))


def linear(n: Node) -> str | None:
    """In which operands, taken how, an operation is linear; None for what is not."""
    if n.op == "aten_call":
        return op_info(n.attrs["target"]).linear
    if n.op == "constant_pad":
        return IN_FIRST if n.attrs["value"] == 0 else None
    return info(n.op).linear


def is_zero(n: Node) -> bool:
    return info(n.op).constant and n.attrs["value"] == 0


def is_linear(nodes: list[Node], tangents: list[Node]) -> bool:
    """Whether each of ``nodes`` is seen to be a linear function of the tangents, all else being constant."""
    first = min(t.id for t in tangents)
    known: dict = {t: True for t in tangents}  # node -> whether it is linear; None: it does not depend on them

    def of(n: Node) -> bool | None:
        depends = [known[i] for i in n.inputs]
        if not any(d is not None for d in depends):
            return None
        if not all(d is not False for d in depends):
            return False
        if n.op == "where":
            return depends[0] is None and all(d or is_zero(i) for i, d in zip(n.inputs[1:], depends[1:]))
        kind = linear(n)
        if kind == IN_ALL:
            return all(d or is_zero(i) for i, d in zip(n.inputs, depends))
        if kind == IN_EACH:
            return depends.count(True) == 1
        return kind == IN_FIRST and depends[0] and not any(depends[1:])

    for node in computed(nodes, first):
        if node not in known:
            for i in node.inputs:
                known.setdefault(i, None)
            known[node] = of(node)
    return all(known.get(n) for n in nodes)


def computed(nodes: list[Node], first: int) -> list:
    """``nodes`` and what they are computed from, as far as it was made from the node ``first`` on, in the order in
    which it was made: that of the program while nothing has changed the graph."""
    found, stack = set(), list(nodes)
    while stack:
        n = stack.pop()
        if n.id >= first and n not in found:
            found.add(n)
            stack.extend(n.inputs)
    return sorted(found, key=lambda n: n.id)
