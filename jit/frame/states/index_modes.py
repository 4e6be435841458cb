"""The mode in which mapped scalars index (``values.batched``), which the program enters and leaves; every other mode of
torch functions is a break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import torch_private
from ...errors import Unsupported
from ..tables import on_call
from ..tracked_state import TrackedState
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

PUSH, POP = torch_private.push_mode, torch_private.pop_mode
# Capturing is refused under all others but the default device's.
INDEX_MODES = TrackedState("modes of torch functions", lambda: ())


def modes(s: Session) -> tuple:
    """Those that the program is in, the outermost first."""
    return s.states.peek(INDEX_MODES)


@on_call(PUSH)
def push(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    mode = args[0]
    if not mode.is_object or (mode.cls.__module__, mode.cls.__qualname__) != torch_private.INDEX_MODE:
        raise Unsupported(f"entering {mode.describe()}, which sees every operation",
                          "compile without it", kind="torch-mode")
    s.states.set(INDEX_MODES, (*modes(s), mode), PUSH, [mode])
    return Constant(None)


@on_call(POP)
def pop(s: Session, args: list[Value], kwargs: dict[str, Value]):
    if not modes(s):
        raise Unsupported("leaving a mode that was entered before", kind="torch-mode")
    *rest, mode = modes(s)
    s.states.set(INDEX_MODES, tuple(rest), POP, [])
    return mode


@on_call(torch_private.in_function_mode)
def in_mode(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    return Constant(bool(modes(s)))
