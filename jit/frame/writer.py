"""Writes entries to disk beside the program: by one thread, once nothing has been compiled for a moment, and at the end
of the process."""

from __future__ import annotations

import atexit
import collections
import os
import threading
import time
import weakref
from typing import Any, Callable

from .. import logs, turns

QUIET_S = 0.3  # without anything new, until it begins
at_once = False  # each entry is written when it is made: for what has to be there at the end, whatever comes between
_LAST_S = 20.0  # that the end of the process waits for what is being written
log = logs.channel("cache")


class Writer:
    """The queue of what is to be written, and the thread that does it while there is any."""

    def __init__(self) -> None:
        self.jobs: collections.deque = collections.deque()
        self.changed = threading.Condition(threading.Lock())
        self.working = threading.Lock()  # held while a job is done
        self.thread: threading.Thread | None = None
        self.newest = 0.0

    def add(self, job: Callable[[Any], None], owner: Any, name: str) -> None:
        """Do ``job(owner)`` soon, unless ``owner`` is gone by then: ``job`` is not to keep anything of it alive.
        ``name``: what people call it."""
        if at_once:
            job(owner)
            return
        with self.changed:
            self.jobs.append((job, weakref.ref(owner), name))
            self.newest = time.monotonic()
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="jit-writer", daemon=True)
                try:
                    self.thread.start()
                except RuntimeError:  # no more threads: it is done at the end
                    self.thread = None

    def run(self) -> None:
        while True:
            with self.changed:
                left = self.newest + QUIET_S - time.monotonic()
                if not self.jobs:
                    self.thread = None
                    return
            if left > 0:
                time.sleep(left)
                continue
            with turns.beside():
                self.one()

    def one(self) -> bool:
        """Do the next job; False where there is none."""
        with self.working:
            try:
                job, owner, name = self.jobs.popleft()
            except IndexError:
                return False
            alive = owner()
            if alive is None:
                log(f"{name} is not kept: nothing of the program holds what jit.compile gave any more")
            else:
                try:
                    job(alive)
                except Exception as error:  # the program has nothing to do with it
                    log(f"not kept: {type(error).__name__}: {error}")
        return True

    def finish(self, seconds: float = _LAST_S) -> bool:
        """Do all that is left; False where that takes longer."""
        end = time.monotonic() + seconds
        with turns.hurried():
            while self.jobs and time.monotonic() < end:
                self.one()
            if not self.working.acquire(timeout=max(0.0, end - time.monotonic())):
                return False
        self.working.release()
        return not self.jobs


_writer = Writer()


def add(job: Callable[[Any], None], owner: Any, name: str) -> None:
    """See ``Writer.add``."""
    _writer.add(job, owner, name)


def finish() -> bool:
    """See ``Writer.finish``."""
    return _writer.finish()


def _in_child() -> None:
    """A forked process has nothing to write but its own."""
    global _writer
    _writer = Writer()


atexit.register(finish)
os.register_at_fork(after_in_child=_in_child)
