"""Methods that answer from a tensor's type, without any computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph.build import result_dtype
from jit.graph.dims import specialize
from jit.graph.handles import SymSize, TensorHandle, offset_in_base, to_nodes
from jit.graph.layout import is_channels_last, is_dense, normalize_dim
from jit.graph.ops.views import start_of
from jit.graph.registry import op, python_function

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer


def method(*names: str) -> Callable:
    return op(*names, raw=True)


@method("size")
def size(t: Tracer, self: TensorHandle, dim: int | None = None) -> SymSize | IntExpr:
    return SymSize(self.type.shape) if dim is None else self.type.shape[_dim(self, dim)]


@method("stride")
def stride(t: Tracer, self: TensorHandle, dim: int | None = None) -> tuple[int, IntExpr]:
    return tuple(self.type.strides) if dim is None else self.type.strides[_dim(self, dim)]


def _dim(self, dim: int) -> int:
    if self.ndim == 0:
        raise IndexError("dimension specified as 0 but tensor has no dimensions")
    return normalize_dim(dim, self.ndim)


method("dim", "ndimension")(lambda t, self: self.ndim)
method("numel", "nelement")(lambda t, self: self.type.numel)
method("element_size")(lambda t, self: self.dtype.itemsize)
method("is_floating_point")(lambda t, self: self.dtype.is_floating_point)
method("is_complex")(lambda t, self: self.dtype.is_complex)
method("is_signed")(lambda t, self: self.dtype.is_signed)
method("is_neg")(lambda t, self: False)
method("is_inference")(lambda t, self: self.base.inference(t))
method("is_same_size")(lambda t, self, other: self.ndim == other.ndim
                       and all(p == q for p, q in zip(self.type.shape, other.type.shape)))
method("get_device")(lambda t, self: -1 if backend(self.device).host else self.device.index)
method("is_tensor")(lambda t, self: isinstance(self, TensorHandle))


@method("__len__")
def length(t: Tracer, self: TensorHandle):
    if self.ndim == 0:
        raise TypeError("len() of a 0-d tensor")
    return self.type.shape[0]


@method("is_contiguous")
def is_contiguous(t: Tracer, self: TensorHandle, memory_format: torch.memory_format = torch.contiguous_format):
    if memory_format is torch.contiguous_format:
        return self.type.is_contiguous
    if memory_format is torch.preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    return (self.ndim == (4 if memory_format is torch.channels_last else 5)
            and is_channels_last(self.type.shape, self.type.strides))


@python_function(torch.Tensor.dim_order)
def dim_order(t: Tracer, self: TensorHandle, **options: bool) -> tuple[int, ...]:
    """PyTorch's own code compares kinds of tensors, and is asked about one of the same sizes and strides."""
    shape, strides = (tuple(map(specialize, of)) for of in (self.type.shape, self.type.strides))
    return torch.Tensor.dim_order(torch.empty_strided(shape, strides, device="meta"), **options)


@method("is_non_overlapping_and_dense")
def is_non_overlapping_and_dense(t: Tracer, self: TensorHandle) -> bool:
    return is_dense(self.type.shape, self.type.strides)


def _of_type(name) -> torch.Tensor | None:
    """An empty tensor of a type such as ``torch.DoubleTensor``, or of its name; None for one on another device than
    the CPU, or of no such type."""
    try:
        return torch.empty(0, device="cpu").type(name)
    except (TypeError, ValueError, RuntimeError):
        return None


@method("type")
def type_(t: Tracer, self: TensorHandle, dtype: torch.dtype | None = None, non_blocking: bool = False):
    if dtype is not None:
        if isinstance(dtype, torch.dtype):
            return t.call_op("to", (self,), {"dtype": dtype})
        named = _of_type(dtype)
        if named is not None and named.device.type == self.device.type:
            return t.call_op("to", (self,), {"dtype": named.dtype})
        raise Unsupported("Tensor.type() is given the name of a type", "use Tensor.to", kind="tensor-attribute")
    example = torch.empty(0, dtype=self.dtype, device="cpu")
    prefix = "torch." if backend(self.device).host else f"torch.{self.device.type}."
    return prefix + example.type()[len("torch.") :]


@method("storage_offset")
def storage_offset(t: Tracer, self: TensorHandle) -> IntExpr:
    offset = offset_in_base(self)
    if offset is None:
        raise Unsupported("storage_offset of memory that is read as another dtype", kind="tensor-attribute")
    return offset if self.base.input is None else offset + start_of(t, self.base)


@method("result_type")
def result_type(t: Tracer, tensor1: TensorHandle, tensor2: int) -> torch.dtype:
    return result_dtype(*to_nodes((tensor1, tensor2), []))


@method("can_cast")
def can_cast(t: Tracer, from_, to):
    return torch.can_cast(from_, to)


@method("promote_types")
def promote_types(t: Tracer, type1, type2):
    return torch.promote_types(type1, type2)


NOT_OPERATIONS = frozenset(("data_ptr", "storage", "untyped_storage", "set_", "__array__", "backward", "register_hook",
                            "retain_grad", "share_memory_", "pin_memory"))


@method(*NOT_OPERATIONS)
def outside(t: Tracer, *args: object, **kwargs: object) -> NoReturn:
    raise Unsupported("an operation on a tensor's memory or autograd state",
                      "keep it outside the compiled function", kind="tensor-attribute")
