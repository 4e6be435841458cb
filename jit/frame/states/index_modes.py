"""Modes of torch functions, which the program enters and leaves: that in which mapped scalars index
(``values.batched``), and those of its own, whose ``__torch_function__`` is followed (``frame.stand_ins``)."""

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
MODES = TrackedState("modes of torch functions", lambda: ())


def _indexes(mode: Value) -> bool:
    return (mode.cls.__module__, mode.cls.__qualname__) == torch_private.INDEX_MODE


def modes(s: Session) -> tuple:
    """Those for indexing that the program is in, the outermost first."""
    return tuple(filter(_indexes, s.states.peek(MODES)))


def function_modes(s: Session) -> tuple:
    """All others."""
    return tuple([mode for mode in s.states.peek(MODES) if not _indexes(mode)])


@on_call(PUSH)
def push(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    mode = args[0]
    if not mode.is_object:
        raise Unsupported(f"entering {mode.describe()}, which sees every operation",
                          "compile without it", kind="torch-mode")
    if not _indexes(mode):
        s.set_field(s.asker, "seen", True)
    s.states.set(MODES, (*s.states.peek(MODES), mode), PUSH, [mode])
    return Constant(None)


@on_call(POP)
def pop(s: Session, args: list[Value], kwargs: dict[str, Value]):
    if not s.states.peek(MODES):
        raise Unsupported("leaving a mode that was entered before", kind="torch-mode")
    *rest, mode = s.states.peek(MODES)
    s.states.set(MODES, tuple(rest), POP, [])
    return mode


@on_call(torch_private.in_function_mode)
def in_mode(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    return Constant(bool(s.states.peek(MODES)))
