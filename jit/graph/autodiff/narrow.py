"""The backward for the case that some results of the forward got no gradient: of (loss, logits), say, only the loss.

Their tangents are zero in the sense that there is no path: what depends linearly on them alone is dropped, and is not
computed as a product with zeros, which would cost a pass over memory and make NaN out of infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jit.graph import layout
from jit.graph.ir import Graph, Node, Ref, Transform
from jit.graph.passes.dce import eliminate_dead_nodes
from jit.graph.functions import is_zero, linear
from jit.graph.prim_info import IN_ALL, IN_EACH, IN_FIRST, info


def narrowed(backward: Graph, absent: Sequence[int]) -> Graph:
    """A copy of the graph ``backward`` with the same inputs and as many outputs, for zero tangents at the input
    positions ``absent``.

    The inputs at these positions are read for their sizes only. With no such positions it is a plain copy.
    """
    return eliminate_dead_nodes(_Narrow(backward, frozenset(absent)).run())


class _Narrow(Transform):
    apart = True

    def __init__(self, graph: Graph, absent: frozenset) -> None:
        super().__init__(graph, graph.inputs)
        self.absent = absent
        self.zero: set = set()  # nodes that are zero for want of a path

    def entry(self, n: Node) -> Node | None:
        made = super().entry(n)
        if n.attrs["index"] not in self.absent:
            return made
        self.zero.add(n)
        return None

    def visit(self, n: Node) -> Node | None:
        if self.vanishes(n):
            self.zero.add(n)
            return None
        rest = self.remainder(n)
        return self.keep(n) if rest is None else self.new[rest]

    def missing(self, n: Node) -> Node:
        """A node that is zero becomes memory where something needs it."""
        kind = (float if n.dtype.is_floating_point else complex if n.dtype.is_complex
                else bool if n.dtype is torch.bool else int)
        return self.node("full", (), {"shape": n.shape, "value": kind(0)}, layout.empty_like(n.type), n)

    def vanishes(self, n: Node) -> bool:
        zeros = [i in self.zero for i in n.inputs]
        if any(zeros):
            zeros = [absent or is_zero(i) for absent, i in zip(zeros, n.inputs)]
        if not any(zeros) or n.impure:
            return False
        if n.op == "gate":
            return zeros[0] or all(zeros[1:])
        if n.op == "where":
            return all(zeros[1:])
        kind = linear(n)
        if kind is not None:
            return zeros[0] if kind == IN_FIRST else kind == IN_EACH or all(zeros)
        if n.op != "aten_call":
            return False
        target, args = n.attrs["target"], n.attrs["args"]
        floats = [zero for i, zero in zip(n.inputs, zeros) if i.dtype.is_floating_point or i.dtype.is_complex]
        if floats and all(floats):
            return True  # what it is given besides says where, as indices do; what it would say of these is not asked
        # Library backwards take the gradient first.
        return target.endswith("_backward") and bool(args) and isinstance(args[0], Ref) and zeros[args[0].index]

    def remainder(self, n: Node) -> Node | None:
        """The operand that a sum with zeros is equal to."""
        if info(n.op).linear != IN_ALL or info(n.op).arity != 2:
            return None
        a, b = n.inputs
        rest = a if b in self.zero else b if a in self.zero and n.op == "add" else None
        return rest if rest is not None and rest not in self.zero and rest.type == n.type else None
