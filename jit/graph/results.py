"""What a graph gives back: results with their memory and history as eager has them, and the inputs that were changed.

Some results eager makes in a way that no graph can: a view at a position that a tensor says, or a detached tensor that
shares its version counter. For these the graph returns what they are made from, and the caller makes them (``derive``).
Likewise an input into which values with a gradient were written gets them from the caller, by PyTorch's own ``copy_``
(``recorded_writes``).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jit.errors import NeedsEager, Unsupported
from jit.graph import saved_tensors
from jit.graph.backward import is_spent
from jit.graph.functions import is_hooked
from jit.graph.dims import Dim
from jit.graph.gradient_paths import carrying as carrying_nodes
from jit.graph.handles import Base, TensorHandle, next_version, offset_in_base, overlaps_itself, replay, restriction
from jit.graph.ir import Graph, Node, Output, same_ints
from jit.graph.nested import holds
from jit.graph.passes.dce import eliminate_dead_nodes, mark_checked
from jit.graph.passes.gradients import without_gradients
from jit.graph.prims import base_of
from jit.graph.prim_info import info
from jit.graph.recipes import Called, Detached, Leaf, OneOfSeveral, Result, Selected, Shown, Silent, ViewOfItself
from jit.graph.recording import Gradient

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.handles import ViewStep
    from jit.graph.tracer import Tracer


@dataclasses.dataclass
class Selection:
    """How a copy came from the view that eager gives when 0-dim tensors say the position: ``source[index]``.

    ``strides`` are the view's; ``nodes`` what the tensors of the index held; ``recorded``: whether grad mode was on.
    """

    source: TensorHandle
    index: tuple
    strides: tuple
    recorded: bool
    nodes: dict

    @property
    def base(self) -> Base:
        return self.source.base


def derive(tracer: Tracer, outputs: list[TensorHandle], goes_on: bool = False) -> tuple:
    """-> (outputs, derived): handles that the graph is to return, ``outputs`` first, and how the caller makes some of
    these, in order. ``goes_on``: the outputs are what is left of a program behind a break, which may go on to change
    them or their shapes in place."""
    tracer.check_history(outputs)
    meant = _with_sources(outputs)
    making = _Making(tracer, [*meant, *_shared(tracer, meant)])
    for i in range(len(making.found)):
        making.differently(i, goes_on)
    at = 0
    while at < len(making.found):
        h = making.found[at]
        if type(h.base.frozen) is Selection and shows_source(h, making.found):
            sources = len(making.found)
            making.selected(at, h)
            for i in range(sources, len(making.found)):
                making.differently(i, goes_on)
        elif h.base.frozen is not None and h.is_silent_leaf:
            making.derived.append(Leaf(at))
        at += 1
    return making.found, making.derived + making.last[::-1]


def _with_sources(outputs: list[TensorHandle]) -> list[TensorHandle]:
    """``outputs`` and what the caller makes selections among them from."""
    found = list(outputs)
    for h in found:  # which grows
        selection = h.base.frozen
        if type(selection) is Selection and shows_source(h, found):
            for v in (selection.source, *[v for v, then in selection.nodes.items() if v.node is then]):
                if not any(v is known for known in found):
                    found.append(v)
    return found


class _Making:
    """How results are made, by position.

    Attributes: ``meant``, what each is in the end; ``found``, what the graph gives there; ``derived``, how the caller
    makes those that differ, and ``last``, in reverse, how it makes selections from these; ``held``, memory of results.
    """

    def __init__(self, tracer: Tracer, meant: list[TensorHandle]) -> None:
        self.tracer, self.meant, self.found = tracer, meant, list(meant)
        self.held = {h.base for h in meant if not _is_detached(h)}
        self.derived: list = []
        self.last: list[Selected] = []

    def differently(self, i: int, goes_on: bool) -> None:
        """Find what the graph is to give for result ``i`` and what the caller makes of it."""
        tracer, found, derived, h = self.tracer, self.found, self.derived, self.meant[i]
        leaf = any(h is leaf for leaf in tracer.inner_leaves)
        if h.requires_grad and not leaf and _is_detached(h):
            raise NeedsEager("a result is a view of a tensor that is made to require grad inside, on another's memory",
                             "make it outside of the compiled function", kind="gradient")
        if h.base.region is not None:
            found[i] = next(p for p in tracer.inputs if p.base is h.base)  # something in its place
            derived.append(_shown_member(i, h))
            if any(step.attrs.get("asked") == "data" for step in h.chain):
                derived.append(Detached(i, "data"))
        elif any(step.call is not None for step in h.chain):
            if h.chain[-1].call is None:
                raise Unsupported("a result is a view of an argument's memory, but not of the argument",
                                  "clone() it", kind="unknown-function")
            found[i] = next(p for p in tracer.inputs if p.base is h.base and not p.chain)
            derived.append(Called(i, *h.chain[-1].call))
        elif _is_detached(h) and h.base.frozen is None and (h.base.input is not None or h.base in self.held):
            chain = tuple([step for step in h.chain if not step.attrs.get("asked")])
            wholes = [p for p in (*tracer.inputs, *found) if p.base is h.base and not p.chain] if not chain else ()
            found[i] = wholes[0] if wholes else _attached(tracer, h.base, chain)
            derived.append(Detached(i, "data" if any(step.attrs.get("asked") == "data" for step in h.chain)
                                    else "detach"))
        elif h.base.carries and _is_silent(h):
            if any(p.base is h.base and not p.chain for p in (*tracer.inputs, *found)):
                found[i] = _attached(tracer, h.base, tuple([s for s in h.chain if s.op != "detach" or s.attrs]))
                derived.append(Silent(i))
            elif h.is_silent_leaf and h.base.input is None:
                derived.append(Leaf(i))
        elif h.requires_grad and restriction(h.chain) == "several" and _is_written_back(h.base):
            derived.append(OneOfSeveral(i))
        elif h.requires_grad and _is_alone(h, found) and (goes_on or restriction(h.chain) == "several"):
            derived.append(ViewOfItself(i, restriction(h.chain) == "several"))
        if h.requires_grad and leaf:
            derived.append(Leaf(i))

    def place_of(self, handle: TensorHandle, position: int) -> int:
        """Where ``handle`` is when result ``position`` is selected; it joins the results if it is nowhere."""
        later = {position, *(recipe.position for recipe in self.last)}
        for k, known in enumerate(self.meant):
            if known is handle and k not in later:
                return k
        self.meant.append(handle)
        self.found.append(handle)
        return len(self.found) - 1

    def selected(self, position: int, h: TensorHandle) -> None:
        """Find how the caller makes a selection; what it is made from joins the results."""
        selection = h.base.frozen
        view = None
        if h.chain:
            place = _place(h)
            if place is None or not same_ints(selection.strides, h.base.type.strides) or _is_detached(h):
                raise Unsupported("a result is a view that a 0-dim tensor selects",
                                  "clone() it, or select with an int", kind="tensor-select")
            view = (*place, not _is_silent(h))
        tensors = []

        def template(v: TensorHandle | slice | list | IntExpr) -> Result | slice:
            if isinstance(v, TensorHandle):
                then = selection.nodes[v]
                tensors.append(v if v.node is then else self.tracer.fresh(then))
                return Result(self.place_of(tensors[-1], position))
            if holds((Dim, TensorHandle, list), v):
                raise Unsupported("a result is a view at a position computed from a tensor and a symbolic size",
                                  "clone() it", kind="tensor-select")
            return v

        index = tuple(map(template, selection.index))
        self.found[position] = tensors[0]  # something in its place, until the caller has made it
        self.tracer.check_history([selection.source])
        source = self.place_of(selection.source, position)
        self.last.append(Selected(position, source, index, selection.recorded, view))


def _is_alone(h: TensorHandle, found: list) -> bool:
    """Whether a handle is a view of memory that the program made and of which the whole is not among ``found``."""
    base = h.base
    return (bool(h.chain) and base.input is None and base.frozen is None
            and not any(p.base is base and not p.chain for p in found))


def _shared(tracer: Tracer, outputs: list[TensorHandle]) -> list:
    """Handles on the whole memory of which several of ``outputs`` are views that overlap, and which is no result
    itself. A change in place of one of these is one of the others: they have to have a version counter and a history in
    common, which only tensors of one ``_base`` do."""
    views = {}
    for h in outputs:
        base = h.base
        if base.input is None and base.region is None and base.frozen is None:
            views.setdefault(base, []).append(h)
    shared = [base for base, found in views.items() if len(found) > 1 and all(h.chain for h in found)
              and not _all_apart(found)]
    return [_attached(tracer, base, ()) for base in shared]


def _all_apart(views: list[TensorHandle]) -> bool:
    return all(_apart(_place(v), _place(w)) for k, v in enumerate(views) for w in views[:k])


def _apart(one: tuple[tuple[()], tuple[()], int] | None, other: tuple[tuple[()], tuple[()], int] | None) -> bool:
    """Whether two places (sizes, strides, offset) in one memory are known to have no element in common: their extents
    do not meet, or they are parts of one array, as what ``chunk`` and ``unbind`` give are, whose coordinates in it
    differ."""
    if one is None or other is None:
        return False
    (_, _, first), (_, _, second) = one, other
    if 0 in one[0] or 0 in other[0] or first + _extent(one) <= second or second + _extent(other) <= first:
        return True
    strides = sorted({step for place in (one, other) for size, step in zip(*place[:2]) if size > 1}, reverse=True)
    boxes = [_box(place, strides) for place in (one, other)]
    return None not in boxes and any(a + n <= b or b + m <= a for (a, n), (b, m) in zip(*boxes))


def _extent(place: tuple[tuple[()], tuple[()], int]) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(*place[:2]))


def _box(place: tuple[tuple[()], tuple[()], int], strides: Sequence[IntExpr]) -> list | None:
    """(start, length) of a place along each of the descending ``strides`` of an array and then what is left of the
    offset; None where it is no box in one."""
    sizes, steps, offset = place
    lengths = {}
    for size, step in zip(sizes, steps):
        if size > 1:
            if step in lengths:
                return None
            lengths[step] = size
    box, room = [], None
    for step in strides:
        start, offset = divmod(offset, step) if step > 0 else (0, offset)
        length = lengths.get(step, 1)
        if step <= 0 or room is not None and (room % step or start + length > room // step):
            return None
        box.append((start, length))
        room = step
    return [*box, (offset, 1)]


def _shown_member(position: int, h: TensorHandle) -> Shown:
    member = h.base.region.owner(h)
    place = _place(h)
    if place is None:
        raise Unsupported("a result is a view, of another dtype or of symbolic size, of memory that inputs share",
                          "clone() it", kind="aliased-mutation")
    sizes, strides, offset = place
    return Shown(position, member, sizes, strides, offset - offset_in_base(member), not _is_silent(h))


def _is_silent(h: TensorHandle) -> bool:
    """Whether a step of a view was made where gradients are not recorded."""
    return any(step.op == "detach" and not step.attrs for step in h.chain)


def _place(h: TensorHandle) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(sizes, strides, offset) of a view in its memory, where they are plain numbers, else None."""
    offset = offset_in_base(h)
    return (h.type.shape, h.type.strides, offset) if all(type(v) is int
                                                         for v in (offset, *h.type.shape, *h.type.strides)) else None


def _is_detached(handle: TensorHandle) -> bool:
    return any(step.attrs.get("asked") for step in handle.chain)


def _attached(tracer: Tracer, base: Base, chain: tuple[ViewStep, ...]) -> TensorHandle:
    made = TensorHandle(tracer, base, chain, replay(tracer.builder, base.node, chain))
    made.requires_grad = base.carries and not any(step.op == "detach" for step in chain)
    made.is_leaf = not made.requires_grad
    return made


def _is_written_back(base: Base) -> bool:
    return base.input is not None and base.mutated and base.grad


def recorded_writes(tracer: Tracer) -> list:
    """(changed input, handle on what it holds at the end) of the inputs into which values with a gradient were written.
    They are results of the graph; the caller writes them back by PyTorch's own ``copy_``, which gives the input its
    history."""
    return [(i, tracer.fresh(tracer.builder.clone(h.base.node), True))
            for i, h in enumerate(tracer.inputs) if _is_written_back(h.base)]


def gradient(tracer: Tracer, outputs: list[TensorHandle]) -> Gradient | None:
    """What has to be differentiated when ``outputs`` (handles) are returned: None when no result needs a gradient.

    Raises NeedsEager where that is not supported.
    """
    whole = {h.base for h in outputs if not h.chain}
    carrying = [i for i, h in enumerate(outputs)
                if h.requires_grad and not (h.is_input or h.is_silent_leaf or is_spent(tracer, h))]
    views = tuple(i for i in carrying if outputs[i].base.input is not None
                  or outputs[i].chain and outputs[i].base in whole)
    tangents = tuple(i for i in carrying if i not in views)
    if not carrying:
        return None
    if any(is_hooked(outputs[i].node) for i in carrying):
        raise NeedsEager("a tensor with a hook on its gradient is returned, or lives on behind a break",
                         kind="autograd")
    # Of a leaf that nobody has behind the call, nobody sees the gradient.
    shown = {None, *(h.base for h in outputs)}.intersection(tracer.made_leaves)
    if shown or tracer.made_leaves and not _all_reach_inputs(tracer, [outputs[i] for i in carrying]):
        raise NeedsEager("a tensor that requires grad is made inside, and gradients are needed",
                         "make it outside of the compiled function", kind="gradient")
    wrt = tuple(i for i, h in enumerate(tracer.inputs) if h.base.example.requires_grad)
    changed = tuple(i for i, h in enumerate(tracer.inputs) if _is_written_back(h.base))
    # What is saved in place of a leaf may be too far on for a second derivative, and such a graph can not be run again
    # for more.
    runs_once = any(h.base.mutated for h in tracer.inputs) and not all(n.repeatable for n in tracer.builder.nodes)
    again = saved_tensors.read_again(tracer)
    fragile = tuple(i for i, h in enumerate(tracer.inputs) if h.base.fragile and h.base.input not in again
                    and not (runs_once and h.is_leaf and h.requires_grad))
    several = tuple(i for i in views if restriction(outputs[i].chain) == "several"
                    and not _is_written_back(outputs[i].base))
    watched, loose, unsaid = saved_tensors.held_by_caller(tracer, outputs, wrt, tangents)
    if runs_once:  # no copies of leaves, as above
        unsaid += tuple(("input", i) for i, h in enumerate(tracer.inputs) if h.is_leaf and h.requires_grad)
    return Gradient(wrt, tangents, views, changed, fragile, watched, loose, unsaid, several)


def _all_reach_inputs(tracer: Tracer, results: list[TensorHandle]) -> bool:
    """Whether a gradient of each of these leads to an input."""
    inputs = {h.base.input for h in tracer.inputs if h.base.example.requires_grad}
    reached = carrying_nodes(tracer.builder.nodes, inputs)
    return bool(inputs) and all(h.base.input is not None or h.node in reached for h in results)


def shows_source(handle: TensorHandle, outputs: list[TensorHandle]) -> bool:
    """Whether the program could see that the copy ``handle`` is a view in eager: its source outlives the graph, as a
    tensor or as what autograd keeps, or the strides differ."""
    source = handle.base.frozen.base
    if (source.input is not None or source.frozen is not None
        or not same_ints(handle.base.frozen.strides, handle.base.type.strides)):
        return True
    if source.carries and saved_tensors.keeps(handle.tracer, source):
        return True
    return any(h is not handle and (h.base is source or h.base.frozen is not None and h.base.frozen.base is source)
               for h in outputs)


def _shown_input(tracer: Tracer, handle: TensorHandle) -> Node:
    """The input, or the view of it, that ``handle`` shows. A real view of a tensor that requires grad does so too,
    unless the library detaches it."""
    b, node = tracer.builder, handle.base.input
    recorded = any(h.base is handle.base and h.requires_grad for h in tracer.inputs)
    for step in handle.chain:
        if recorded and step.op == "detach" and step.attrs:
            node = b.aten("aten::detach", "", (node,), step.type)
        else:
            node = replay(b, node, (step,))
    return node


def _own_memory(tracer: Tracer, outputs: list[TensorHandle]) -> None:
    """A result with other results as views of it is memory in the graph too, of its own, and no view itself: autograd
    takes their gradients to it, and they share its version counter."""
    count = Counter(h.base for h in outputs)
    owner: dict[Node, Base] = {}
    for h in outputs:
        base = h.base
        if base.input is None:
            root = base_of(base.node)
            own = root is base.node and info(root.op).kind not in ("input", "number")
            if (owner.setdefault(root, base) is not base or not own) and not h.chain and count[base] > 1:
                tracer.set(base, "node", tracer.builder.clone(base.node, base.type.strides))
                tracer.set(base, "version", next_version())


def finish(tracer: Tracer, outputs: list[TensorHandle], differentiated: bool = False) -> Graph:
    """The graph that returns ``outputs`` (handles) and then the changed inputs. Dead nodes are dropped; the tracer can
    go on.

    Unless the graph will be ``differentiated``, it does not say where gradients stop.
    """
    b = tracer.builder
    b.loc = None
    _own_memory(tracer, outputs)
    results: list[Output] = []
    owner: dict[Node, Base] = {}
    for h in outputs:
        base = h.base
        if base.frozen is not None and shows_source(h, outputs):
            raise Unsupported("a result is a view that the graph has replaced by a copy", "clone() it",
                              kind="tensor-select")
        if base.input is not None:
            node = _shown_input(tracer, h)
        else:
            node = h.node
            root = base_of(node)
            if info(root.op).kind in ("input", "number") or owner.setdefault(root, base) is not base:
                node = b.clone(node, node.type.strides if not overlaps_itself(node.type) else None)
                owner[node] = base
        results.append(Output(node))
    for index, h in enumerate(tracer.inputs):
        base = h.base
        if base.mutated and base.node is not base.input and not base.grad:
            node = base.node
            root = base_of(node)
            if root.op == "input" or root in owner:
                node = b.clone(node, base.type.strides)
            results.append(Output(node, index))
    mark_checked(b.nodes)
    graph = Graph([h.base.input for h in tracer.inputs], list(b.nodes), results, tracer.env)
    return eliminate_dead_nodes(graph if differentiated else without_gradients(graph))
