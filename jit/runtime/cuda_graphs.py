"""Recording a plan's steps into a CUDA graph, as PyTorch records graphs: with its private memory pools and its random
generators. The native executor (``native/plan_graphs.h``) says when, and what a recording serves."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Callable

import torch

from jit import logs, torch_private

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


def record(device: int, stream: int, body: Callable[[int], None], draws: bool, apart: bool) -> tuple[Any, int]:
    """(a ``torch.cuda.CUDAGraph`` of what ``body(a stream's handle)`` launches on that stream, the driver's handle of
    it), to be replayed on ``stream``.

    Args:
        draws: random numbers are drawn, from states that PyTorch gives to the graph in ``replay``; the handle is then
            0.
        apart: some of its memory is used beyond a replay, and it shares none.

    Whatever is raised leaves nothing recorded.
    """
    with _lock, torch.cuda.device(device):
        place = _places.get((device, stream))
        if place is None:
            place = _places[device, stream] = _Place(device)
        graph = torch.cuda.CUDAGraph(keep_graph=not draws)
        pool = torch.cuda.graph_pool_handle() if apart else place.shared_pool()
        try:
            with torch.cuda.stream(place.side):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    body(place.side.cuda_stream)
                finally:
                    graph.capture_end()
        except BaseException:  # it is raised again
            # The allocator may still wait for the end, and the pool count the graph among its users.
            place.pool = None
            with contextlib.suppress(Exception):
                torch_private.end_pool(device, pool)
            raise
        if not apart:
            place.users.add(graph)
        if _log:
            _log(f"recorded on cuda:{device}, for stream {stream:#x}")
        return graph, 0 if draws else graph.raw_cuda_graph()
