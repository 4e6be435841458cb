"""Says on a terminal what a compilation is doing that takes longer than two seconds, in one line that is rewritten in
place and cleared at the end:

    jit: 14 s, kernels: 3 of 8 built, 2 graphs: Model.forward (/home/me/model.py:12)

The rooms report with ``phase`` (through ``logs.timed``) and ``kernels``; whatever begins a compilation does so in a
``with compiling(...)``. A thread shows the line; it is started by the first report later than 50 ms, since that takes
0.15 ms, and ends with the compilation. Where stderr is no terminal, or ``config.progress`` is off, there is neither a
thread nor a line. Errors of the stream are swallowed.

Compilations that follow each other closely, as those of what goes on after a graph break, count as one.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from . import config
from .spelling import counted

AFTER = 2.0   # seconds until it is shown
START = 0.05  # seconds until there is a thread
EVERY = 0.1   # seconds from one look to the next
GAP = 0.25    # seconds between compilations that count as one

_now: _Line | None = None
_last: _Line | None = None  # the one before, whose time goes on where the next follows closely


class _Line:
    """What one compilation, with those inside of it, has told, and the line that shows it."""

    __slots__ = ("title", "stream", "began", "ended", "phase", "done", "of", "graphs", "lock", "over", "shown",
                 "started")

    def __init__(self, title: tuple[str, str, int], stream: TextIO, before: _Line | None) -> None:
        self.title, self.stream, self.began = title, stream, time.monotonic()
        self.ended, self.graphs = 0.0, 0
        if before is not None and self.began - before.ended < GAP:
            self.began, self.graphs = before.began, before.graphs
        self.phase, self.done, self.of = "capturing", 0, 0
        self.lock, self.over = _thread.allocate_lock(), _thread.allocate_lock()
        self.shown = 0  # characters of the line on the terminal
        self.over.acquire()
        self.started = False

    def tick(self) -> None:
        """Start the thread if it is time."""
        if not self.started and time.monotonic() - self.began > START:
            self.start()

    def start(self) -> None:
        if not self.started:
            self.started = True
            with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
                _thread.start_new_thread(self.run, ())

    def run(self) -> None:
        """Shows the line until the compilation is over. Runs in a thread of its own."""
        wait = max(EVERY, AFTER - (time.monotonic() - self.began))
        while not self.over.acquire(timeout=wait):
            with self.lock:
                self.write(self.text())
            wait = EVERY
        self.over.release()

    def end(self) -> None:
        self.ended = time.monotonic()
        self.over.release()
        with self.cleared():
            pass

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """The line is off the terminal during the block; it is back at the next look if the compilation goes on."""
        # Not for ever: a terminal that is stopped (ctrl-S) keeps the thread in its write, and a handler of a signal
        # may come while its own thread is in here.
        held = self.started and self.lock.acquire(timeout=1)
        try:
            if held and self.shown:
                self.write("")
            yield
        finally:
            if held:
                self.lock.release()

    def text(self) -> str:
        name, file, line = self.title
        count = f": {self.done} of {self.of} built" if self.of else ""
        graphs = f", {counted(self.graphs, 'graph')}" if self.graphs else ""
        place = f" ({file}:{line})" if file else ""
        text = f"jit: {time.monotonic() - self.began:.0f} s, {self.phase}{count}{graphs}: {name}{place}"
        return "".join(c if c.isprintable() else "?" for c in text)

    def write(self, text: str) -> None:
        """Put ``text`` in place of what is shown, cut to the terminal's width. The caller holds the lock."""
        try:
            if not text:
                ended = "\r" + " " * self.shown + "\r"
                self.shown = 0
            elif self.ended:  # it is over: the last word was had by ``cleared``
                return
            else:
                text = text[:max(0, os.get_terminal_size(self.stream.fileno()).columns - 1)]
                ended = "\r" + text + " " * (self.shown - len(text))
                self.shown = max(self.shown, len(text))
            self.stream.write(ended)
            self.stream.flush()
        except Exception:  # whatever the stream raises: closed, gone, no file: the program is not to know
            pass


class compiling:
    """``with compiling(name, file, line):`` around a compilation of that function. One inside of another adds to
    what the other tells."""

    __slots__ = ("title", "shown", "line")

    def __init__(self, name: str, file: str = "", line: int = 0, shown: bool | None = None) -> None:
        self.title, self.shown = (name, file, line), shown
        self.line: _Line | None = None

    def __enter__(self) -> None:
        global _now
        if _now is not None or not (config.progress if self.shown is None else self.shown):
            return
        stream = sys.stderr
        try:
            if stream is None or not stream.isatty():
                return
        except Exception:  # a stream of another kind, or one that is closed
            return
        self.line = _now = _Line(self.title, stream, _last)

    def __exit__(self, *_: object) -> None:
        global _now, _last
        line = self.line
        if line is not None:
            if _now is line:  # not so in a process that was forked off meanwhile
                _now, _last = None, line
                line.end()


class phase:
    """``with phase("passes"):`` around a part of a compilation."""

    __slots__ = ("name", "before")

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: tuple[_Line, str] | None = None

    def __enter__(self) -> None:
        line = _now
        if line is not None:
            self.before = line, line.phase
            line.phase, line.done, line.of = self.name, 0, 0
            line.tick()

    def __exit__(self, *_: object) -> None:
        line = _now
        if line is not None and self.before is not None and self.before[0] is line:
            line.phase, line.done, line.of = self.before[1], 0, 0


def kernels(done: int, of: int) -> None:
    """So many kernels, or units of kernels, of so many are built; there is a wait for the others."""
    line = _now
    if line is not None:
        line.done, line.of = done, of
        line.start()


def tick() -> None:
    """Something long may be under way of which there is no more to tell: called for each operation that is captured."""
    line = _now
    if line is not None:
        line.tick()


def start() -> None:
    """A wait begins during which nothing is reported."""
    line = _now
    if line is not None:
        line.start()


def graph() -> None:
    """One more graph is compiled."""
    line = _now
    if line is not None:
        line.graphs += 1


def cleared() -> contextlib.AbstractContextManager[None]:
    """``with cleared():`` around something else that is written to the terminal."""
    line = _now
    return line.cleared() if line is not None else contextlib.nullcontext()


def _forget() -> None:
    """In a process that was forked off: the thread that shows the line is not in it."""
    global _now, _last
    _now = _last = None


os.register_at_fork(after_in_child=_forget)
