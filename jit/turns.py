"""How the thread that compiles in the background works beside the threads of the program.

Compiling is mostly Python, so it and the program take turns with the interpreter's lock. CPython hands that over every
5 ms where it is not given up, which a program that gives it up at each operator would wait for each time. So the rules
call ``point`` wherever they come by often: after a slice of work it sleeps for a moment, longer where the program has
run meanwhile, and not at all while somebody waits for what is being compiled (``hurried``).

At such a point the work can also be ended (``Stopped``): at the end of the program, and by ``jit.reset``. A process
that forks does so while the thread is at a point, where it imports nothing and holds no lock but those that a child
makes anew.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import torch

SLICE_S = 0.0004  # of work between two rests
REST_S = 0.0001  # enough for a thread that waits for the interpreter's lock to get it
LONG_REST_S = 0.001  # while the program computes: it has the lock for two thirds of the time at least
BUSY = 0.1  # of the time in which the program's threads compute, from which on it does
COLLECT_S = 1.0  # between two collections of garbage among new objects
_NEVER = 1 << 30  # objects, until Python collects garbage by itself
FORK_WAITS_S = 10.0
_POLL_S = 0.02


class Stopped(BaseException):
    """The work in the background is to end: whatever is being compiled is not wanted any more."""


class InTheCall(BaseException):
    """What is being compiled cannot be in the background: it has to read what only the thread of the call has, or what
    the program changes meanwhile. It says why."""


class Changed(BaseException):
    """The program has changed what the work relies on all along."""


class _Work:
    """What the thread in the background does now. ``thread``: its number, while it works; 0 else."""

    def __init__(self) -> None:
        self.thread = 0
        self.until = 0.0  # the end of its slice
        self.seen = (0.0, 0.0)  # the clock, and how long the process's other threads have computed
        self.waiting = 0  # for its end
        self.stopping = False
        self.gate = threading.Lock()  # held while it works, but for its rests: what forks takes it
        self.read: Callable[[], tuple] = tuple  # what the program may not change meanwhile, and what it was
        self.state: tuple = ()
        self.thresholds: tuple[tuple, tuple] | None = None  # of the garbage collector: those before, and ours
        self.collected = 0.0
        self.tensors: list[tuple[torch.Tensor, tuple]] = []

    @contextlib.contextmanager
    def few_collections(self) -> Iterator[None]:
        """Inside, garbage is collected now and then (``collect``), among new objects alone: compiling makes so many
        that Python would look at all there are, which keeps the interpreter's lock for 0.3 s beside a large library.
        What the program sets meanwhile stays."""
        before = gc.get_threshold()
        ours = (_NEVER, *before[1:])
        if before[0]:
            gc.set_threshold(*ours)
            self.thresholds = before, ours
        try:
            yield
        finally:
            self.leave_thresholds()

    def leave_thresholds(self) -> None:
        if self.thresholds is not None and gc.get_threshold() == self.thresholds[1]:
            gc.set_threshold(*self.thresholds[0])
        self.thresholds = None

    def collect(self, now: float) -> None:
        if now > self.collected + COLLECT_S:
            self.collected = now
            if gc.isenabled():
                gc.collect(0)

    def program_computes(self) -> bool:
        """Whether other threads have computed since the last time this was asked."""
        now, others = time.perf_counter(), time.process_time() - time.thread_time()
        (then, before), self.seen = self.seen, (now, others)
        return others - before > BUSY * (now - then)


_work = _Work()


def point() -> None:
    """Called by rules of the compiler wherever they come by often: the thread in the background lets others run, and so
    does the one that writes to disk."""
    if _work.thread and _work.thread == threading.get_ident():
        _turn()
    elif _beside.thread and _beside.thread == threading.get_ident():
        _beside.turn()


def here() -> bool:
    """Whether this is the thread in the background, at work."""
    return _work.thread != 0 and _work.thread == threading.get_ident()


def only_in_call(why: str) -> None:
    """Raise InTheCall in the background."""
    if here():
        raise InTheCall(why)


def check_state() -> None:
    """Raise Changed where the program has changed what the work depends on since it was begun."""
    if not here():
        return
    if _work.read() != _work.state:
        raise Changed("a switch that all threads share, such as the default dtype")
    for tensor, was in _work.tensors:
        if _metadata(tensor) != was:
            raise Changed("the metadata of a tensor")


def same(first: object, second: object) -> None:
    """Raise Changed, in the background, for something that was read twice and is another one the second time."""
    if here() and first is not second and first != second:
        raise Changed("a switch that a rule reads")


def relies_on(tensor: torch.Tensor) -> None:
    """Called before the metadata of one of the program's tensors is read: in the background it may not change from here
    on."""
    if here():
        _work.tensors.append((tensor, _metadata(tensor)))


def _metadata(t: torch.Tensor) -> tuple:
    return t.requires_grad, t.shape, t.stride(), t.storage_offset(), t.dtype, t.is_leaf, t.data_ptr() % 64


@contextlib.contextmanager
def working(read: Callable[[], tuple]) -> Iterator[None]:
    """What is done inside is work in the background. ``read``: what has to be the same all along."""
    with _work.gate, _work.few_collections():
        _work.read, _work.state = read, read()
        _work.thread = threading.get_ident()
        _work.until = time.perf_counter() + SLICE_S
        _work.collected = time.perf_counter()
        try:
            yield
        finally:
            _work.thread, _work.tensors = 0, []


def stop(wanted: bool) -> None:
    """Have the work end at the next point, and what is begun before ``stop(False)``."""
    _work.stopping = wanted


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Inside, this thread waits for the work to end, which takes no rests."""
    with _lock:
        _work.waiting += 1
    try:
        yield
    finally:
        with _lock:
            _work.waiting -= 1


class _Beside:
    """What the thread that writes to disk does: it takes rests too, and nothing depends on when it ends."""

    def __init__(self) -> None:
        self.thread = 0
        self.until = 0.0
        self.program = _Work()
        self.hurried = False

    def turn(self) -> None:
        now = time.perf_counter()
        if self.hurried or now < self.until:
            return
        self.program.collect(now)
        time.sleep(LONG_REST_S if self.program.program_computes() else REST_S)
        self.until = time.perf_counter() + SLICE_S


_beside = _Beside()


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Inside, this thread does something for later: others run first. One thread at a time."""
    with _beside.program.few_collections():
        _beside.thread = threading.get_ident()
        _beside.until = time.perf_counter() + SLICE_S
        try:
            yield
        finally:
            _beside.thread = 0


def hurry(wanted: bool) -> None:
    """Whether what is done ``beside`` the program takes no rests, since somebody waits for its end."""
    _beside.hurried = wanted


_lock = threading.Lock()


def _turn() -> None:
    if _work.stopping:
        raise Stopped
    now = time.perf_counter()
    if now < _work.until:
        return
    _work.collect(now)
    if _work.waiting:
        _rest(0.0)
    else:
        _rest(LONG_REST_S if _work.program_computes() else REST_S)
    check_state()
    _work.until = time.perf_counter() + SLICE_S


def _rest(seconds: float) -> None:
    _work.gate.release()
    try:
        time.sleep(seconds)
    finally:
        _work.gate.acquire()


def wait_for(process: subprocess.Popen) -> bytes:
    """What a process has written, once it has ended. It is ended where the work is."""
    if not here():
        return process.communicate()[0]
    while True:
        _work.gate.release()
        try:
            return process.communicate(timeout=_POLL_S)[0]
        except subprocess.TimeoutExpired:
            pass
        finally:
            _work.gate.acquire()
        if _work.stopping:
            raise Stopped


def wait_until(event: threading.Event) -> None:
    """``event.wait()``, which ends where the work does."""
    if not here():
        event.wait()
        return
    while True:
        _work.gate.release()
        try:
            if event.wait(_POLL_S):
                return
        finally:
            _work.gate.acquire()
        if _work.stopping:
            raise Stopped


# ---- forks ----------------------------------------------------------------------------------------------------------

_held = threading.local()


def _before_fork() -> None:
    _held.gate = not here() and _work.gate.acquire(timeout=FORK_WAITS_S)


def _after_in_parent() -> None:
    if getattr(_held, "gate", False):
        _work.gate.release()


def _after_in_child() -> None:
    """There is no such thread in a child."""
    global _work, _lock, _beside
    _work.leave_thresholds()
    _beside.program.leave_thresholds()
    _work, _lock, _beside = _Work(), threading.Lock(), _Beside()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
