"""TensorHandle: a tensor as the program sees it, and the memory (Base) that it and its views share.

Programs change tensors; graphs do not. A ``Base`` stands for one block of memory and names the node that holds its
present value. A handle is a base and a chain of view steps. Reading a handle replays its chain on the base's present
node, if that has changed since. Writing scatters the new value back through the chain, which gives the base its next
node.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import torch

from jit.errors import Unsupported
from jit.graph import layout, pairs
from jit.graph.dims import hint, product
from jit.graph.ir import Node, TensorType, contiguous_strides, same_ints
from jit.graph.nested import replaced
from jit.graph.prims import VIEWS

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.physical import Physical
    from jit.graph.proxy import Proxy
    from jit.graph.tracer import Tracer

_versions = count(1)  # 0: before all
_LISTED = 1 << 14  # elements of a view whose places are compared one by one


def next_version() -> int:
    """A number for a new content of some memory."""
    return next(_versions)


class Base:
    """Memory of one tensor and its views. ``type`` never changes; ``node`` is the present value; ``input`` is the input
    node or None."""

    __slots__ = ("node", "type", "version", "input", "example", "mutated",
                 "noted", "grad", "carries", "extent", "region", "frozen", "shadows", "restricted", "fragile",
                 "mapped", "physical")

    def __init__(self, node: Node, input: Node | None = None, example: torch.Tensor | None = None,
                 carries: bool = False) -> None:
        self.node, self.type, self.version = node, node.type, next_version()
        self.input, self.example, self.mutated = input, example, False
        self.noted = False  # a write has advanced the input's version counter: not one by way of ``data``
        self.grad = False  # a value that carries a gradient was written to it
        self.carries = carries  # a gradient of its value leads somewhere
        self.extent = self.region = None  # of an input: its addresses; what it is the flat memory of (see memory.py)
        # A copy that stands for a view is frozen: a StandIn or a results.Selection, else None.
        # The base it was read from keeps weak references to it.
        self.frozen, self.shadows = None, []
        self.restricted = ()  # weak references to views that have a restricted step
        self.fragile = input is not None  # eager has not kept it for the backward so far
        self.physical: Physical | None = None  # what eager has of it inside of a map
        self.mapped: frozenset | None = None  # the maps in which eager has it as mapped; None: ask the nodes

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor that has the memory requires grad. Of an input that is a view it is said of the input
        itself: they differ where ``requires_grad_()`` was called on a view of what needs none."""
        if self.frozen is not None:
            return self.frozen.base.requires_grad
        return self.carries if self.example is None else self.example.requires_grad

    def inference(self, t: Tracer) -> bool:
        """Whether it was made in inference mode. Views have it from what they are views of, wherever they are made."""
        if self.frozen is not None:
            return self.frozen.base.inference(t)
        return t.inference if self.example is None else self.example.is_inference()


@dataclasses.dataclass
class StandIn:
    """What a copy stands for: a view of ``base`` with ``strides``."""

    base: Base
    strides: tuple


class SymSize(tuple):
    """A ``torch.Size`` whose entries may be Dims."""

    def numel(self) -> IntExpr:
        return product(self)


class NamedResult(tuple):
    """A ``torch.return_types`` value: ``cls`` is the class, which rebuilds from the sequence; fields are attributes."""

    cls: type
    fields: tuple

    def __new__(cls, result_class: type, fields: tuple[str, ...],
                values: Sequence[Node | TensorHandle | Proxy]) -> NamedResult:
        self = super().__new__(cls, values)
        self.cls, self.fields = result_class, fields
        return self

    def _make(self, values: Sequence) -> NamedResult:
        return NamedResult(self.cls, self.fields, values)

    def __getattr__(self, name: str) -> TensorHandle | Proxy:
        if name in self.__dict__.get("fields", ()):
            return self[self.fields.index(name)]
        raise AttributeError(name)


_numbers = count()


def next_number() -> int:
    """A number between those of the handles made so far and those of later ones."""
    return next(_numbers)


class TensorHandle:
    """One tensor object of the traced program. Made by the Tracer only.

    Attributes: ``type`` (TensorType), ``requires_grad``, ``is_input`` (it is a graph input itself, not a view of one),
    ``origin`` (what the caller gave to ``Tracer.input``), ``base``, ``chain`` (view steps from the base), ``member``
    (where inputs share memory: the one that it is a view of, None for an input itself), ``number`` (its own, also when
    it is gone), ``physical`` (what eager has of it inside of a map; None: what it has of the memory).
    """

    __slots__ = ("tracer", "base", "chain", "type", "_grad", "origin",
                 "member", "stale", "number", "physical", "_leaf", "_node", "_version", "__weakref__")

    def __init__(self, tracer: Tracer, base: Base, chain: tuple, node: Node, requires_grad: bool = False,
                 origin=None) -> None:
        self.tracer, self.base, self.chain, self.type = tracer, base, chain, node.type
        self._grad, self.origin, self.member, self._leaf = requires_grad, origin, None, True
        self._node, self._version = node, base.version
        self.number, self.physical = next_number(), None
        self.stale = False  # a restricted view (see ViewStep) whose memory was written since

    @property
    def node(self) -> Node:
        """The node that holds the present value."""
        if self._version != self.base.version:
            node = replay(self.tracer.builder, self.base.node, self.chain)
            self.tracer.set(self, "_node", node)
            self.tracer.set(self, "_version", self.base.version)
        return self._node

    @property
    def requires_grad(self) -> bool:
        return self._grad or self._written()

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._grad = value

    @property
    def is_leaf(self) -> bool:
        return self._leaf and not self._written()

    @is_leaf.setter
    def is_leaf(self, value: bool) -> None:
        self._leaf = value

    @property
    def is_silent_leaf(self) -> bool:
        """Whether it requires grad as a leaf, as a view does that is made inside, where gradients are not recorded, of
        what requires grad."""
        return self.requires_grad and self.is_leaf and bool(self.chain or self.base.frozen is not None)

    def _written(self) -> bool:
        """Whether a write with a gradient has reached this tensor through its memory."""
        return self.base.grad and not any(step.op == "detach" for step in self.chain)

    @property
    def is_input(self) -> bool:
        return self.base.input is not None and not self.chain and self.origin is not None

    @property
    def shape(self) -> SymSize:
        return SymSize(self.type.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.type.dtype

    @property
    def device(self) -> torch.device:
        return self.type.device

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def is_conj(self) -> bool:
        """Whether eager would have the conjugate bit set."""
        return sum(s.op == "reinterpret" and s.attrs["how"] == "conj" for s in self.chain) % 2 == 1

    def stride(self, dim=None):
        return self.type.strides if dim is None else self.type.strides[dim]

    def __repr__(self) -> str:
        return f"TensorHandle({self._node.name}: {self.type}{', requires_grad' if self.requires_grad else ''})"


class ViewStep:
    """A view prim with its attributes and result type, to be applied to any version of the base. ``restricted``: the
    operation gave more views than this one ("several"), gradients were not recorded ("no_grad"), or autograd takes the
    result for no view ("hidden"). Autograd then refuses to record a change of the view, or the view itself after a
    change of the memory. ``call``: how PyTorch makes a result that autograd takes for no view of the input whose memory
    it shows: (operator, what it is given beside the input, number of the result)."""

    __slots__ = ("op", "attrs", "type", "restricted", "call")

    def __init__(self, node: Node) -> None:
        self.op, self.attrs, self.type, self.restricted, self.call = node.op, node.attrs, node.type, None, None


def restriction(chain: tuple[ViewStep, ...]) -> str | None:
    """Why autograd refuses to record a change of the view that these steps make: ``restricted`` of the last one that
    has any."""
    return next((step.restricted for step in reversed(chain) if step.restricted), None)


def view_path(node: Node, source: Node) -> tuple | None:
    """The view steps that lead from ``source`` to ``node``, or None when it is not a view of it."""
    steps = []
    while node is not source:
        if node.op not in VIEWS:
            return None
        steps.append(ViewStep(node))
        node = node.inputs[0]
    return tuple(reversed(steps))


def replay(b: Builder, node: Node, chain: tuple[ViewStep, ...]) -> Node:
    """The view of ``node`` that the steps make. Raises Unsupported for ``as_strided`` of an input that has changed:
    what lies between its elements is not known."""
    for step in chain:
        if "place" in step.attrs and node.op != "input":
            raise Unsupported("as_strided of an input that changes later",
                              "use ordinary views", kind="overlapping-memory")
        node = b.node(step.op, (node,), step.attrs, step.type)
    return node


def conform(b: Builder, value: Node, t: TensorType, strides: bool = True) -> Node:
    """``value`` cast, broadcast and (unless ``strides`` is false) laid out as ``t``. The shape must broadcast to it."""
    if value.type.dtype is not t.dtype:
        value = b.cast(value, t.dtype)
    if value.type.device != t.device:
        raise Unsupported(f"a write from {value.type.device} into a tensor on {t.device}", kind="device")
    if not same_ints(value.type.shape, t.shape):
        shape = layout.broadcast_shapes(value.type.shape, t.shape)
        if len(shape) != len(t.shape) or not all(p == q for p, q in zip(shape, t.shape)):
            raise layout.ShapeError(
                f"output with shape {list(t.shape)} doesn't match the broadcast shape {list(shape)}")
        value = b.expand(value, t.shape)
    if strides and not same_ints(value.type.strides, t.strides):
        value = b.clone(value, t.strides)
    return value


def scatter(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    """``parent`` with the part that view ``step`` shows replaced by ``value`` (of the view's shape)."""
    return SCATTERS[step.op](b, step, parent, value)


def _scatter_permute(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    inverse = [0] * len(step.attrs["dims"])
    for i, d in enumerate(step.attrs["dims"]):
        inverse[d] = i
    return b.permute(value, inverse)


def _scatter_reshape(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    return b.reshape(value, parent.type.shape)


def _scatter_expand(b: Builder, step: ViewStep, parent: Node, value):
    if not same_ints(step.type.shape, parent.type.shape):
        lead = step.type.rank - parent.type.rank
        if any(not s == 1 for s in step.type.shape[:lead]) or not all(p == q
                                                                      for p, q in zip(step.type.shape[lead:],
                                                                               parent.type.shape)):
            raise Unsupported("a write into an expanded tensor", "eager refuses it as well: clone() the tensor first",
                              kind="overlapping-memory")
        return b.reshape(value, parent.type.shape)
    return value


def _scatter_slice(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    dim, start, length, stride = (step.attrs[k] for k in ("dim", "start", "length", "step"))
    size = parent.type.shape[dim]
    if same_ints((length, start, stride), (size, 0, 1)):
        return value
    if type(length) is int and length == 0:
        return parent
    if stride == 1:
        parts = []
        if not (type(start) is int and start == 0):
            parts.append(b.piece(parent, dim, 0, start))
        parts.append(value)
        end = start + length
        if not same_ints((end,), (size,)):
            parts.append(b.piece(parent, dim, end, size - end))
        return b.cat(parts, dim)
    # Every step-th position: read the value at (position - start) // step, clamped, and select by a mask.
    device = parent.type.device
    position = b.sub(b.iota(size, device=device), start)
    hit = b.logical_and(b.eq(b.remainder(position, stride), 0),
                        b.logical_and(b.ge(position, 0), b.lt(position, length * stride)))
    source = b.minimum(b.maximum(b.floor_div(position, stride), 0), length - 1)
    mask_shape = (1,) * dim + (size,) + (1,) * (parent.type.rank - dim - 1)
    return b.where(b.reshape(hit, mask_shape), b.index(value, (dim,), [source]), parent)


def _scatter_alias(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    return value


def _scatter_diagonal(b: Builder, step: ViewStep, parent: Node, value: Node) -> Node:
    a = step.attrs
    return b.aten("aten::diagonal_scatter", "", (parent, value, a["offset"], a["dim1"], a["dim2"]),
                  layout.empty_like(parent.type))


def _scatter_as_strided(b: Builder, step: ViewStep, parent: Node, value) -> Node | tuple[Node | None, ...]:
    size, stride, t = step.attrs["size"], step.attrs["stride"], parent.type
    if parent.op != "input" or not _distinct_places(size, stride) or not layout.is_dense(t.shape, t.strides):
        raise Unsupported("a write through as_strided into a changed tensor, or one whose elements overlap",
                          "use ordinary views or index_put", kind="overlapping-memory")
    if b.recording:  # PyTorch's formula for the gradient of this operator takes nothing out of the tensor's own
        raise Unsupported("a write through as_strided where gradients are recorded",
                          "use ordinary views or index_put", kind="overlapping-memory")
    return b.aten("aten::as_strided_scatter", "", (parent, value, size, stride, step.attrs["offset"]), t)


def _scatter_reinterpret(b: Builder, step: ViewStep, parent: Node, value):
    how, t = step.attrs["how"], parent.type

    def part(name: str):
        return b.node("reinterpret", (parent,), {"how": name}, layout.reinterpreted(t, name, None))

    def whole(real, imag):
        if t.dtype not in pairs.PARTS:
            return b.aten("aten::complex", "", (real, imag), TensorType.contiguous(t.shape, t.dtype, t.device))
        return pairs.joined(b, pairs.Pair(real, imag), layout.preserved_strides(t))

    if how == "real":
        return whole(value, part("imag"))
    if how == "imag":
        return whole(part("real"), value)
    if how == "conj":
        if t.dtype not in pairs.PARTS:
            return b.aten("aten::conj_physical", "", (value,), layout.empty_like(value.type))
        return pairs.joined(b, pairs.conjugate(b, pairs.parts(b, value)), layout.preserved_strides(value.type))
    value = b.clone(value, contiguous_strides(value.type.shape))
    back = {"view_as_real": "view_as_complex", "view_as_complex": "view_as_real", "dtype": "dtype"}[how]
    return b.node("reinterpret", (value,), {"how": back}, layout.reinterpreted(value.type, back, t.dtype))


SCATTERS = {
    "reinterpret": _scatter_reinterpret,
    "permute": _scatter_permute,
    "reshape": _scatter_reshape,
    "expand": _scatter_expand,
    "slice": _scatter_slice,
    "alias": _scatter_alias,
    "detach": _scatter_alias,
    "diagonal": _scatter_diagonal,
    "as_strided": _scatter_as_strided,
}


def _distinct_places(size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...]) -> bool:
    """Whether all elements of a strided view lie apart: each stride, from the smallest, steps over all that the smaller
    ones reach."""
    if not all(type(v) is int for v in (*size, *stride)):
        return False
    reach = 0
    for s, n in sorted((s, n) for n, s in zip(size, stride) if n != 1):
        if s <= reach:
            return 0 in size
        reach += s * (n - 1)
    return True


def overlaps_itself(t: TensorType) -> bool:
    """Whether two elements share memory because of a zero stride."""
    if t.is_empty:
        return False
    return any(type(s) is int and s == 0 and not (type(n) is int and n == 1) for n, s in zip(t.shape, t.strides))


def may_overlap_itself(t: TensorType) -> bool:
    """Whether two elements of a tensor may share memory, at the sizes at hand."""
    return not _distinct_places(tuple(map(hint, t.shape)), tuple(map(hint, t.strides)))


def offset_in_base(handle: TensorHandle) -> int | None:
    """The offset of a view's first element in its memory, in elements; None where the view has another dtype."""
    offset, strides = 0, handle.base.type.strides
    for step in handle.chain:
        at = step.attrs
        if step.op == "slice":
            offset = offset + at["start"] * strides[at["dim"]]
        elif step.op == "diagonal":
            offset = offset + (at["offset"] * strides[at["dim2"]] if at["offset"] >= 0
                               else -at["offset"] * strides[at["dim1"]])
        elif step.op == "as_strided":
            offset = at.get("place", at["offset"])
        elif step.op == "reinterpret":
            return None
        strides = step.type.strides
    return offset


def _places(handle: TensorHandle) -> torch.Tensor | None:
    """The places of a tensor's elements in its base's memory, or None where they are not known in numbers or too many
    to be listed."""
    start, t = offset_in_base(handle), handle.type
    if not all(type(v) is int for v in (start, *t.shape, *t.strides)) or math.prod(t.shape) > _LISTED:
        return None
    places = torch.full((), start, device="cpu")
    for n, s in zip(t.shape, t.strides):
        places = places[..., None] + torch.arange(n, device="cpu") * s
    return places


def _region(handle: TensorHandle) -> tuple[int, ...] | None:
    """(first, last) element of the base's memory that a handle shows, or None where that is not known."""
    start, t = offset_in_base(handle), handle.type
    if start is None:
        return None
    return start, start + sum((n - 1) * s for n, s in zip(t.shape, t.strides))


def partly_shared(a: TensorHandle, b: TensorHandle) -> bool:
    """Whether two tensors share some memory and are not the very same elements in the same order, as far as is
    known."""
    if a.base is not b.base or 0 in a.type.shape or 0 in b.type.shape:
        return False
    first, second = _region(a), _region(b)
    if first is None or second is None or first[1] < second[0] or second[1] < first[0]:
        return False
    if first == second and same_ints(a.type.shape, b.type.shape) and same_ints(a.type.strides, b.type.strides):
        return False
    here, there = _places(a), _places(b)
    return here is None or there is None or bool(torch.isin(here, there).any())


def to_node(v: object, handles: list) -> object:
    """An argument with nodes for its tensors, which are added to ``handles``."""

    def node(handle: TensorHandle) -> Node:
        handles.append(handle)
        return handle.node

    return replaced(TensorHandle, node, v)


def to_nodes(args: Sequence[object], handles: list) -> list:
    """``to_node`` for each argument."""
    return [to_node(a, handles) for a in args]
