"""Autocast: which operands of an op are converted, and to what, while ``torch.autocast`` is on.

PyTorch's dispatcher knows which operators it intercepts; what is done with them is one of three policies. Operators
that it does not intercept run on what they are given; one that is composed of others is intercepted in its parts, which
an expansion or a library call here does not show: those are refused unless none of their parts can be intercepted.

Source: https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit import torch_private
from jit.devices import of_type, registered
from jit.errors import Unsupported
from jit.graph import aten
from jit.graph.handles import TensorHandle
from jit.graph.nested import of_kind, replaced
from jit.graph.op_info import LOWER, OFTEN_WIDEST, WIDEST, op_info
from jit.graph.registry import OPS

if TYPE_CHECKING:
    from jit.graph.aten import Overload

_CONTRACTS = re.compile("transformer|attention|convolution|lstm|gru|rnn|linalg|trilinear|thnn|mkldnn|::")


def enabled() -> dict:
    """Device type -> dtype, for the devices for which autocast is on in this thread."""
    return {device: torch.get_autocast_dtype(device) for device in kinds() if torch.is_autocast_enabled(device)}


def kinds() -> tuple:
    """The types of devices that have autocast."""
    return tuple(b.type for b in registered() if b.autocast_key)


@functools.cache
def _intercepted(name: str, device: str) -> bool:
    """Whether autocast intercepts any overload of ``aten::name`` that has no ``out=``."""
    return any(_has_kernel(o, of_type(device).autocast_key) for o in aten.overloads(name))


def _has_kernel(o: Overload, key: str) -> bool:
    try:
        return torch_private.has_kernel_for_key(f"{o.name}.{o.overload}" if o.overload else o.name, key)
    except RuntimeError:  # overloads of TorchScript are not in the dispatcher
        return False


@functools.cache
def _is_composed(name: str) -> bool:
    """Whether an op may call operators that autocast intercepts."""
    told = op_info(name).cast_in_parts
    if told is not None or name in OPS:
        return bool(told)
    # Kernels that call these are intercepted in them too.
    return _CONTRACTS.search(name) is not None or _is_implicit(name)


@functools.cache
def _is_implicit(name: str) -> bool:
    """Whether PyTorch composes ``aten::name`` of other operators."""
    return all(_has_kernel(o, "CompositeImplicitAutograd") for o in aten.overloads(name))


def convert(t: object, name: str, args: Sequence[object | TensorHandle],
            kwargs: dict) -> tuple[tuple[TensorHandle | int | None, ...], dict] | None:
    """The arguments as autocast would have them, or None when it leaves the op alone.

    Raises Unsupported for operators whose parts would be intercepted, and for dtypes that autocast refuses.
    """
    device = next((h.device.type for h in of_kind(TensorHandle, (args, kwargs))), None)
    low = t.autocast.get(device)
    if low is None:
        return None
    if not _intercepted(name, device):
        name = op_info(name).cast_as or name
    written = kwargs.get("out") is not None  # forms with ``out=`` are not intercepted; what they are composed of may be
    if written or not _intercepted(name, device):
        if _is_composed(name) or written and _is_implicit(name):
            raise Unsupported(f"{name} under autocast",
                              "cast explicitly, or leave autocast outside of the compiled function", kind="autocast")
        return None
    how = op_info(name).autocast
    if how == LOWER:
        target = low
    elif how == WIDEST or how == OFTEN_WIDEST and of_type(device).autocast_widens:
        target = _widest((args, kwargs), low, device)
    else:
        target = torch.float32
        if name in of_type(device).autocast_leaves or kwargs.get("dtype") is not None:
            raise Unsupported(f"{name} under autocast", "cast explicitly", kind="autocast")

    def cast(v: TensorHandle) -> TensorHandle:
        return t.call_op("to", (v, target), {}) if _eligible(v, device) and v.dtype is not target else v

    return tuple(replaced(TensorHandle, cast, list(args))), replaced(TensorHandle, cast, kwargs)


def _eligible(v: TensorHandle, device: str) -> bool:
    return v.device.type == device and v.dtype.is_floating_point and v.dtype is not torch.float64


def _widest(v: object, low: torch.dtype, device: str) -> torch.dtype:
    """float32 if an operand is, else the low precision type."""
    dtypes = {h.dtype for h in of_kind(TensorHandle, v) if _eligible(h, device)}
    if other := dtypes - {torch.float32, low}:
        raise Unsupported(f"{other.pop()} under autocast to {low}", kind="autocast")
    return torch.float32 if torch.float32 in dtypes else low
