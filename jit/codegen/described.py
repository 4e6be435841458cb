"""What a plan does, step by step, for reports: which operations of the graph each kernel computes and where in the
program they stand, how many bytes go through memory, how much arithmetic there is, and which kernels were not made one
and why. It is made while a plan is, where someone asks for a report (``jit.observing``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..graph.dims import hint
from ..graph.ir import filled
from ..graph.prims import FUSED_ATTENTION, VIEWS, base_of, info
from ..observing import KERNEL, LIBRARY, USER_KERNEL, Results, Step
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
        returned: what the results are, the largest first.
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
    returned: tuple[Results, ...] = ()


def describe(planner: Planner, plan: Plan) -> Described:
    """What the plan of a planner does."""
    steps: list[Step] = []
    number_of: dict[int, int] = {}  # id of what a step was planned for -> number of the step
    live, in_use = _live(planner, ("temp", "alloc", "extern")), []
    shares = _shares(planner)
    for step, t in zip(planner.steps, planner.times, strict=True):
        made = _step(planner, step, shares)
        if made is None:
            continue
        for origin in _origins(planner, step):
            number_of[id(origin)] = len(steps)
        steps.append(made)
        in_use.append(live[t])
    outputs = dict.fromkeys(base_of(o.node) for o in planner.graph.outputs if o.mutates is None)
    storages = planner.buffers.storages
    sizes = {n: _size(storages[n]) for n in outputs if n in storages and storages[n].kind != "input"}
    return Described(tuple(steps), tuple(_apart(planner, number_of)), sum(map(bytes_hint, planner.graph.inputs)),
                     sum(sizes.values()), max(_live(planner, ("temp",)), default=0), tuple(in_use),
                     tuple((kernel.name, kernel.text()) for kernel in planner.named.values()), plan.text(),
                     returned=_together(Results(what(n.inputs[0] if n.op == "getitem" else n),
                                                str(n.type.dtype).removeprefix("torch."),
                                                next(iter(places([n])), None), size, 1) for n, size in sizes.items()))


def _together(rows: Iterable[Results]) -> tuple[Results, ...]:
    """Those of one operation, dtype and line added up, the largest first."""
    sums: dict[Results, tuple[int, int]] = {}
    for row in rows:
        key = dataclasses.replace(row, size=0, count=0)
        size, count = sums.get(key, (0, 0))
        sums[key] = size + row.size, count + row.count
    return tuple(sorted((dataclasses.replace(key, size=size, count=count) for key, (size, count) in sums.items()),
                        key=lambda row: -row.size))


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
                     tuple(dict(row for part, _ in parts for row in part.loops).items()), plan.text(),
                     returned=_together(dataclasses.replace(row, size=row.size * times, count=row.count * times)
                                        for part, times in parts for row in part.returned))


# -- steps ------------------------------------------------------------------------------------------------------------


def _origins(planner: Planner, step: Any) -> list:
    """The groups and nodes that a step was planned for."""
    if isinstance(step, (RunKernel, RunTogether)):
        return [planner.origins[run.number] for run in getattr(step, "runs", (step,))]
    return [step.node] if isinstance(step, (CallLibrary, LaunchUserKernel)) else []


def _shares(planner: Planner) -> dict[int, Fraction]:
    """Of groups that take several runs, such as sums in two stages: number of a run -> its share in the group's
    arithmetic, by the bytes that it moves."""
    runs: dict[int, list[RunKernel]] = {}
    for step in planner.steps:
        if isinstance(step, (RunKernel, RunTogether)):
            for run in getattr(step, "runs", (step,)):
                runs.setdefault(id(planner.origins[run.number]), []).append(run)
    found = {}
    for alike in runs.values():
        moved = [sum(_moved(planner, run)) for run in alike]
        if len(alike) > 1 and sum(moved):
            found.update({run.number: Fraction(n, sum(moved)) for run, n in zip(alike, moved)})
    return found


def _moved(planner: Planner, run: RunKernel) -> tuple[int, int]:
    """Bytes of the memory that a run reads, and that it writes."""
    found = [0, 0]
    kernel = planner.launches[run.number]
    rounds = math.prod(hint(axis.extent) for axis in (*kernel.axes, *kernel.raxes))  # an element is written in each
    for buffer, storage in zip(kernel.buffers, run.arguments):
        if not isinstance(storage, str):
            size = _size(storage)
            if buffer.role == "in":
                found[0] += size
            else:
                found[1] += min(size, rounds * buffer.dtype.itemsize)
    return found[0], found[1]


def _step(planner: Planner, step: Any, shares: Mapping[int, Fraction]) -> Step | None:
    """``shares``: see ``_shares``."""
    if isinstance(step, (CallLibrary, LaunchUserKernel)):
        return _library_call(step.node, USER_KERNEL if isinstance(step, LaunchUserKernel) else LIBRARY)
    if not isinstance(step, (RunKernel, RunTogether)):
        return None
    nodes: dict[Node, None] = {}
    reads: dict[Node, None] = {}
    for origin in _origins(planner, step):
        found, seen = computed(origin)
        nodes |= found
        reads |= seen
    runs = getattr(step, "runs", (step,))
    kernel, key = planner.launches[runs[0].number], planner.launch_keys[runs[0].number]
    if isinstance(step, RunTogether) and step.key in planner.joined:
        key = step.key
    if any(run.number in shares for run in runs):
        read, written = map(sum, zip(*(_moved(planner, run) for run in runs)))
    else:
        read = _read([n for n in reads if n not in nodes], nodes)
        written = sum(_moved(planner, run)[1] for run in runs)
    arithmetic = sum(shares.get(run.number, 1) * sum(map(operations, computed(planner.origins[run.number])[0]))
                     for run in runs)
    return Step(
        KERNEL, planner.name_of(runs),
        tuple(what(n) for n in nodes if n.op not in VIEWS), places(nodes), _space(planner, runs), str(kernel.device),
        read, written, round(arithmetic),
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


Shape: TypeAlias = Sequence[int]


def _of_product(out: Shape, x: Shape, *others: Any) -> int:
    return 2 * math.prod(out) * x[-1]


def _of_convolution(out: Shape, x: Shape, weight: Shape, *others: Any) -> int:
    return 2 * math.prod(out) * math.prod(weight[1:])


def _of_transposed_convolution(out: Shape, x: Shape, weight: Shape, *others: Any) -> int:
    return 2 * math.prod(x) * math.prod(weight[1:])


def _of_attention(out: Shape, q: Shape, k: Shape, v: Shape, *others: Any) -> int:
    """Two products: of queries with keys, and of the weights with values."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _of_attention_backward(out: Shape, g: Shape, q: Shape, k: Shape, v: Shape, *others: Any) -> int:
    """Five: the weights again, their gradient, and those of queries, keys and values."""
    return 2 * math.prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1])


_OF_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"
# Operators that ``torch.utils.flop_counter`` does not count, such as those made of others which it counts: of the
# shapes of the result and of the arguments.
_COUNTED: dict[str, Callable[..., int]] = {
    "aten::linear": _of_product, "aten::matmul": _of_product,
    "aten::scaled_dot_product_attention": _of_attention, _OF_CPU: _of_attention, FUSED_ATTENTION[0]: _of_attention,
    f"{_OF_CPU}_backward": _of_attention_backward,
    FUSED_ATTENTION[1]: lambda out, q, k, v, g, *others: _of_attention_backward(out, g, q, k, v),
    **{f"aten::conv{n}d": _of_convolution for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": _of_transposed_convolution for n in (1, 2, 3)},
}


def _flops_of(node: Node) -> int | None:
    """Of products, convolutions and attention, as ``torch.utils.flop_counter`` counts them; None of others."""
    from torch.utils.flop_counter import flop_registry  # late: for reports alone

    if node.op != "aten_call":
        return None
    target = node.attrs["target"]
    args: list[Any] = list(filled(list(node.attrs["args"]), [None if i.several else _shape(i.type)
                                                             for i in node.inputs]))
    named = dict(args.pop()) if args and isinstance(args[-1], dict) else {}
    results = [_shape(t) for t in node.types if t is not None]
    if target in _COUNTED:
        return _COUNTED[target](results[0], *args)
    packet = getattr(torch.ops.aten, target.removeprefix("aten::"), None) if target.startswith("aten::") else None
    count = flop_registry.get(packet)
    if count is None:
        return None
    declared = arguments_of(target, node.attrs["overload"])
    named.update({a.name: v for a, v in zip(declared, args) if a.kwarg_only})
    args = [v for a, v in zip(declared, args) if not a.kwarg_only]
    try:
        return int(count(*args, **named, out_val=results[0] if len(results) == 1 else tuple(results)))
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
        passed = [one.group.reads & {m.node for m in other.group.members} for one, other in ((a, b), (b, a))]
        shared = passed[0] | passed[1] or a.group.reads & b.group.reads
        moved = sum(map(bytes_hint, shared))
        key = (min(first, second), max(first, second))
        found[key] = (why, moved)
    return [(a, b, why, moved) for (a, b), (why, moved) in sorted(found.items())]
