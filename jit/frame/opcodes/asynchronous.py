"""``await``, ``async with`` and ``async for``: each finds what is awaited; SEND does the waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Unsupported
from ..executor import op
from ..values.base import Raised
from .exceptions import enter_context

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


def awaitable(s: Session, value: Value, text: str = "object {} can't be used in 'await' expression") -> Value:
    """The iterator that ``await value`` sends to."""
    own = value.awaited(s)
    if own is not None:
        return own
    if value.as_class is not None or value.is_object and not value.has_special(s, "__await__") or value.is_const():
        raise Raised(s.exception(TypeError(text.format(value.pytype(s).__name__))))
    return value.special(s, "__await__").call(s, [], {})


@op("GET_AWAITABLE")
def get_awaitable(f: Frame, i: Instr) -> None:
    f.push(awaitable(f.s, f.pop()))


@op("BEFORE_ASYNC_WITH")
def before_async_with(f: Frame, i: Instr) -> None:
    enter_context(f, "__aenter__", "__aexit__", "the asynchronous context manager protocol")


@op("GET_AITER")
def get_aiter(f: Frame, i: Instr) -> None:
    iterable = f.pop()
    if not iterable.has_special(f.s, "__aiter__"):
        raise Unsupported(f"asynchronous iteration over {iterable.describe()}", kind="async")
    f.push(iterable.special(f.s, "__aiter__").call(f.s, [], {}))


@op("GET_ANEXT")
def get_anext(f: Frame, i: Instr) -> None:
    iterator = f.stack[-1]
    if not iterator.has_special(f.s, "__anext__"):
        raise Unsupported(f"asynchronous iteration over {iterator.describe()}", kind="async")
    f.push(awaitable(f.s, iterator.special(f.s, "__anext__").call(f.s, [], {}),
                     "'async for' received an invalid object from __anext__: {}"))


@op("END_ASYNC_FOR")
def end_async_for(f: Frame, i: Instr) -> None:
    error = f.pop()
    f.pop()
    if not f.s.is_exception(error, StopAsyncIteration):
        raise Raised(error)
