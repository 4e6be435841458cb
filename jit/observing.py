"""What a compilation tells to whoever asks for a report of it (``jit.explain``), in the thread that compiles.

The rooms tell it to ``observer()``, if there is one: what it costs where nobody asks is the question.
"""

from __future__ import annotations

import contextlib
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any

_local = threading.local()


class Observer:
    """What it was told.

    Attributes:
        phases: the seconds of each stage of compiling, without those of stages inside it.
        followed: the code objects that were followed, each once, in order, and whether each was called from another
            one.
        lines: code object -> the lines of it that were executed.
        captured: each ``frame.capture.Captured``, and the options of the function that was compiled.
        plans: graph as captured -> what it was compiled to.
    """

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.lines: dict[types.CodeType, set[int]] = {}
        self.captured: list[tuple[Any, Any]] = []
        self.plans: dict[Any, Any] = {}
        self.followed: dict[types.CodeType, bool] = {}
        self._inside: list[float] = []  # for each stage that is under way, the seconds of those inside it

    def follows(self, code: types.CodeType, is_called: bool) -> None:
        self.followed[code] = self.followed.get(code, True) and is_called

    def reading(self, code: types.CodeType, instructions: Sequence[Any]) -> Any:
        """The instructions of a code object, of which each that is read counts as executed."""
        return _Read(self.lines.setdefault(code, set()), instructions)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A block that is a stage of compiling."""
        begin = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            took, inside = time.perf_counter() - begin, self._inside.pop()
            self.phases[name] = self.phases.get(name, 0.0) + took - inside
            if self._inside:
                self._inside[-1] += took


class _Read:
    __slots__ = ("lines", "instructions")

    def __init__(self, lines: set[int], instructions: Sequence[Any]) -> None:
        self.lines, self.instructions = lines, instructions

    def __getitem__(self, place: int) -> Any:
        instr = self.instructions[place]
        self.lines.add(instr.line)
        return instr


def observer() -> Observer | None:
    """Whoever asks for a report in this thread."""
    return getattr(_local, "observer", None)


@contextlib.contextmanager
def observed() -> Iterator[Observer]:
    """All that is compiled in the block is told to the observer that it gives."""
    before, _local.observer = observer(), Observer()
    try:
        yield _local.observer
    finally:
        _local.observer = before
