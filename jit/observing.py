"""What a compilation tells to whoever asks for a report of it (``jit.explain``), in the thread that compiles.

The rooms tell it to ``observer()``, if there is one: what it costs where nobody asks is the question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from . import config

KERNEL, LIBRARY, USER_KERNEL = "kernel", "library", "user kernel"

_local = threading.local()


class Place(NamedTuple):
    """A line of the program's."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {self.function}"


@dataclasses.dataclass(frozen=True)
class Step:
    """Something that a plan does when it is run.

    Attributes:
        kind: ``KERNEL``, of ours; ``LIBRARY``, an operator of PyTorch's; ``USER_KERNEL``, a Triton kernel of the
            program's own.
        name: of the kernel, as profilers show it, or of the operator.
        computes: the names of the operations that it does, in order.
        places: where in the program these stand, without repeats, in order.
        space: the sizes that its loops go over, or of a library call's first result, as text.
        device: as text.
        read, written: bytes of memory that it reads and writes, each element counted once.
        operations: arithmetic, with products of matrices as two for each element of a sum.
        why: of a library call, why it is one; else empty.
        seconds: measured, of one run.
        least: the seconds that the device's memory and arithmetic allow at best.
        times: how often a run of the plan does it; all figures are of one time.
        part: which part of a plan it is in, from 0, where the plan does some parts several times.
        source: of a kernel of ours, the name of its text; several steps may share one.
        function: of a kernel of ours, the function's name in the binary, as ``perf`` and the GPU's own lane show it.
    """

    kind: str
    name: str
    computes: tuple[str, ...]
    places: tuple[Place, ...]
    space: str
    device: str
    read: int
    written: int
    operations: int
    why: str = ""
    seconds: float | None = None
    least: float | None = None
    times: int = 1
    part: int = 0
    source: str = ""
    function: str = ""


@dataclasses.dataclass(frozen=True)
class Results:
    """Tensors that a plan returns, or keeps for the backward: those of one operation at one line.

    Attributes:
        computes: the operation.
        dtype: of its values, as text.
        place: the line; None where no line of the program computes it.
        size: bytes of all of them.
        count: how many tensors.
    """

    computes: str
    dtype: str
    place: Place | None
    size: int
    count: int


@dataclasses.dataclass(frozen=True)
class Begun:
    """A graph whose compilation has begun: a copy, what was noted of each input, what it is differentiated for, and the
    options that are not at their defaults."""

    graph: Any
    inputs: list
    gradient: Any
    options: dict[str, object]


@dataclasses.dataclass
class Followed:
    """What was done for a capture, or for several.

    Attributes:
        phases: the seconds of each stage of compiling, without those of stages inside it.
        codes: the code objects that were followed, each once, in order, and whether each was called from another one.
        lines: code object -> the lines of it that were executed.
    """

    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    codes: dict[types.CodeType, bool] = dataclasses.field(default_factory=dict)
    lines: dict[types.CodeType, set[int]] = dataclasses.field(default_factory=dict)

    def add(self, other: Followed) -> None:
        for name, seconds in other.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds
        for code, is_called in other.codes.items():
            self.codes[code] = self.codes.get(code, True) and is_called
        for code, lines in other.lines.items():
            self.lines.setdefault(code, set()).update(lines)


class Observer:
    """What it was told.

    Attributes:
        now: what was done since the last capture has ended.
        captured: each ``frame.capture.Captured``, and the options of the function that was compiled.
        begun: each captured graph, of which a compilation has begun, as it was then, where inputs are described.
        plans: graph as captured -> what it was compiled to.
        errors: rules of ours that have failed.
    """

    def __init__(self, describe: Callable[[Any], Any] | None = None) -> None:
        self.describe = describe
        self.begun: dict[Any, Begun] = {}
        self.errors: list[BaseException] = []
        self.now = Followed()
        self.captured: list[tuple[Any, Any]] = []
        self._done: list[Followed] = []  # for each of these
        self.plans: dict[Any, Any] = {}
        self._inside: list[float] = []  # for each stage that is under way, the seconds of those inside it

    def follows(self, code: types.CodeType, is_called: bool) -> None:
        self.now.codes[code] = self.now.codes.get(code, True) and is_called

    def ends(self, captured: Any, settings: Any) -> None:
        """A capture is an entry now."""
        self.captured.append((captured, settings))
        self._done.append(self.now)
        self.now = Followed()

    def done_for(self, captured: Sequence[Any]) -> Followed:
        """What was done for these captures; for all of them, with what has ended without one."""
        wanted, found = {id(c) for c in captured}, Followed()
        parts = [part for (c, _), part in zip(self.captured, self._done) if id(c) in wanted]
        for part in [*parts, *([self.now] if len(parts) == len(self._done) else [])]:
            found.add(part)
        return found

    def begins(self, graph: Any, tensors: Sequence[Any], gradient: Any) -> None:
        """A graph is about to be compiled for these inputs."""
        if self.describe is not None:
            self.begun[graph] = Begun(graph.copy(), [self.describe(t) for t in tensors], gradient,
                                      config.changed())

    def reading(self, code: types.CodeType, instructions: Sequence[Any]) -> Any:
        """The instructions of a code object, of which each that is read counts as executed."""
        return _Read(self.now.lines.setdefault(code, set()), instructions)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A block that is a stage of compiling."""
        begin = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            took, inside = time.perf_counter() - begin, self._inside.pop()
            self.now.phases[name] = self.now.phases.get(name, 0.0) + took - inside
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


class Lines:
    """The lines that captures follow.

    Attributes:
        runs: (code object, lines of it in the order in which they were executed).
    """

    def __init__(self) -> None:
        self.runs: list[tuple[types.CodeType, list[int]]] = []

    def reading(self, code: types.CodeType, instructions: Sequence[Any]) -> Any:
        """The instructions of a code object, of which each that is read counts as executed."""
        lines: list[int] = []
        self.runs.append((code, lines))
        return _Followed(lines, instructions)


_BEFORE = {"RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR"}  # they set a frame up, and are in no line


class _Followed:
    __slots__ = ("lines", "instructions")

    def __init__(self, lines: list[int], instructions: Sequence[Any]) -> None:
        self.lines, self.instructions = lines, instructions

    def __getitem__(self, place: int) -> Any:
        instr = self.instructions[place]
        if instr.line and instr.op not in _BEFORE and (not self.lines or self.lines[-1] != instr.line):
            self.lines.append(instr.line)
        return instr


def reading(code: types.CodeType, instructions: Sequence[Any]) -> Any:
    """The instructions of a code object that is captured in this thread, for whoever asks for their lines."""
    for reader in (observer(), getattr(_local, "lines", None)):
        if reader is not None:
            instructions = reader.reading(code, instructions)
    return instructions


@contextlib.contextmanager
def following(lines: Lines | None) -> Iterator[None]:
    """The lines of what is captured in the block are added to ``lines``; None: nobody asks for them."""
    before, _local.lines = getattr(_local, "lines", None), lines
    try:
        yield
    finally:
        _local.lines = before


def observer() -> Observer | None:
    """Whoever asks for a report in this thread."""
    return getattr(_local, "observer", None)


@contextlib.contextmanager
def observed(describe: Callable[[Any], Any] | None = None) -> Iterator[Observer]:
    """All that is compiled in the block is told to the observer that it gives. ``describe``: what is noted of each
    input of a graph."""
    before, made = observer(), Observer(describe)
    _local.observer = made
    try:
        yield made
    finally:
        _local.observer = before


# Observes a block for the name of what is compiled in it, and writes all of it to the folder ``config.debug``: set by
# what writes it, which is loaded later than this.
recorder: Callable[[str], contextlib.AbstractContextManager] | None = None


def recorded(name: str) -> contextlib.AbstractContextManager:
    """A block in which something of this name is compiled: written to ``config.debug``, where that is set and nobody
    else observes."""
    if not config.debug or observer() is not None or recorder is None:
        return contextlib.nullcontext()
    return recorder(name)
