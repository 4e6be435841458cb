"""Compiling in the background: ``jit.config.compile_in = "background"``.

A call for which no entry fits runs in eager at once, and leaves a *job* to a thread, which captures and compiles;
later calls find the entry. One thread does all jobs of a process, one after the other, and takes rests while the
program runs (``jit/turns.py``). A job begins when the call that has left it is over, so that this call takes what
eager takes: the dispatcher tells the end of it (``FirstCall``). A call that takes long, such as a function that is
all of a training, has its job begun after ``turns.PATIENCE_S``; whoever waits for the jobs has all begun at once.
The thread works under the state of the call (``State``): grad mode, inference mode, autocast, the default device, the
call's context variables, the current device and stream. What the program's thread alone has, or what has to be
computed from values of its tensors, it does not look at: such a function is compiled in its next call
(``turns.InTheCall``).

Nothing is taken from the program meanwhile, so what the thread reads may change while it does. An entry relies on
nothing but its facts, and a fact says of a value what was captured with it; where the program has changed something in
between, the facts contradict each other, or what is there now, and the entry never fits. What the call
itself has changed is captured as it has left it, which is what later calls find. What comes of a change inside of a
rule is an error, which tells nobody anything: the function is tried again at a later call, ``ATTEMPTS`` times, and then
in the call itself, as are functions whose capture raises for reasons that the program has to hear of (``fullgraph``,
``error_on_recompile``, a pass of the user's).
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import contextvars
import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import torch

from .. import logs, torch_private, turns
from ..devices import registered
from ..errors import JitError
from ..runtime import native
from . import stance

ATTEMPTS = 3  # that fail in the background, before a function is compiled in the call
MOST_HELD = 1 << 28  # bytes of tensors given to calls, until no more jobs are taken
_STOP_S = 20.0  # that the end of the program waits for the thread at most
_log = logs.channel("timing")


@dataclasses.dataclass
class State:
    """What a thread has of its own, as a call finds it.

    Attributes:
        facts: the fact about torch's state that an entry would rely on; ``threads``: that operators share out work to.
        modes: of torch functions.
    """

    facts: tuple
    threads: int
    modes: list
    grad: bool
    inference: bool
    autocast: tuple
    cached: bool
    function_state: Any
    places: list
    context: contextvars.Context

    @staticmethod
    def of_call() -> State | None:
        """The present one; None where it cannot be had in another thread: while a mode or a transform of the program's
        sees every operation, or in forward mode."""
        modes = torch_private.function_modes()
        if (torch_private.peek_transform() is not None or torch_private.dispatch_modes()
            or torch_private.in_forward_mode()
            or not all(isinstance(mode, torch_private.DefaultDevice) for mode in modes)):
            return None
        kinds = [kind.type for kind in registered() if kind.autocast_key is not None]
        found = State(native().global_state_snapshot(), torch.get_num_threads(), modes, torch.is_grad_enabled(),
                      torch.is_inference_mode_enabled(),
                      tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
                      torch.is_autocast_cache_enabled(), torch_private.get_function_state(),
                      [kind.place() for kind in registered()], contextvars.copy_context())
        return None if found.facts in _not_ours else found

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, this thread has that state."""
        with contextlib.ExitStack() as stack:
            for place in self.places:
                stack.enter_context(place)
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, enabled, dtype in self.autocast:
                stack.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
                stack.callback(torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind))
                torch.set_autocast_dtype(kind, dtype)
                torch.set_autocast_enabled(kind, enabled)
            stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(self.cached)
            for mode in self.modes:
                stack.enter_context(torch.device(mode.device))
            stack.callback(torch_private.set_function_state, torch_private.get_function_state())
            torch_private.set_function_state(self.function_state)
            yield

    def holds(self) -> bool:
        """Whether this thread's is the same."""
        return native().global_state_snapshot() == self.facts and torch.get_num_threads() == self.threads


def shared_state() -> tuple:
    """The part of torch's state that all threads share: the default dtype, determinism, which kernels attention and
    convolutions take."""
    found = native().global_state_snapshot()
    return found[5], found[6], found[9], found[10]


def in_several_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


# Facts about torch's state that this thread could not be given.
_not_ours: set[tuple] = set()


class Waiting:
    """Of one function: its job, and what came of earlier ones. ``in_call``: it is compiled in calls."""

    __slots__ = ("job", "attempts", "in_call")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.attempts, self.in_call = 0, False


class FirstCall:
    """What the dispatcher asks and tells at a call that leaves a job, as it does a ``trial.Trial``."""

    __slots__ = ("job", "__weakref__")

    def __init__(self, job: Job) -> None:
        self.job = job

    def begin(self) -> bool:
        """Called before the call: it runs in eager."""
        turns.begin_call(self)
        return True

    def end(self, result: object) -> None:
        """Called behind it, whether it has raised or not."""
        turns.end_call(self)
        _queue.begin(self.job)

    def entry(self) -> Any:
        """What ``on_miss`` gives to have the original run and to be told. It is no entry of the function's."""
        made = native().Dispatcher(_nothing, None).add_entry(None, None)
        made.trial = self
        return made


def _nothing() -> None:
    pass


class Job:
    """One call to compile for.

    Attributes:
        work: ``work(dispatcher, values, known)`` does it; ``known``: the entries when the call was made.
        until: when it begins, by the clock, if the call is not over before.
        held: bytes of the tensors that were given to the call.
    """

    def __init__(self, waiting: Waiting, dispatcher: Any, values: tuple, work: Callable, state: State,
                 name: str) -> None:
        self.waiting, self.dispatcher = waiting, weakref.ref(dispatcher)
        self.values, self.work, self.state, self.name = values, work, state, name
        self.known = dispatcher.entries
        self.until, self.over = time.monotonic() + turns.PATIENCE_S, False
        self.held = _bytes_of(values)

    def may_begin(self, now: float) -> bool:
        return now >= self.until or turns.is_hurried() or self.over and not turns.calls_left()

    def run(self) -> None:
        """Compile, in the background, unless that is not wanted any more."""
        state, work, call = self.state, self.work, (self.values, self.known)
        dispatcher = self.dispatcher()
        # As long as it takes, and no longer.
        self.values = self.known = self.work = self.state = None  # type: ignore[assignment]
        if dispatcher is not None and stance.now() == "default":
            state.context.run(self.do, dispatcher, call, work, state)

    def do(self, dispatcher: Any, call: tuple, work: Callable, state: State) -> None:
        with state.entered():
            if not state.holds():
                _not_ours.add(state.facts)
                return
            try:
                if work(dispatcher, *call):
                    self.waiting.attempts = 0
                else:
                    self.again("the call has changed what it was compiled for")
            except turns.InTheCall as why:
                self.leave(str(why))
            except turns.Stopped:
                raise
            except turns.Changed as what:
                self.again(str(what))
            except BaseException as error:  # whatever a rule, or code of the user's that it calls, raises
                text = f"{type(error).__name__}: {error}"
                if isinstance(error, Exception) and not isinstance(error, JitError):
                    self.again(text)  # of a rule: what it reads may have changed meanwhile
                else:
                    self.leave(text)  # the program has to hear of it

    def again(self, why: str) -> None:
        self.waiting.attempts += 1
        if self.waiting.attempts >= ATTEMPTS:
            self.leave(why)
        else:
            _log(f"{self.name}: not compiled in the background, to be tried again: {why}")

    def leave(self, why: str) -> None:
        self.waiting.in_call = True
        _log(f"{self.name}: compiled in the call, not in the background: {why}")


class Queue:
    """The jobs of this process, and the thread that does them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: collections.deque[Job] = collections.deque()
        self.now: Job | None = None
        self.thread: threading.Thread | None = None
        self.ended = False

    def add(self, job: Job) -> bool:
        """Whether it is taken: not where another thread's call was first, or where too much memory waits already."""
        with self.changed:
            if job.waiting.job is not None or not self.has_room(job):
                return False
            job.waiting.job = job
            self.jobs.append(job)
            self.changed.notify_all()
        return True

    def start(self) -> bool:
        """Whether there is the thread."""
        if self.thread is None and not self.ended:
            with self.changed:
                if self.thread is None:
                    made = threading.Thread(target=self.serve, name="jit-background", daemon=True)
                    try:
                        made.start()
                    except RuntimeError:  # no more threads
                        return False
                    self.thread = made
        return self.thread is not None and not self.ended

    def has_room(self, job: Job) -> bool:
        left = [*self.jobs, *([self.now] if self.now is not None else [])]
        return not left or sum(one.held for one in left) + job.held <= MOST_HELD

    def begin(self, job: Job) -> None:
        """Its call is over."""
        with self.changed:
            job.over = True
            self.changed.notify_all()

    def next(self) -> Job | None:
        """The first job that may begin, or None after a while in which there was none."""
        now = time.monotonic()
        for job in self.jobs:
            if job.may_begin(now):
                self.jobs.remove(job)
                return job
        self.changed.wait(min(job.until for job in self.jobs) - now if self.jobs else None)
        return None

    def serve(self) -> None:
        while True:
            with self.changed:
                job = None
                while job is None and not self.ended:
                    job = self.next()
                if self.ended or job is None:
                    return
                self.now = job
            try:
                job.run()
            except turns.Stopped:
                pass
            finally:
                with self.changed:
                    job.waiting.job = self.now = None
                    self.changed.notify_all()
                del job

    def is_empty(self) -> bool:
        return self.now is None and not self.jobs

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is left to do; whether that is so."""
        # Code of the program's in a compilation, such as a finalizer or a backend: it would wait for itself.
        if threading.current_thread() is self.thread or native().is_capturing():
            return self.is_empty()
        end = None if timeout is None else time.monotonic() + timeout
        with turns.hurried(), self.changed:
            self.changed.notify_all()  # what waits for the end of its call begins now
            while not self.is_empty():
                # In steps: an interrupt is seen in between.
                left = 1.0 if end is None else min(1.0, end - time.monotonic())
                if left <= 0 or self.ended:
                    return self.is_empty()
                self.changed.wait(left)
        return True

    def cancel(self, timeout: float | None = None) -> None:
        """Let go of all jobs, and wait for the thread to leave the present one."""
        if threading.current_thread() is self.thread:
            return
        turns.stop(True)
        try:
            with self.changed:
                for job in self.jobs:
                    job.waiting.job = None
                self.jobs.clear()
            self.wait(timeout)
        finally:
            turns.stop(False)


_queue = Queue()


IN_CALL = object()


def take(waiting: Waiting, dispatcher: Any, values: tuple, work: Callable, told: bool) -> Any:
    """Leave ``work`` for a call to the background: what ``on_miss`` gives for the call, which runs in eager, or IN_CALL
    where it has to compile itself.

    Args:
        told: the dispatcher tells the end of this call.
    """
    if waiting.job is not None or any(kind.recording() for kind in registered()):
        return None
    state = State.of_call() if not waiting.in_call and _queue.start() else None
    if state is None:
        return IN_CALL if _queue.is_empty() else None
    job = Job(waiting, dispatcher, values, work, state, dispatcher.__qualname__)
    return FirstCall(job).entry() if _queue.add(job) and told else None


def _bytes_of(values: tuple) -> int:
    """Of the tensors among them that nobody may keep but the call: not of parameters."""
    given = [v for value in values
             for v in (value.values() if type(value) is dict else value if type(value) in (tuple, list) else (value,))]
    return sum(v.numel() * v.element_size() for v in given if type(v) is torch.Tensor)


def start() -> None:
    """Have the thread there before it is needed: starting it waits for it, and calls are not to."""
    _queue.start()


def is_busy() -> bool:
    """Whether anything is being compiled in the background."""
    return not _queue.is_empty()


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Wait until all that was left to the background is compiled (``jit.config.compile_in``).

    Args:
        timeout: seconds after which to return in any case; None: no limit.

    Returns:
        Whether nothing is left to do.
    """
    return _queue.wait(timeout)


def cancel() -> None:
    """Forget what was to be compiled, and what is being."""
    _queue.cancel()


def _at_exit() -> None:
    _queue.ended = True
    if _queue.thread is not None:
        _queue.cancel(_STOP_S)
        turns.stop(True)
        with _queue.changed:
            _queue.changed.notify_all()
        _queue.thread.join(_STOP_S)


def _after_in_child() -> None:
    """The thread is the parent's: what it was to do is done by calls of the child's."""
    global _queue
    for job in (_queue.now, *_queue.jobs):
        if job is not None:
            job.waiting.job = None
    _queue = Queue()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_in_child)
