"""What compiled functions do when they are called: ``jit.set_stance``."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from ..runtime import native

_F = TypeVar("_F")

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")
_now = "default"


def now() -> str:
    """The present stance."""
    return _now


def _set(stance: str) -> str:
    global _now
    before, _now = _now, stance
    native().set_in_eager(stance == "force_eager")
    return before


def set_stance(stance: str = "default") -> Stance:
    """Say what compiled functions do from now on, in all threads; as a context manager or a decorator, inside only.

    Args:
        stance: "default": what is not compiled yet for arguments like these is compiled. "force_eager": functions run
            in eager, whatever was compiled. "eager_on_recompile": they run in eager where something would have to be
            compiled. "fail_on_recompile": that is an error.

    Raises:
        ValueError: for another stance.
        RuntimeError: of calls under "fail_on_recompile".
    """
    if stance not in STANCES:
        raise ValueError(f"stance={stance!r}: expected one of {', '.join(map(repr, STANCES))}")
    return Stance(stance)


class Stance:
    """A stance that was set."""

    def __init__(self, stance: str) -> None:
        self.stance, self.before = stance, _set(stance)

    def __enter__(self) -> None:
        _set(self.stance)

    def __exit__(self, *error: object) -> None:
        _set(self.before)

    def __call__(self, fn: _F) -> _F:
        _set(self.before)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return fn(*args, **kwargs)

        return call
