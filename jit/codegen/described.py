"""What a plan does, step by step, for reports: which operations of the graph each kernel computes and where in the
program they stand, how many bytes go through memory, how much arithmetic there is, and which kernels were not made one
and why. It is made while a plan is, where someone asks for a report (``jit.observing``).
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..graph.dims import hint
from ..graph.ir import filled
from ..graph.prims import FUSED_ATTENTION, VIEWS, base_of, info
from ..observing import KERNEL, LIBRARY, USER_KERNEL, Step
from .indexing import bytes_hint, numel_hint
from .kernel_names import computed, places, what
from .library_calls import arguments_of
from .planned import CallLibrary, RunKernel, RunTogether
from .target import target_of
from .user_launches import LaunchUserKernel

if TYPE_CHECKING:
    from ..graph.ir import Node, TensorType
    from ..runtime.plan import Plan
    from .buffers import Storage
    from .planner import Planner

@dataclasses.dataclass(frozen=True)
class Described:
    """A plan.

    Attributes:
        steps: what it does, in order.
        apart: (number of a step, number of a later one, why they are two kernels, bytes that go through memory for
            that).
        inputs, results: bytes of them.
        temporary: the most bytes at once that only the plan uses.
        live: bytes of memory in use beside the inputs at each step.
        loops: (name, text) of each loop kernel.
        text: of the runtime's plan.
        name: what profilers call a run of it.
    """

    steps: tuple[Step, ...]
    apart: tuple[tuple[int, int, str, int], ...]
    inputs: int
    results: int
    temporary: int
    live: tuple[int, ...]
    loops: tuple[tuple[str, str], ...] = ()
    text: str = ""
    name: str = ""


def describe(planner: Planner, plan: Plan) -> Described:
    """What the plan of a planner does."""
    steps: list[Step] = []
    number_of: dict[int, int] = {}  # id of what a step was planned for -> number of the step
    live, in_use = _live(planner, ("temp", "alloc", "extern")), []
    shares = collections.Counter(id(origin) for step in planner.steps for origin in _origins(planner, step))
    for step, t in zip(planner.steps, planner.times, strict=True):
        made = _step(planner, step, shares)
        if made is None:
            continue
        for origin in _origins(planner, step):
            number_of[id(origin)] = len(steps)
        steps.append(made)
        in_use.append(live[t])
    outputs = {base_of(o.node) for o in planner.graph.outputs if o.mutates is None}
    storages = planner.buffers.storages
    return Described(tuple(steps), tuple(_apart(planner, number_of)), sum(map(bytes_hint, planner.graph.inputs)),
                     sum(_size(storages[n]) for n in outputs if n in storages and storages[n].kind != "input"),
                     max(_live(planner, ("temp",)), default=0), tuple(in_use),
                     tuple((kernel.name, kernel.text()) for kernel in planner.named.values()), plan.text())


def several_times(parts: Sequence[tuple[Described, int]], plan: Plan) -> Described:
    """A plan of parts, each of which is done so many times."""
    steps: list[Step] = []
    apart, live = [], []
    for k, (part, times) in enumerate(parts):
        apart += [(a + len(steps), b + len(steps), why, moved) for a, b, why, moved in part.apart]
        steps += [dataclasses.replace(step, times=step.times * times, part=k) for step in part.steps]
        live += part.live
    return Described(tuple(steps), tuple(apart), sum(part.inputs * times for part, times in parts),
                     sum(part.results * times for part, times in parts),
                     max((part.temporary for part, _ in parts), default=0), tuple(live),
                     tuple(dict(row for part, _ in parts for row in part.loops).items()), plan.text())


# -- steps ------------------------------------------------------------------------------------------------------------


def _origins(planner: Planner, step: Any) -> list:
    """The groups and nodes that a step was planned for."""
    if isinstance(step, (RunKernel, RunTogether)):
        return [planner.origins[run.number] for run in getattr(step, "runs", (step,))]
    return [step.node] if isinstance(step, (CallLibrary, LaunchUserKernel)) else []


def _step(planner: Planner, step: Any, shares: Mapping[int, int]) -> Step | None:
    """``shares``: id of what a step was planned for -> how many steps it takes, which share its results and
    arithmetic."""
    if isinstance(step, (CallLibrary, LaunchUserKernel)):
        return _library_call(step.node, USER_KERNEL if isinstance(step, LaunchUserKernel) else LIBRARY)
    if not isinstance(step, (RunKernel, RunTogether)):
        return None
    nodes: dict[Node, None] = {}
    reads: dict[Node, None] = {}
    for origin in _origins(planner, step):
        found, read = computed(origin)
        nodes |= found
        reads |= read
    runs = getattr(step, "runs", (step,))
    kernel, key = planner.launches[runs[0].number], planner.launch_keys[runs[0].number]
    if isinstance(step, RunTogether) and step.key in planner.joined:
        key = step.key
    share = max(shares[id(origin)] for origin in _origins(planner, step))
    written = sum(bytes_hint(n) for n in nodes if n in planner.buffers.storages)
    written += sum(numel_hint(t.shape) * t.dtype.itemsize for n in nodes if n.several for t in n.types if t is not None)
    return Step(
        KERNEL, planner.name_of(runs),
        tuple(what(n) for n in nodes if n.op not in VIEWS), places(nodes), _space(planner, runs), str(kernel.device),
        _read([n for n in reads if n not in nodes], nodes), written // share, sum(map(operations, nodes)) // share,
        source=planner.named[key].name if key in planner.named else kernel.name,
        function=_function(planner, key))


def _function(planner: Planner, key: tuple) -> str:
    """The name of a kernel's function in the binary, as far as its target tells."""
    kernel = planner.named.get(key)
    if kernel is None or planner.options.target == "reference":
        return ""
    return getattr(target_of(kernel.device), "function_of", lambda *_: "")(kernel, planner.code[key])


def _library_call(node: Node, kind: str) -> Step | None:
    name = what(node)
    results = [t for t in node.types if t is not None]
    space = " x ".join(map(str, map(hint, results[0].shape))) if results else ""
    written = sum(numel_hint(t.shape) * t.dtype.itemsize for t in results)
    return Step(kind, name, (name,), places([node]), space, str(_device(node)), _read(node.inputs), written,
                         operations(node), _why(node))


def _device(node: Node) -> torch.device:
    types = [t for t in (*node.types, *(i.types[0] for i in node.inputs)) if t is not None]
    return types[0].device if types else torch.device("cpu")


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


# -- figures ----------------------------------------------------------------------------------------------------------


def _read(nodes: Iterable[Node], readers: Iterable[Node] = ()) -> int:
    """Bytes of what ``readers`` read: of each memory no more than there is, what is expanded once, and of what is
    looked up by indices as much as is found there."""
    found: dict[Node, int] = {}
    looked_up: dict[Node, int] = {}
    otherwise = set()
    for reader in readers:
        for k, n in enumerate(reader.inputs):
            if k == 0 and info(reader.op).kind == "index":
                looked_up[n] = looked_up.get(n, 0) + numel_hint(reader.type.shape)
            else:
                otherwise.add(n)
    for n in nodes:
        if n.several:
            continue
        base = base_of(n)
        seen = math.prod(hint(d) for d, stride in zip(n.type.shape, n.type.strides) if hint(stride) != 0)
        if n in looked_up and n not in otherwise:
            seen = min(seen, looked_up[n])
        whole = bytes_hint(base) if not base.several else seen * n.type.dtype.itemsize
        found[base] = min(whole, found.get(base, 0) + seen * n.type.dtype.itemsize)
    return sum(found.values())


def operations(node: Node) -> int:
    """Additions, multiplications and function values that a node takes; 0 of what only moves elements."""
    kind = info(node.op).kind
    if kind == "pointwise":
        return numel_hint(node.type.shape)
    if kind in ("reduction", "scan", "window"):
        return numel_hint(node.inputs[0].type.shape)
    return (_flops_of(node) or 0) if kind == "call" else 0


_ATTENTION_OF_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"


def _flops_of(node: Node) -> int | None:
    """Of products, convolutions and attention, as ``torch.utils.flop_counter`` counts them; None of others."""
    from torch.utils.flop_counter import (  # late: for reports alone
        flop_registry, sdpa_backward_flop_count, sdpa_flop_count)

    if node.op != "aten_call":
        return None
    target = node.attrs["target"]
    if target in ("aten::linear", "aten::matmul"):  # made of others, which that module counts
        return 2 * numel_hint(node.types[0].shape) * hint(node.inputs[0].type.shape[-1])
    packet = getattr(torch.ops.aten, target.removeprefix("aten::"), None) if target.startswith("aten::") else None
    count = flop_registry.get(packet)
    args: list[Any] = list(filled(list(node.attrs["args"]), [None if i.several else _shape(i.type)
                                                             for i in node.inputs]))
    named = dict(args.pop()) if args and isinstance(args[-1], dict) else {}
    try:
        if target in FUSED_ATTENTION:
            shapes = args[:3] if target == FUSED_ATTENTION[0] else [args[3], *args[:3]]
        elif target.startswith(_ATTENTION_OF_CPU):  # which that module does not know
            shapes = args[:4] if target.endswith("_backward") else args[:3]
        elif count is None:
            return None
        else:
            declared = arguments_of(target, node.attrs["overload"])
            named.update({a.name: v for a, v in zip(declared, args) if a.kwarg_only})
            args = [v for a, v in zip(declared, args) if not a.kwarg_only]
            results = [_shape(t) for t in node.types if t is not None]
            return int(count(*args, **named, out_val=results[0] if len(results) == 1 else tuple(results)))
        return sdpa_flop_count(*shapes) if len(shapes) == 3 else sdpa_backward_flop_count(*shapes)
    except Exception:  # a formula that does not take these arguments: the figure is not known
        return None


def _shape(t: TensorType) -> torch.Size:
    return torch.Size([hint(d) for d in t.shape])


# -- memory -----------------------------------------------------------------------------------------------------------


def _size(s: Storage) -> int:
    return hint(s.nbytes) if type(s.nbytes) is not int or s.nbytes else numel_hint(s.type.shape) * s.type.dtype.itemsize


def _live(planner: Planner, kinds: tuple[str, ...]) -> list[int]:
    """Bytes in use of these kinds of storages, for each step of the schedule."""
    own = {id(s): s for s in (*planner.buffers.storages.values(), *planner.buffers.partial) if s.kind in kinds}
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
        made = {m.node for m in a.group.members}
        shared = {n for n in b.group.reads if n in made} or b.group.reads & a.group.reads
        moved = sum(map(bytes_hint, shared))
        key = (min(first, second), max(first, second))
        found[key] = (why, moved)
    return [(a, b, why, moved) for (a, b), (why, moved) in sorted(found.items())]
