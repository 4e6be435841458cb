"""How threads of ours work beside those of the program: the one that compiles in the background, and the one that
writes entries to disk.

Compiling is mostly Python, so it and the program take turns with the interpreter's lock. CPython hands that over
every 5 ms where it is not given up, which a program that gives it up at each operator would wait for each time. So
the rules call ``point`` wherever they come by often: after a slice of work it sleeps for a moment, in proportion to
what it has computed where the program has run meanwhile, and not at all while somebody waits for what is being
compiled (``hurried``).

A call that has just left work (``begin_call``) takes what it takes in eager: the thread rests until the call ends, for
``PATIENCE_S`` at most.

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

SLICE_S = 0.001  # of work between two rests: long beside the 0.1 ms that handing over the lock takes
REST_S = 0.0001  # enough for a thread that waits for the interpreter's lock to get it
RESTS = 2.0  # times as long as the slice, while the program computes: it has the lock for two thirds of the time
LONGEST_REST_S = 0.05
PATIENCE_S = 1.0  # that work waits for the end of a call of the program's
BUSY = 0.1  # of the time in which the program's threads compute, from which on it does
PIECE = 5000  # new objects, among which garbage is looked for at a time; and the seconds after which it is, if fewer
COLLECT_S = 1.0
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


class Pace:
    """Of one thread of ours: when it rests next, and for how long."""

    def __init__(self) -> None:
        self.seen = (0.0, 0.0)  # the clock, and how long the process's other threads have computed
        self.begin()

    def begin(self) -> None:
        """A slice of work."""
        self.until, self.computed = time.perf_counter() + SLICE_S, time.thread_time()

    def turn(self) -> None:
        """Rest if it is time."""
        if time.perf_counter() >= self.until:
            _garbage.collect()
            time.sleep(self.rest())
            self.begin()

    def rest(self) -> float:
        """How long to sleep: in proportion to what was computed since the last time, where the program computes too."""
        if _work.waiting:
            return 0.0
        if not self.program_computes():
            return REST_S
        return min(max(time.thread_time() - self.computed, SLICE_S) * RESTS, LONGEST_REST_S)

    def program_computes(self) -> bool:
        """Whether other threads have computed since the last time this was asked."""
        now, others = time.perf_counter(), time.process_time() - time.thread_time()
        (then, before), self.seen = self.seen, (now, others)
        return others - before > BUSY * (now - then)


class _Garbage:
    """Python's collector of garbage, while threads of ours work: they make so many objects that it would look at all
    there are, which keeps the interpreter's lock for 0.3 s beside a large library. In its place they collect now and
    then, a few thousand new objects at a time."""

    def __init__(self) -> None:
        self.threads, self.last = 0, 0.0
        self.thresholds: tuple[tuple, tuple] | None = None  # those before, and ours

    @contextlib.contextmanager
    def in_pieces(self) -> Iterator[None]:
        """Inside, Python collects nothing by itself. What the program sets meanwhile stays."""
        with _lock:
            self.threads, self.last = self.threads + 1, time.perf_counter()
            before = gc.get_threshold()
            if self.threads == 1 and before[0]:
                self.thresholds = before, (_NEVER, *before[1:])
                gc.set_threshold(*self.thresholds[1])
        try:
            yield
        finally:
            with _lock:
                self.threads -= 1
                if not self.threads:
                    self.leave()

    def leave(self) -> None:
        if self.thresholds is not None and gc.get_threshold() == self.thresholds[1]:
            gc.set_threshold(*self.thresholds[0])
        self.thresholds = None

    def collect(self) -> None:
        """What is new, if it is many, or new for long."""
        now = time.perf_counter()
        if (gc.get_count()[0] > PIECE or now > self.last + COLLECT_S) and gc.isenabled():
            self.last = now
            gc.collect(0)


class _Work(Pace):
    """What the thread in the background does now. ``thread``: its number, while it works; 0 else."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = 0
        self.waiting = 0  # for its end
        self.stopping = False
        self.gate = threading.Lock()  # held while it works, but for its rests: what forks takes it
        self.read: Callable[[], tuple] = tuple  # what the program may not change meanwhile, and what it was
        self.state: tuple = ()
        self.tensors: list[tuple[torch.Tensor, tuple]] = []
        self.calls: dict[object, float] = {}  # of the program's, which are not to be disturbed until then

    def turn(self) -> None:
        if self.stopping:
            raise Stopped
        if time.perf_counter() < self.until:
            return
        _garbage.collect()
        while not self.waiting and not self.stopping and calls_left():
            _rest(_POLL_S)
        _rest(self.rest())
        check_state()
        self.begin()


_lock = threading.Lock()
_garbage = _Garbage()
_work = _Work()
_paces: dict[int, Pace] = {}  # by the thread, while it works


def point() -> None:
    """Called by rules of the compiler wherever they come by often: a thread in the background lets others run."""
    if _paces:
        pace = _paces.get(threading.get_ident())
        if pace is not None:
            pace.turn()


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """What this thread does inside is no part of the program: it takes rests."""
    with _garbage.in_pieces():
        _paces[threading.get_ident()] = Pace()
        try:
            yield
        finally:
            del _paces[threading.get_ident()]


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
    with _work.gate, _garbage.in_pieces():
        _work.read, _work.state = read, read()
        _work.thread = threading.get_ident()
        _paces[_work.thread] = _work
        _work.begin()
        try:
            yield
        finally:
            del _paces[_work.thread]
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


def is_hurried() -> bool:
    return _work.waiting > 0


# Without a lock, which a signal's handler might want again: each is one operation of a dict.
def begin_call(call: object) -> None:
    """Have the work rest until ``end_call``, but not for long."""
    _work.calls[call] = time.perf_counter() + PATIENCE_S


def end_call(call: object) -> None:
    _work.calls.pop(call, None)


def calls_left() -> bool:
    """Whether there are calls that are not to be disturbed."""
    if not _work.calls:
        return False
    now = time.perf_counter()
    return any(until > now for until in list(_work.calls.values()))


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
        _garbage.collect()
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
        _garbage.collect()
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
    global _work, _lock, _garbage
    _garbage.leave()
    _work, _lock, _garbage = _Work(), threading.Lock(), _Garbage()
    _paces.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
