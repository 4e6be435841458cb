"""Whether an entry that breaks the graph is faster than eager: calls of the program are timed one way and the other,
and the entry is left to eager where that is faster.

A break costs a call of Python's and the facts of what goes on behind it, so a program that breaks at every step may
gain less in its kernels than that. Nothing tells it beforehand but the clock. Only calls that the program makes anyway
are timed: a few of them run in eager, which gives the same. They are not compared while anything is still being
compiled, nor where random numbers are drawn, which are not eager's (``config.fallback_random``): one seed gives one
result.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from .. import config, logs, torch_private
from ..devices import registered
from . import background

if TYPE_CHECKING:
    from ..runtime.native import Entry

log = logs.channel("graph_breaks")
QUIET = 2  # calls in a row that compile nothing, before any is timed
PAIRS = 3  # calls that are timed each way
MOST_CALLS = 200  # of a program that never stops to compile, or where nothing can be timed
AHEAD = 0.95  # eager has to take less than this share of the compiled time ...
FORWARD_AHEAD = 0.7  # ... and than this one where a backward is to come, whose time is not seen
BEHIND = 1.25  # a first pair that says so is enough
SLOW_S = 20.0  # calls that take longer are not repeated in eager


def _random_states() -> list[bytes]:
    return [g.get_state().numpy().tobytes() for kind in registered() for g in kind.generators() or ()]


def _may_time() -> bool:
    """Whether a call can be timed here: not while work is being recorded on a device, and in one process of several,
    which have to do the same."""
    if background.in_several_processes() or background.is_busy():
        return False
    return not torch.are_deterministic_algorithms_enabled() and not any(kind.recording() for kind in registered())


def _has_room() -> bool:
    """Whether eager's memory is sure to be there: devices have as much again as the program has taken so far."""
    return all(kind.has_room() for kind in registered())


def _now() -> float:
    """The clock in seconds, once devices have done what they were given."""
    for kind in registered():
        kind.settle()
    return time.perf_counter()


class Trial:
    """What the dispatcher asks and tells at each call of one entry, until it is decided.

    Attributes:
        name: what messages call the function.
        breaks: of its graph.
        compiled: says how much has been compiled so far in this process.
    """

    def __init__(self, entry: Entry, name: str, breaks: int, compiled: Any) -> None:
        self.entry, self.name, self.breaks, self.compiled = entry, name, breaks, compiled
        self.calls = self.quiet = 0
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.grad = False
        self.before: Any = None
        self.eager: bool | None = None
        self.start = 0.0

    def begin(self) -> bool | None:
        """Called before a call: whether it runs in eager; None if it is no part of the trial."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.entry.trial = None
            return None
        if not _may_time():
            return None
        self.eager = self.quiet > QUIET and len(self.times[True]) < len(self.times[False])
        if self.eager and not _has_room():
            self.entry.trial = self.eager = None
            return None
        self.before = self.compiled(), _random_states()
        self.start = _now()
        return self.eager

    def end(self, result: object) -> None:
        """Called behind a call with its result, or NotImplemented if it has raised."""
        took, eager, self.eager = _now() - self.start, self.eager, None
        if eager is None:  # another call of the same function in this one, or in another thread, has come between
            return
        count, states = self.before
        if states != _random_states() and not config.fallback_random or took > SLOW_S:
            self.entry.trial = None
            return
        if result is NotImplemented or count != self.compiled():
            self.quiet = 0
            return
        self.quiet += 1
        if self.quiet <= QUIET:
            return
        self.times[eager].append(took)
        leaves = torch_private.pytree.tree_iter(result)
        self.grad |= any(isinstance(t, torch.Tensor) and t.requires_grad for t in leaves)
        if eager:
            self.judge()

    def judge(self) -> None:
        """Decide behind a pair of calls, if it can be told."""
        compiled, eager = min(self.times[False]), min(self.times[True])
        if eager > BEHIND * compiled:
            self.entry.trial = None
        elif len(self.times[True]) >= PAIRS:
            self.entry.trial = None
            if eager < (FORWARD_AHEAD if self.grad else AHEAD) * compiled:
                self.entry.leave_to_eager()
                log(f"{self.name} is left to eager for arguments like these: it breaks its graph ({self.breaks} times "
                    f"in the first one), and takes {compiled * 1e3:.3g} ms compiled, {eager * 1e3:.3g} ms in eager. "
                    "Its breaks are told above; with JIT_EAGER_WHERE_FASTER=0 it stays compiled")
