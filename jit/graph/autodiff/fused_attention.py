"""The gradients of ``jit::attention``: a kernel computes the scores, their gradients and those of q, k and v again from
the sums of exponentials that the forward has given, and never writes a matrix of scores.

Of leaves that carry a gradient, such as a learned bias, it is made of products, as it would be without that operation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

import torch

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.autodiff.rules import aten_vjp
from jit.graph.ir import Graph, Node
from jit.graph.ops.externs import matmul
from jit.graph.passes import optimize
from jit.graph.passes.gradients import without_gradients

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder


@aten_vjp("jit::attention")
def attention(b: GradBuilder, out: Node, g: tuple, q: Node, k: Node, v: Node, leaves: tuple, blocks: Node | None,
              side: int, tree: Graph, full: Graph | None, safe: bool, far: bool) -> tuple:
    given, sums = g[:2]
    if any(other is not None for other in g[2:]):
        raise Unsupported("the gradient of what attention gives beside its sums", kind="gradient")
    values = b.result(out, 0)
    lse, rest = (b.result(out, 2), b.result(out, 3)) if far else (b.result(out, 1), None)
    if given is None:
        given = b.zeros(values.type)
    delta = b.reduce("sum", b.mul(b.cast(given, torch.float32), b.cast(values, torch.float32)), (values.type.rank - 1,))
    if sums is not None:
        delta = b.sub(delta, b.cast(sums, torch.float32))
    trees = [None if t is None else _differentiated(t, 0) for t in (tree, full)]
    types = tuple(layout.empty_like(n.type) for n in (q, k, v))
    args = (q, k, v, given, lse, rest, delta, leaves, blocks, side, *trees, safe)
    made = b.aten_results(b.aten("jit::attention_backward", "", args, types))
    return (*made, tuple([_leaf(b, tree, n, i, q, k, v, given, lse, rest, delta, leaves) if n in b.carries else None
                          for i, n in enumerate(leaves)]))


@aten_vjp("jit::attention_backward")
def attention_backward(b: GradBuilder, out: Node, g: tuple, *args: object) -> NoReturn:
    raise Unsupported("double backward of attention", "compute it outside the compiled function", kind="gradient")


def _differentiated(tree: Graph, position: int) -> Graph:
    """The tree and, behind its result, the gradient of its input ``position``, from one more input, which is that of
    the result."""
    from jit.graph.autodiff.reverse import differentiate  # late: it imports all rules

    joint = differentiate(tree, (position,), (0,))
    return optimize(joint.graph)


def _leaf(b: GradBuilder, tree: Graph, leaf: Node, position: int, q: Node, k: Node, v: Node, given: Node, lse: Node,
          rest: Node | None, delta: Node, leaves: tuple) -> Node | None:
    """The gradient of a leaf, by products."""
    joint = _differentiated(tree, position + 1)
    if len(joint.outputs) == 1:
        return None
    scores = tree.inputs[0].type
    s = b.reshape(b.cast(matmul(b, q, b.t(k)), scores.dtype), scores.shape)
    x = tree.outputs[0].node.type
    values = inlined(b, without_gradients(tree), [s, *leaves])[0]
    shape = (*q.shape[:-1], k.shape[-2])
    lse, delta = b.unsqueeze(lse, lse.type.rank), b.unsqueeze(delta, delta.type.rank)
    shifted = b.sub(b.reshape(values, shape), b.where(b.eq(lse, -math.inf), 0.0, lse))
    if rest is not None:
        shifted = b.sub(shifted, b.unsqueeze(rest, rest.type.rank))
    weights = b.exp(shifted)
    g = b.mul(weights, b.sub(b.cast(matmul(b, given, b.t(v)), torch.float32), delta))
    return inlined(b, joint, [s, *leaves, b.reshape(g, x.shape)])[1]


def inlined(b: GradBuilder, graph: Graph, inputs: list[Node]) -> list[Node]:
    """What a graph gives for these nodes, computed in another."""
    new = dict(zip(graph.inputs, inputs, strict=True))
    for n in graph.nodes:
        if n not in new:
            new[n] = b.node(n.op, tuple([new[i] for i in n.inputs]), n.attrs, n.type)
    return [new[o.node] for o in graph.outputs]
