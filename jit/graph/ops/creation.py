"""New tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch

from jit.errors import Unsupported
from jit.graph import layout as rules
from jit.graph.build import is_number, resolve_device, scalar_dtype
from jit.graph.dims import Dim, ceil_div, hint, plain_if_few
from jit.graph.handles import TensorHandle
from jit.graph.ir import UNWRITTEN, Node
from jit.graph.nested import holds, replaced, unpacked
from jit.graph.registry import op
from jit.graph.sym_float import SymFloat, plain

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer

CPU = torch.device("cpu")


def _dtype_or_default(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


def _size(size: Sequence[IntExpr | Sequence[IntExpr]]) -> tuple:
    if not size:
        raise TypeError("a size is needed, which may be ()")
    size = unpacked(size)
    for s in size:
        if isinstance(s, Node):
            raise Unsupported("a size is read from a tensor", kind="data-dependent-value")
        if not is_number(s) or isinstance(s, float):
            raise TypeError(f"size has to be made of ints, not {type(s).__name__}")
    return tuple(map(plain_if_few, size))


def _default_device() -> torch.device:
    return torch.get_default_device()


def _filled(value: float | int) -> Callable:
    def expand(b: Builder, *size: IntExpr | tuple, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
               device: torch.device | None = None, requires_grad: bool = False, pin_memory: bool | None = None,
               memory_format: torch.memory_format | None = None, names=None) -> Node:
        if requires_grad:
            raise Unsupported("a tensor is made that requires grad", kind="autograd")
        if layout not in (None, torch.strided):
            return NotImplemented
        shape = _size(size)
        node = b.full(shape, value, _dtype_or_default(dtype), resolve_device(device, _default_device()))
        if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
            node.type = node.type.replace(strides=rules.format_strides(node.type, memory_format))
        return node

    return expand


op("zeros")(_filled(0))
op("ones")(_filled(1))


@op("empty")
def empty(b: Builder, *size: int, dtype: torch.dtype | None = None, **options: object) -> Node:
    return unwritten(_filled(uninitialized(_dtype_or_default(dtype)))(b, *size, dtype=dtype, **options))


def uninitialized(dtype: torch.dtype) -> float | int:
    """What stands for memory that nobody has written: zero is as good as any value, but deterministic mode promises NaN
    or the largest integer."""
    if not (torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory):
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return complex(math.nan, math.nan) if dtype.is_complex else math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def unwritten(node: Node) -> Node:
    """A node that stands for memory that nobody has written, marked as such, unless it is to be filled all the same."""
    if node is not NotImplemented and node.op == "full" and not node.attrs["value"]:
        node.attrs = {**node.attrs, UNWRITTEN: True}
    return node


def filling(b: Builder, value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """What a tensor is to be filled with: a float that changes from call to call is a tensor without axes."""
    return b.scalar(value, dtype, device) if type(value) is SymFloat and dtype.is_floating_point else plain(value)


@op("full", numbers=True)
def full(b: Builder, size: tuple[IntExpr, ...], fill_value: int | Node, *, dtype: torch.dtype | None = None,
         layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
         pin_memory: bool | None = None) -> Node:
    if requires_grad:
        raise Unsupported("a tensor is made that requires grad", kind="autograd")
    device = resolve_device(device, _default_device())
    fill_value = filling(b, fill_value, dtype or torch.get_default_dtype(), device)
    if isinstance(fill_value, Node):
        if fill_value.type.rank:
            raise TypeError("full(): argument 'fill_value' must be a number")
        value = fill_value if dtype is None else b.cast(fill_value, dtype)
        return b.clone(b.expand(value, _size((size,))), rules.contiguous_strides(_size((size,))))
    return b.full(_size((size,)), fill_value, dtype or scalar_dtype(fill_value), device)


def _like(value: int) -> Callable:
    def expand(b: Builder, self: Node, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
               device: torch.device | None = None, requires_grad: bool = False, pin_memory: bool | None = None,
               memory_format: torch.memory_format | None = None) -> Node:
        return full_like(b, self, value, dtype=dtype, device=device, requires_grad=requires_grad,
                         memory_format=memory_format)

    return expand


@op("full_like", numbers=True)
def full_like(b: Builder, self: Node, fill_value: int | Node, *, dtype: torch.dtype | None = None,
              layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
              pin_memory: bool | None = None, memory_format: torch.memory_format | None = None) -> Node:
    if requires_grad:
        raise Unsupported("a tensor is made that requires grad", kind="autograd")
    fill_value = filling(b, fill_value, dtype or self.dtype, resolve_device(device, self.device))
    if isinstance(fill_value, Node):
        return b.clone(b.expand(b.cast(fill_value, dtype or self.dtype), self.shape),
                       rules.format_strides(self.type, memory_format))
    node = b.full(self.shape, fill_value, dtype or self.dtype, resolve_device(device, self.device))
    node.type = node.type.replace(strides=rules.format_strides(self.type, memory_format))
    return node


op("zeros_like")(_like(0))
op("ones_like")(_like(1))


@op("empty_like")
def empty_like(b: Builder, self: Node, *, dtype: torch.dtype | None = None, **options: object) -> Node:
    return unwritten(full_like(b, self, uninitialized(dtype or self.dtype), dtype=dtype, **options))


def _new(value: int) -> Callable:
    def expand(b: Builder, self: Node, *size: IntExpr | tuple[Dim, ...], dtype: torch.dtype | None = None,
               layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
               pin_memory: bool | None = None) -> Node:
        if requires_grad:
            raise Unsupported("a tensor is made that requires grad", kind="autograd")
        return b.full(_size(size), value, dtype or self.dtype, resolve_device(device, self.device))

    return expand


op("new_zeros")(_new(0))
op("new_ones")(_new(1))


@op("new_empty")
def new_empty(b: Builder, self: Node, *size: object, dtype: torch.dtype | None = None, **options: object):
    return unwritten(_new(uninitialized(dtype or self.dtype))(b, self, *size, dtype=dtype, **options))


@op("new_full", numbers=True)
def new_full(b: Builder, self: Node, size: tuple[IntExpr, ...], fill_value: int, *, dtype: torch.dtype | None = None,
             layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
             pin_memory: bool | None = None) -> Node:
    if requires_grad:
        raise Unsupported("a tensor is made that requires grad", kind="autograd")
    return full(b, size, fill_value, dtype=dtype or self.dtype, device=resolve_device(device, self.device))


@op("empty_strided")
def empty_strided(b: Builder, size: Sequence[IntExpr], stride: tuple[IntExpr, ...], *, dtype: torch.dtype | None = None,
                  layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
                  pin_memory: bool | None = None):
    dtype = _dtype_or_default(dtype)
    node = unwritten(b.full(tuple(size), uninitialized(dtype), dtype, resolve_device(device, _default_device())))
    node.type = node.type.replace(strides=tuple(stride))
    return node


@op("empty_permuted")
def empty_permuted(b: Builder, size: Sequence[IntExpr], physical_layout, *, dtype: torch.dtype | None = None,
                   layout: torch.layout | None = None, device: torch.device | None = None, requires_grad: bool = False,
                   pin_memory: bool | None = None):
    if requires_grad or sorted(physical_layout) != list(range(len(size))):
        return NotImplemented
    dtype = _dtype_or_default(dtype)
    node = unwritten(b.full(tuple(size), uninitialized(dtype), dtype, resolve_device(device, _default_device())))
    strides = [1] * len(size)
    for d, stride in zip(physical_layout, rules.contiguous_strides(tuple(size[d] for d in physical_layout))):
        strides[d] = stride
    node.type = node.type.replace(strides=tuple(strides))
    return node


@op("arange")
def arange(b: Builder, start: float | IntExpr, end: IntExpr | None = None, step: int = 1, *,
           dtype: torch.dtype | None = None, layout: torch.layout | None = None, device: torch.device | None = None,
           requires_grad: bool = False, pin_memory: bool | None = None) -> object:
    if end is None:
        start, end = 0, start
    values = (start, end, step)
    if not all(is_number(v) for v in values):
        raise Unsupported("arange() is given tensors as bounds", "use ints", kind="data-dependent-shape")
    device = resolve_device(device, _default_device())
    whole = all(isinstance(v, (int, Dim)) for v in values)
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if not whole:
        return NotImplemented
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if step > 0:
        if not start <= end:
            raise RuntimeError("upper bound and lower bound inconsistent with step sign")
        length = ceil_div(end - start, step)
    else:
        if not end <= start:
            raise RuntimeError("upper bound and lower bound inconsistent with step sign")
        length = ceil_div(start - end, -step)
    if dtype.is_floating_point:
        return b.cast(b.iota(length, start, step, torch.int64, device), dtype)
    return b.iota(length, start, step, dtype, device)


@op("eye")
def eye(b: Builder, n: int, m=None, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
        device: torch.device | None = None, requires_grad: bool = False, pin_memory: bool | None = None) -> Node:
    device = resolve_device(device, _default_device())
    m = n if m is None else m
    rows, cols = b.iota(n, device=device), b.iota(m, device=device)
    result = b.cast(b.eq(b.unsqueeze(rows, 1), b.unsqueeze(cols, 0)), _dtype_or_default(dtype))
    result.type = result.type.replace(strides=rules.contiguous_strides(result.shape))  # also where there is nothing
    return result


def _triangle(keep: str) -> Callable:
    def expand(b: Builder, self: Node, diagonal: int = 0) -> Node:
        if self.type.rank < 2:
            raise RuntimeError("tril/triu: input tensor must have at least 2 dimensions")
        rows, cols = b.iota(self.shape[-2], device=self.device), b.iota(self.shape[-1], device=self.device)
        offset = b.sub(b.unsqueeze(cols, 0), b.unsqueeze(rows, 1))
        mask = b.le(offset, diagonal) if keep == "lower" else b.ge(offset, diagonal)
        result = b.where(mask, self, False if self.dtype is torch.bool else 0)
        strides = rules.contiguous_strides(self.shape)
        result.type = result.type.replace(strides=strides)
        return result

    return expand


op("tril")(_triangle("lower"))
op("triu")(_triangle("upper"))


MOST_NUMBERS = 32  # that change from call to call in a list that becomes a tensor inside the graph


@op("tensor", raw=True, numbers=True)
def tensor(t: Tracer, data: float | int | list | TensorHandle, **options: str | torch.dtype) -> TensorHandle:
    """``torch.tensor``: of a tensor it is a copy."""
    made = as_tensor(t, data, **options)
    return t.call_op("clone", (t.call_op("detach", (made,), {}),), {}) if isinstance(data, TensorHandle) else made


@op("as_tensor", "asarray", raw=True, numbers=True)
def as_tensor(t: Tracer, data: float |  list | TensorHandle | tuple | IntExpr, *, dtype: torch.dtype | None = None,
              device: str | None = None, requires_grad: bool = False, pin_memory: bool = False,
              copy=None) -> TensorHandle:
    if isinstance(data, TensorHandle):
        if dtype is None and device is None:
            return data
        return t.call_op("to", (data,), {"dtype": dtype or data.dtype, "device": device or data.device})
    b, where = t.builder, resolve_device(device, _default_device())
    if type(data) is SymFloat and not requires_grad:
        kind = dtype or torch.get_default_dtype()
        if kind.is_floating_point:
            return t.fresh(b.clone(b.scalar(data, kind, where), ()))
    if type(data) in (list, tuple) and 0 < len(data) <= MOST_NUMBERS and not requires_grad:
        kind = dtype or torch.get_default_dtype()
        if (any(type(v) is SymFloat for v in data) and all(type(v) in (SymFloat, float) for v in data)
            and kind.is_floating_point):
            return t.fresh(b.cat([b.expand(b.scalar(v, kind, where), (1,)) for v in data], 0) if len(data) > 1
                           else b.clone(b.expand(b.scalar(data[0], kind, where), (1,)), (1,)))
    data = plain(data)
    if holds(TensorHandle, data):
        raise Unsupported("torch.tensor() is given tensors", "use torch.stack", kind="data-dependent-value")
    if type(data) is Dim:
        return t.fresh(b.full((), data, dtype or torch.int64, where))
    if holds(Dim, data):
        like = torch.tensor(replaced(Dim, hint, data), dtype=dtype)  # which tells shape and dtype
        parts = [b.full((1,), v if type(v) is Dim else known, like.dtype, where)
                 for v, known in zip(_numbers(data), like.flatten().tolist(), strict=True)]
        made = b.cat(parts, 0) if len(parts) > 1 else parts[0]
        return t.fresh(made if like.dim() == 1 else b.clone(b.reshape(made, tuple(like.shape))))
    value = torch.tensor(data, dtype=dtype)
    handle = t.constant(value)
    if where != value.device:
        if value.dim() == 0:
            return t.fresh(b.full((), value.item(), value.dtype, where))
        handle = t.call_op("to", (handle, where), {})
    if requires_grad:
        raise Unsupported("a tensor is made that requires grad", kind="autograd")
    return handle


def _numbers(data: object) -> list:
    """Those in nested lists, in order."""
    return [v for part in data for v in _numbers(part)] if isinstance(data, (list, tuple)) else [data]


@op("new_tensor", raw=True, numbers=True)
def new_tensor(t: Tracer, self: TensorHandle, data, *, dtype: torch.dtype | None = None,
               device: torch.device | None = None, requires_grad: bool = False, layout: torch.layout | None = None,
               pin_memory: bool = False) -> TensorHandle:
    if isinstance(data, TensorHandle) or requires_grad:
        raise Unsupported("new_tensor of a tensor, or with a gradient", "use clone()", kind="unknown-function")
    return tensor(t, data, dtype=dtype or self.dtype, device=resolve_device(device, self.device))
