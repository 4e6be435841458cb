"""Recording a plan's steps into a CUDA graph, with memory of PyTorch's private pools, as its own graphs have.

The native executor (``native/plan_graphs.h``) says when, and what a recording serves.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Callable

import torch

from jit import logs, torch_private
from jit.runtime.extension import native

_log = logs.channel("cudagraphs")
_lock = threading.Lock()


class _Place:
    """What the recordings for one stream share: they run one after the other, and may use the same memory.

    They are made on a stream of their own, for which alone the library keeps a workspace that they use.
    """

    def __init__(self, device: int) -> None:
        self.side = torch.cuda.Stream(device)
        self.pool: Any = None
        self.users: weakref.WeakSet = weakref.WeakSet()  # the graphs with memory in the pool

    def shared_pool(self) -> Any:
        """A pool that has a user may get others; PyTorch gives one up with its last user."""
        if self.pool is None or not self.users:
            self.pool = torch.cuda.graph_pool_handle()
        return self.pool


_places: dict[tuple[int, int], _Place] = {}  # by device and stream


def refused(steps: int, reason: str) -> None:
    """Tell that a plan of so many steps, or one kind of its calls, runs without a CUDA graph."""
    if _log:
        _log(f"a plan of {steps} steps is not recorded: {reason}")


class _User:
    """Keeps a pool's memory for a recording."""

    def __init__(self, device: int, pool: Any) -> None:
        torch_private.begin_pool(device, pool)
        self.device, self.pool = device, pool

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process anything may be gone
            torch_private.release_pool(self.device, self.pool)


def record(device: int, stream: int, body: Callable[[int], None], draws: bool, apart: bool) -> Any:
    """What keeps the memory of what ``body(a stream's handle)`` launches on that stream, to be replayed on ``stream``.

    Args:
        body: launches, and records that unless ``draws``.
        draws: random numbers are drawn, from states that PyTorch gives to its own ``torch.cuda.CUDAGraph``, which
            then records and is what is given. No other thread may draw meanwhile.
        apart: some of its memory is used beyond a replay, and it shares none.

    Whatever is raised leaves nothing recorded.
    """
    with _lock, torch.cuda.device(device):
        place = _places.get((device, stream))
        if place is None:
            place = _places[device, stream] = _Place(device)
        pool = torch.cuda.graph_pool_handle() if apart else place.shared_pool()
        with torch.cuda.stream(place.side):
            try:
                if draws:
                    open_for_changes = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")
                    user: Any = torch.cuda.CUDAGraph(keep_graph=True) if open_for_changes else torch.cuda.CUDAGraph()
                    user.capture_begin(pool=pool, capture_error_mode="thread_local")
                    try:
                        body(place.side.cuda_stream)
                    finally:
                        user.capture_end()
                    if open_for_changes:
                        native().replace_fills(user.raw_cuda_graph())
                        user.instantiate()
                else:
                    user = _User(device, pool)
                    try:
                        body(place.side.cuda_stream)
                    finally:
                        torch_private.end_pool(device, pool)
            except BaseException:  # it is raised again
                place.pool = None  # which may still count the graph among its users
                if draws:
                    with contextlib.suppress(Exception):
                        torch_private.end_pool(device, pool)
                raise
        if not apart:
            place.users.add(user)
        if _log:
            _log(f"recorded on cuda:{device}, for stream {stream:#x}")
        return user
