"""Log channels, switched on by ``JIT_LOGS=graph,guards`` (or ``all``) and written to stderr or to the file
``JIT_LOGS_OUT``."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Callable

from . import observing, progress, telling
from .spelling import meant

CHANNELS = {
    "graph": "each captured graph as runnable Python",
    "guards": "the guard program of each new entry",
    "recompiles": "why the existing entries of a function did not match",
    "graph_breaks": "each break or eager fallback: file, line, reason, hint",
    "passes": "how many nodes each pass leaves; of passes of the user's the graph after them",
    "kernels": "source text of each generated kernel",
    "templates": "the candidates for each product with an epilogue, with their times",
    "bytecode": "original and rewritten bytecode",
    "plan": "the steps that the native executor runs",
    "cache": "which compiled functions are read from disk and kept there, and why others are not",
    "cudagraphs": "which plans are recorded into CUDA graphs, and why others are not",
    "timing": "seconds spent in each stage of a compilation",
}


class Channel:
    """One named log; true when it is enabled or listened to, called with text to write a record."""

    __slots__ = ("name", "enabled", "listener")

    def __init__(self, name: str) -> None:
        self.name, self.enabled = name, False
        self.listener: Callable[[str], None] | None = None  # is told too, whether it is enabled or not

    def __bool__(self) -> bool:
        return self.enabled or self.listener is not None

    def __call__(self, text: str) -> None:
        if self.listener is not None:
            self.listener(str(text))
        if self.enabled:
            body = str(text).rstrip("\n").replace("\n", f"\n[jit:{self.name}] ")
            _write(f"[jit:{self.name}] {body}\n")


class _Spent(threading.local):
    """The seconds of stages in one thread: by group, and of those inside the present one."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.inside = 0.0


_PASS = "pass "  # how the stages of single passes begin
_LEAST = 0.001  # seconds: what is shorter tells nothing
_spent = _Spent()
_channels = {name: Channel(name) for name in CHANNELS}


def _write(text: str) -> None:
    path = os.environ.get("JIT_LOGS_OUT")
    if path:
        try:
            with open(path, "a", encoding="utf-8") as f:
                f.write(text)
            return
        except OSError as error:
            telling.warn(f"JIT_LOGS_OUT: {error}; logging to stderr. Name a file that can be written.",
                         RuntimeWarning)
    with progress.cleared():
        sys.stderr.write(text)


def channel(name: str) -> Channel:
    """The channel called ``name``. Raises ValueError naming the channels that exist."""
    if name not in _channels:
        raise ValueError(f"no log channel {name!r}{meant(name, (*CHANNELS, 'all'))}; the channels are: "
                         f"{', '.join(CHANNELS)}, all")
    return _channels[name]


def enable(names: str = "") -> None:
    """Switch on exactly the channels in a comma-separated list (``all`` for every one); raise ValueError for an unknown
    one."""
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    chosen = set(CHANNELS) if "all" in wanted else {channel(n).name for n in wanted if n != "all"}
    for n, c in _channels.items():
        c.enabled = n in chosen


@contextlib.contextmanager
def timed(stage: str) -> Iterator[None]:
    """Report the seconds that the block takes to the ``timing`` channel and to who asks for a report, and that it is
    under way (``progress``)."""
    log, observer = _channels["timing"], observing.observer()
    if not log:
        with progress.phase(stage), contextlib.nullcontext() if observer is None else observer.stage(stage):
            yield
        return
    start, outer = time.perf_counter(), _spent.inside
    _spent.inside = 0.0
    try:
        with progress.phase(stage), contextlib.nullcontext() if observer is None else observer.stage(stage):
            yield
    finally:
        took = time.perf_counter() - start
        group = group_of(stage)
        _spent.stages[group] = _spent.stages.get(group, 0.0) + took - _spent.inside
        _spent.inside = outer + took
        if took >= _LEAST or not stage.startswith(_PASS):
            log(f"{stage}: {took:.3f} s")


def group_of(stage: str) -> str:
    """What a stage is counted with in a summary: passes count together, and so do compilations of C++."""
    return "passes" if stage.startswith(_PASS) else "compiling C++" if stage.startswith("g++") else stage


def stages() -> str:
    """The seconds of the stages in this thread since the last call, without those of stages inside them, the longest
    first, as text: where the time of a compilation went. Only while the ``timing`` channel is on."""
    found = sorted(_spent.stages.items(), key=lambda row: -row[1])
    _spent.stages = {}
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in found if seconds >= _LEAST)


try:
    enable(os.environ.get("JIT_LOGS", ""))
except ValueError as error:
    raise ValueError(f"JIT_LOGS: {error}") from None
