"""Which candidate for a library call is the fastest, by timing them: the library's call with a kernel behind it, and
those of the templates.

What is timed is the plan of the call and its kernel alone, on tensors made for it. Nothing else of the process changes:
no random number is drawn, and the work goes to the current stream. The result is remembered, in the process and in the
kernel cache, under a key of all that it depends on: the kernel with its dtypes and layouts, the present sizes, the
candidates, the device, the versions of PyTorch and Triton. The channel ``templates`` tells it.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from typing import TYPE_CHECKING, Callable

import torch

from .. import devices, logs
from ..errors import CompileError, Unsupported
from ..recent import Recent
from ..runtime import cache
from .indexing import size_hint
from .loops import rename
from .memory import storage_numel
from .target import target_of

if TYPE_CHECKING:
    from ..graph.ir import TensorType
    from .epilogues import Call
    from .planner import Planner
    from .template import Candidate

log = logs.channel("templates")
_VERSION = "2"
MOST = 8  # configurations that are timed: those of the least cost
ROUNDS = 3  # in which each candidate has its turn
SETS = 16  # of operands, at most
GAIN = 0.02  # the share of the library's time that has to be saved
LIBRARY = "library"
_known: Recent = Recent(2048)  # key -> seconds by candidate


def choose(call: Call, plan: Callable[..., Planner]) -> Candidate | None:
    """The candidate to use for a call; None for the library, also where nothing can be timed now. ``plan`` makes a
    scheduled planner of a part of the graph, of its inputs and of what chooses in it."""
    candidates = {str(c): c for c in sorted(call.candidates, key=lambda c: c.cost)[:MOST]}
    key = _key(call, candidates)
    seconds, how = _known.get(key), "known"
    if seconds is None:
        found = cache.get(key)
        seconds, how = (None, "") if found is None else (json.loads(found), "remembered")
    if seconds is None:
        with logs.timed("templates"):
            seconds, how = _timed(call, candidates, plan), "timed"
        if seconds is None:
            if log:
                log(f"{_described(call)}: cannot be timed here; {LIBRARY}")
            return None
        cache.put(key, json.dumps(seconds).encode())
    _known[key] = seconds
    best = min(seconds, key=seconds.get)
    if seconds[best] > seconds[LIBRARY] * (1 - GAIN):
        best = LIBRARY
    if log:
        times = ", ".join(f"{name} {1e6 * s:.1f} us" for name, s in seconds.items())
        log(f"{_described(call)}, {how}: {times} -> {best}")
    return candidates.get(best)


def _described(call: Call) -> str:
    shapes = " x ".join(f"{tuple(map(size_hint, i.type.shape))}" for i in call.node.inputs)
    words = [m.node.op for m in call.group.members if m.node is not call.node]
    return (f"{call.node.attrs['target']} of {shapes} {str(call.node.type.dtype).removeprefix('torch.')}"
            f" with {' '.join(words)}")


def _key(call: Call, candidates: dict[str, Candidate]) -> str:
    device = call.node.type.device
    return cache.key("template", _VERSION, torch.__version__, _triton_version(),
                     repr(devices.backend(device).architecture(device)), _float32_precision(),
                     repr([size_hint(s) for s in _sizes(call)]),
                     *[c.lay_out(rename(call.kernel, name)).key + name for name, c in candidates.items()])


def _sizes(call: Call) -> list:
    return [s for n in (*call.inputs, *call.results) for s in (*n.type.shape, *n.type.strides)]


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _float32_precision() -> str:
    """How exactly the library multiplies matrices of float32."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it is set for each backend of PyTorch apart
        return torch.backends.cuda.matmul.fp32_precision


def _timed(call: Call, candidates: dict[str, Candidate], plan: Callable[..., Planner]) -> dict[str, float] | None:
    """Candidate -> seconds of a run, for the library and for those that can be built and run; None if the library's
    cannot be timed."""
    device = call.node.type.device
    backend = devices.backend(device)
    if backend.seconds(lambda: None, device) is None:
        return None
    graph = call.alone()
    planners = {name: plan(graph, call.inputs, lambda _, c=c: c)
                for name, c in ((LIBRARY, None), *candidates.items())}
    _build_together(planners, device)
    try:
        operands = _operands(call, backend.architecture(device).cache)
    except RuntimeError as error:  # there is no memory for them
        log(f"{_described(call)}: {error}")
        return None
    runs = {}
    for name, planner in planners.items():
        try:
            runs[name] = _run(planner, operands)
            runs[name]()
        except (CompileError, Unsupported, RuntimeError) as error:  # such as one that wants more than the device has
            log(f"{_described(call)}: {name}: {error}")
            runs.pop(name, None)
    seconds: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            time = backend.seconds(run, device)
            if time is None:
                return None
            seconds[name] = min(time, seconds.get(name, time))
    return seconds if LIBRARY in seconds else None


def _build_together(planners: dict[str, Planner], device: torch.device) -> None:
    """Build the kernels of all candidates at once, for the cache."""
    kernels = {k.key: rename(k, f"k_{k.key}") for p in planners.values() for k in p.launches}
    try:
        target_of(device.type).begin_kernels(list(kernels.values()), {})()
    except (CompileError, Unsupported):
        pass  # it is told which, when each is built for its plan


def _operands(call: Call, cached: int) -> list[list[torch.Tensor]]:
    """Sets of operands that take turns. Together they do not fit in a cache of ``cached`` bytes: in a program, what
    ran before has filled it with other tensors."""
    first = [_filled(n.type) for n in call.inputs]
    size = sum(t.numel() * t.element_size() for t in first)
    others = range(1, min(-(-2 * cached // max(size, 1)), SETS))
    return [first, *([_filled(n.type) for n in call.inputs] for _ in others)]


def _run(planner: Planner, operands: list[list[torch.Tensor]]) -> Callable:
    planner.compile_kernels()
    compiled = planner.finish()
    symbols = planner.graph.env.symbols
    ints = [size_hint(symbols.get(name, 0)) for name in compiled.int_symbols]  # others are the bits of a number
    turns = itertools.cycle(operands)
    return lambda: compiled.call(*next(turns), *ints)


def _filled(t: TensorType) -> torch.Tensor:
    """A tensor of a type at the present sizes, with numbers that are neither all alike nor random; integers are 0,
    which is an index of anything."""
    made = torch.empty_strided([size_hint(s) for s in t.shape], [size_hint(s) for s in t.strides], dtype=t.dtype,
                               device=t.device)
    flat = made.as_strided((size_hint(storage_numel(t)),), (1,))
    flat.zero_()
    if t.dtype.is_floating_point:
        width = min(4096, flat.numel())
        some = torch.arange(width, device=t.device).remainder_(31).sub_(15).to(t.dtype).div_(16)
        flat[:flat.numel() // max(width, 1) * width].view(-1, max(width, 1)).copy_(some)
    return made
