"""Which nodes of a graph gradients pass on their way from results to what they are taken with respect to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jit.graph.functions import differentiated
from jit.graph.ir import Node

if TYPE_CHECKING:
    from jit.graph.tracer import Tracer


def parts(node: Node) -> tuple:
    """(roots, tangents, values that the gradients are taken with respect to) of a ``gradient`` node."""
    n = node.attrs["roots"]
    return node.inputs[:n], node.inputs[n: 2 * n], node.inputs[2 * n:]


def may_carry(n: Node) -> bool:
    """Whether a node has a result of a dtype that has gradients."""
    return any(t is not None and (t.dtype.is_floating_point or t.dtype.is_complex) for t in n.types)


def carrying(nodes: list[Node], sources: Collection[Node] | dict[Node, int]) -> set:
    """``sources`` and those of ``nodes`` (in program order) that carry a gradient to one of them."""
    found = set(sources)
    for n in nodes:
        if n not in found and n.op != "detach" and any(i in found for i in n.inputs) and may_carry(n):
            found.add(n)
    return found


def passed(roots: Sequence[Node], carries: set, ends: Collection[Node] = frozenset()) -> set:
    """The nodes among ``carries`` that gradients of ``roots`` reach, but for what only ``ends`` lead to."""
    seen, stack = set(), [n for n in roots if n in carries]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "detach" or n in ends:  # a source; whatever it shows is none of its history
            continue
        stack.extend(i for i in differentiated(n) if i in carries)
    return seen


def leaves(tracer: Tracer) -> list:
    """The handles of tensors from outside that require grad, and those that the program has made require grad."""
    return [h for h in (*tracer.inputs, *tracer.inner_leaves) if h.requires_grad]
