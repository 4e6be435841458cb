"""Attributes and properties of tensors, one table entry each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from jit.devices import registered
from jit.errors import Unsupported
from jit.graph import saved_tensors

if TYPE_CHECKING:
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer


def _view(name: str) -> Callable:
    def view(t: Tracer, h: TensorHandle) -> TensorHandle:
        made = t.call_op(name, (h,), {})
        saved_tensors.note(t, getattr(torch.Tensor, name).__get__, [h], {}, made, (), None)
        return made

    return view


def _grad(t, h: TensorHandle) -> None:
    if h.base.input is None and h.is_leaf and not h.chain:
        return None
    raise Unsupported("Tensor.grad is read", "read gradients outside the compiled function", kind="autograd")


def _base(t, h: TensorHandle) -> None:
    if h.base.input is None and not h.chain and h.base.frozen is None:
        return None
    raise Unsupported("Tensor._base is read", kind="tensor-attribute")


def _grad_fn(t, h: TensorHandle) -> None:
    if not h.requires_grad or h.is_leaf:
        return None
    raise Unsupported("Tensor.grad_fn is read", kind="tensor-attribute")


ATTRIBUTES = {
    "shape": lambda t, h: h.shape,
    "dtype": lambda t, h: h.dtype,
    "device": lambda t, h: h.device,
    "ndim": lambda t, h: h.ndim,
    "layout": lambda t, h: torch.strided,
    "itemsize": lambda t, h: h.dtype.itemsize,
    "nbytes": lambda t, h: h.type.numel * h.dtype.itemsize,
    "requires_grad": lambda t, h: h.requires_grad,
    "is_leaf": lambda t, h: h.is_leaf or not h.requires_grad,
    "names": lambda t, h: (None,) * h.ndim,
    "T": _view("T"),
    "H": _view("H"),
    "mT": _view("mT"),
    "mH": _view("mH"),
    "real": _view("real"),
    "imag": _view("imag"),
    "grad": _grad,
    "grad_fn": _grad_fn,
    "_grad": _grad,
    "_base": _base,
    "output_nr": lambda t, h: 0,
    "retains_grad": lambda t, h: False,
}
for _name in ("is_ipu", "is_maia", "is_mkldnn", "is_mps", "is_mtia",
              "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu"):
    ATTRIBUTES[_name] = lambda t, h: False
for _kind in registered():
    ATTRIBUTES[f"is_{_kind.type}"] = lambda t, h, _type=_kind.type: h.device.type == _type


def _data(t: Tracer, h: TensorHandle) -> TensorHandle:
    with t.journal.temporarily(t, "grad_enabled", False):
        made = t.call_op("detach", (h,), {})
        made.chain[-1].attrs = {"asked": "data"}  # unlike what detach() gives, it has a version counter of its own
        return made


ATTRIBUTES["data"] = _data


def attribute(tracer: Tracer, handle: TensorHandle, name: str) -> object:
    """See ``Tracer.attribute``."""
    rule = ATTRIBUTES.get(name)
    if rule is None:
        raise Unsupported(f"Tensor.{name} is read", kind="tensor-attribute")
    return rule(tracer, handle)
