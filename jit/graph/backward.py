"""``backward()`` and ``torch.autograd.grad`` inside the program, as nodes of the graph.

A ``gradient`` node stands for the gradients of some values (roots) with respect to others: inputs are the roots, their
tangents, and what the gradients are taken with respect to; its results are the gradients. ``autodiff.inner`` puts the
operations in its place when the graph is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.errors import Unsupported
from jit.graph import gradient_layout, layout
from jit.graph.gradient_paths import carrying, leaves, may_carry, passed
from jit.graph.handles import TensorHandle
from jit.graph.ir import Graph, same_ints
from jit.graph.saved_tensors import kept_by, refused

if TYPE_CHECKING:
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer


def reached(tracer: Tracer, roots, ends) -> set:
    """The nodes that gradients of ``roots`` reach on their way to ``ends`` (handles)."""
    return passed([h.node for h in roots], carrying(tracer.builder.nodes, [h.node for h in ends]))


def make_leaf(tracer: Tracer, handle: TensorHandle) -> None:
    """``requires_grad_()`` of a tensor that an operation of the program has made: what was made of it before does not
    depend on it."""
    tracer.set(handle, "_node", tracer.builder.alias(handle.node))
    tracer.set(handle, "_grad", True)
    tracer.set(handle, "_leaf", True)
    tracer.made_leaves += (handle.base,)
    tracer.set(tracer, "inner_leaves", (*tracer.inner_leaves, handle))
    gradient_layout.note_leaf(tracer, handle)


def record(tracer: Tracer, roots: list[TensorHandle], tangents: list[None], wrt: list[TensorHandle], keep: bool,
           create: bool, as_leaves: bool) -> list:
    """Handles of the gradients of ``roots`` with respect to ``wrt`` (handles); None where there is no way from one to
    the other.

    Args:
        tangents: a handle for each root, or None for a scalar that counts once.
        keep: the graph can be differentiated again afterwards.
        create: the gradients are differentiable themselves.
        as_leaves: they are laid out as what they belong to.

    Raises:
        Unsupported: where it is left to eager, be it because eager raises.
    """
    if tracer.apart:  # the nodes that lead to the roots are not all here
        raise Unsupported("a gradient that is asked for inside of a round of a loop, or a way of a branch",
                          kind="gradient")
    b = tracer.builder
    seeds = []
    for root, t in zip(roots, tangents):
        if not root.requires_grad:
            raise Unsupported("backward() from a tensor that does not require grad", kind="autograd")
        if t is None:
            if root.type.shape or root.dtype.is_complex:
                raise Unsupported("backward() without a gradient, from a tensor that is not a scalar",
                                  "give it one", kind="autograd")
            seeds.append(b.clone(b.scalar(1.0, root.dtype, root.device)))
        elif (not same_ints(t.type.shape, root.type.shape) or t.type.dtype is not root.type.dtype
              or t.type.device != root.type.device):
            raise Unsupported("backward() with a gradient of another shape or dtype", kind="autograd")
        else:
            seeds.append(t.node if same_ints(t.type.strides, layout.preserved_strides(root.type))
                         else b.clone(t.node, layout.preserved_strides(root.type)))
    ends = [h.node for h in roots]
    sources = {h.node for h in wrt}
    _check_versions(tracer, ends, sources)
    if any(refused(tracer, roots)):
        raise Unsupported("backward() that raises: through a value that has been changed in place since, or an "
                          "operation that does not take its operands", kind="autograd")
    carries = carrying(b.nodes, sources)
    way = passed(ends, carries)
    if way & tracer.spent:
        raise Unsupported("backward() through a graph that was freed", kind="autograd")
    if any(n.op == "gradient" for n in way):
        nodes, new = expanded(tracer)
        way = passed([new[n] for n in ends], carrying(nodes, {new[n] for n in sources}))
        found = [h for h in wrt if new[h.node] in way]
    else:
        found = [h for h in wrt if h.node in way]
    if not found:
        return [None] * len(wrt)
    types, same = (([layout.empty_like(h.type) for h in found], [None] * len(found)) if as_leaves else
                   gradient_layout.types(tracer, roots, tangents, found, create))
    call = b.node("gradient", (*ends, *seeds, *(h.node for h in found)), {"roots": len(ends), "create": create},
                  tuple(types))
    tracer.set(tracer, "inner_gradients", True)
    if not keep:
        history = passed(ends, carrying(b.nodes, [h.node for h in leaves(tracer)])) - {h.node for h in leaves(tracer)}
        tracer.set(tracer, "spent", tracer.spent | kept_by(tracer, history))
    results = {}
    nodes = [b.node("getitem", (call,), {"index": k}, t) for k, t in enumerate(types)]
    carried = set()
    if create:
        made, new = expanded(tracer)
        carries = carrying(made, {new[h.node] for h in leaves(tracer)})
        carried = {n for n in nodes if new[n] in carries}
    for h, node, tangent in zip(found, nodes, same):
        results[id(h)] = tangent or tracer.fresh(node if node in carried else b.detach(node), node in carried)
    tracer.needs_grad |= bool(carried)
    made = [results.get(id(h)) for h in wrt]
    gradient_layout.note_gradients(tracer, roots, tangents, wrt, made)
    return made


def expanded(tracer: Tracer) -> tuple:
    """The nodes so far with operations in the place of gradients, and a mapping from the nodes to them: which gradient
    depends on what."""
    from jit.graph.autodiff.inner import expanded_nodes  # late: autodiff's tables fill when they are first needed

    return expanded_nodes(Graph([h.base.input for h in tracer.inputs], list(tracer.builder.nodes), [], tracer.env))


def _check_versions(tracer: Tracer, ends: list[Node], sources: set[Node]) -> None:
    """A gradient must not be asked of a leaf's value that has been overwritten since: eager finds out, or counts it to
    the leaf."""
    old = {h.base.input for h in tracer.inputs if h.requires_grad and h.base.input is not h.base.node}
    # These show what they held before as where their gradient goes.
    present = sources | {h.node for h in tracer.inputs if h.requires_grad}
    if old & passed(ends, carrying(tracer.builder.nodes, old | sources), present):
        raise Unsupported("backward() through a parameter that has been changed in place since", kind="autograd")


def is_spent(tracer: Tracer, handle: TensorHandle) -> bool:
    """Whether a tensor hangs on a graph that a ``backward()`` has freed."""
    seen, stack = set(), [handle.node] if tracer.spent else []
    while stack:
        n = stack.pop()
        if n in tracer.spent:
            return True
        if n not in seen and n.op != "detach" and may_carry(n):
            seen.add(n)
            stack.extend(n.inputs)
    return False


def unfolded(tracer: Tracer) -> tuple:
    """The nodes so far with operations in the place of gradients and maps, and a mapping from the nodes to them, as far
    as types and what depends on what go: each node is gone through once, however often this is asked for."""
    from jit.graph.autodiff.inner import Unfolding  # late: autodiff's tables fill when they are first needed

    nodes = tracer.builder.nodes
    if tracer.unfolding is None or not tracer.unfolding.follows(nodes):
        tracer.unfolding = Unfolding(Graph([], [], [], tracer.env))
    known, tracer.unfolding = tracer.unfolding, None  # of one that fails, nothing is known
    known.go_on(nodes)
    tracer.unfolding = known
    return known.inner.nodes, known.inner.new


def outer(tracer: Tracer, handle: TensorHandle, leaves_left: tuple, tracked: bool) -> TensorHandle:
    """A tensor as it is seen outside of a transform that has made tensors require grad: it does so itself if it hangs
    on an input, or on one of the ``leaves_left``, and only where autograd is on there (``tracked``)."""
    if not handle.requires_grad:
        return handle
    sources = [h for h in (*tracer.inputs, *leaves_left) if h.requires_grad] if tracked else []
    carried = False
    if sources:
        made, new = unfolded(tracer)
        carried = new[handle.node] in carrying(made, {new[h.node] for h in sources})
    if carried:
        return handle
    return tracer.fresh(tracer.builder.detach(handle.node))
