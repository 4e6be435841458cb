"""``torch.tensor`` and ``as_tensor`` of nested lists in which there are tensors, arrays, or numbers that are known only
when the graph runs: the parts are tensors, which are joined. What type the result has is settled as in PyTorch, by all
parts together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import Unsupported
from ..values import read_numbers
from ..values.arrays import DTYPES
from ..values.base import Value
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue

if TYPE_CHECKING:
    from ..session import Session

_MOST = 256  # parts
_NUMBERS = {float: None, int: torch.int64, bool: torch.bool}  # what PyTorch takes them for; floats for the default


def holds_late(v: Value) -> bool:
    """Whether a number, or one of a list, is known only later, or there are tensors or arrays in a list."""
    if type(v) not in (ListValue, TupleValue) or v._elements is None:
        return v.is_read
    return any(e.is_tensor or e.is_array or _is_scalar(e) or holds_late(e) or _has_float(e) for e in v._elements
               ) or type(v) is TupleValue and _has_float(v)


def _has_float(v: Value) -> bool:
    """Whether a number in a list is a symbol; the tracer takes those of a plain list as they are."""
    return type(v) in (ListValue, TupleValue) and any(e.symbolic is float for e in v._elements or ())


def _is_scalar(v: Value) -> bool:
    return v.is_leaf and isinstance(v.value, np.generic)


def make(s: Session, data: Value, kwargs: dict[str, Value], floats: bool = True) -> Value:
    """The tensor. Raises Unsupported for what PyTorch refuses, or gives with a warning; without ``floats`` also for
    parts that are no integers."""
    sizes = _sizes(s, data)
    options = {k: v.const(s) for k, v in kwargs.items()}
    dtype = options.pop("dtype", None)
    device = torch.device(options.pop("device", None) or torch.get_default_device())
    if options.pop("requires_grad", False) or options.pop("pin_memory", False) or options:
        raise _refused()
    parts: list = []
    _collect(s, data, sizes, parts)
    if not parts or len(parts) > _MOST:
        raise _refused()
    if not floats and any(kind.is_floating_point or kind.is_complex for _, kind in parts):
        raise _refused()
    dtype = dtype or functools.reduce(torch.promote_types, [kind for _, kind in parts])
    flat = [s.torch_call(torch.Tensor.reshape, [_cast(s, p, dtype, device), Constant(-1)], {}) for p, _ in parts]
    made = s.torch_call(torch.cat, [ListValue(flat)], {})
    return s.torch_call(torch.Tensor.reshape, [made, TupleValue([s.integer(n) for n in sizes])], {})


def _refused() -> Unsupported:
    return Unsupported("a tensor of a list of tensors or arrays", "use torch.stack", kind="data-dependent-value")


def _sizes(s: Session, v: Value) -> tuple:
    """What PyTorch finds by looking at the first part of each list."""
    if v.is_array:
        return tuple(v.handle(s).shape)
    if type(v) not in (ListValue, TupleValue):
        return ()
    parts = v.items_list(s)
    return (len(parts), *_sizes(s, parts[0])) if parts else (0,)


def _collect(s: Session, v: Value, sizes: tuple, parts: list) -> None:
    """Add (a part of the last list, what type it counts as) of each to ``parts``."""
    if v.is_tensor or v.is_array:
        handle = v.handle(s)
        if handle.requires_grad:
            raise _refused()
        if (sizes or handle.type.numel != 1 if v.is_tensor else tuple(handle.shape) != sizes):
            raise _refused()
        parts.append((v.tensor(s) if v.is_array else v, handle.dtype))
    elif type(v) in (ListValue, TupleValue):
        elements = v.items_list(s)
        if not sizes or len(elements) != sizes[0]:
            raise _refused()
        for e in elements:
            _collect(s, e, sizes[1:], parts)
    elif _is_scalar(v) and not sizes and np.dtype(v.value) in DTYPES:
        number = v.const(s)
        parts.append((Constant(number.item()), torch.from_numpy(np.asarray(number)).dtype))
    elif sizes or not (v.is_read or v.symbolic in (int, float) or v.is_leaf and type(v.value) in _NUMBERS):
        raise _refused()
    else:
        kind = v.cls if v.is_read else v.symbolic or type(v.value)
        parts.append((read_numbers.tensor_of(s, v) if v.is_read else v, _NUMBERS[kind] or torch.get_default_dtype()))


def _cast(s: Session, part: Value, dtype: torch.dtype, device: torch.device) -> Value:
    if not part.is_tensor:
        return s.torch_call(torch.tensor, [part], {"dtype": Constant(dtype), "device": Constant(device)})
    return s.torch_call(torch.Tensor.to, [part], {"dtype": Constant(dtype), "device": Constant(device)})
