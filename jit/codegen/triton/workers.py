"""Processes that compile kernels (``worker.py``), so that a fault of Triton or LLVM, which may end a process at any
time (an assertion, memory that is all used), ends none but theirs.

They are started when a program is captured that will need them, have imported triton after 0.1 to 0.4 s, stay for later
kernels, and end with this process, since their stdin closes with it. A job at which a process ends is given to one
more, for it may have been ended from outside; if that ends too, the job's result is an error. Only where no process can
be started do threads of this process do the work.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any, Callable

from ... import config, logs, progress, turns
from ...errors import CompileError
from . import worker

log = logs.channel("kernels")
# Threads of this process that build kernels where no process can be started. What Triton does in Python, a tenth of the
# work, they do in turns.
LOCAL_THREADS = 4
ATTEMPTS = 2  # processes that may end at one job
_lock = threading.Lock()
_pool: "Workers | None" = None


def build(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of ``worker.build`` in order; ``{"error": text}`` where it raised, or where the processes that were
    at it have ended. It returns when all are done, and other threads may build at the same time.

    Raises:
        CompileError: triton is not installed.
    """
    return begin(jobs)()


def begin(jobs: list[dict[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """Begin with ``build``: what is returned waits for the results."""
    batch, pool = _Batch(jobs), workers()
    progress.kernels(0, len(jobs))
    for _ in range(max(1, min(len(jobs), config.compile_threads))):
        options = contextvars.copy_context()  # of the function that is being compiled
        threading.Thread(target=options.run, args=(pool.serve, batch), name="jit-compile", daemon=True).start()

    def finish() -> list[dict[str, Any]]:
        turns.wait_until(batch.done)
        return batch.results

    return finish


def workers() -> "Workers":
    """The processes of this process; a forked child has its own."""
    global _pool
    with _lock:
        if _pool is None or _pool.pid != os.getpid():
            _pool = Workers()
            atexit.register(_pool.close)
        return _pool


class _Batch:
    """Jobs that several threads take from, until none is left; ``done`` is set when all have a result."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        # What takes longest is begun first: products, whose loads are in stages, and then long texts.
        self.left = sorted(enumerate(jobs), key=lambda job: (job[1].get("stages", 0), len(job[1].get("text", ""))))
        self.results: list = [None] * len(jobs)
        self.missing, self.done, self.lock = len(jobs), threading.Event(), threading.Lock()

    def serve(self, run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Do jobs with ``run(job) -> result`` while there are any; what it raises becomes an error."""
        while True:
            with self.lock:
                if not self.left:
                    return
                i, job = self.left.pop()
            try:
                result = run(job)
            except Exception as error:  # told to whoever waits for the result
                result = {"error": f"{type(error).__name__}: {error}"}
            with self.lock:
                self.results[i] = result
                self.missing -= 1
                progress.kernels(len(self.results) - self.missing, len(self.results))
                if not self.missing:
                    self.done.set()


class _Worker:
    """A process that compiles one kernel after the other."""

    def __init__(self) -> None:
        """Start it. Raises OSError where that is not possible, CompileError where triton is not installed."""
        spec = importlib.util.find_spec("triton")
        if spec is None:
            raise CompileError("GPU kernels need the triton package, which is not installed: pip install triton")
        if not sys.executable:
            raise OSError("there is no executable of Python, as where another program runs it")
        folder = os.path.dirname(os.path.dirname(spec.origin))
        self.process = subprocess.Popen([sys.executable, "-P", worker.__file__, folder], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, close_fds=True)
        self.ready = False

    def starts(self) -> bool:
        """Wait until it is ready; False where it has ended before."""
        self.ready = self.ready or self._next() == "ready"
        return self.ready

    def answer(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """What it makes of a job; None where it has ended."""
        try:
            worker.write_message(self.process.stdin, job)
        except OSError:
            return None
        return self._next()

    def _next(self) -> str | dict[str, Any] | None:
        try:
            return worker.read_message(self.process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):  # it has ended within a message
            return None

    def end(self) -> str:
        """Wait until it has ended, or end it; says how it did."""
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        for stream in self.process.stdout, self.process.stdin:
            with contextlib.suppress(OSError):  # what was written last had nobody to read it
                stream.close()
        return f"signal {signal.strsignal(-code) or -code}" if code < 0 else f"exit status {code}"


class Workers:
    """Up to ``config.compile_threads`` processes. A thread that has jobs takes one that is idle, or starts one, or
    waits."""

    def __init__(self) -> None:
        self.pid, self.count, self.broken, self.ahead = os.getpid(), 0, False, False
        self.idle: list[_Worker] = []  # the one that waits for longest comes first
        self.changed = threading.Condition()

    def start(self) -> None:
        """Start processes ahead, all but one of those that may be: the program computes meanwhile. It does not wait
        for them."""
        with self.changed:
            wanted = 0 if self.ahead else max(1, config.compile_threads - 1) - self.count
            self.ahead = True
        if wanted > 0:
            threading.Thread(target=self._start, args=(wanted,), name="jit-compile", daemon=True).start()

    def _start(self, wanted: int) -> None:
        for _ in range(wanted):
            with self.changed:
                if self.broken or self.count >= max(1, config.compile_threads):
                    return
                self.count += 1
            one = None
            try:
                one = _Worker()
            except (OSError, CompileError):  # told when a kernel is asked for
                return
            finally:
                with self.changed:
                    if one is None:
                        self.count -= 1
                    else:
                        self.idle.append(one)
                    self.changed.notify_all()

    def serve(self, batch: _Batch) -> None:
        """Do jobs of a batch while there are any, by one process, or here where none can be started."""
        mine: list[_Worker] = []

        def run(job: dict[str, Any]) -> dict[str, Any]:
            ends: list[str] = []
            while len(ends) < ATTEMPTS:
                if not mine:
                    one = self._take()
                    if one is None:
                        return _build_here(job)
                    mine.append(one)
                result = mine[0].answer(job)
                if result is not None:
                    return result
                ends.append(self._drop(mine.pop()))
            return {"error": f"each of the {ATTEMPTS} processes that compiled it has ended: {', '.join(ends)}"}

        batch.serve(run)
        with self.changed:
            self.idle += mine
            self.changed.notify_all()

    def _take(self) -> _Worker | None:
        """A process that is ready; None where there is none and none can be started."""
        while True:
            with self.changed:
                while not self.idle and (self.broken or self.count >= max(1, config.compile_threads)):
                    if not self.count:
                        return None
                    self.changed.wait()
                if self.idle:
                    one = self.idle.pop(0)
                else:
                    try:
                        one = _Worker()
                    except OSError as error:
                        self._broken(str(error))
                        continue
                    self.count += 1
            if one.starts():
                return one
            how = self._drop(one)
            with self.changed:
                self._broken(how)

    def _drop(self, one: _Worker) -> str:
        """Forget a process; says how it has ended."""
        how = one.end()
        with self.changed:
            self.count -= 1
            self.changed.notify_all()
        return how

    def _broken(self, why: str) -> None:
        log(f"no process that compiles kernels can be started: {why}")
        self.broken = True
        self.changed.notify_all()

    def close(self) -> None:
        """End the idle processes, at the end of this one. Others end when they have nobody to tell their result."""
        with self.changed:
            ending, self.idle, self.broken = self.idle, [], True
            self.count -= len(ending)
            self.changed.notify_all()
        for one in ending:
            one.process.stdin.close()
            if not one.ready:  # it has nothing to end yet, and would first import all of triton
                one.process.kill()
        for one in ending:
            try:
                one.process.wait(2)
            except subprocess.TimeoutExpired:
                one.process.kill()


_here = threading.Semaphore(LOCAL_THREADS)


def _build_here(job: dict[str, Any]) -> dict[str, Any]:
    with _here:
        return worker.build(job)
