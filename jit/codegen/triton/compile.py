"""Loop kernels -> cubins, through the kernel cache, many at a time.

Each distinct text is built once, by other processes (``workers.py``).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable

from ... import devices, logs
from ...errors import CompileError
from ...runtime import cache
from .. import replaced
from . import counts, interleaved, thin, totals, vectors  # noqa: F401  (they write kernels of their kinds)
from . import worker, workers
from .emit import Source, emit

if TYPE_CHECKING:
    from ..loops import Kernel

log = logs.channel("kernels")
_VERSION = "5"


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
    return begin_triton(kernels, device, configs=configs, aligned=aligned, joined=joined)()


def begin_triton(kernels: list[Kernel], device=None, *, configs=None, aligned=None, joined=None) -> Callable[[], dict]:
    """Begin with ``compile_triton``: what is returned waits until the kernels are there, and gives them. Raises
    Unsupported."""
    with logs.timed("triton emit"):
        sources = {k.name: emit(k, (configs or {}).get(k.name), aligned=(aligned or {}).get(k.name)) for k in kernels}
        sources = {name: s if (text := replaced.instead_of(s.text)) is s.text else dataclasses.replace(s, text=text)
                   for name, s in sources.items()}
    return begin_sources(sources, capability_of(device), joined=joined or {})


def build_sources(sources: dict, capability: int, keep_ptx: bool = False,
                  joined: Mapping[str, int] = MappingProxyType({})) -> dict:
    """``compile_triton`` for texts that are there already: name -> Source gives name -> Compiled."""
    return begin_sources(sources, capability, keep_ptx, joined)()


def begin_sources(sources: dict, capability: int, keep_ptx: bool = False,
                  joined: Mapping[str, int] = MappingProxyType({})) -> Callable[[], dict]:
    """Begin with ``build_sources``: what is returned waits for the kernels."""
    jobs, found, keys = {}, {}, {}
    for name, s in sources.items():
        job = dict(text=s.text, function=s.function, arguments=s.arguments,
                   divisible=s.divisible, capability=capability, warps=s.warps,
                   stages=s.stages, early=_early(s, capability), **({"scratch": s.scratch} if s.scratch else {}),
                   **({"fused": True} if s.fused else {}), **({"maxnreg": s.registers} if s.registers else {}),
                   **({"joined": joined[name]} if name in joined else {}))
        key = keys[name] = cache.key("triton", _VERSION, _triton_version(), repr(sorted(job.items())))
        if key not in jobs and key not in found:
            data = None if keep_ptx else cache.get(key)
            if data is not None:
                found[key] = pickle.loads(data)
            else:
                jobs[key] = dict(job, keep_ptx=keep_ptx)
                log(s.text)
    building = workers.begin(list(jobs.values())) if jobs else list

    def finish() -> dict:
        wrong = None
        with logs.timed("triton compile"):
            for key, result in zip(jobs, building()):
                if "error" in result:
                    wrong = wrong or (key, result["error"])
                    continue
                found[key] = result
                cache.put(key, pickle.dumps({k: v for k, v in result.items() if k != "ptx"}))
        if wrong:
            raise CompileError(f"Triton could not compile a generated kernel: {wrong[1]}\n{jobs[wrong[0]]['text']}")
        return {n: Compiled(found[key]["cubin"], found[key]["function"], found[key]["warps"], found[key]["shared"],
                            sources[n], _early(sources[n], capability),
                            worker.places(len(sources[n].arguments), joined[n])[0] if n in joined else 0)
                for n, key in keys.items()}

    return finish


def _early(source: Source, capability: int) -> bool:
    """Whether a kernel waits itself for what runs in front of it."""
    most = devices.of_type("cuda").launches_early
    return capability >= worker.CAPABILITY and (most == math.inf or type(source.grid) is int and source.grid <= most)


def _triton_version() -> str:
    global _version
    if _version is None:
        _version = importlib.metadata.version("triton")
    return _version


_version = None
