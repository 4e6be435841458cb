"""``out=`` tensors of another shape than the result. PyTorch resizes such a tensor and then writes it, and so do we:
the tensor gets memory of the result's shape first, and the call is recorded once more. What layout it gets PyTorch
says, by the call on stand-ins.

One that the program has made gets other memory at once. One from outside, without memory of its own so far, as
``torch.empty(0)``, is resized and written behind the graph, among the effects; until then its value stands for a result
of the graph, as behind setting ``data``.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Callable

import torch

from .. import torch_private, turns
from ..errors import Unsupported
from ..graph.changes import OtherShape
from ..graph.dims import hint
from ..graph.ir import contiguous_strides, same_ints
from ..graph.probe import StandIns, ask
from ..graph.refusals import keep_sizes
from ..runtime import facts
from .values.constant import Constant

_MOST = 1 << 26  # elements of results with which eager is asked

if TYPE_CHECKING:
    from ..graph.ir import TensorType
    from .session import Session
    from .values.base import Value
    from .values.tensor import TensorValue


def record(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Record a torch callable with ``out=``."""
    with s.speculate(kinds=("out-argument",)) as attempt:
        return s.recording.record(fn, args, kwargs)
    error = attempt.refusal
    if not isinstance(error, OtherShape) or s.maps or s.levels:
        raise error
    out = kwargs["out"]
    targets = [out] if out.is_tensor else out.items_list(s)
    if sum(hint(found.numel) for found in error.found) > _MOST:
        raise error
    answer = ask(fn, [a.probed(s) for a in args], {k: v.probed(s) for k, v in kwargs.items()}, StandIns())
    if answer.error is not None:
        raise error
    for target, found in zip(targets, error.found):
        handle = target.handle(s)
        if not same_ints(handle.type.shape, found.shape):
            after = answer.given.of(handle)
            if tuple(after.shape) != tuple(map(hint, found.shape)):
                raise error
            _resize(s, target, found, _strides(found, after), error)
    return s.recording.record(fn, args, kwargs)


def _strides(found: TensorType, after: torch.Tensor) -> tuple:
    """The strides of a resized tensor, in the sizes of the result."""
    for strides in (found.strides, contiguous_strides(found.shape)):
        if tuple(map(hint, strides)) == after.stride():
            return strides
    return after.stride()


def _resize(s: Session, target: TensorValue, found: TensorType, strides: tuple, error: Unsupported) -> None:
    handle = target.handle(s)
    base = handle.base
    if handle.requires_grad or handle.chain or base.frozen is not None or base.region is not None:
        raise error
    count = hint(handle.type.numel)
    if count:
        keep_sizes([handle, *found.shape])  # the warning tells them
        _warn(s, handle.type.shape, found.shape)
    if target.obj is not None:
        if count or target.obj.untyped_storage().nbytes() or target.elsewhere:
            raise error
        s.guards.add(target.source, facts.NoMemory())
    elif count and any(v.handle(s).base is base for v in list(s.recording.tensors.values()) if v is not target):
        raise error  # what shows the same memory would see the new values
    new = s.tracer.call(torch.empty_strided, [tuple(found.shape), tuple(strides)],
                        {"dtype": handle.dtype, "device": handle.device})
    if target.obj is not None:
        memory = s.recording.tensor_of(new)
        s.effect(write_resized, [target, memory])
        target.shows(s, memory.getattr(s, "data").handle(s))
        return
    for field, value in (("base", new.base), ("type", new.type), ("_node", new.node), ("_version", new.base.version)):
        s.tracer.set(handle, field, value)


def _warn(s: Session, had: tuple, gets: tuple) -> None:
    """PyTorch warns where it resizes what has elements."""
    turns.only_in_call("the text of a warning is asked for")  # which all threads would have recorded
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.abs(torch.empty(()).expand(tuple(map(hint, gets))), out=torch.empty(tuple(map(hint, had))))
    for warning in caught:
        s.wrap_raw(warnings.warn).call(s, [Constant(str(warning.message))], {})


def write_resized(out: torch.Tensor, result: torch.Tensor) -> None:
    """``out`` becomes like ``result``, in one step as far as its version counter says."""
    version = None if out.is_inference() else torch_private.version_of(out)
    with torch.no_grad():
        out.resize_(result.shape)
        if out.stride() != result.stride():
            out.as_strided_(result.shape, result.stride())
        out.copy_(result)
    if version is not None:
        torch_private.set_version_counter((out,), (version + 1,))
