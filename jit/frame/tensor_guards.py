"""The guards of a tensor that becomes a graph input."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from .. import torch_private
from ..devices import backend
from ..errors import NeedsEager, Unsupported
from ..runtime import facts
from ..runtime.guards import TensorSpec
from . import source as src

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import TensorType
    from .session import Session
    from .values.tensor import TensorValue


def check_supported(tensor: torch.Tensor) -> None:
    """Raise Unsupported for a tensor that cannot be a graph input."""
    if torch.nn.parameter.is_lazy(tensor):
        raise NeedsEager("a parameter that is made by the first call of its module", kind="lazy-module")
    if type(tensor).__torch_dispatch__ is not torch_private.no_dispatch:
        raise Unsupported(f"a tensor of the subclass {type(tensor).__name__} is used", kind="tensor-subclass",
                          hint="compile the function that works on plain tensors")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unsupported("a quantized tensor is used" if tensor.is_quantized
                          else f"a tensor of layout {tensor.layout} is used",
                          kind="tensor-layout")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported("a tensor is used that has its conjugate or negative bit set",
                          kind="lazy-conjugate", hint="call resolve_conj() first")
    try:
        tensor.is_leaf  # noqa: B018
    except RuntimeError as error:  # of a view that was made under no_grad() and written to since, say
        raise Unsupported(f"a view whose history PyTorch does not tell: {str(error).partition('.')[0]}",
                          kind="gradient") from None
    if torch_private.is_transformed(tensor):
        raise Unsupported("a tensor of a torch.func transform around the call is used", kind="functorch")
    if torch_private.in_forward_mode() and forward_ad.unpack_dual(tensor).tangent is not None:
        raise Unsupported("a dual tensor of forward-mode differentiation is used", kind="functorch")


def guard_tensor(s: Session, value: TensorValue, type_: TensorType) -> None:
    """Guard the metadata of a real tensor as its graph type has it. Sizes and strides that are symbolic are left to
    ``s.guards.sizes``."""
    tensor, source = value.obj, value.source
    if source is None:
        return
    if source.watched:
        s.guards.add(source, facts.identity(tensor))

    def fixed(values: tuple[IntExpr, ...]) -> tuple[int | None, ...]:
        return tuple(v if type(v) is int else None for v in values)

    spec = dataclasses.replace(TensorSpec.of(tensor), sizes=fixed(type_.shape), strides=fixed(type_.strides))
    wanted = backend(tensor.device).pointer_alignment
    if wanted and tensor.data_ptr() % wanted == 0:
        spec = dataclasses.replace(spec, align=wanted)
    s.guards.add(source, facts.Tensor(spec))
    s.guards.sizes.check_bound(source, type_)


def guard_place(s: Session, value: TensorValue) -> None:
    """Guard what a real tensor that requires grad is to autograd: a leaf, a view of one, or neither."""
    if value.source is None or value.obj is None or not value.obj.requires_grad:
        return
    leaf, view = src.GetAttr(value.source, "is_leaf"), src.Returned(src.GetAttr(value.source, "_is_view"))
    try:
        s.guards.add(leaf, facts.Equals(value.obj.is_leaf))
    except RuntimeError:
        raise Unsupported("a view that was made under no_grad and whose memory was changed since, of which autograd "
                          "refuses the history", "clone() it", kind="gradient") from None
    s.guards.add(view, facts.Equals(torch_private.is_view(value.obj)))
    if torch_private.is_view(value.obj):
        s.guards.add(src.GetAttr(src.GetAttr(value.source, "_base"), "is_leaf"),
                     facts.Equals(torch_private.base_of(value.obj).is_leaf))
