"""Views that read memory as another dtype, and what is special to complex tensors. Arithmetic on complex numbers is in
``complex_numbers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.errors import Unsupported
from jit.graph import layout, pairs
from jit.graph.ir import Node
from jit.graph.ops.copies import to_type
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer


def _show(t: Tracer, self: TensorHandle, how: str, dtype: torch.dtype | None = None) -> TensorHandle:
    start = t.builder.next_id
    return t.wrap(pairs.reinterpreted(t.builder, self.node, how, dtype), [self], True, start)


@op("view_as_real", raw=True)
def view_as_real(t: Tracer, self: TensorHandle) -> TensorHandle:
    if not self.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    if self.is_conj:
        raise RuntimeError("view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate "
                           "tensor so you can view it as real, use self.resolve_conj(); "
                           "however, the resulting tensor will not alias the original self.")
    return _show(t, self, "view_as_real")


@op("view_as_complex", raw=True)
def view_as_complex(t: Tracer, self: TensorHandle) -> TensorHandle:
    return _show(t, self, "view_as_complex")


@op("real", raw=True)
def real(t: Tracer, self: TensorHandle) -> TensorHandle:
    return _show(t, self, "real") if self.dtype.is_complex else self


@op("imag", raw=True)
def imag(t: Tracer, self: TensorHandle) -> TensorHandle:
    if not self.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    if self.is_conj:
        raise Unsupported("the imaginary part of a lazy conjugate, whose sign is a flag",
                          "call resolve_conj() first", kind="lazy-conjugate")
    return _show(t, self, "imag")


@op("conj", "_conj", raw=True)
def conj(t: Tracer, self: TensorHandle) -> TensorHandle:
    return _show(t, self, "conj") if self.dtype.is_complex else self


@op("resolve_conj", raw=True)
def resolve_conj(t: Tracer, self: TensorHandle):
    return t.call_op("clone", (self,), {}) if self.is_conj else self


@op("conj_physical", alias=True)
def conj_physical(b: Builder, self: Node) -> Node:
    if not self.dtype.is_complex:
        return self
    if self.dtype not in pairs.PARTS:
        return NotImplemented
    return pairs.joined(b, pairs.conjugate(b, pairs.parts(b, self)), layout.preserved_strides(self.type))


@op("resolve_neg", alias=True)
def resolve_neg(b: Builder, self: Node) -> Node:
    return self


@op("is_conj", raw=True)
def is_conj(t: Tracer, self: TensorHandle):
    return self.is_conj


@op("adjoint", "mH", raw=True)
def adjoint(t: Tracer, self: TensorHandle) -> TensorHandle:
    result = t.call_op("mT", (self,), {})
    return conj(t, result)


@op("H", raw=True)
def hermitian(t: Tracer, self: TensorHandle) -> TensorHandle:
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    return conj(t, t.call_op("numpy_T", (self,), {}) if self.ndim else self)


for _name, _dtype in {"cfloat": torch.complex64, "cdouble": torch.complex128, "chalf": torch.complex32}.items():

    def _convert(b: Builder, self: Node, memory_format: torch.memory_format | None = None,
                 _dtype: torch.dtype = _dtype) -> Node:
        return to_type(b, self, _dtype, memory_format=memory_format)

    op(_name, alias=True)(_convert)
