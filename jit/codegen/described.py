"""What a plan does, step by step, for reports: which operations of the graph each kernel computes and where in the
program they stand, how many bytes go through memory, how much arithmetic there is, and which kernels were not made one
and why. It is made while a plan is, where someone asks for a report (``jit.observing``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph.dims import hint
from ..graph.ir import Ref
from ..graph.nested import replaced
from ..graph.prims import VIEWS, base_of, info
from .planned import CallLibrary, RunKernel, RunTogether
from .user_launches import LaunchUserKernel

if TYPE_CHECKING:
    from ..graph.ir import IntExpr, Loc, Node
    from .buffers import Storage
    from .planner import Planner

KERNEL, LIBRARY, USER_KERNEL = "kernel", "library", "user kernel"


@dataclasses.dataclass(frozen=True)
class DescribedStep:
    """A launch or a library call; fields as of ``jit.report.model.Step``. ``places``: (file, line, function)."""

    kind: str
    name: str
    computes: tuple[str, ...]
    places: tuple[tuple[str, int, str], ...]
    space: str
    device: str
    read: int
    written: int
    operations: int
    why: str = ""
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Described:
    """A plan. ``apart``: (number of a step, number of a later one, why they are two kernels, bytes that go through
    memory for that). ``live``: bytes of memory in use beside the inputs at each step."""

    steps: tuple[DescribedStep, ...]
    apart: tuple[tuple[int, int, str, int], ...]
    inputs: int
    results: int
    temporary: int
    live: tuple[int, ...]


def describe(planner: Planner) -> Described:
    """What the plan of a planner, whose kernels are named, will do."""
    steps: list[DescribedStep] = []
    number_of: dict[int, int] = {}  # id of what a step was planned for -> number of the step
    live = _live(planner)
    in_use = []
    for step, t in zip(planner.steps, planner.times, strict=True):
        made = _step(planner, step)
        if made is None:
            continue
        for origin in _origins(planner, step):
            number_of[id(origin)] = len(steps)
        steps.append(made)
        in_use.append(live[t] if t < len(live) else 0)
    outputs = {base_of(o.node) for o in planner.graph.outputs if o.mutates is None}
    storages = planner.buffers.storages
    return Described(tuple(steps), tuple(_apart(planner, number_of)), sum(map(_bytes, planner.graph.inputs)),
                     sum(_size(storages[n]) for n in outputs if n in storages and storages[n].kind != "input"),
                     max((sum(_size(s) for s in _temporaries(planner) if s.first <= t <= s.last)
                          for t in range(len(live))), default=0), tuple(in_use))


def several_times(parts: Sequence[tuple[Described, int]]) -> Described:
    """A plan of parts, each of which is done so many times."""
    steps: list[DescribedStep] = []
    apart, live = [], []
    for part, times in parts:
        apart += [(a + len(steps), b + len(steps), why, moved) for a, b, why, moved in part.apart]
        steps += [dataclasses.replace(step, times=step.times * times) for step in part.steps]
        live += part.live
    return Described(tuple(steps), tuple(apart), sum(part.inputs * times for part, times in parts),
                     sum(part.results * times for part, times in parts),
                     max((part.temporary for part, _ in parts), default=0), tuple(live))


# -- steps ------------------------------------------------------------------------------------------------------------


def _origins(planner: Planner, step: Any) -> list:
    """The groups and nodes that a step was planned for."""
    if isinstance(step, (RunKernel, RunTogether)):
        return [planner.origins[run.number] for run in getattr(step, "runs", (step,))]
    return [step.node] if isinstance(step, (CallLibrary, LaunchUserKernel)) else []


def _step(planner: Planner, step: Any) -> DescribedStep | None:
    if isinstance(step, (CallLibrary, LaunchUserKernel)):
        return _library_call(step.node, USER_KERNEL if isinstance(step, LaunchUserKernel) else LIBRARY)
    if not isinstance(step, (RunKernel, RunTogether)):
        return None
    nodes: dict[Node, None] = {}
    reads: dict[Node, None] = {}
    for origin in _origins(planner, step):
        found, read = _of_origin(origin)
        nodes |= found
        reads |= read
    runs = getattr(step, "runs", (step,))
    kernel, key = planner.launches[runs[0].number], planner.launch_keys[runs[0].number]
    if isinstance(step, RunTogether) and step.key in planner.joined:
        key = step.key
    written = [n for n in nodes if n in planner.buffers.storages]
    return DescribedStep(
        KERNEL, planner.named[key].name if key in planner.named else kernel.name,
        tuple(_what(n) for n in nodes if n.op not in VIEWS), _places(nodes), _space(planner, runs), str(kernel.device),
        _read(n for n in reads if n not in nodes), sum(map(_bytes, written)), sum(map(operations, nodes)))


def _of_origin(origin: Any) -> tuple[dict[Node, None], dict[Node, None]]:
    """The nodes that the kernel of a group, or of a node, computes, and those that it reads."""
    members = getattr(origin, "members", None)
    if members is None:
        return {origin: None}, dict.fromkeys(origin.inputs)
    reads = {node: None for m in members for node in m.reads}
    found: dict[Node, None] = {}
    waiting = [m.node for m in members] + [call.node if hasattr(call, "node") else call for call in origin.calls]
    stop = {id(n) for n in reads}
    while waiting:
        node = waiting.pop()
        if node not in found and (id(node) not in stop or any(node is m.node for m in members)):
            found[node] = None
            waiting += [i for i in node.inputs if i.op != "input"]
    order = sorted(found, key=lambda n: n.id)
    return dict.fromkeys(order), reads | {i: None for n in order for i in n.inputs if i.op == "input"}


def _library_call(node: Node, kind: str) -> DescribedStep | None:
    name = _what(node)
    results = [t for t in node.types if t is not None]
    space = " x ".join(map(str, map(hint, results[0].shape))) if results else ""
    written = sum(_numel(t.shape) * t.dtype.itemsize for t in results)
    return DescribedStep(kind, name, (name,), _places([node]), space, str(node.device), _read(node.inputs), written,
                         operations(node), _why(node))


def _what(node: Node) -> str:
    return node.attrs["target"].removeprefix("aten::") if node.op == "aten_call" else node.op


def _why(node: Node) -> str:
    """Why a node is the library's."""
    if node.op != "aten_call":
        return f"{node.op} is done by PyTorch"
    target = node.attrs["target"]
    if not target.startswith("aten::"):
        return "it is no operator of PyTorch's own"
    if _flops_of(node) is not None:
        return "a product or convolution, for which the library's kernels are the fastest known here"
    return "there is no kernel of ours for it"


def _space(planner: Planner, runs: Sequence[RunKernel]) -> str:
    texts = []
    for run in runs:
        origin = planner.origins[run.number]
        dims, reduced = getattr(origin, "dims", None), getattr(origin, "reduced", frozenset())
        if dims is None:
            dims = origin.types[0].shape
        texts.append(" x ".join(f"[{hint(d)}]" if k in reduced else str(hint(d)) for k, d in enumerate(dims)) or "1")
    return ", ".join(dict.fromkeys(texts))


def _places(nodes: Iterable[Node]) -> tuple[tuple[str, int, str], ...]:
    """Where in the program they stand."""
    return tuple(dict.fromkeys(place for n in nodes if (place := place_of(n.loc)) is not None))


def place_of(loc: Loc | None) -> tuple[str, int, str] | None:
    if loc is None:
        return None
    return tuple(loc.user[:3]) if loc.user is not None else (loc.file, loc.line, loc.function)  # type: ignore


# -- figures ----------------------------------------------------------------------------------------------------------


def _numel(shape: Iterable[IntExpr]) -> int:
    return math.prod(map(hint, shape))


def _bytes(node: Node) -> int:
    return 0 if node.several else _numel(node.type.shape) * node.type.dtype.itemsize


def _read(nodes: Iterable[Node]) -> int:
    """Bytes of what is read: of each memory no more than there is, and what is expanded once."""
    found: dict[Node, int] = {}
    for n in nodes:
        if n.several:
            continue
        base = base_of(n)
        seen = math.prod(hint(d) for d, stride in zip(n.type.shape, n.type.strides) if hint(stride) != 0)
        whole = _bytes(base) if not base.several else seen * n.type.dtype.itemsize
        found[base] = min(whole, found.get(base, 0) + seen * n.type.dtype.itemsize)
    return sum(found.values())


def operations(node: Node) -> int:
    """Additions, multiplications and function values that a node takes; 0 of what only moves elements."""
    kind = info(node.op).kind
    if kind == "pointwise":
        return _numel(node.type.shape)
    if kind in ("reduction", "scan", "window"):
        return _numel(node.inputs[0].type.shape)
    return (_flops_of(node) or 0) if kind == "call" else 0


def _flops_of(node: Node) -> int | None:
    """Of products, convolutions and attention, as ``torch.utils.flop_counter`` counts them; None of others."""
    from torch.utils.flop_counter import flop_registry  # late: for reports alone

    if node.op != "aten_call" or not node.attrs["target"].startswith("aten::"):
        return None
    if node.attrs["target"] in ("aten::linear", "aten::matmul"):  # made of others, which that module counts
        return 2 * _numel(node.types[0].shape) * hint(node.inputs[0].type.shape[-1])
    packet = getattr(torch.ops.aten, node.attrs["target"].removeprefix("aten::"), None)
    count = flop_registry.get(packet)
    if count is None:
        return None
    template = list(node.attrs["args"])
    named = template.pop() if template and isinstance(template[-1], dict) else {}
    args, kwargs = replaced(Ref, lambda ref: _Shaped(node.inputs[ref.index].type.shape), (template, named))
    results = [_Shaped(t.shape) for t in node.types if t is not None]
    args, kwargs, results = replaced(_Shaped, lambda s: s.shape, (args, kwargs, results))
    try:
        return int(count(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results)))
    except Exception:  # a formula that does not take these arguments: the figure is not known
        return None


class _Shaped:
    def __init__(self, shape: Iterable[IntExpr]) -> None:
        self.shape = torch.Size([hint(d) for d in shape])


# -- memory -----------------------------------------------------------------------------------------------------------


def _size(s: Storage) -> int:
    return hint(s.nbytes) if type(s.nbytes) is not int or s.nbytes else _numel(s.type.shape) * s.type.dtype.itemsize


def _temporaries(planner: Planner) -> list[Storage]:
    own = {id(s): s for s in (*planner.buffers.storages.values(), *planner.buffers.partial) if s.kind == "temp"}
    return list(own.values())


def _live(planner: Planner) -> list[int]:
    """Bytes in use beside the inputs, for each step of the schedule."""
    own = {id(s): s for s in (*planner.buffers.storages.values(), *planner.buffers.partial)
           if s.kind in ("temp", "alloc", "extern")}
    count = max(planner.times, default=-1) + 1
    change = [0] * (count + 1)
    for s in own.values():
        first, last = max(s.first, 0), min(max(s.last, s.first, 0), count - 1)
        if first < count:
            change[first] += _size(s)
            change[last + 1] -= _size(s)
    live, now = [], 0
    for k in range(count):
        now += change[k]
        live.append(now)
    return live


# -- what was not joined ----------------------------------------------------------------------------------------------


def _apart(planner: Planner, number_of: dict[int, int]) -> list[tuple[int, int, str, int]]:
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for a, b, why in planner.refused:
        first, second = number_of.get(id(a.group)), number_of.get(id(b.group))
        if first is None or second is None or first == second:
            continue
        moved = sum({n: _bytes(n) for n in b.group.reads if any(m.node is n for m in a.group.members)}.values()) or sum(
            {n: _bytes(n) for n in b.group.reads & a.group.reads}.values())
        key = (min(first, second), max(first, second))
        found[key] = (why, moved)
    return [(a, b, why, moved) for (a, b), (why, moved) in sorted(found.items())]
