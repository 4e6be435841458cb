"""Functions that the program says belong into the graph, by ``allow_in_graph``: what cannot be followed by its bytecode
is run once, while capturing, on stand-ins for tensors that record what is done with them.

What else such a function does, it does while capturing and not at each call; that is what the program has agreed to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_private
from ..errors import JitError, Unsupported
from ..graph.proxy import unwrap, wrap
from .values.base import Raised
from .values.lifting import lift

if TYPE_CHECKING:
    from ..graph.tracer import Tracer
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
    mode = Recorded(s.tracer)
    low, low_kw = wrap(mode.follower, ([a.lower(s) for a in args], {k: v.lower(s) for k, v in kwargs.items()}))
    first = len(s.tracer.builder.nodes)
    before = s.tracer.grad_enabled
    try:
        with torch.set_grad_enabled(before), mode:
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


class Follower:
    """The tracer, as stand-ins know it: what it calls itself is not the program's."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.inside = tracer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tracer, name)

    def call(self, *args: Any) -> Any:
        return self._inside(self.tracer.call, args)

    def attribute(self, *args: Any) -> Any:
        return self._inside(self.tracer.attribute, args)

    def _inside(self, fn: Callable, args: tuple) -> Any:
        self.inside += 1
        try:
            return fn(*args)
        finally:
            self.inside -= 1


class Recorded(TorchFunctionMode):
    """Has functions of PyTorch that are given no tensor, such as ``torch.rand``, recorded too, and the tracer follow
    ``torch.no_grad``."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.follower = Follower(tracer)

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.follower.inside:
            if func is torch_private.set_grad_enabled:
                self.follower.set_grad_enabled(args[0])
            elif self.follower.supports(func):
                return wrap(self.follower, self.follower.call(func, tuple(unwrap(args)), unwrap(kwargs or {}),
                                                              self.follower.builder.loc))
        return func(*args, **(kwargs or {}))
