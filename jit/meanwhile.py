"""What can be done while kernels are compiled by other processes: it is handed in where it becomes known (``soon``),
and done when there is a wait for kernels, or when somebody asks for its result before.

    with meanwhile.scope():
        packed = meanwhile.soon(PackedGraph, graph)
        ...                                            # begins with kernels, waits for them: ``now``
        packed()
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Callable, Generic, TypeVar

T = TypeVar("T")
_local = threading.local()


class Soon(Generic[T]):
    """A call that is made once, and its result."""

    __slots__ = ("call", "result")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call: Callable[[], T] | None = call
        self.result: Any = None

    def __call__(self) -> T:
        """The result. Raises what the call raises, to whoever it is made for."""
        if self.call is not None:
            self.result = self.call()
            self.call = None
        return self.result


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """What is handed in inside, by this thread, may be done until the end."""
    before = getattr(_local, "waiting", None)
    _local.waiting = []
    try:
        yield
    finally:
        _local.waiting = before


def soon(fn: Callable[..., T], *arguments: Any) -> Soon[T]:
    """``fn(*arguments)``, made now or later in this scope; outside of one when it is asked for."""
    made = Soon(lambda: fn(*arguments))
    waiting = getattr(_local, "waiting", None)
    if waiting is not None:
        waiting.append(made)
    return made


def now() -> None:
    """A wait begins: do what was handed in."""
    waiting = getattr(_local, "waiting", None)
    while waiting:
        waiting.pop(0)()
