"""Numbers in forward mode: eager gives what ``torch.func.jvp`` makes of a tensor without dimensions and a float of
Python's a tangent in double precision, for some operations. Here tangents have the dtypes of their tensors, so that
such a call is left to eager. PyTorch is asked which operations these are.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Callable

import torch

from ... import torch_private
from ...errors import Unsupported

if TYPE_CHECKING:
    from ..session import Session
    from .base import Value


def note(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value], result: Value) -> None:
    """A call where the innermost transform is forward mode has given this."""
    if kwargs or len(args) != 2 or not result.is_tensor or result.handle(s).shape or not result.handle(s).requires_grad:
        return
    dtype, at = result.handle(s).dtype, [k for k, a in enumerate(args) if a.is_tensor]
    if len(at) == 1 and args[1 - at[0]].pytype(s) is float and _widens(fn, at[0], args[at[0]].handle(s).dtype, dtype):
        raise Unsupported("a tensor without dimensions and a float in torch.func.jvp, of which eager gives another "
                          "dtype's tangent", "nothing needs to be done: it runs in eager", kind="functorch")


@functools.lru_cache(maxsize=256)
def _widens(fn: Callable, at: int, dtype: torch.dtype, result: torch.dtype) -> bool:
    """Whether eager's tangent has another dtype than the result, of a tensor as argument ``at``."""
    one = torch.ones((), dtype=dtype)
    with torch.inference_mode(False), torch.enable_grad(), torch_private.WithoutTorchFunction():
        try:
            _, tangent = torch.func.jvp(lambda t: fn(t, 0.5) if at == 0 else fn(0.5, t), (one,), (one,))
        except (RuntimeError, TypeError):  # without forward mode, or with other arguments
            return False
    return tangent.dtype is not result
