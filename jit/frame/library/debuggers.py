"""Calls that stop in a debugger: the whole function runs in eager, with its own frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import NeedsEager
from ..tables import on_call, on_name

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue


@on_call(breakpoint)
def breakpoint_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise NeedsEager("breakpoint() stops in a debugger", kind="debugger")


@on_name(("pdb", "set_trace"), ("bdb", "Bdb.set_trace"), ("_pytest.debugging", "pytestPDB.set_trace"),
         ("IPython.core.debugger", "set_trace"), ("ipdb.__main__", "set_trace"))
def set_trace(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise NeedsEager(f"{fn.qualname}() stops in a debugger", kind="debugger")
