"""What a compiled function is called where people see it: in a profile, and as its ``repr``."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .. import shown
from ..spelling import counted

if TYPE_CHECKING:
    from .capture import Captured

_CALL = torch.nn.Module.__call__.__code__


def title(fn: types.FunctionType, code: types.CodeType, bound: object, resumed: bool | str) -> str:
    """``f (model.py:12)`` of a function whose messages name ``code``, for the object ``bound`` (None: for any); of one
    that goes on behind a break, ``f, resumed (model.py:15)``."""
    name, file, line = _place(code, bound)
    if resumed:
        chain = getattr(fn, "_jit_chain", None)
        line = getattr(fn, "_jit_line", None) or shown.first_line(chain[-1][1].code if chain else code)
        name += ", resumed"
    return shown.place(name, file, line)


def forward_of(module: torch.nn.Module) -> types.CodeType | None:
    """The code by which people call a module."""
    return getattr(inspect.unwrap(type(module).forward), "__code__", None)


def is_call_of_modules(code: types.CodeType) -> bool:
    """Whether it is PyTorch's call of any module, behind which stands the module's ``forward``."""
    return (code.co_filename, code.co_firstlineno) == (_CALL.co_filename, _CALL.co_firstlineno)


def _place(code: types.CodeType, bound: object) -> tuple[str, str, int]:
    """(qualified name, file, line): of a call of a module those of its ``forward``."""
    module: Any = bound() if callable(bound) and not isinstance(bound, torch.nn.Module) else bound
    if isinstance(module, torch.nn.Module) and (code.co_name == "_calls_impl" or is_call_of_modules(code)):
        forward = forward_of(module)
        if forward is not None:
            return f"{type(module).__qualname__}.forward", forward.co_filename, forward.co_firstlineno
    return code.co_qualname, code.co_filename, code.co_firstlineno


def told(code: types.CodeType, bound: object, entries: int, captures: Iterable[Captured], in_eager: bool) -> str:
    """The ``repr`` of a compiled function: what it is, and what it holds. ``captures``: its own, and those of what goes
    on behind its breaks; ``in_eager``: nothing more is compiled for it. A break counts once, in however many entries it
    is."""
    found = list(captures)
    breaks = len({b.id for c in found for b in c.breaks})
    parts = [counted(entries, "entry", "entries"), counted(sum(bool(c.graph) for c in found), "graph")]
    if breaks:
        parts.append(counted(breaks, "graph break"))
    if in_eager:
        parts.append("runs in eager from now on")
    said = ", ".join(parts) if found or in_eager else "nothing compiled yet"
    name, file, line = _place(code, bound)
    return f"<jit.compile({name.rpartition('<locals>.')[2]}) at {os.path.basename(file)}:{line}: {said}>"
