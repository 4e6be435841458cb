"""From a fusion group to a kernel: each root is evaluated at the group's indices, by recursion through the graph.

The value of a node is asked for at an index (a tuple of expressions over the loop axes). Views only change the index; a
pointwise op asks its operands; a value that another kernel or a library call made is a load at ``sum(index * stride)``;
a reduction of this group is computed once per row. Values that are asked for twice at one index are computed once.
Adding an op is one entry of ``LOWER``.

Arithmetic in half types is done in float32. An explicit ``cast`` rounds in both directions: to a half type, and from
one when the value in hand has not been rounded to it yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional

import torch

from .. import config, devices
from ..errors import Unsupported
from ..graph import dims
from ..graph.ir import Node
from ..graph.prims import POINTWISE, REDUCTIONS, SCANS, SCATTERS, info
from ..turns import point
from . import fusion, indexing, loops, nest
from .approximate import rounded, rounded_inputs
from .chunks import chunk_plan, few_columns
from .groups import Group, Root
from .indexing import FIXED, VIEWS, is_one, linear
from .statement_order import drop_dead, reads_first

if TYPE_CHECKING:
    from ..graph.dims import Dim, IntExpr
    from .buffers import Storage
    from .loops import Kernel

LOWER = {}
HALF = loops.HALF


def lowers(*ops: str) -> Callable:
    """Register ``fn(emitter, node, index, mask) -> value name`` as the lowering of some prims."""

    def register(fn: Callable) -> Callable:
        LOWER.update(dict.fromkeys(ops, fn))
        return fn

    return register


def register_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of a tensor dtype are computed."""
    return torch.float32 if dtype in HALF else dtype


@dataclass(frozen=True)
class Place:
    """Where a value lies: a storage (any hashable key, one pointer argument each), strides and an offset, in
    elements."""

    storage: object
    strides: tuple
    offset: object
    dtype: torch.dtype


class Emitter:
    """Builds the kernel of one group.

    Args:
        group: a Group.
        places: function (node) -> Place of a stored value, or None for a value that is only computed here.
        stored: the nodes whose buffers this group writes.
        stage: None for a whole kernel; 1 or 2 for the stages of a split reduction.
        cut: the dimensions of a split reduction that are cut, as one range, into chunks.
        chunk: the length of a chunk.
        dealt: whether the range is dealt out to the chunks, one position after the other, and not cut into ranges.
        rows: whether the range is of rows, and a chunk of them what one program goes through.
    """

    def __init__(self, group: Group, places: Callable, stored: dict[Node, Place], stage: int | None = None,
                 cut: tuple[int, ...] = (), chunk: int | None = None, dealt: bool = False, rows: bool = False) -> None:
        self.group, self.places, self.stored, self.stage = group, places, stored, stage
        self.backend = devices.backend(group.device)
        self.b = loops.KernelBuilder(group.device.type)
        self.arguments = []            # storage key of each buffer, in order
        self._buffers = {}             # storage key -> buffer name
        self._memo = {}
        self._rounded = {}             # (float32 value, half dtype) -> the same value in the half dtype
        self.members = {m.node: m for m in group.members if m.part is None}
        self.called = {}               # library call that is computed here -> the index at which it is
        self.tail, self.by_rows = None, rows
        self._lay_out(cut, chunk, dealt)

    # axes

    def _lay_out(self, cut: tuple[int, ...], chunk: int | None, dealt: bool) -> None:
        group = self.group
        self.sym = [None] * len(group.dims)
        order = parallel_order(group)
        extent = dims.product([group.dims[d] for d in cut])
        self.chunk, self.cut_extent = chunk, extent
        if self.by_rows:  # a chunk of rows for each place along the other dimensions
            others = [d for d in order if d not in cut]
            rest = self.b.axis(dims.ceil_div(extent, chunk) * dims.product([group.dims[d] for d in others]))
            for d in reversed(others):
                rest, self.sym[d] = rest // group.dims[d], rest % group.dims[d]
            self.chunk_sym = rest
        elif self.stage == 1:
            self.chunk_sym = self.b.axis(dims.ceil_div(extent, chunk))
        for d in order:
            if not self.by_rows:
                self.sym[d] = self.b.axis(group.dims[d])
        if self.stage == 2:
            self.chunk_sym = self.b.axis(dims.ceil_div(extent, chunk), "r")
            return
        if self.stage == 1 and dealt:  # the loop over a chunk is the innermost, as its dimension is
            outer = {d: self.b.axis(group.dims[d], "r") for d in sorted(group.reduced) if d not in cut}
            position = self.chunk_sym + self.b.axis(chunk, "r") * dims.ceil_div(extent, chunk)
            self.first = [0 if s is None else s for s in self._cut_position(cut, self.chunk_sym)]
            self.sym = [outer.get(d, s) for d, s in enumerate(self._cut_position(cut, position))]
        elif self.stage == 1 or self.by_rows:
            start = self.chunk_sym * chunk
            position = start + self.b.axis(chunk, "p" if self.by_rows else "r")
            if not dims.divisible(extent, chunk):
                self.tail = self.less(position, extent)
            self.sym = self._cut_position(cut, position)
            self.first = [0 if s is None else s for s in self._cut_position(cut, start)]
        for d in sorted(group.reduced):
            if self.sym[d] is None:
                self.sym[d] = self.b.axis(group.dims[d], "r")

    def _cut_position(self, cut: tuple[int, ...], position: Dim) -> list:
        """The indices of the group's dimensions at a position in the range that is cut; None for those that are not
        known yet."""
        sym = list(self.sym)
        for d in reversed(cut):
            sym[d] = position % self.group.dims[d] if d != cut[0] else position
            position = position // self.group.dims[d]
        return sym

    def first_of_chunk(self, root: Root) -> tuple[IntExpr, ...]:
        """The index of a root's domain where a row's chunk begins."""
        return tuple(0 if p == FIXED else self.first[p] for p in root.place)

    def at(self, root: Root, align: tuple[int, ...] | None = None) -> tuple[IntExpr, ...]:
        """The index of a root's domain (or of dimensions of it) in terms of the axes."""
        place = root.place if align is None else [FIXED if d == FIXED else root.place[d] for d in align]
        return tuple(0 if p == FIXED else self.sym[p] for p in place)

    # values

    def buffer(self, storage: Storage | tuple[Node, str], dtype: torch.dtype, writes: bool) -> str:
        name = self._buffers.get(storage)
        if name is None:
            name = self._buffers[storage] = self.b.buffer(dtype, "out" if writes else "in")
            self.arguments.append(storage)
            return name
        k = self.arguments.index(storage)
        old = self.b.buffers[k]
        if old.dtype is not dtype:
            raise Unsupported("a kernel reads and writes the same memory as two dtypes", kind="kernel")
        if old.role != ("out" if writes else "in"):
            self.b.buffers[k] = loops.Buffer(name, dtype, "inout")
        return name

    def constant(self, value: float | int, dtype: torch.dtype) -> str:
        return self.b.const(value, dtype)

    def compute(self, op: str, *args: str, dtype: torch.dtype) -> str:
        return self.b.compute(op, *args, dtype=dtype)

    def less(self, a: IntExpr, b: IntExpr) -> Optional[str]:
        """The bool value ``a < b`` of two index expressions; None when it always holds."""
        if dims.nonnegative(b - a - 1):
            return None
        return self.compute("lt", self.b.index(a), self.b.index(b), dtype=torch.bool)

    def both(self, a: Optional[str], b: Optional[str]) -> Optional[str]:
        """The conjunction of two masks, where None is "always"."""
        if a is None or b is None:
            return b if a is None else a
        return self.compute("logical_and", a, b, dtype=torch.bool)

    def within(self, index: IntExpr, lo: int, hi: IntExpr) -> Optional[str]:
        """The mask of ``lo <= index < hi``."""
        return self.both(self.less(lo - 1, index), self.less(index, hi))

    def round(self, value: str, dtype: torch.dtype) -> str:
        """A float32 value rounded to a half dtype, still as float32."""
        if (value, dtype) in self._rounded:
            return value
        half = self.b.cast(value, dtype)
        value = self.b.cast(half, torch.float32)
        self._rounded[value, dtype] = half
        return value

    def load(self, place: Place, index: tuple[IntExpr, ...], mask: str | None, shape: tuple[IntExpr, ...]) -> str:
        e = place.offset + linear(index, place.strides)
        certain = (mask is None or self.b.unsure.isdisjoint(dims.free_symbols(e))
                   and all(dims.nonnegative(i) and dims.nonnegative(s - 1 - i) for i, s in zip(index, shape)))
        mask = None if certain else mask
        name = self.b.load(self.buffer(place.storage, place.dtype, False), e, mask)
        if place.dtype in HALF:
            half, name = name, self.b.cast(name, torch.float32)
            self._rounded[name, place.dtype] = half
        return name

    def value(self, node: Node, index: tuple[IntExpr, ...], mask: str | None = None) -> str:
        """The name of the value of ``node`` at ``index``, in the register dtype. ``mask`` says where it matters."""
        key = (node.id, tuple([loops.index_key(i) for i in index]), mask)
        name = self._memo.get(key)
        if name is None:
            name = self._memo[key] = self._value(node, index, mask)
        return name

    def _value(self, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
        if node.op in VIEWS:
            base, offset = indexing.in_memory(node, self.places)
            if base not in self.members and base.op not in fusion.SOURCES:
                place = self.places(base)
                if place is not None:
                    view = Place(place.storage, node.type.strides, place.offset + offset, place.dtype)
                    return self.load(view, index, mask, node.type.shape)
            # Of values that are told by their place in memory, if they are not all the same.
            if node.op == "as_strided" and base.op in fusion.SOURCES:
                place = indexing.offset_in_base(node) + linear(index, node.type.strides)
                return self.value(base, (place,) if base.op == "iota" else (0,) * len(base.type.shape), mask)
            return self.value(node.inputs[0], indexing.view_index(node, index), mask)
        # Constants are made anew: a schedule does not see reads of them.
        if node not in self.members and node.op not in fusion.SOURCES:
            place = self.places(node)
            if place is not None:
                return self.load(place, index, mask, node.type.shape)
        if node.type.dtype not in self.backend.dtypes | self.backend.stored:
            raise Unsupported(f"no kernels for {node.type.dtype}", kind="kernel")
        if node in self.group.calls:
            if mask is not None or node in self.called:
                raise Unsupported("a library call is read in parts, or twice, by the kernel that computes it",
                                  kind="kernel")
            self.called[node] = index
            value, rounds = self.group.calls[node].value(self, node, index), True
        elif node.op not in LOWER:
            raise Unsupported(f"no kernel computes the operation {node.op}", kind="kernel")
        else:
            value, rounds = LOWER[node.op](self, node, index, mask), info(node.op).rounds
        if config.match_eager_rounding and node.type.dtype in HALF and rounds:
            value = self.round(value, node.type.dtype)
        return value

    # stores

    def store(self, place: Place, index: tuple[IntExpr, ...], value: str, mask=None) -> None:
        e = place.offset + linear(index, place.strides)
        value = self._rounded.get((value, place.dtype)) or self.b.cast(value, place.dtype)
        self.b.store(self.buffer(place.storage, place.dtype, True), e, value, mask)

    def emit_member(self, root: Root) -> None:
        """Evaluate one root and store it where it is stored."""
        if root.node not in self.stored:
            return
        # A library call comes last, and is stored where the others have read it, if there are any.
        index = self.called.get(root.node) or self.at(root, root.out_align)
        value = self.value(root.source, index, self.tail)
        place = self.stored[root.node]
        if root.part is not None:
            place = Place(place.storage, place.strides, place.offset + root.offset, place.dtype)
        if root.kept is not None:  # of a sorted row
            d, start, length = root.kept
            index = self.at(root)
            index = index[:d] + (index[d] - start,) + index[d + 1 :]
            self.store(place, index, value, self.within(index[d], 0, length))
            return
        element = any(p in self.group.reduced for p in root.out_place())
        self.store(place, index, value, self.tail if element or self.by_rows else None)

    def update_at(self, root: Root, place: Place) -> None:
        """Write the values of a scatter to the places that data decide."""
        node, index, mask = root.node, self.at(root), None
        x, values, *indices = node.inputs
        if node.op == "scatter":
            where = (node.attrs["dim"],)
            rank = 1
            terms = [_position(self, indices[0], index, None, x.type.shape[where[0]], wrap=False, code=2)]
        else:
            where, rank = node.attrs["dims"], len(indices[0].type.shape)
            inner = index[where[0] : where[0] + rank]
            terms = [_position(self, i, indexing.broadcast_index(i.type.shape, inner), None, x.type.shape[d],
                               wrap=node.attrs["wrap"], code=1) for d, i in zip(where, indices)]
        target = index[: where[0]] + tuple(terms) + index[where[0] + rank :]
        for d in where:
            mask = self.both(mask, self.less(0, x.type.shape[d]))
        value = self.b.cast(self.value(values, index), place.dtype)
        self.buffer(place.storage, place.dtype, True)
        buffer = self.buffer(place.storage, place.dtype, False)  # read and written
        self.b.update(buffer, place.offset + linear(target, place.strides), value, node.attrs["combine"], mask)

    def finish(self, name: str) -> Kernel:
        return loops.verify_addresses(nest.collapse(reads_first(drop_dead(self.b)).finish(name)))


def parallel_order(group: Group) -> list[int]:
    """The group's parallel dimensions, outermost first, by the strides of its largest store."""
    parallel = [d for d in range(len(group.dims)) if d not in group.reduced]
    best, size = None, -1
    for m in group.members:
        covered = {p for p in m.out_place() if p != FIXED}
        n = indexing.numel_hint(m.node.type.shape)
        if n > size and covered >= set(parallel):
            best, size = m, n
    if best is None:
        return parallel
    stride = {p: indexing.size_hint(s) for p, s in zip(best.out_place(), best.strides) if p != FIXED}
    return sorted(parallel, key=lambda d: (-stride[d], d))


# pointwise


def _special_form(e: Dim, form, args, dtype: torch.dtype):
    """What a record says of the prim over bools or integers, computed: see ``PrimInfo.bools``."""
    if type(form) is not tuple:
        return e.constant(form, dtype)
    for op in form:
        args = (e.compute(op, *args, dtype=dtype),)
    return args[0]


@lowers(*POINTWISE)
def _pointwise(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    args = [e.value(i, indexing.broadcast_index(i.type.shape, index), mask) for i in node.inputs]
    op, operand, p = node.op, e.b.dtype[args[-1]], info(node.op)
    dtype = register_dtype(node.type.dtype)
    if op == "where":
        return e.compute(op, *args, dtype=dtype)
    if operand is torch.bool and p.bools is not None:
        if type(p.bools) is not torch.dtype:
            return _special_form(e, p.bools, args, torch.bool)
        operand, args = p.bools, [e.b.cast(a, p.bools) for a in args]
    if p.truth:
        args = [to_bool(e, a) for a in args]
    if not operand.is_floating_point:
        if p.integers is not None:
            return _special_form(e, p.integers, args, dtype)
        if op == "signbit":
            return e.compute("lt", args[0], e.constant(0, operand), dtype=torch.bool)
    if op == "trunc_div" and config.match_eager_rounding and node.type.dtype in HALF:
        # Eager rounds the quotient.
        return e.compute("trunc", e.round(e.compute("div", *args, dtype=dtype), node.type.dtype), dtype=dtype)
    return e.compute(op, *args, dtype=dtype)


def to_bool(e: Emitter, value: str) -> str:
    dtype = e.b.dtype[value]
    return value if dtype is torch.bool else e.compute("ne", value, e.constant(0, dtype), dtype=torch.bool)


@lowers("cast")
def _cast(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    source, target = node.inputs[0].type.dtype, node.type.dtype
    value = e.value(node.inputs[0], indexing.broadcast_index(node.inputs[0].type.shape, index), mask)
    if source in HALF:
        value = e.round(value, source)
    if target in HALF and _few_digits(node.inputs[0]):
        return e.b.cast(value, torch.float32)
    if target in HALF:
        return e.round(e.b.cast(value, torch.float32), target)
    if target is torch.bool:
        return to_bool(e, value)
    return e.b.cast(value, target)


def _few_digits(node: Node) -> bool:
    """Whether a value is an integer that every half type has: of eight bits, or what a mask has left of one."""
    if node.type.dtype in (torch.int8, torch.uint8, torch.bool):
        return True
    masks = [i.attrs["value"] for i in node.inputs if node.op == "bitwise_and" and i.op == "scalar"]
    return any(type(m) is int and 0 <= m <= 256 for m in masks)


@lowers("clone")
def _clone(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    return e.value(node.inputs[0], index, mask)


# sources


@lowers("scalar", "full")
def _scalar(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    return _number(e, node, node.op == "full")


def _number(e: Emitter, node: Node, element: bool) -> str:
    """The number of a node in the register dtype; as an ``element`` of a tensor it is rounded to the node's own
    dtype."""
    value, dtype = node.attrs["value"], register_dtype(node.type.dtype)
    if isinstance(value, dims.Dim):
        value = e.b.cast(e.b.index(value), dtype)
        return e.round(value, node.type.dtype) if element and node.type.dtype in HALF else value
    if dtype is torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    if element and node.type.dtype in HALF:
        value = torch.tensor(value, dtype=node.type.dtype).item()
    return e.constant(value, dtype)


@lowers("float_scalar")
def _float_scalar(e: Emitter, node: Node, index: tuple, mask) -> str:
    words = e.b.index(node.attrs["low"]), e.b.index(node.attrs["high"])
    return e.b.cast(e.compute("from_words", *words, dtype=torch.float64), register_dtype(node.type.dtype))


@lowers("iota")
def _iota(e: Emitter, node: Node, index: tuple[Dim, ...], mask) -> str:
    start, step, dtype = node.attrs["start"], node.attrs["step"], register_dtype(node.type.dtype)
    if not any(isinstance(v, float) for v in (start, step)):
        return e.b.cast(e.b.index(index[0] * step + start), dtype)
    if any(isinstance(v, dims.Dim) for v in (start, step)):
        raise Unsupported("a float range with symbolic bounds", kind="kernel")
    # arange(length) in the tensor's own type, times step, plus start
    value = e.b.cast(e.b.index(index[0]), dtype)
    if step != 1:
        value = e.compute("mul", value, e.constant(float(step), dtype), dtype=dtype)
    return e.compute("add", value, e.constant(float(start), dtype), dtype=dtype) if start else value


# copies and indexing


@lowers("flip")
def _flip(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    shape = node.type.shape
    flipped = tuple(s - 1 - i if d in node.attrs["dims"] else i for d, (i, s) in enumerate(zip(index, shape)))
    return e.value(node.inputs[0], flipped, mask)


@lowers("constant_pad")
def _constant_pad(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    x, dtype = node.inputs[0], register_dtype(node.type.dtype)
    inner, inside = [], None
    for i, s, (lo, hi) in zip(index, x.type.shape, node.attrs["pads"]):
        inner.append(i - lo)
        inside = e.both(inside, e.within(i - lo, 0, s))
    value = e.value(x, tuple(inner), e.both(mask, inside))
    if inside is None:
        return value
    fill = node.attrs["value"]
    fill = bool(fill) if dtype is torch.bool else float(fill) if dtype.is_floating_point else int(fill)
    return e.compute("where", inside, value, e.constant(fill, dtype), dtype=dtype)


@lowers("cat")
def _cat(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask) -> str:
    d, dtype = node.attrs["dim"], register_dtype(node.type.dtype)
    start, parts = 0, []
    for x in node.inputs:
        if len(x.type.shape) != len(index):
            continue
        size = x.type.shape[d]
        if not (type(size) is int and size == 0):
            parts.append((start, start + size, x))
        start = start + size
    result = None
    for start, stop, x in reversed(parts):
        if dims.nonnegative(start - 1 - index[d]) or dims.nonnegative(index[d] - stop):
            continue
        inside = e.within(index[d], start, stop)
        value = e.value(x, index[:d] + (index[d] - start,) + index[d + 1 :], e.both(mask, inside))
        if result is None or inside is None:
            result = value
        else:
            result = e.compute("where", e.less(index[d], stop), value, result, dtype=dtype)
    return e.constant(0, dtype) if result is None else result  # of nothing but empty tensors it is never read


ERROR = "error flag"  # the storage key of the int32 that a failed check sets


def _position(e: Emitter, index_node: Node, index: tuple[IntExpr, ...], mask: str | None, size: IntExpr, wrap: bool,
              code: int) -> Dim:
    """An index tensor's entry as a term of an index expression: wrapped from the end where negative, 0 where out of
    range, which is an error where ``mask`` holds: the flag becomes ``code``, 1 for IndexError, 2 for RuntimeError; a
    GPU kernel stops there, as eager's do."""
    i = e.b.cast(e.value(index_node, index, mask), torch.int64)
    if wrap:
        limit = e.b.index(size) if isinstance(size, dims.Dim) else e.constant(size, torch.int64)
        negative = e.compute("lt", i, e.constant(0, torch.int64), dtype=torch.bool)
        i = e.compute("where", negative, e.compute("add", i, limit, dtype=torch.int64), i, dtype=torch.int64)
    name = e._buffers.get(ERROR)
    if name is None:
        name = e._buffers[ERROR] = e.b.buffer(torch.int32, "error")
        e.arguments.append(ERROR)
    return e.b.position(i, size, name, -1 if e.backend.traps else code, mask)


@lowers("gather")
def _gather(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask: str | None) -> str:
    x, d = node.inputs[0], node.attrs["dim"]
    size = x.type.shape[d]
    i = _position(e, node.inputs[1], index, mask, size, wrap=False, code=2)
    return e.value(x, index[:d] + (i,) + index[d + 1 :], e.both(mask, e.less(0, size)))


@lowers("index")
def _index(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask) -> str:
    x, where = node.inputs[0], node.attrs["dims"]
    first, rank = where[0], len(node.inputs[1].type.shape)
    inner = index[first : first + rank]
    terms = []
    for d, tensor in zip(where, node.inputs[1:]):
        size = x.type.shape[d]
        terms.append(_position(e, tensor, indexing.broadcast_index(tensor.type.shape, inner),
                               mask, size, wrap=node.attrs.get("wrap", True), code=1))
    for d in where:
        mask = e.both(mask, e.less(0, x.type.shape[d]))
    return e.value(x, index[:first] + tuple(terms) + index[first + rank :], mask)


# reductions


def reduction_dtype(node: Node) -> torch.dtype:
    """The dtype in which a reduction accumulates."""
    p = info(node.op)
    if p.result is torch.bool:
        return torch.bool
    return register_dtype(node.inputs[0].type.dtype if p.gives_element or p.gives_position else node.type.dtype)


def partial_dtype(node: Node) -> torch.dtype:
    """The dtype of a split reduction's partial results."""
    dtype = reduction_dtype(node)
    wide = node.op == "sum" and dtype is torch.float32 and devices.backend(node.type.device).wide_partials
    return torch.float64 if wide else dtype


def _member(e: Emitter, node: Node, index: tuple[IntExpr, ...]) -> Root:
    """The root of a reduction that is read at ``index``."""
    root = e.members.get(node)
    if root is None:
        raise Unsupported(f"the reduction {node.name} is read outside its kernel without a buffer", kind="kernel")
    if any(loops.index_key(a) != loops.index_key(b) for a, b in zip(index, e.at(root, root.out_align))):
        raise Unsupported(f"the reduction {node.name} is read out of step with its kernel", kind="kernel")
    return root


@lowers(*REDUCTIONS)
def _reduction(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask) -> str:
    op, x, dtype = info(node.op).combine, node.inputs[0], reduction_dtype(node)
    root, precise = _member(e, node, index), bool(node.attrs.get("precise")) and e.backend.wide_partials
    if e.stage == 2 and root.reduced:
        partial = e.b.load(e.buffer((node, "partial"), partial_dtype(node), False), e.partial_index(node))
        return e.b.cast(e.b.reduce(op, partial), register_dtype(node.type.dtype))
    value = e.value(x, e.at(root), e.tail)
    if dtype is torch.bool and op in ("any", "all", "max", "min"):
        value, op = to_bool(e, value), {"max": "any", "min": "all"}.get(op, op)
    value = e.b.cast(value, torch.uint8 if dtype is torch.bool and op.startswith("arg") else dtype)
    if not root.reduced:
        value = e.constant(0, torch.int64) if op.startswith("arg") else value
        return e.b.cast(value, register_dtype(node.type.dtype))
    if e.tail is not None:
        value = e.compute("where", e.tail, value, e.constant(loops.neutral(op, dtype), dtype), dtype=dtype)
    if e.stage == 1:
        result = e.b.reduce(op, value, partial_dtype(node), precise)
        e.b.store(e.buffer((node, "partial"), partial_dtype(node), True), e.partial_index(node), result)
        return result
    result = e.b.reduce(op, value, precise=precise)
    return e.b.cast(result, register_dtype(node.type.dtype))


@lowers("squares")
def _squares(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask) -> str:
    """The sum of squares about the mean; of a split reduction, by chunks (see ``moments``)."""
    root, dtype = _member(e, node, index), reduction_dtype(node)
    everything = e.constant(float(node.attrs["count"]), dtype)
    count = everything if e.stage is None else _chunk_count(e, node, dtype)

    def do(op: str, a: str, b: str) -> str:
        return e.compute(op, a, b, dtype=dtype)

    if e.stage == 2:
        total, squares = (e.b.load(e.buffer((node, part), dtype, False), e.partial_index(node))
                          for part in ("total", "partial"))
        off = do("sub", do("div", total, count), do("div", e.b.reduce("sum", total), everything))
        return e.b.reduce("sum", do("add", squares, do("mul", count, do("mul", off, off))))
    zero = e.constant(0.0, dtype)

    def total_of(value: str) -> str:
        return e.b.reduce("sum", value if e.tail is None else e.compute("where", e.tail, value, zero, dtype=dtype))

    value = e.b.cast(e.value(node.inputs[0], e.at(root), e.tail), dtype)
    if e.stage is None:
        centred = do("sub", value, do("div", total_of(value), count))
        return total_of(do("mul", centred, centred))
    first = e.b.cast(e.value(node.inputs[0], e.first_of_chunk(root)), dtype)
    off = do("sub", value, first)
    total, squares = total_of(off), total_of(do("mul", off, off))
    squares = do("maximum", do("sub", squares, do("div", do("mul", total, total), count)), zero)
    for part, result in (("total", do("add", total, do("mul", count, first))), ("partial", squares)):
        e.b.store(e.buffer((node, part), dtype, True), e.partial_index(node), result)
    return squares


def _chunk_count(e: Emitter, node: Node, dtype: torch.dtype) -> str:
    """How many values a row's chunk holds."""
    rest = node.attrs["count"] // e.cut_extent
    if dims.divisible(e.cut_extent, e.chunk):
        return e.constant(float(e.chunk * rest), dtype)
    left = e.b.index((e.cut_extent - e.chunk_sym * e.chunk) * rest)
    return e.b.cast(e.compute("minimum", left, e.constant(e.chunk * rest, torch.int64), dtype=torch.int64), dtype)


def _partial_index(e: Emitter, node: Node, of: Group | None = None) -> Dim:
    """Partial results lie as [chunk, row...], rows in the order of the group's parallel dimensions."""
    reduced = (of or e.group).reduced
    rows = [d for d in range(len(e.group.dims)) if d not in reduced]
    shape = tuple(e.group.dims[d] for d in rows)
    count = dims.product(shape)
    return e.chunk_sym * count + linear(tuple(e.sym[d] for d in rows), indexing.contiguous_strides(shape))


Emitter.partial_index = _partial_index


@lowers(*SCANS)
def _scan(e: Emitter, node: Node, index: tuple[IntExpr, ...], mask) -> str:
    root, x, op = e.members[node], node.inputs[0], info(node.op).combine
    positions = op.startswith("arg")
    dtype = register_dtype(x.type.dtype if positions else node.type.dtype)
    if any(loops.index_key(a) != loops.index_key(b) for a, b in zip(index, e.at(root, root.out_align))):
        raise Unsupported(f"the scan {node.name} is read out of step with its kernel", kind="kernel")
    value = e.b.cast(e.value(x, e.at(root), None), dtype)
    if not root.reduced:
        return e.constant(0, torch.int64) if positions else value
    last = node.attrs["start"] + node.attrs["length"] if op == "sort" else 0
    return e.b.scan(op, value, last if type(last) is int else 0)


# whole kernels


@dataclass
class Lowered:
    """A kernel with the storage keys of its buffers, and the partial buffers that it writes: {key: (dtype, numel)}."""

    kernel: loops.Kernel
    arguments: list
    partials: dict


def lower_group(group: Group, places: Callable, stored: dict[Node, Place], name: str) -> list:
    """The kernels of a group: one, or two for a split reduction. Returns a list of Lowered."""
    point()
    if group.columns is not None:
        return _with_columns(group, group.columns, places, stored, name)
    if group.members[0].node.op in SCATTERS:
        return scattered(group, places, stored, name)
    if not group.split:
        e = Emitter(group, places, stored)
        for m in group.members:
            e.emit_member(m)
        return [Lowered(e.finish(name), e.arguments, {})]
    few = few_columns(group)
    cut, chunk = few or chunk_plan(group)
    chunks = dims.ceil_div(dims.product([group.dims[d] for d in cut]), chunk)
    first = Emitter(group, places, stored, 1, cut, chunk, few is not None)
    partials = {}
    rows = dims.product([d for k, d in enumerate(group.dims) if k not in group.reduced])
    for m in group.members:
        if m.needs_row:
            first.value(m.node, first.at(m, m.out_align))
            for part in ("partial", "total") if m.node.op == "squares" else ("partial",):
                partials[(m.node, part)] = (partial_dtype(m.node), rows * chunks)
        elif not m.after and any(p in group.reduced for p in m.out_place()):
            first.emit_member(m)
    second = Emitter(group, places, stored, 2, cut, chunk)
    for m in group.members:
        if m.needs_row or not any(p in group.reduced for p in m.out_place()):
            second.emit_member(m)
    return _in_two(first, second, name, partials)


def _in_two(first: Emitter, second: Emitter, name: str, partials: dict) -> list:
    """The kernel that makes parts of results and the one that puts them together. The first is as exact as the second
    asks for."""
    b = second.finish(name + "_b")
    loose = {storage for buffer, storage in zip(b.buffers, second.arguments) if buffer.name in rounded_inputs(b)}
    a = first.finish(name + "_a")
    a = rounded(a, frozenset(buffer.name for buffer, storage in zip(a.buffers, first.arguments)
                             if storage in loose and storage in partials))
    return [Lowered(a, first.arguments, partials), Lowered(b, second.arguments, {})]


def _with_columns(group: Group, columns: Group, places: Callable, stored: dict[Node, Place], name: str) -> list:
    """The two kernels of a reduction of rows that takes sums over columns along: each program of the first goes through
    a chunk of rows and adds up its columns, the second adds these."""
    cut = tuple(sorted(columns.reduced))
    rows = dims.product([group.dims[d] for d in cut])
    count = indexing.size_hint(rows)
    kept = [d for k, d in enumerate(group.dims) if k not in columns.reduced]
    around = indexing.numel_hint([d for k, d in enumerate(group.dims) if k not in columns.reduced | group.reduced])
    chunk = max(-(-count * around // devices.backend(group.device).walkers()), 1)
    if type(rows) is int:  # no chunk that is not full, where there is such a length
        chunk = next((k for k in range(chunk, min(2 * chunk, count) + 1) if count % k == 0), chunk)
    chunks = dims.ceil_div(rows, chunk)
    first = Emitter(group, places, stored, None, cut, chunk, rows=True)
    second = Emitter(columns, places, stored, 2, cut, chunk)
    partials = {}
    for m in group.members:
        if m not in columns.members or not m.needs_row and any(p in columns.reduced for p in m.out_place()):
            first.emit_member(m)
        elif m.needs_row:
            dtype = partial_dtype(m.node)
            value = first.b.cast(first.value(m.node.inputs[0], first.at(m), first.tail), dtype)
            if first.tail is not None:
                value = first.compute("where", first.tail, value, first.constant(0, dtype), dtype=dtype)
            partials[(m.node, "partial")] = (dtype, dims.product(kept) * chunks)
            first.b.total(first.buffer((m.node, "partial"), dtype, True), first.partial_index(m.node, columns), value)
    for m in columns.members:
        if m.needs_row or not any(p in columns.reduced for p in m.out_place()):
            second.emit_member(m)
    return _in_two(first, second, name, partials)


def scattered(group: Group, places: Callable, stored: dict[Node, Place], name: str) -> list:
    """Two kernels: one makes a copy of the operand, the other writes the values into that. The second alone where the
    result lies where the operand does."""
    (m,) = group.members
    node, place = m.node, stored[m.node]
    own = places(node.inputs[0])
    if own is not None and own.storage is place.storage:
        e = Emitter(group, places, stored)
        e.update_at(m, place)
        return [Lowered(e.finish(name), e.arguments, {})]
    copy = Node(node.id, "clone", node.inputs[:1], {}, node.type)
    first, root = Group(group.device), Root(copy, m.position)
    wide = [d for d, s in enumerate(root.domain) if not is_one(s)]
    first.dims, first.members = [root.domain[d] for d in wide], [root]
    root.group, root.place = first, tuple(wide.index(d) if d in wide else FIXED for d in range(len(root.domain)))
    e = Emitter(first, places, {copy: place})
    e.emit_member(root)
    made = [Lowered(e.finish(name + "_a"), e.arguments, {})]
    e = Emitter(group, places, stored)
    e.update_at(m, place)
    return [*made, Lowered(e.finish(name + "_b"), e.arguments, {})]
