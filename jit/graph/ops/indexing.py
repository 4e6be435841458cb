"""``x[...]``, ``x[...] = v``, gather and its family, embedding."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, NoReturn

import torch

from jit.by_class import by_class
from jit.devices import backend
from jit.errors import EagerRaises, Unsupported
from jit.graph import changes, constants, layout, unwritable
from jit.graph.build import is_number
from jit.graph.dims import Dim, is_one, product
from jit.graph.handles import TensorHandle, overlaps_itself, to_node
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import holds, of_kind, several
from jit.graph.ops.views import slice_bounds, wrap_index
from jit.graph.registry import extern, op
from jit.graph.results import Selection
from jit.graph.scattering import added, writes

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_mask(v: object) -> bool:
    return isinstance(v, TensorHandle) and v.dtype is torch.bool


def _taken(v: object) -> int:
    """How many dimensions an entry of an index expression is for."""
    return v.ndim if _is_mask(v) else int(v is not None and v is not Ellipsis and type(v) is not bool)


def _items(index: object) -> list:
    """The entries of an index expression. A list of ints or bools is one index tensor; other sequences are tuples."""
    whole = isinstance(index, list) and (len(index) >= 32 or all(map(is_number, index)))
    return [index] if whole else list(several(index))


def _constant_index(t: Tracer, v: Sequence[int | TensorHandle], device: torch.device) -> TensorHandle:
    """A list, tuple or range of numbers, which may change from call to call, or of tensors that are one integer each,
    as an index tensor."""
    if v and all(isinstance(e, TensorHandle) and e.ndim == 0 and e.dtype in (torch.int64, torch.int32)
                 and e.dtype is v[0].dtype for e in v):
        return t.call_op("stack", (list(v),), {})
    if any(type(e) is Dim for e in v):
        return t.call_op("as_tensor", (list(v),), {"device": device})
    return t.constant(torch.tensor(list(v)))


def _positions(t: Tracer, mask: TensorHandle) -> list:
    """A mask of known values as tensors of the positions that it selects, one for each of its dimensions; other masks
    as they are."""
    if mask.dtype is not torch.bool or not mask.ndim or (found := constants.value(t.builder, mask.node)) is None:
        return [mask]
    places = found.nonzero()
    if len(places) <= 64:
        return [t.constant(column.to(mask.device)) for column in places.cpu().unbind(1)]
    b, count = t.builder, len(places)
    if mask.ndim == 1 and int(places[-1]) - int(places[0]) == count - 1:
        return [t.fresh(b.iota(count, int(places[0]), device=mask.device))]
    every = b.aten("aten::nonzero_static", "", (mask.node, count, -1),
                   TensorType.contiguous((count, mask.ndim), torch.int64, mask.device))
    return [t.fresh(b.select(every, 1, d)) for d in range(mask.ndim)]


def _with_positions(t: Tracer, x: TensorHandle, items: list) -> list:
    """The entries of an index expression with known masks as positions, where they fit."""
    out, dim = [], 0
    for at, v in enumerate(items):
        fits = (_is_mask(v) and v.ndim and v.device == x.device and not any(e is Ellipsis for e in items[:at])
                and layout.equal_ints(v.type.shape, x.type.shape[dim : dim + v.ndim]))
        out += _positions(t, v) if fits else [v]
        dim += _taken(v)
    return out


class _Split:
    """``x[index]``, taken apart an entry after the other.

    Attributes:
        node: ``x`` with the ints, slices, None and Ellipsis applied.
        tensors: dimension of ``node`` -> the index tensor that it is read at.
        dim: the dimension that the next entry is for.
    """

    def __init__(self, t: Tracer, x: TensorHandle, index: object) -> None:
        items = [_constant_index(t, v, x.device) if isinstance(v, (list, tuple, range)) else v for v in _items(index)]
        items = _with_positions(t, x, items)
        self.skipped = x.ndim - sum(map(_taken, items))  # by an Ellipsis
        if self.skipped < 0:
            raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
        self.t, self.b, self.device, self.alone = t, t.builder, x.device, len(items) == 1
        self.node, self.dim, self.tensors = x.node, 0, {}
        for v in items:
            apply = by_class(_ENTRIES, v)
            if apply is None:
                raise TypeError("only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are "
                                f"valid indices (got {type(v).__name__})")
            apply(self, v)

    def at_none(self, v: None) -> None:
        self.node = self.b.unsqueeze(self.node, self.dim)
        self.dim += 1

    def at_ellipsis(self, v: object) -> None:
        self.dim += self.skipped

    def at_bool(self, v: bool) -> None:
        self.at_none(None)
        self.tensors[self.dim - 1] = self.t.constant(torch.tensor([0] if v else [], dtype=torch.int64))

    def at_slice(self, v: slice) -> None:
        if holds(TensorHandle, v):
            raise Unsupported("a bound of a slice is a tensor", "use an int", kind="data-dependent-shape")
        if holds(float, v):
            raise TypeError("slice indices must be integers or None or have an __index__ method")
        size, step = self.node.shape[self.dim], 1 if v.step is None else v.step
        first, length = slice_bounds(v.start, v.stop, step, size)
        if not (same_ints((first, length), (0, size)) and step == 1) or self.alone:
            self.node = self.b.slice(self.node, self.dim, first, length, step)
        self.dim += 1

    def at_tensor(self, v: TensorHandle) -> None:
        if v.device != self.device and not backend(v.device).host:
            raise EagerRaises(RuntimeError("indices should be either on cpu or on the same device as the indexed "
                                           f"tensor ({self.device})"))
        if v.device != self.device:
            v = self.t.call_op("to", (v, self.device), {})
        if v.dtype not in (torch.bool, torch.uint8, *INTEGERS):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        self.tensors[self.dim] = v
        self.dim += max(v.ndim, 1) if v.dtype is torch.bool else 1

    def at_int(self, v: IntExpr) -> None:
        self.node = self.b.select(self.node, self.dim, wrap_index(v, self.node.shape[self.dim], self.dim))


_ENTRIES: dict[type, Callable] = {
    type(None): _Split.at_none, type(Ellipsis): _Split.at_ellipsis, bool: _Split.at_bool, slice: _Split.at_slice,
    TensorHandle: _Split.at_tensor, int: _Split.at_int, Dim: _Split.at_int}


def split_index(t: Tracer, x: TensorHandle, index: object) -> tuple[Node, dict[int, TensorHandle]]:
    """Apply ints, slices, None and Ellipsis. Returns (node, {dimension: index tensor})."""
    split = _Split(t, x, index)
    if split.node.type.is_empty or any(v.type.is_empty for v in split.tensors.values()):
        _check_positions(t.builder, split.node, split.tensors)
    return split.node, split.tensors


def _check_positions(b: Builder, x: Node, tensors: dict) -> None:
    """0-dim indices of ``x`` are to be inside, as ints are, although nothing is read at them."""
    for d, v in tensors.items():
        if v.ndim == 0 and v.dtype not in (torch.bool, torch.uint8):
            if not backend(v.device).host:
                raise Unsupported("an empty tensor is indexed by a tensor",
                                  "use an int", kind="tensor-select")
            size = x.shape[d]
            b.check(b.logical_and(b.ge(v.node, -size), b.lt(v.node, size)),
                    f"the index is out of bounds for dimension {d}")


@op("__getitem__", raw=True)
def getitem(t: Tracer, self: TensorHandle, index: object) -> TensorHandle:
    b = t.builder
    start = b.next_id
    source = self.node
    node, tensors = split_index(t, self, index)
    if not tensors:
        if node is source:
            node = b.alias(node)
        return t.wrap(node, [self], True, start)
    handles = [self, *tensors.values()]
    if any(v.dtype in (torch.bool, torch.uint8) for v in tensors.values()):
        raise Unsupported("indexing by a mask: the size of the result depends on the data",
                          "use torch.where(mask, x, 0), which keeps the size", kind="data-dependent-shape")
    result = advanced(b, node, {d: v.node for d, v in tensors.items()})
    handle = t.wrap(result, handles, False, 0)
    if all(v.ndim == 0 for v in tensors.values()):
        # Eager gives a view here (it reads the index). The copy stands for it as long as neither is written.
        self.base.shadows.append(weakref.ref(handle))
        if not t.grad_enabled and node.type.dtype.is_floating_point | node.type.dtype.is_complex:
            handle.requires_grad = self.base.requires_grad and self.requires_grad  # as a leaf; see ``Tracer.view``
        index = index if isinstance(index, tuple) else (index,)
        strides = tuple(s for d, s in enumerate(node.type.strides) if d not in tensors)
        handle.base.frozen = Selection(self, index, strides, t.grad_enabled,
                                       {v: v.node for v in of_kind(TensorHandle, index)})
    return handle


def advanced(b: Builder, x: Node, tensors: dict) -> Node:
    """``x`` read at index tensors, one for each dimension in ``tensors``; they broadcast together."""
    dims = sorted(tensors)
    shape = layout.broadcast_shapes(*(tensors[d].shape for d in dims))
    indices = []
    for d in dims:
        i = tensors[d]
        i = i if i.dtype is torch.int64 else b.cast(i, torch.int64)
        indices.append(i if same_ints(i.shape, shape) else b.expand(i, shape))
    if dims != list(range(dims[0], dims[0] + len(dims))):
        x = b.permute(x, (*dims, *(d for d in range(x.type.rank) if d not in dims)))
        dims = list(range(len(dims)))
    return b.index(x, dims, indices)


@op("index", raw=True)
def index(t: Tracer, self: TensorHandle, indices) -> TensorHandle:
    return getitem(t, self, tuple(slice(None) if i is None else i for i in indices))


def _check_put(self: TensorHandle, value: TensorHandle, indices: list[TensorHandle]) -> None:
    """A tensor of another dtype is no value for ``index_put``; the single element that a mask is filled with may be
    one."""
    fills = (len(indices) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
             and indices[0].ndim and all(type(n) is int and n == 1 for n in value.type.shape))
    if value.dtype is not self.dtype and not fills:
        names = [torch.empty(0, dtype=x.dtype).type().split(".")[-1].removesuffix("Tensor") for x in (self, value)]
        raise EagerRaises(RuntimeError(f"Index put requires the source and destination dtypes match, got {names[0]} "
                                       f"for the destination and {names[1]} for the source."))


@op("__setitem__", raw=True)
def setitem(t: Tracer, self: TensorHandle, index: int | TensorHandle | tuple[object, int | slice],
            value: object) -> None:
    given = [value] if isinstance(value, TensorHandle) else []
    if not given and not is_number(value):
        raise TypeError(f"can't assign a {type(value).__name__} to a tensor")
    if type(index) is bool:  # alone, it is no mask: PyTorch writes to all of it, converting, or does nothing at all
        if not index:
            return None
        index = None
    b = t.builder
    start = b.next_id
    source = self.node
    handles = [self, *given]
    if _is_mask(index) and (not given or value.ndim == 0) and index.ndim <= self.ndim:
        if index.ndim == 0 and t.grad_enabled and unwritable.which(self):
            raise RuntimeError("a leaf is changed at a selected place")  # eager is asked for its own words
        if index.ndim == 0 and given:
            _check_put(self, value, [index])
        mask = index.node
        if not layout.equal_ints(mask.shape, self.type.shape[: index.ndim]):
            raise IndexError(f"The shape of the mask {list(mask.shape)} does not match the shape of the indexed tensor "
                             f"{list(self.type.shape)}")
        mask = b.reshape(mask, mask.shape + (1,) * (self.ndim - index.ndim))
        new = b.cast(value.node, self.dtype) if given else b.scalar(value, self.dtype, self.device)
        t.write(self, b.where(mask, new, source), handles)
        return None
    node, tensors = split_index(t, self, index)
    target = self if node is source else t.wrap(node, [self], True, start)
    if given:
        changes.check_overlap(target, given)
    new = value.node if given else b.full((), value, self.dtype, self.device)
    if tensors and t.grad_enabled and unwritable.which(target) and any(v.ndim == 0 for v in tensors.values()):
        raise RuntimeError("a leaf is changed at a selected place")  # eager is asked for its own words
    if tensors:
        if given:
            if value.ndim and any(_is_mask(v) and (not v.ndim or value.dtype is not self.dtype)
                                  for v in tensors.values()):
                raise Unsupported("values are assigned where a mask is true, and their number may not match",
                                  "use torch.where", kind="data-dependent-shape")
            _check_put(self, value, list(tensors.values()))
        values = b.cast(new, self.dtype)
        while values.type.rank and values.type.rank > 1 and same_ints(values.shape[:1], (1,)):
            values = b.drop_dim(values, 0)
        at = []
        d = 0
        for dim in sorted(tensors):
            at += [None] * (dim - d)
            at.append(tensors[dim].node)
            d = dim + _taken(tensors[dim])
        current = target.node
        put = _put_at(b, current, at, values, False)
        if put is None:
            put = b.aten("aten::index_put", "", (current, tuple(at), values, False),
                         current.type.replace(strides=layout.preserved_strides(current.type)))
        t.write(target, put, handles)
        return None
    # Leading dimensions of size 1 are dropped when the value has more dimensions than the target.
    while new.type.rank > target.ndim and same_ints(new.shape[:1], (1,)):
        new = b.drop_dim(new, 0)
    if not same_ints(new.shape, target.type.shape):
        layout.expand_strides(new.type, target.type.shape)
    t.write(target, new, handles)
    return None


@functools.cache
def _gathers_by_int32() -> bool:
    """Whether this PyTorch takes int32 indices in ``gather``."""
    try:
        torch.gather(torch.zeros(1, device="cpu"), 0, torch.zeros(1, dtype=torch.int32, device="cpu"))
    except RuntimeError:
        return False
    return True


@op("gather")
def gather(b: Builder, self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if index.dtype is torch.int32 and _gathers_by_int32():
        index = b.cast(index, torch.int64)
    if any(n == 0 for n in index.shape):
        return NotImplemented  # PyTorch takes an empty index of any shape and dtype
    if sparse_grad and b.recording:
        return NotImplemented
    if index.dtype is not torch.int64:
        raise RuntimeError("gather(): Expected dtype int64 for index")
    rank = self.type.rank
    d = normalize_dim(dim, rank)
    if rank == 0 or index.type.rank == 0:
        return NotImplemented
    if index.type.rank != rank:
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    for k in range(rank):
        if k != d and not index.shape[k] <= self.shape[k]:
            raise RuntimeError(f"Size does not match at dimension {k} expected index {list(index.shape)} to be no "
                               f"larger than self {list(self.shape)} apart from dimension {d}")
    return b.gather(self, d, index)


@op("take_along_dim")
def take_along_dim(b: Builder, self: Node, indices, dim: int | None = None):
    if dim is None or self.type.rank != indices.type.rank:
        return NotImplemented
    d = normalize_dim(dim, self.type.rank)
    rest = layout.broadcast_shapes(self.shape[:d] + (1,) + self.shape[d + 1 :],
                                   indices.shape[:d] + (1,) + indices.shape[d + 1 :])
    x = b.expand(self, rest[:d] + (self.shape[d],) + rest[d + 1 :])
    i = b.expand(indices, rest[:d] + (indices.shape[d],) + rest[d + 1 :])
    return b.gather(x, d, i)


@op("index_select")
def index_select(b: Builder, self: Node, dim: int, index):
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("index_select(): Expected dtype int32/int64 for index")
    if index.type.rank > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    d = normalize_dim(dim, self.type.rank)
    if self.type.rank == 0 or index.type.rank == 0:
        return NotImplemented
    node = b.index(self, (d,), [b.cast(index, torch.int64)], wrap=False)
    node.type = node.type.replace(strides=layout.contiguous_strides(node.shape))
    return node


@op("embedding")
def embedding(b: Builder, weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Node:
    if weight.type.rank != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("Expected tensor for argument #1 'indices' to have one of the following scalar types: "
                           f"Long, Int; but got {indices.dtype} instead")
    if b.recording and (sparse or scale_grad_by_freq):
        return NotImplemented
    positions = b.cast(indices, torch.int64)
    node = b.index(weight, (0,), [positions], wrap=False)
    node.type = node.type.replace(strides=layout.contiguous_strides(node.shape))
    b.marked(node, "embedding")
    if b.recording and padding_idx >= 0:
        # The row of the padding index gets no gradient.
        node = b.where(b.unsqueeze(b.eq(positions, padding_idx), positions.type.rank), b.detach(node), node)
    return node


@op("bags_of_rows")
def bags_of_rows(b: Builder, table: Node, indices: Node, means: bool, weights: Node | None) -> Node:
    """The sums, or means, of the rows of ``table`` at each row of ``indices``; of rows times ``weights``."""
    rows = b.opmath(embedding(b, table, indices))
    if weights is not None:
        rows = b.mul(rows, b.unsqueeze(b.opmath(weights), 2))
    total = b.reduce("sum", rows, (1,))
    return b.cast(b.div(total, indices.shape[1]) if means else total, table.dtype)


@extern("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_reduce", "masked_scatter")
def _row_major(self, *args: int | TensorType) -> TensorType:
    return TensorType.contiguous(self.shape, self.dtype, self.device)


@extern("index_put", "index_fill", "put")
def _like_self(self, *args: TensorType | int | list[TensorType]) -> TensorType:
    return self.replace(strides=layout.preserved_strides(self))


@extern("slice_scatter", "select_scatter", "diagonal_scatter")
def _laid_out_as_self(self, *args: TensorType | int) -> TensorType:
    return self.replace(strides=layout.preserved_strides(self)) if overlaps_itself(self) else self


def _put_at(b: Builder, x: Node, at: Sequence[Node | None], values: Node, adds: bool) -> Node | None:
    """``x`` with ``values`` set, or added, at index tensors, one for each of neighbouring dimensions; None where
    kernels do not."""
    where = [d for d, i in enumerate(at) if i is not None]
    if (not where or where != list(range(where[0], where[-1] + 1)) or not writes(x.type, adds)
        or values.dtype is not x.dtype
        or any(at[d].dtype not in INTEGERS[:2] or at[d].type.is_empty for d in where)):
        return None
    shape = layout.broadcast_shapes(*(at[d].shape for d in where))
    places = [b.cast(b.expand(at[d], shape), torch.int64) for d in where]
    whole = x.shape[: where[0]] + tuple(shape) + x.shape[where[-1] + 1 :]
    own = values.shape
    if len(own) > len(whole) or not all(is_one(n) or same_ints((n,), (m,))
                                        for n, m in zip(own, whole[len(whole) - len(own) :])):
        return None  # eager may know better, or raise
    wide = b.expand(values, whole)
    if not adds:
        return b.put(x, where, places, wide, "set")
    return added(b, x, wide, lambda y, v: b.put(y, where, places, v, "sum"))


@op("index_put")
def index_put(b: Builder, self: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    put = _put_at(b, self, indices, values, accumulate)
    return NotImplemented if put is None else put


@op("put")
def put(b: Builder, self: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    """As if ``self`` had one dimension."""
    if not self.type.is_contiguous or index.type.is_empty or not same_ints(index.shape, source.shape):
        return NotImplemented
    made = _put_at(b, _in_a_row(b, self), (_in_a_row(b, index),), _in_a_row(b, source), accumulate)
    return NotImplemented if made is None else b.reshape(made, self.shape)


@op("take")
def take(b: Builder, self: Node, index: Node) -> Node:
    """As if ``self`` had one dimension."""
    if (not backend(self.device).traps or not self.type.is_contiguous or self.type.is_empty or self.type.rank == 0
        or index.dtype is not torch.int64):
        return NotImplemented
    return b.contiguous(b.index(_in_a_row(b, self), (0,), [index]))


def _in_a_row(b: Builder, x: Node) -> Node:
    return b.reshape(x, (product(x.shape),))


@op("index_put_", raw=True)
def index_put_(t: Tracer, self: TensorHandle, indices, values, accumulate: bool = False) -> TensorHandle:
    at = tuple(None if i is None else i.node for i in indices)
    node = self.node
    values = t.builder.lift(to_node(values, []), node)
    put = _put_at(t.builder, node, at, values, bool(accumulate))
    if put is None:
        put = t.builder.aten("aten::index_put", "", (node, at, values, bool(accumulate)),
                             node.type.replace(strides=layout.preserved_strides(node.type)))
    t.write(self, put, [self, *(i for i in indices if i is not None)])
    return self


@op("one_hot")
def one_hot(b: Builder, self: Node, num_classes: int = -1) -> Node:
    if not is_number(num_classes) or num_classes == -1:
        raise Unsupported("one_hot() is called without num_classes", "give num_classes", kind="data-dependent-shape")
    if self.dtype is not torch.int64 or num_classes <= 0:
        return NotImplemented
    classes = b.iota(num_classes, device=self.device)
    if backend(self.device).traps:  # the kernel itself stops at a value that is no class, as eager's scatter does
        self = b.index(classes, (0,), [self], wrap=False)
    else:
        b.check(b.all(b.ge(self, 0)), "Class values must be non-negative.")
        b.check(b.all(b.lt(self, num_classes)), "Class values must be smaller than num_classes.")
    return b.contiguous(b.cast(b.eq(b.unsqueeze(self, self.type.rank), classes), torch.int64))


def depends_on_data() -> Unsupported:
    return Unsupported("the result depends on the data", "keep it outside the compiled function",
                       kind="data-dependent-shape")


@op("nonzero", "argwhere", "masked_select", "unique", "_unique2", "unique_consecutive",
    "unique_dim", "equal", "is_nonzero", "allclose", raw=True)
def data_dependent(t: Tracer, self: TensorHandle, *args: int | TensorHandle, **kwargs: bool | float | None) -> NoReturn:
    """Only where the values are known; these ops have no name of their own here, so ``Tracer.call`` does them."""
    raise depends_on_data()


@op("item", "tolist", "__bool__", "numpy", "_local_scalar_dense", "__contains__", raw=True)
def read_value(t: Tracer, self: TensorHandle, *args: object, **kwargs: object) -> NoReturn:
    raise Unsupported("a tensor's value is read by Python", kind="data-dependent-value")
