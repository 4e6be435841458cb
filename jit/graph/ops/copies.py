"""Copies, conversions, concatenation, padding, and the calls that return their own input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.errors import EagerRaises, Unsupported
from jit.graph import changes, layout
from jit.graph.build import is_number, promote_dtypes, resolve_device
from jit.graph.dims import product
from jit.graph.handles import TensorHandle
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.layout import normalize_dim
from jit.graph.nested import holds, of_kind, several, unpacked
from jit.graph.ops import creation
from jit.graph.ops.views import become
from jit.graph.prims import infer
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder, Number
    from jit.graph.dims import Dim
    from jit.graph.tracer import Tracer


def to_type(b: Builder, self: Node, dtype: torch.dtype | None = None, device: torch.device | None = None,
            copy: bool = False, memory_format: torch.memory_format | None = None) -> Node:
    """The input itself when nothing changes and no copy is wanted."""
    dtype = dtype or self.dtype
    device = resolve_device(device, self.device)
    if memory_format is None or memory_format is torch.preserve_format:
        strides = layout.preserved_strides(self.type)
        same_layout = True
    else:
        strides = layout.format_strides(self.type, memory_format)
        # What ``to`` compares with: a transposed matrix counts as contiguous.
        suggested = layout.memory_format(self.type)
        same_layout = (suggested == "contiguous") is (memory_format is torch.contiguous_format)
    if device == self.device and dtype is self.dtype and same_layout and not copy:
        return self
    if device != self.device:
        t = TensorType(self.shape, strides, dtype, device)
        return b.aten("aten::_to_copy", "", (self, dtype, torch.strided, device, False, False, memory_format), t)
    if dtype is self.dtype:
        return b.clone(self, strides)
    node = b.cast(self, dtype)
    if not same_ints(node.type.strides, strides):
        node.type = node.type.replace(strides=strides)
    return node


def is_format(t: TensorType, memory_format: torch.memory_format) -> bool:
    """``is_contiguous(memory_format=...)``."""
    if memory_format is torch.contiguous_format:
        return t.is_contiguous
    return t.rank == (4 if memory_format is torch.channels_last else 5) and layout.is_channels_last(t.shape, t.strides)


_TO = (torch.dtype, torch.device, torch.memory_format, Node, str, int)  # what is told by its class


@op("to", alias=True)
def to(b: Builder, self: Node, *args: torch.dtype | bool | None, dtype: torch.dtype | None = None,
       device: torch.device | None = None, non_blocking: bool = False, copy: bool = False,
       memory_format: torch.memory_format | None = None, other: Node | Number | None = None) -> Node:
    if not all(a is None or isinstance(a, _TO) for a in args):
        raise Unsupported("Tensor.to() is given an argument of a kind that is not known", kind="unknown-function")
    dtype, other = next(of_kind(torch.dtype, args), dtype), next(of_kind(Node, args), other)
    device = next((a for a in of_kind((torch.device, str, int), args) if type(a) is not bool), device)
    memory_format = next(of_kind(torch.memory_format, args), memory_format)
    flags = [a for a in args if type(a) is bool]
    if len(flags) > 1:
        copy = flags[1]
    if other is not None:
        dtype, device = other.dtype, other.device
    return to_type(b, self, dtype, device, copy, memory_format)


@op("type_as", alias=True)
def type_as(b: Builder, self: Node, other: Node) -> Node:
    return to_type(b, self, other.dtype, other.device)


for _name, _dtype in {
    "float": torch.float32, "double": torch.float64, "half": torch.float16,
    "bfloat16": torch.bfloat16, "long": torch.int64, "int": torch.int32,
    "short": torch.int16, "char": torch.int8, "byte": torch.uint8, "bool": torch.bool,
}.items():  # fmt: skip

    def _convert(b: Builder, self: Node, memory_format: torch.memory_format | None = None,
                 _dtype: torch.dtype = _dtype) -> Node:
        return to_type(b, self, _dtype, memory_format=memory_format)

    op(_name, alias=True)(_convert)


@op("cpu", alias=True)
def cpu(b: Builder, self: Node, *, memory_format: torch.memory_format | None = None) -> Node:
    return to_type(b, self, device="cpu", memory_format=memory_format)


@op("cuda", alias=True)
def cuda(b: Builder, self: Node, device: torch.device | None = None, non_blocking: bool = False,
         memory_format: torch.memory_format | None = None) -> Node:
    return to_type(b, self, device="cuda" if device is None else device, memory_format=memory_format)


@op("contiguous", alias=True)
def contiguous(b: Builder, self: Node, *, memory_format: torch.memory_format = torch.contiguous_format) -> Node:
    if memory_format is torch.preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    if is_format(self.type, memory_format):
        return self
    return b.clone(self, layout.format_strides(self.type, memory_format))


@op("clone")
def clone(b: Builder, self: Node, *, memory_format: torch.memory_format | None = None) -> Node:
    preserves = memory_format in (None, torch.preserve_format)
    return b.clone(self, layout.format_strides(self.type, memory_format), preserves)


@op("_to_copy")
def to_copy(b: Builder, self: Node, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
            device: torch.device | None = None, pin_memory: bool | None = None, non_blocking: bool = False,
            memory_format: torch.memory_format | None = None) -> Node:
    return to_type(b, self, dtype, device, True, memory_format)


@op("copy_", raw=True)
def copy_(t: Tracer, self: TensorHandle, src: TensorHandle, non_blocking: bool = False) -> TensorHandle:
    if is_number(src):
        return fill_(t, self, src)
    if src.device != self.device:
        value = t.call_op("to", (src, self.device), {})
        t.write(self, value.node, [src])
        return self
    changes.check_overlap(self, [src])
    t.write(self, src.node, [src])
    return self


@op("fill_", raw=True)
def fill_(t: Tracer, self: TensorHandle, value: float | int | TensorHandle) -> TensorHandle:
    if isinstance(value, TensorHandle):
        if value.ndim:
            raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} "
                               "dimensions.")
        t.write(self, value.node, [value])
    else:
        node = t.builder.full(self.type.shape, value, self.dtype, self.device)
        t.write(self, node, [])
    return self


@op("zero_", raw=True)
def zero_(t: Tracer, self: TensorHandle) -> TensorHandle:
    return fill_(t, self, 0)


@op("requires_grad_", raw=True)
def requires_grad_(t: Tracer, self: TensorHandle, requires_grad: bool = True) -> TensorHandle:
    if self.base.input is not None or not self.is_leaf:
        if bool(requires_grad) == self.requires_grad:
            return self
        raise Unsupported("requires_grad_() is called on a tensor from outside", kind="autograd")
    t.set(self, "requires_grad", bool(requires_grad))
    t.made_leaves += (None,) * bool(requires_grad)
    return self


@op("resize_", raw=True)
def resize_(t: Tracer, self: TensorHandle, *size: object,
            memory_format: torch.memory_format | None = None) -> TensorHandle:
    """To the size that it has: nothing changes. A dense tensor made in the program may get another shape of as many
    elements; one with more or fewer would change the memory under other tensors."""
    wanted = tuple(unpacked(size))
    if self.requires_grad:
        raise EagerRaises(RuntimeError("cannot resize variables that require grad"))
    dense = self.base.input is None and not self.chain and self.type.is_contiguous
    if (dense and memory_format is None and not same_ints(wanted, self.type.shape)
        and product(wanted) == self.type.numel):
        return become(t, self, t.call_op("view", (self, wanted), {}))
    if memory_format not in (None, torch.preserve_format) or not same_ints(wanted, self.type.shape):
        raise Unsupported("resize_ to another size or memory format", "make a new tensor", kind="tensor-attribute")
    return self


@op("resize_as_", raw=True)
def resize_as_(t: Tracer, self: TensorHandle, the_template, *,
               memory_format: torch.memory_format | None = None) -> TensorHandle:
    return resize_(t, self, the_template.type.shape, memory_format=memory_format)


# concatenation


def _promote_all(b: Builder, tensors: list[Node]) -> list[Node]:
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = promote_dtypes(dtype, x.dtype)
    return [b.cast(x, dtype) for x in tensors]


@op("cat", "concat", "concatenate")
def cat(b: Builder, tensors: list[Node], dim: int = 0) -> Node:
    tensors = list(tensors)
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    # One-dimensional tensors of size 0 are skipped whatever the others' shapes.
    used = [x for x in tensors if not (x.type.rank == 1 and same_ints(x.shape, (0,)))] or tensors[:1]
    if any(x.type.rank == 0 for x in used):
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    if used[0] is tensors[0] and same_ints(used[0].shape, (0,)):
        return NotImplemented if len(tensors) > 1 else b.clone(used[0])  # of nothing, along any dimension
    d = normalize_dim(dim, used[0].type.rank)
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = promote_dtypes(dtype, x.dtype)
    strides = None
    if any(x.dtype is not dtype for x in used):
        # the layout comes from the tensors as they were before promotion
        strides = infer("cat", tuple(x.type.replace(dtype=dtype) for x in used), {"dim": d}).strides
    node = b.cat([b.cast(x, dtype) for x in used], d)
    if strides is not None:
        node.type = node.type.replace(strides=strides)
    return node


@op("stack")
def stack(b: Builder, tensors: Sequence[Node], dim: int = 0) -> Node:
    tensors = _promote_all(b, list(tensors))
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    shape = tensors[0].shape
    for x in tensors[1:]:
        if len(x.shape) != len(shape) or not all(p == q for p, q in zip(x.shape, shape)):
            raise RuntimeError(f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0 and "
                               f"{list(x.shape)} at entry 1")
    d = normalize_dim(dim, len(shape) + 1)
    # As eager does it: one concatenation along an existing dimension, seen with the new one split off.
    node = b.cat([b.unsqueeze(b.contiguous(x), d) for x in tensors], d)
    node.type = TensorType.contiguous(node.shape, node.dtype, node.device)
    return node


def _cat_along(name: tuple[str, ...], axis: int, atleast: int) -> None:
    def expand(b: Builder, tensors: list[Node]) -> Node:
        parts = []
        for x in tensors:
            while x.type.rank < atleast:
                x = (b.reshape(x, (1,)) if x.type.rank == 0
                     else b.unsqueeze(x, 0 if atleast == 2 or x.type.rank == 1 else 2))
            parts.append(x)
        return cat(b, parts, axis if parts[0].type.rank > axis else 0)

    op(*name)(expand)


_cat_along(("hstack",), 1, 1)
_cat_along(("vstack", "row_stack"), 0, 2)


@op("repeat", varargs="repeats")
def repeat(b: Builder, self: Node, repeats: tuple[int, ...] | list) -> Node:
    repeats = tuple(several(repeats))
    lead = len(repeats) - self.type.rank
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    x = b.reshape(self, (1,) * lead + self.shape) if lead else self
    # Interleave repeat and size dimensions, expand, copy, merge them.
    split = tuple(v for s in x.shape for v in (1, s))
    wide = tuple(v for r, s in zip(repeats, x.shape) for v in (r, s))
    final = tuple(r * s for r, s in zip(repeats, x.shape))
    if any(same_ints((r,), (0,)) for r in repeats) and not b.recording:
        return b.full(final, 0, x.dtype, x.device)
    spread = b.expand(b.reshape(x, split), wide)
    copy = b.clone(spread, layout.contiguous_strides(wide))
    return b.reshape(copy, final)


@op("tile")
def tile(b: Builder, self: Node, *dims: object) -> Node:
    dims = tuple(unpacked(dims))
    return repeat(b, self, (1,) * (self.type.rank - len(dims)) + dims)


@op("repeat_interleave")
def repeat_interleave(b: Builder, self: Node, repeats, dim: int | None = None, *, output_size=None) -> Node:
    if not is_number(repeats):
        raise Unsupported("repeat_interleave by a tensor: the size of the result depends on the data",
                          "repeat by an int, or keep it outside the compiled function", kind="data-dependent-shape")
    x = self
    if dim is None:
        x, dim = b.reshape(x, (x.type.numel,)), 0
    d = normalize_dim(dim, x.type.rank)
    wide = x.shape[: d + 1] + (repeats,) + x.shape[d + 1 :]
    copy = b.clone(b.expand(b.unsqueeze(x, d + 1), wide), layout.contiguous_strides(wide))
    return b.reshape(copy, x.shape[:d] + (x.shape[d] * repeats,) + x.shape[d + 1 :])


@op("flip")
def flip(b: Builder, self: Node, *args: int | tuple[int, ...] | list[int],
         dims: int | tuple[int, ...] | list[int] = ()) -> Node:
    return b.flip(self, b.dims_of(self, unpacked(args or (dims,))))


@op("fliplr")
def fliplr(b: Builder, self: Node) -> Node:
    return b.flip(self, (1,))


@op("flipud")
def flipud(b: Builder, self: Node) -> Node:
    return b.flip(self, (0,))


@op("roll")
def roll(b: Builder, self: Node, shifts: Dim | tuple[int, ...], dims: Dim | tuple[int, ...] = ()) -> Node:
    shifts = (shifts,) if is_number(shifts) else tuple(shifts)
    dims = (dims,) if is_number(dims) else tuple(dims)
    if not dims:
        if len(shifts) != 1:
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:0")
        flat = roll(b, b.reshape(self, (self.type.numel,)), shifts, (0,))
        return b.reshape(flat, self.shape)
    if len(dims) != len(shifts):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    if self.type.is_empty:
        return b.clone(self)  # whatever the dimensions
    x = self
    for shift, dim in zip(shifts, dims):
        d = normalize_dim(dim, x.type.rank)
        n = x.shape[d]
        start = (-shift) % n
        if start == 0:
            continue
        x = b.cat([b.slice(x, d, start, n - start), b.slice(x, d, 0, start)], d)
    last = backend(self.device).keeps_channels_last and layout.memory_format(self.type) == "channels_last"
    strides = layout.channels_last_strides(self.shape) if last else layout.contiguous_strides(self.shape)
    if x is self:
        return b.clone(self, strides)
    x.type = TensorType(x.shape, strides, x.dtype, x.device)
    return x


@op("constant_pad_nd")
def constant_pad_nd(b: Builder, self: Node, pad: Sequence[int], value: int = 0) -> Node:
    rank = self.type.rank
    if holds(float, pad):
        raise TypeError("pad takes integers")
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise RuntimeError("Length of pad must be even and no more than twice the number of dimensions of the input")
    pairs = [(0, 0)] * rank
    for i in range(len(pad) // 2):
        pairs[rank - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    x = self
    # A negative pad cuts off.
    for d, (lo, hi) in enumerate(pairs):
        cut_lo = -lo if lo < 0 else 0
        cut_hi = -hi if hi < 0 else 0
        if not (same_ints((cut_lo, cut_hi), (0, 0))):
            x = b.slice(x, d, cut_lo, x.shape[d] - cut_lo - cut_hi)
    pairs = [(lo if lo > 0 else 0, hi if hi > 0 else 0) for lo, hi in pairs]
    if all(same_ints(p, (0, 0)) for p in pairs):
        return b.clone(x)
    return b.pad(x, pairs, value)


@op("pad", alias=False)
def pad(b: Builder, self: Node, pad: tuple[int, ...], mode: str = "constant", value=None) -> object:
    if mode != "constant":
        return NotImplemented
    return constant_pad_nd(b, self, pad, 0 if value is None else value)


@op("scalar_tensor", numbers=True)
def scalar_tensor(b: Builder, s, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
                  device: torch.device | None = None, pin_memory: bool | None = None,
                  requires_grad: bool = False) -> Node:
    if requires_grad:
        raise Unsupported("a tensor is made that requires grad", kind="autograd")
    dtype, device = dtype or torch.get_default_dtype(), resolve_device(device, torch.get_default_device())
    return creation.full(b, (), s, dtype=dtype, device=device)
