"""Operations whose result shows the memory of their input, and ``reshape``-like ones that do so when they can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from jit.errors import EagerRaises, NeedsEager, Unsupported
from jit.graph import layout, memory
from jit.graph.build import is_number
from jit.graph.dims import ceil_div, hint, plain_if_few, product, specialize
from jit.graph.handles import TensorHandle, ViewStep, offset_in_base, replay, view_path
from jit.graph.ir import Node, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import holds, several
from jit.graph.prim_info import info
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import Dim, IntExpr
    from jit.graph.handles import Base
    from jit.graph.tracer import Tracer


def _detached(b: Builder, x: Node) -> Node:
    """``x`` without a gradient, by the program, and not by a mode: the tensor object itself has none."""
    node = b.detach(x)
    node.attrs = {"asked": "detach"}
    return node


def _sizes(b: Builder, self: Node, shape: Sequence[IntExpr]) -> tuple:
    """The sizes of a view, with a -1 filled in."""
    asked = tuple(several(shape))
    if not all(b.slices) and any(type(n) is int and n == -1 for n in asked):
        raise Unsupported("a size of -1 in a map over no slices, where it may be any",
                          "nothing needs to be done: it runs in eager",
                          kind="functorch")
    return layout.infer_size(asked, self.type.numel)


@op("view", varargs="size", alias=True)
def view(b: Builder, self: Node, size: Sequence[IntExpr] | torch.dtype | None = None, *,
         dtype: torch.dtype | None = None) -> Node:
    if isinstance(size, torch.dtype) or dtype is not None:
        target = dtype or size
        node = b.node("reinterpret", (self,), {"how": "dtype"}, layout.reinterpreted(self.type, "dtype", target))
        return _detached(b, node) if b.recording else node  # eager gives it no gradient either
    shape = _sizes(b, self, size)
    result = b.try_view(self, shape)
    if result is None:
        raise RuntimeError("view size is not compatible with input tensor's size and stride (at least one dimension "
                           "spans across two contiguous subspaces). Use .reshape(...) instead.")
    return result


@op("_unsafe_view")
def unsafe_view(b: Builder, self: Node, size: Sequence[IntExpr]) -> Node:
    """The view of a tensor that nothing else looks at: a tensor of its own."""
    result = view(b, self, size)
    return b.clone(result, result.type.strides)


@op("view_as", alias=True)
def view_as(b: Builder, self: Node, other: Node) -> Node:
    return view(b, self, other.shape)


@op("reshape", varargs="shape", alias=True)
def reshape(b: Builder, self: Node, shape: Sequence[IntExpr]) -> Node:
    shape = _sizes(b, self, shape)
    result = b.try_view(self, shape)
    if result is None:
        return b.try_view(b.clone(self, layout.contiguous_strides(self.shape)), shape)
    return result


@op("reshape_as", alias=True)
def reshape_as(b: Builder, self: Node, other: Node | Number) -> Node:
    return reshape(b, self, other.shape)


@op("flatten", alias=True)
def flatten(b: Builder, self: Node, start_dim: IntExpr = 0, end_dim: int = -1) -> Node:
    rank = self.type.rank
    if rank == 0:
        return b.try_view(self, (1,))
    start, end = normalize_dim(start_dim, rank), normalize_dim(end_dim, rank)
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if start == end:
        return self
    return reshape(b, self, self.shape[:start] + (product(self.shape[start : end + 1]),) + self.shape[end + 1 :])


@op("ravel", alias=True)
def ravel(b: Builder, self: Node) -> Node:
    return reshape(b, b.contiguous(self), (-1,))


@op("unflatten", alias=True)
def unflatten(b: Builder, self: Node, dim: int, sizes) -> Node:
    d = normalize_dim(dim, self.type.rank)
    inner = layout.infer_size(tuple(sizes), self.shape[d])
    return view(b, self, self.shape[:d] + inner + self.shape[d + 1 :])


@op("permute", varargs="dims", alias=True)
def permute(b: Builder, self: Node, dims: Sequence[int]) -> Node:
    rank = self.type.rank
    order = tuple(normalize_dim(d, rank) for d in dims)
    if sorted(order) != list(range(rank)):
        raise RuntimeError("permute(sparse_coo): number of dimensions in the tensor input does not match the length "
                           f"of the desired ordering of dimensions i.e. input.dim() = {rank} is not equal to len(dims) "
                           f"= {len(order)}")
    return b.emit("permute", (self,), {"dims": order})


@op("transpose", "swapaxes", "swapdims", alias=True)
def transpose(b: Builder, self: Node, dim0: IntExpr, dim1: int) -> Node:
    rank = self.type.rank
    if rank == 0:
        normalize_dim(dim0, 0), normalize_dim(dim1, 0)
        return b.alias(self)
    order = list(range(rank))
    i, j = normalize_dim(dim0, rank), normalize_dim(dim1, rank)
    order[i], order[j] = order[j], order[i]
    return b.emit("permute", (self,), {"dims": tuple(order)})


@op("t", alias=True)
def t(b: Builder, self: Node) -> Node:
    if self.type.rank > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.type.rank}D")
    return transpose(b, self, 0, -1) if self.type.rank == 2 else b.alias(self)


@op("mT", alias=True)
def matrix_transpose(b: Builder, self: Node) -> Node:
    if self.type.rank == 0:
        return self
    if self.type.rank < 2:
        raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {self.type.rank}-D "
                           "tensor.")
    return transpose(b, self, -2, -1)


@op("numpy_T", "T", alias=True)
def reverse_dims(b: Builder, self: Node) -> Node:
    return b.emit("permute", (self,), {"dims": tuple(range(self.type.rank))[::-1]})


@op("movedim", "moveaxis", alias=True)
def movedim(b: Builder, self: Node, source: int, destination: int) -> Node:
    rank = self.type.rank
    src = [normalize_dim(d, rank) for d in tuple(several(source))]
    dst = [normalize_dim(d, rank) for d in tuple(several(destination))]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise RuntimeError("movedim: Invalid source or destination dims")
    if rank == 0:
        return b.alias(self)
    order: list = [None] * rank
    for s, d in zip(src, dst):
        order[d] = s
    rest = iter(d for d in range(rank) if d not in src)
    return b.emit("permute", (self,), {"dims": tuple(next(rest) if d is None else d for d in order)})


@op("expand", varargs="size", alias=True)
def expand(b: Builder, self: Node, size: Sequence[IntExpr], *, implicit: bool = False) -> Node:
    size = tuple(several(size))
    lead = len(size) - self.type.rank
    if lead < 0:
        raise RuntimeError(f"expand: the number of sizes provided ({len(size)}) must be greater or equal to the number "
                           f"of dimensions in the tensor ({self.type.rank})")
    if any(type(s) is int and s == -1 for s in size[:lead]):
        return NotImplemented  # refused, but for tensors of nothing
    shape = tuple(self.shape[i - lead] if type(s) is int and s == -1 else s for i, s in enumerate(size))
    return b.emit("expand", (self,), {"shape": shape})


@op("meshgrid", raw=True)
def meshgrid(t: Tracer, tensors: Sequence[TensorHandle], indexing: str | None = None) -> tuple:
    """Every tensor along an axis of its own, the others being expanded; with "xy" the first two axes trade places."""
    if (indexing not in ("ij", "xy") or not holds(TensorHandle, tensors) or any(x.ndim > 1 for x in tensors)
        or len({(x.type.dtype, x.type.device) for x in tensors}) != 1):
        return NotImplemented
    order = list(range(len(tensors)))
    if indexing == "xy":
        order[:2] = order[1::-1] if len(order) > 1 else order
    shape = [x.type.numel for x in (tensors[k] for k in order)]
    made = []
    for place, k in enumerate(order):
        size = [n if at == place else 1 for at, n in enumerate(shape)]
        made.append(t.call_op("expand", (t.call_op("reshape", (tensors[k], size), {}), shape), {}))
    return tuple(made[k] for k in order)


@op("expand_as", alias=True)
def expand_as(b: Builder, self: Node, other: Node | Number) -> Node:
    return expand(b, self, other.shape)


@op("broadcast_to", alias=True)
def broadcast_to(b: Builder, self: Node, size: Sequence[IntExpr]) -> Node:
    return expand(b, self, size)


@op("squeeze", alias=True)
def squeeze(b: Builder, self: Node, dim: int | None = None) -> Node:
    rank = self.type.rank
    if dim is None:
        dims = range(rank)
    else:
        dims = [normalize_dim(d, rank) for d in tuple(several(dim))]
    keep = [d for d in range(rank) if not (d in dims and self.shape[d] == 1)]
    shape, strides = tuple(self.shape[d] for d in keep), tuple(self.type.strides[d] for d in keep)
    return b.view_node("reshape", self, {"shape": shape}, shape, strides)


@op("unsqueeze", alias=True)
def unsqueeze(b: Builder, self: Node, dim: int) -> Node:
    return b.unsqueeze(self, normalize_dim(dim, self.type.rank + 1))


@op("select", alias=True)
def select(b: Builder, self: Node, dim: int, index: int) -> Node:
    if self.type.rank == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = normalize_dim(dim, self.type.rank)
    return b.select(self, d, wrap_index(index, self.shape[d], d))


def wrap_index(index: int, size: IntExpr, dim: int) -> IntExpr:
    """An index counted from the front. Raises IndexError when it is out of range."""
    if not (-size <= index and index < size):
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    return index + size if index < 0 else index


def slice_bounds(start: int | None, stop: IntExpr | None, step: int, size: IntExpr) -> tuple[int, IntExpr]:
    """(start, length) of a slice with a positive step, clamped as Python does it."""
    if not step > 0:
        raise ValueError("step must be greater than zero")
    start = 0 if start is None else start
    if start < 0:
        start = start + size
        start = 0 if start < 0 else start
    elif not start <= size:
        start = size
    if stop is None or stop is size or type(stop) is int and stop >= 1 << 62:
        stop = size
    elif stop < 0:
        stop = stop + size
    if stop < start:
        stop = start
    elif not stop <= size:
        stop = size
    return start, ceil_div(stop - start, step)


@op("slice", alias=True)
def slice_(b: Builder, self: Node, dim: int = 0, start: int | None = None, end: int | None = None,
           step: int = 1) -> Node:
    d = normalize_dim(dim, self.type.rank)
    first, length = slice_bounds(start, end, step, self.shape[d])
    return b.slice(self, d, first, length, step)


@op("narrow", alias=True)
def narrow(b: Builder, self: Node, dim: int, start: int | Node, length: int) -> Node:
    if isinstance(start, Node):
        raise Unsupported("narrow() is given a tensor as start", "use an int", kind="data-dependent-value")
    d = normalize_dim(dim, self.type.rank)
    size = self.shape[d]
    if not (-size <= start and start <= size):
        raise IndexError(f"Dimension out of range (expected to be in range of [-{size}, {size}], but got {start})")
    start = start + size if start < 0 else start
    if not (start <= size - length):
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return b.slice(self, d, start, length)


@op("diagonal", "linalg_diagonal", alias=True)
def diagonal(b: Builder, self: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    d1, d2 = normalize_dim(dim1, self.type.rank), normalize_dim(dim2, self.type.rank)
    if d1 == d2:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return b.emit("diagonal", (self,), {"offset": offset, "dim1": d1, "dim2": d2})


@op("alias", alias=True)
def alias(b: Builder, self: Node) -> Node:
    return b.alias(self)


@op("lift_fresh", raw=True)
def lift_fresh(t: Tracer, self: TensorHandle) -> TensorHandle:
    return self  # the very tensor: what Python's bindings have made, such as the number of an assignment to an item


@op("detach", raw=True)
def detach(t: Tracer, self: TensorHandle) -> TensorHandle:
    node = _detached(t.builder, self.node)
    return t.view(self, view_path(node, self.node), node)


@op("split", alias=True, several=True)
def split(b: Builder, self: Node, split_size: IntExpr | list[int], dim: int = 0) -> tuple[Node, ...]:
    d = normalize_dim(dim, self.type.rank)
    if not is_number(split_size):
        return split_with_sizes(b, self, split_size, dim)
    size = self.shape[d]
    if split_size == 0:
        if size == 0:
            return (b.alias(self),)
        raise RuntimeError("split expects split_size be non-negative, but got split_size=0")
    count = max(int(ceil_div(size, split_size)), 1)
    return tuple(b.slice(self, d, i * split_size, split_size if i + 1 < count else size - i * split_size)
                 for i in range(count))


@op("split_with_sizes", alias=True, several=True)
def split_with_sizes(b: Builder, self: Node, split_sizes: list[int], dim: int = 0) -> tuple[Node, ...]:
    d = normalize_dim(dim, self.type.rank)
    total = 0
    for s in split_sizes:
        total = total + s
    if not total == self.shape[d]:
        raise RuntimeError(f"split_with_sizes expects split_sizes to sum exactly to {self.shape[d]} (input tensor's "
                           f"size at dimension {dim}), but got split_sizes={list(split_sizes)}")
    parts, start = [], 0
    for s in split_sizes:
        parts.append(b.slice(self, d, start, s))
        start = start + s
    return tuple(parts)


@op("chunk", alias=True, several=True)
def chunk(b: Builder, self: Node, chunks: int, dim: int = 0) -> tuple[Node, ...]:
    d = normalize_dim(dim, self.type.rank)
    if not chunks > 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = self.shape[d]
    each = ceil_div(size, chunks)
    if each == 0:
        return split_with_sizes(b, self, [0] * chunks, dim)
    return split(b, self, each, dim)


@op("tensor_split", alias=True)
def tensor_split(b: Builder, self: Node, indices_or_sections, dim: int = 0) -> tuple:
    if isinstance(indices_or_sections, Node):
        raise Unsupported("tensor_split() is given a tensor", "use a tuple of ints", kind="data-dependent-shape")
    d = normalize_dim(dim, self.type.rank)
    size = self.shape[d]
    if is_number(indices_or_sections):
        n = indices_or_sections
        small, extra = size // n, int(size % n)
        bounds, at = [], 0
        for i in range(int(n)):
            length = small + 1 if i < extra else small
            bounds.append((at, length))
            at = at + length
        return tuple(b.slice(self, d, s, n) for s, n in bounds)
    edges = [None, *indices_or_sections, None]
    return tuple(slice_(b, self, d, s, e) for s, e in zip(edges, edges[1:]))


def _split_along(name: str, axis: int) -> None:
    def expand(b: Builder, self: Node, indices_or_sections) -> tuple:
        rank = self.type.rank
        least = 1 if name == "hsplit" else max(axis, 2)
        if rank < least:
            raise RuntimeError(f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with "
                               f"{rank} dimensions!")
        d = 0 if name == "hsplit" and rank == 1 else axis - 1
        if is_number(indices_or_sections) and (indices_or_sections <= 0 or self.shape[d] % indices_or_sections != 0):
            raise RuntimeError(f"torch.{name} attempted to split along dimension {d}, but the size of the dimension "
                               f"{self.shape[d]} is not divisible by the split_size {indices_or_sections}!")
        return tensor_split(b, self, indices_or_sections, d)

    op(name, alias=True)(lambda b, self, *args, indices=None,
                         sections=None: expand(b, self, *_split_argument(args, indices, sections)))


def _split_argument(args, indices, sections) -> tuple:
    """One int or tuple, however it was given."""
    if args:
        return (args[0],) if len(args) == 1 else (args,)
    return (sections if indices is None else indices,)


_split_along("hsplit", 2)
_split_along("vsplit", 1)
_split_along("dsplit", 3)


@op("unbind", alias=True, several=True)
def unbind(b: Builder, self: Node, dim: int = 0) -> tuple[Node, ...]:
    d = normalize_dim(dim, self.type.rank)
    return tuple(b.select(self, d, i) for i in range(int(self.shape[d])))


@op("unbind_list", alias=True, several=True)
def unbind_list(b: Builder, self: Node) -> list:
    if self.type.rank == 0:
        raise TypeError("iteration over a 0-d tensor")
    return list(unbind(b, self))


@op("unfold", raw=True)
def unfold(t: Tracer, self: TensorHandle, dimension: Dim, size: int, step: int) -> TensorHandle:
    d = normalize_dim(dimension, self.ndim)
    if self.ndim == 0 and size == 1:
        start = t.builder.next_id
        return t.wrap(t.builder.reshape(self.node, (1,)), [self], True, start)
    if self.ndim == 0:
        raise Unsupported("unfold of a 0-dim tensor", kind="overlapping-memory")
    n, shape, strides = self.type.shape[d], self.type.shape, self.type.strides
    if size > n:
        raise RuntimeError(f"maximum size for tensor at dimension {d} is {n} but size is {size}")
    if size <= 0 or step <= 0:
        raise RuntimeError(f"size and step have to be positive, not {size} and {step}")
    count = plain_if_few((n - size) // step + 1)
    if step < size or count * step > n:
        # Windows that overlap, or the last of which ends before its gap: no slice of the input.
        return strided(t, self, (*shape[:d], count, *shape[d + 1 :], size),
                       (*strides[:d], strides[d] * step, *strides[d + 1 :], strides[d]))
    b = t.builder
    start = b.next_id
    node = b.slice(self.node, d, 0, count * step)
    split = shape[:d] + (count, step) + shape[d + 1 :]
    node = b.view_node("reshape", node, {"shape": split}, split,
                       strides[:d] + (strides[d] * step, strides[d]) + strides[d + 1 :])
    if step > size:
        node = b.slice(node, d + 1, 0, size)
    node = b.permute(node, (*range(d + 1), *range(d + 2, len(split)), d + 1))
    return t.wrap(node, [self], True, start)


@op("as_strided", raw=True)
def as_strided(t: Tracer, self: TensorHandle, size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...],
               storage_offset=None) -> TensorHandle:
    if self.is_conj:
        raise Unsupported("as_strided on a lazy conjugate", "call resolve_conj() first", kind="overlapping-memory")
    if holds(TensorHandle, (size, stride, storage_offset)):
        raise Unsupported("as_strided() is given tensors as sizes", "use ints", kind="data-dependent-shape")
    _check_strided(tuple(map(hint, size)), tuple(map(hint, stride)),
                   None if storage_offset is None else hint(storage_offset))
    return strided(t, self, tuple(size), tuple(stride), storage_offset)


def strided(t: Tracer, self: TensorHandle, size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...],
            storage_offset=None) -> TensorHandle:
    """The view of a tensor's memory with this layout; the offset counts from the start of the memory, and is the
    tensor's own where it is None.

    Raises eager's error for one that reaches beyond the memory of a value that the program made. One beyond the
    elements of an input is a break: its storage may be larger, and hold what other tensors show.
    """
    base, b, start, size = self.base, t.builder, offset_in_base(self), tuple(map(plain_if_few, size))
    offset = start if storage_offset is None else storage_offset
    if storage_offset is not None and base.input is not None:
        offset = storage_offset - start_of(t, base)
    if offset is None:
        raise Unsupported("as_strided on memory that is read as another dtype",
                          "use ordinary views", kind="overlapping-memory")
    _check_inside(base, size, stride, offset)
    # Eager's gradient is that of the part of the memory which this very view shows: what else the result shows has
    # none.
    part = (self.chain and self.requires_grad and t.grad_enabled
            and not same_ints((product(self.type.shape),), (product(base.type.shape),)))
    path = None if part else _ordinary_path(b, base, size, stride, offset)
    if path is None:
        if base.node is not base.input and base.input is not None:
            raise Unsupported("as_strided on an input that has changed",
                              "use ordinary views", kind="overlapping-memory")
        if part and (base.input is None or start is None):
            raise Unsupported("as_strided of a part of a tensor where gradients are recorded",
                              "use ordinary views", kind="gradient")
        attrs = {"size": size, "stride": stride, "offset": offset if base.input is None else storage_offset}
        if base.input is not None:
            # A library call on the tensor itself, at run time: it knows its place in its storage.
            node = b.emit("as_strided", (self.node,), {**attrs, "place": offset, "start": start or 0})
            return t.view(self, (ViewStep(node),), node)
        path = (ViewStep(b.emit("as_strided", (base.node,), attrs)),)
    node = replay(b, base.node, path)
    for step in self.chain:
        if step.op == "detach":  # what is no part of the history on the way to the tensor is none on this way
            node = b.node("detach", (node,), step.attrs, node.type)
            path = (*path, ViewStep(node))
    return t.view(self, path, node, of_base=True)


def start_of(t: Tracer, base):
    """Where an input begins in its storage, which becomes a fact (``Tracer.places``)."""
    origin = next((h.origin for h in t.inputs if h.base is base), None)
    if origin is None or base.region is not None:
        raise Unsupported("as_strided at a place in the storage of an input that shares it with others",
                          "leave out the offset", kind="overlapping-memory")
    fact = (origin, base.example.storage_offset())
    if fact not in t.places:
        t.set(t, "places", (*t.places, fact))
    return fact[1]


def _ordinary_path(b: Builder, base: Base, size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...],
                   offset: int) -> tuple | None:
    """Slices, reshapes and permutations of a dense base that show the same, if there are such: these can be written
    through, have gradients of their own, and hold wherever the base's elements lie."""
    if 0 in size or not all(type(n) is int for n in (*size, *stride, offset, *base.type.shape, *base.type.strides)):
        return None
    first = base.node if base.input is None else base.input
    flat = memory.flat_view(b, first)
    node = None if flat is None else memory.strided_view(b, flat, size, stride, offset)
    return None if node is None else view_path(node if node is not first else b.alias(node), first)


@op("as_strided_copy", raw=True)
def as_strided_copy(t: Tracer, self: TensorHandle, size: Sequence[IntExpr], stride: tuple[IntExpr, ...],
                    storage_offset=None) -> object:
    return t.call_op("clone", (as_strided(t, self, size, stride, storage_offset),),
                     {"memory_format": torch.contiguous_format})


@op("as_strided_scatter", raw=True)
def as_strided_scatter(t: Tracer, self: TensorHandle, src, size: Sequence[IntExpr], stride: tuple[IntExpr, ...],
                       storage_offset=None):
    """A copy of ``self`` with ``src`` in the places of a strided view of that copy. PyTorch's formula for its gradient
    is left to PyTorch."""
    size, stride, b = tuple(size), tuple(stride), t.builder
    _check_strided(tuple(map(hint, size)), tuple(map(hint, stride)), hint(storage_offset or 0))
    if self.chain or not layout.is_dense(self.type.shape, self.type.strides) or src.dtype is not self.dtype:
        raise Unsupported("as_strided_scatter into a view, or of another dtype",
                          "clone() it first", kind="overlapping-memory")
    offset = storage_offset or 0
    if storage_offset is not None and self.base.input is not None:
        offset = storage_offset - start_of(t, self.base)
    _check_inside(self.base, size, stride, offset)
    if not (len(src.shape) == len(size) and all(p == q for p, q in zip(src.shape, size))):
        raise RuntimeError(f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
                           f"slice size = {list(size)}")
    if t.grad_enabled and (self.requires_grad or src.requires_grad):
        # The operator counts from the start of the memory, which is the graph's.
        if self.base.input is None or self.base.node is not self.base.input:
            raise Unsupported("as_strided_scatter where gradients are recorded",
                              "use slices or index_put", kind="overlapping-memory")
        return t._call_aten("as_strided_scatter", (self, src, size, stride, storage_offset), {})
    for v in (*self.type.shape, *self.type.strides):  # a write goes through slices at plain places
        specialize(v)
    size, stride, offset = tuple(map(specialize, size)), tuple(map(specialize, stride)), specialize(offset)
    made = t.fresh(b.clone(self.node, self.type.strides))
    t.write(strided(t, made, size, stride, offset), src.node, [src])
    return made


def _check_strided(size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...], offset) -> None:
    """Raise what eager does for a layout that no memory has, such as a negative stride."""
    torch.empty(0, device="meta").as_strided(size, stride, offset)
    if any(s < 0 for s in stride):  # of which older releases speak only where there is memory
        raise EagerRaises(RuntimeError("as_strided: Negative strides are not supported at the moment, got strides: "
                                       f"{list(stride)}"))


def _end(size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...], offset: int) -> IntExpr:
    """How many elements memory has to have for a view of this layout."""
    if any(type(n) is int and n == 0 for n in size):
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride))


def _out_of_bounds(size: Sequence[IntExpr], stride: tuple[IntExpr, ...], offset: int, dtype: torch.dtype, end,
                   have) -> EagerRaises:
    size, stride, offset, end, have = (tuple(map(hint, v)) if type(v) is tuple
                                       else hint(v) for v in (size, stride, offset, end, have))
    return EagerRaises(RuntimeError(
        f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
        f"{dtype.itemsize} requiring a storage size of "
        f"{end * dtype.itemsize} are out of bounds for storage of size {have}"))


def _check_inside(base: Base, size: tuple[IntExpr, ...], stride: tuple[IntExpr, ...], offset: int) -> None:
    """Raise eager's error for a view that reaches beyond the memory of a value that the program made, Unsupported for
    one beyond what is known of it."""
    t = base.type
    end, have = _end(size, stride, offset), _end(t.shape, t.strides, 0)
    if end <= have and offset >= 0:
        return
    if base.input is not None or not info(base.node.op).in_kernels:
        raise Unsupported("as_strided beyond the elements of a tensor from outside or of a library call",
                          "use ordinary views", kind="overlapping-memory")
    raise _out_of_bounds(size, stride, offset, t.dtype, end, have * t.dtype.itemsize)


@op("as_strided_", "detach_", "rename_", "apply_", "map_", raw=True)
def inplace_other(t: Tracer, self: TensorHandle, *args: object, **kwargs: object) -> NoReturn:
    raise Unsupported("a tensor is changed in place in a way that is not known",
                      "use the form without an underscore", kind="mutating-op")


def become(t: Tracer, handle: TensorHandle, view: TensorHandle) -> TensorHandle:
    """Make the tensor object ``handle`` show what ``view``, a view of it, shows. Returns it."""
    for field, value in (("chain", view.chain), ("type", view.type), ("_node", view.node),
                         ("_version", handle.base.version)):
        t.set(handle, field, value)
    return handle


def _inplace_view(name: str) -> None:
    """The tensor object itself becomes a view of its memory. That of an input would have to change after the graph has
    run."""

    def run(t: Tracer, self: TensorHandle, *args: int, **kwargs: object) -> TensorHandle:
        if self.base.input is not None:
            raise Unsupported("an input's own shape is changed in place",
                              "use the form without an underscore", kind="mutating-op")
        t.check_selections(self.base)
        if not t.grad_enabled and self.requires_grad and not self.chain:
            raise NeedsEager("the shape of a tensor with a history is changed in place under no_grad, of which its "
                             "history knows nothing", "use the form without an underscore", kind="gradient")
        t.check_change(self)
        t.wrote = (*t.wrote, self.base)  # its version counter goes on, though no element changes
        # Autograd looks for the history of a tensor anew behind such a change, wherever that was made.
        with t.journal.temporarily(t, "grad_enabled", t.grad_enabled or self.requires_grad):
            return become(t, self, t.call_op(name, (self, *args), kwargs))

    op(name + "_", raw=True)(run)


for _name in ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims"):
    _inplace_view(_name)


@op("unsafe_split")
def unsafe_split(b: Builder, self: Node, split_size, dim: int = 0) -> tuple[Node, ...]:
    return split(b, self, split_size, dim)


@op("unsafe_chunk")
def unsafe_chunk(b: Builder, self: Node, chunks, dim: int = 0) -> tuple[Node, ...]:
    return chunk(b, self, chunks, dim)
