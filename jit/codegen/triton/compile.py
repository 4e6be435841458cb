"""Loop kernels -> cubins, through the kernel cache, many at a time.

Each distinct text is built once. A few kernels are built by threads of this process. For more, worker processes
(``worker.py``) are started and join in as soon as they have imported triton (0.1 to 0.4 s); they stay for later
batches, and end with this process, since their stdin closes with it. Where no process can be started, the threads do
all the work.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable

from ... import config, devices, logs
from ...errors import CompileError
from .. import cache
from . import counts, interleaved, thin, totals, vectors  # noqa: F401  (they write kernels of their kinds)
from . import worker
from .emit import Source, emit

if TYPE_CHECKING:
    from ..loops import Kernel

log = logs.channel("kernels")
_VERSION = "3"
# Threads of this process that build kernels; twice as many when no workers are used. What Triton does in Python, a
# tenth of the work, they do in turns.
LOCAL_THREADS = 2
_lock = threading.Lock()
_pool: "_Workers | None" = None


@dataclass(frozen=True)
class Compiled:
    """A cubin and how to launch it: ``cuLaunchKernel(function, (grid, 1, 1), (32 * warps, 1, 1), shared, args)``.

    ``source.arguments`` gives the type of each argument in order (pointers, then int64 sizes). Two null pointers follow
    them (Triton's scratch arguments). ``source.divisible`` are the arguments that have to be multiples of 16.
    ``source.grid`` is an expression over the sizes. ``early``: it may be launched before the kernel in front of it has
    ended (``worker.early``). ``joined``: how many launches one launch takes, as ``worker.joined`` says; 0: it is a
    kernel as usual.
    """

    cubin: bytes
    function: str
    warps: int
    shared: int
    source: Source
    early: bool = False
    joined: int = 0


def capability_of(device=None) -> int:
    """The compute capability of a CUDA device as major * 10 + minor; 90 on a machine without one."""
    return devices.of_type("cuda").architecture(device).capability


def prepare() -> None:
    """Import Triton's compiler in the background (0.1 to 0.4 s), for when it is known that GPU kernels will follow.
    Raises nothing."""
    def load() -> None:
        try:
            worker.triton()
        except Exception as error:  # of any kind: Triton is somebody else's, and may not be needed
            log(f"triton cannot be imported: {error}")

    threading.Thread(target=load, name="jit-import-triton", daemon=True).start()


def compile_triton(kernels: list[Kernel], device=None, *, configs=None, aligned=None, joined=None) -> dict:
    """Build kernels for a CUDA device.

    Args:
        kernels: loops.Kernel objects with distinct names.
        device: torch device or index, or None for the current one.
        configs: kernel name -> heuristics.Config, where the heuristic is not wanted.
        aligned: kernel name -> names of its buffers that are 16-byte aligned; all of them where a kernel is absent.
        joined: name of a kernel -> how many of its launches are to be one, where they are.
    Returns:
        kernel name -> Compiled. Kernels of one structure share their cubin.
    Raises:
        Unsupported: a kernel has no GPU form. CompileError: Triton or ptxas failed.
    """
    with logs.timed("triton emit"):
        sources = {k.name: emit(k, (configs or {}).get(k.name), aligned=(aligned or {}).get(k.name)) for k in kernels}
    with logs.timed("triton compile"):
        return build_sources(sources, capability_of(device), joined=joined or {})


def build_sources(sources: dict, capability: int, keep_ptx: bool = False,
                  joined: Mapping[str, int] = MappingProxyType({})) -> dict:
    """``compile_triton`` for texts that are there already: name -> Source gives name -> Compiled."""
    jobs, found, early = {}, {}, devices.of_type("cuda").launches_early and capability >= worker.CAPABILITY
    for name, s in sources.items():
        job = dict(text=s.text, function=s.function, arguments=s.arguments,
                   divisible=s.divisible, capability=capability, warps=s.warps,
                   stages=s.stages, early=early, **({"scratch": s.scratch} if s.scratch else {}),
                   **({"joined": joined[name]} if name in joined else {}))
        key = cache.key("triton", _VERSION, _triton_version(), repr(sorted(job.items())))
        if key not in jobs and key not in found:
            data = None if keep_ptx else cache.get(key)
            if data is not None:
                found[key] = pickle.loads(data)
            else:
                jobs[key] = dict(job, keep_ptx=keep_ptx)
                log(s.text)
        sources[name] = (s, key)
    if jobs:
        for key, result in zip(jobs, _build(list(jobs.values()))):
            if "error" in result:
                raise CompileError("Triton could not compile a generated kernel: "
                                   f"{result['error']}\n{jobs[key]['text']}")
            found[key] = result
            cache.put(key, pickle.dumps({k: v for k, v in result.items() if k != "ptx"}))
    return {n: Compiled(found[key]["cubin"], found[key]["function"], found[key]["warps"], found[key]["shared"], s,
                        early, worker.places(len(s.arguments), joined[n])[0] if n in joined else 0)
            for n, (s, key) in sources.items()}


def _triton_version() -> str:
    global _version
    if _version is None:
        _version = importlib.metadata.version("triton")
    return _version


_version = None


def _build(jobs: list) -> list:
    """The results of ``worker.build`` in order, an ``error`` entry where it raised."""
    batch = _Batch(jobs)
    local = min(len(jobs), LOCAL_THREADS, config.compile_threads)
    if _pool is not None or len(jobs) > 2 * LOCAL_THREADS:
        pool = _workers(min(len(jobs) - local, config.compile_threads))
        for _ in range(min(pool.size, len(jobs) - local)):
            threading.Thread(target=pool.serve, args=(batch,), daemon=True).start()
    else:
        local = min(len(jobs), 2 * LOCAL_THREADS, config.compile_threads)
    for _ in range(local - 1):
        threading.Thread(target=batch.serve, args=(_build_here,), daemon=True).start()
    batch.serve(_build_here)
    batch.done.wait()
    return batch.results


class _Batch:
    """Jobs that several threads take from, until none is left; ``done`` is set when all have a result."""

    def __init__(self, jobs: list) -> None:
        self.left, self.results = list(enumerate(jobs))[::-1], [None] * len(jobs)
        self.missing, self.done, self.lock = len(jobs), threading.Event(), threading.Lock()

    def serve(self, run: Callable) -> None:
        """Do jobs with ``run(job) -> result`` while there are any; what it raises becomes an error entry."""
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
                if not self.missing:
                    self.done.set()


def _build_here(job: dict) -> dict:
    try:
        return worker.build(job)
    except Exception as error:  # told to whoever waits for the result
        return {"error": f"{type(error).__name__}: {error}"}


def _workers(n: int) -> "_Workers":
    """The pool, with at least ``n`` workers where that many can be started; a fresh one in a forked child."""
    global _pool
    with _lock:
        if _pool is None or _pool.pid != os.getpid():
            _pool = _Workers()
            atexit.register(_pool.close)
        _pool.grow(n)
        return _pool


class _Workers:
    """Idle worker processes on a stack. A thread takes one, waits until it has started, and gives it jobs."""

    def __init__(self) -> None:
        self.pid, self.size, self.idle, self.broken = os.getpid(), 0, [], False
        self.lock = threading.Lock()

    def grow(self, n: int) -> None:
        """Have at least ``n`` workers, unless processes cannot be started."""
        while self.size < n and not self.broken:
            try:
                process = self._start()
            except OSError:
                self.broken = True
                break
            with self.lock:
                self.idle.append((process, False))
                self.size += 1

    def _start(self) -> object:
        spec = importlib.util.find_spec("triton")
        if spec is None:
            raise CompileError("GPU kernels need the triton package, which is not installed: pip install triton")
        folder = os.path.dirname(os.path.dirname(spec.origin))
        command = [sys.executable, "-P", worker.__file__, folder]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True)

    def serve(self, batch: _Batch) -> None:
        """Do jobs of a batch in an idle worker, if there is one."""
        with self.lock:
            if not self.idle:
                return
            process, ready = self.idle.pop()
        alive = True

        def run(job: dict[str, Any]) -> dict[str, bytes | int | str]:
            nonlocal alive
            result = None
            if alive:
                try:
                    worker.write_message(process.stdin, job)
                    result = worker.read_message(process.stdout)
                except (OSError, EOFError, pickle.UnpicklingError):
                    pass
            alive = result is not None
            return result if alive else _build_here(job)

        try:
            alive = ready or worker.read_message(process.stdout) == "ready"
        except (OSError, EOFError, pickle.UnpicklingError):
            alive = False
        if alive:
            batch.serve(run)
        with self.lock:
            if alive:
                self.idle.append((process, True))
            else:
                process.kill()
                self.size -= 1

    def close(self) -> None:
        with self.lock:
            processes, self.idle, self.size, self.broken = self.idle, [], 0, True
        for p, _ in processes:
            p.stdin.close()
        for p, _ in processes:
            try:
                p.wait(2)
            except subprocess.TimeoutExpired:
                p.kill()
