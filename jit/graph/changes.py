"""Calls that change tensors which the program gave: in-place operations, those on lists of tensors, and ``out=``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.errors import NeedsEager, Unsupported
from jit.graph import aten, memory
from jit.graph.handles import NamedResult, TensorHandle, partly_shared
from jit.graph.ir import Node, TensorType
from jit.graph.nested import of_kind, several
from jit.graph.registry import OPS

if TYPE_CHECKING:
    from jit.graph.sym_float import SymFloat
    from jit.graph.tracer import Tracer


def inplace(t: Tracer, name: str, args: Sequence[TensorHandle | int],
            kwargs: dict[str, float | int | SymFloat]) -> TensorHandle:
    """The call of ``name_`` of the tracer ``t``: what ``name`` gives is written to the first argument, which is
    returned."""
    if name.startswith("_foreach_"):
        return _foreach(t, name, args, kwargs)
    target = args[0] if args else None
    if not isinstance(target, TensorHandle):
        raise Unsupported(f"{name}_() is called without a tensor", kind="unknown-function")
    if OPS.get(name) is None and not aten.overloads(name):
        raise Unsupported(f"Tensor.{name}_ is not known", kind="unknown-function")
    check_overlap(target, _read(args, kwargs))
    value, handles = t.compute(name, args, kwargs)
    if not isinstance(value, Node):
        raise Unsupported(f"Tensor.{name}_ has several results", kind="unknown-function")
    _check_result_dtype(value.type.dtype, target.type.dtype)
    t.write(target, value, handles)
    return target


def _foreach(t, name: str, args, kwargs):
    """``_foreach_add_`` and its kin: every tensor of a list is changed."""
    targets = args[0] if args else None
    if not isinstance(targets, (list, tuple)) or not all(isinstance(target, TensorHandle) for target in targets):
        raise Unsupported(f"{name}_() is called without a list of tensors", kind="unknown-function")
    value, handles = t.compute(name, args, kwargs)
    bases = {id(h.base) for h in targets}
    if len(bases) != len(targets) or sum(id(h.base) in bases for h in handles) != len(targets):
        raise Unsupported(f"{name}_ on tensors that share memory", "use separate operations", kind="aliased-mutation")
    for target, v in zip(targets, value):
        _check_result_dtype(v.type.dtype, target.type.dtype)
        t.write(target, v, [target, *(h for h in handles if h.requires_grad)], inplace=False)
    return targets if foreach_returns_list() else None


@functools.cache
def foreach_returns_list() -> bool:
    """Whether this PyTorch's in-place foreach functions return the list that they were given; older ones return
    None."""
    tensors = [torch.zeros(1, device="cpu")]
    return torch_private.foreach_neg_(tensors) is tensors


class OtherShape(Unsupported):
    """An ``out=`` of another shape than the result. ``found``: the types of all results."""

    def __init__(self, found: list[TensorType]) -> None:
        super().__init__("an out= tensor of another shape", "give it the result's shape", kind="out-argument")
        self.found = found


def out(t: Tracer, name: str, args: Sequence[object], kwargs: dict,
        out: TensorHandle | tuple[TensorHandle, ...] | list) -> TensorHandle | NamedResult:
    """The call of ``name`` of the tracer ``t`` with ``out=``, a tensor or several, which is returned."""
    targets = several(out)
    read = _read(args, kwargs)
    for target in of_kind(TensorHandle, out):
        check_overlap(target, read)
    value, handles = t.compute(name, args, kwargs)
    values = several(value)
    if len(targets) != len(values):
        raise Unsupported(f"{name} is given an out= that does not fit", kind="out-argument")
    for target, v in zip(targets, values):
        if not isinstance(target, TensorHandle) or not isinstance(v, Node):
            raise Unsupported(f"{name} is given an out= that does not fit", kind="out-argument")
        _check_result_dtype(v.type.dtype, target.type.dtype)
        if t.doubted and v.type.dtype is not target.type.dtype or v.type.device != target.type.device:
            raise Unsupported("the out= tensor has another dtype, or is on another device, than the result",
                              "give it the result's", kind="out-argument")
        if len(v.type.shape) != len(target.type.shape) or any(a != b for a, b in zip(v.type.shape, target.type.shape)):
            if target.requires_grad and not target.is_leaf:
                raise NeedsEager("a tensor with a history gets another shape by out=, of which its history knows "
                                 "nothing", "give it the result's shape", kind="out-argument")
            raise OtherShape([v.type for v in values])
    for target, v in zip(targets, values):
        t.write(target, v, handles, inplace=False)
    if isinstance(value, NamedResult):
        return NamedResult(getattr(torch.return_types, f"{name}_out", value.cls), value.fields, targets)
    return out


def _read(args: Sequence[object], kwargs: dict[str, float | int | SymFloat]) -> list:
    return list(of_kind(TensorHandle, (args, kwargs)))


def check_overlap(target: TensorHandle, handles: list[TensorHandle]) -> None:
    """Eager refuses to write where it reads other elements of the same memory, or the outcome depends on the order."""
    if target.base.input is not None:
        memory.check_apart(target.base, (h.base for h in handles))
    if any(h is not target and partly_shared(target, h) for h in handles):
        raise Unsupported("a tensor is changed by an operation that reads other parts of its memory",
                          "clone() what is read", kind="aliased-mutation")


def _check_result_dtype(source: torch.dtype, target: torch.dtype) -> None:
    if source is not target and not torch.can_cast(source, target):
        raise RuntimeError(f"result type {_type_name(source)} can't be cast to the desired output type "
                           f"{_type_name(target)}")


def _type_name(dtype: torch.dtype) -> str:
    names = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
             "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}
    return names.get(str(dtype)[6:], str(dtype)[6:])
