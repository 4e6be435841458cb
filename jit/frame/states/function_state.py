"""Whether ``__torch_function__`` of tensors' classes is called, which ``torch._C.DisableTorchFunctionSubclass`` and
``torch._C.DisableTorchFunction`` switch off for a block, and ``torch.overrides.enable_reentrant_dispatch`` and the like
leave alone."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ... import torch_private
from ..tables import on_call
from ..tracked_state import TrackedState
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_outer = threading.local()
_KINDS = torch_private.FunctionState


def _outside() -> object:
    """What it is for the program, whatever it is while capturing."""
    found = getattr(_outer, "value", None)
    return torch_private.get_function_state() if found is None else found


FUNCTION_STATE = TrackedState("__torch_function__ of tensors' classes", _outside)


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Capturing looks at the program's tensors: none of the program's code is run for that. The mode of the default
    device stays."""
    before = getattr(_outer, "value", None)
    _outer.value = torch_private.get_function_state()
    if _outer.value == _KINDS.ENABLED:
        torch_private.set_function_state(_KINDS.SUBCLASSES_DISABLED)
    try:
        yield
    finally:
        torch_private.set_function_state(_outer.value)
        _outer.value = before


def unasked(s: Session) -> contextlib.AbstractContextManager:
    """A block in which no mode or class of the program's is asked: what is called there is none of its calls, but in
    place of what PyTorch does in C behind one, or of what NumPy does."""
    return s.states.told(FUNCTION_STATE, _KINDS.ALL_DISABLED) if s.asker.seen else contextlib.nullcontext()


def below_functions(rule: Callable) -> Callable:
    """A rule for a function in C of which no mode or class is asked: nor are they of what the rule does."""
    @functools.wraps(rule)
    def run(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        with unasked(s):
            return rule(s, args, kwargs)

    return run


def calls_torch(fn: object) -> bool:
    """Whether a function is PyTorch's, or one of ours, which may call that. Not the one that sets whether modes are
    asked, nor a method of what the program has made."""
    if fn is torch_private.set_function_state:
        return False
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or getattr(owner, "__module__", None) or ""
    return module.partition(".")[0] in ("torch", "jit")


def classes_on(s: Session) -> bool:
    """Whether the class of a tensor is asked."""
    return s.states.peek(FUNCTION_STATE) == _KINDS.ENABLED


def modes_on(s: Session) -> bool:
    """Whether modes are asked."""
    return s.states.peek(FUNCTION_STATE) != _KINDS.ALL_DISABLED


class Switched:
    """What stands for the two classes in a captured function."""

    def __init__(self, to: object) -> None:
        self.to = to

    def __enter__(self) -> None:
        self.before = torch_private.get_function_state()
        if self.before != _KINDS.ALL_DISABLED:
            torch_private.set_function_state(self.to)

    def __exit__(self, *error: object) -> None:
        torch_private.set_function_state(self.before)


def _makes(cls: type, to: object) -> None:
    @on_call(cls)
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return s.wrap_class(Switched).call(s, [s.from_python(to)], {})


_makes(torch_private.WithoutFunctionOfClasses, _KINDS.SUBCLASSES_DISABLED)
_makes(torch_private.WithoutTorchFunction, _KINDS.ALL_DISABLED)


@on_call(torch_private.get_function_state)
def get(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.from_python(s.states.get(FUNCTION_STATE))


@on_call(torch_private.set_function_state)
def set_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    s.states.set(FUNCTION_STATE, args[0].const(s), torch_private.set_function_state, args)
    return Constant(None)


@on_call(torch_private.function_enabled)
def enabled(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(s.states.get(FUNCTION_STATE) == _KINDS.ENABLED)
