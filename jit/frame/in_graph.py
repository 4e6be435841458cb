"""Functions that the program says belong into the graph, by ``allow_in_graph``: what cannot be followed by its bytecode
is run once, while capturing, on stand-ins for tensors that record what is done with them.

What else such a function does, it does while capturing and not at each call; that is what the program has agreed to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_private
from ..errors import JitError, Unsupported
from ..graph.proxy import unwrap, wrap
from .values.base import Raised
from .values.lifting import lift

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value


def call(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value],
         follow: Callable[[], Value] | None = None) -> Value:
    """A call of such a function; ``follow()`` follows its bytecode, where it has any."""
    if follow is not None:
        with s.speculate() as attempt:
            return follow()
        refusal = attempt.refusal
        assert refusal is not None
    else:
        refusal = None
    with s.speculate() as attempt:
        return run(s, fn, args, kwargs)
    raise refusal or attempt.refusal  # type: ignore[misc]


def run(s: Session, fn: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The value of ``fn`` run on stand-ins."""
    low, low_kw = wrap(s.tracer, ([a.lower(s) for a in args], {k: v.lower(s) for k, v in kwargs.items()}))
    first = len(s.tracer.builder.nodes)
    before = s.tracer.grad_enabled
    try:
        with torch.set_grad_enabled(before), Recorded(s.tracer):
            result = fn(*low, **low_kw)
    except (JitError, Raised):
        raise
    except Exception as error:  # of code that knows tensors only, or of the program's own; eager code tells which
        raise Unsupported(f"{getattr(fn, '__qualname__', fn)} cannot be run on stand-ins for tensors: "
                          f"{type(error).__name__}: {error}", kind="call") from None
    finally:
        s.tracer.set_grad_enabled(before)
    if s.states.now:
        s.states.check(s.tracer.builder.nodes[first:])
    return lift(s, unwrap(result))


class Recorded(TorchFunctionMode):
    """Has functions of PyTorch that are given no tensor, such as ``torch.rand``, recorded too, and the tracer follow
    ``torch.no_grad``."""

    def __init__(self, tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch_private.set_grad_enabled:
            self.tracer.set_grad_enabled(args[0])
        elif self.tracer.supports(func):
            return wrap(self.tracer, self.tracer.call(func, tuple(unwrap(args)), unwrap(kwargs or {}),
                                                      self.tracer.builder.loc))
        return func(*args, **(kwargs or {}))
