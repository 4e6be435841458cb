"""From a loop kernel to the shape of its C++ loops: which axis is vectorised, which passes a row takes, which values
are kept between passes.

Every kernel becomes the same nest. *Rows* are the parallel axes but the vector axis; they are shared out among threads.
Within a row come, in turn, *segments* of row-level statements and *passes* over the reduction axes, cut wherever a
statement needs the result of a reduction. The vector axis is innermost: a reduction axis ("row mode": results are
scalars per row) or a parallel one ("column mode": results are short arrays).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jit import devices
from jit.codegen import loops, nest
from jit.codegen.cpp.ops import COST
from jit.codegen.unrolling import neighbours_written_out
from jit.errors import JitError
from jit.graph import dims

if TYPE_CHECKING:
    from ...graph.dims import IntExpr

UNKNOWN_SIZE = 1024  # stands for a size that has no hint
CHEAP = 4  # cost up to which a value is computed again in a later pass and not kept
CLOSE = 2  # elements from one to the next, up to which those of a cache line are read by one loop: of pairs, one part
SHORTEST_PERIOD = 64  # iterations that are worth a loop of their own


def hint(e: IntExpr) -> int:
    """The expected value of a size, for decisions that change speed but not results."""
    try:
        return dims.hint(e)
    except JitError:
        return max(dims.bounds(e)[0] or 0, UNKNOWN_SIZE)


def stream_bytes(kernel: loops.Kernel) -> int:
    """Outputs from this size on are written around the cache; below, the next kernel finds them there (measured)."""
    return devices.of_type(kernel.device).architecture().cache


def normalise(kernel: loops.Kernel) -> loops.Kernel:
    """The same computation without axes of one iteration, and with neighbouring axes joined where every index walks
    them as one; what repeats in few of them is written out."""
    kernel = nest.without_ones(kernel)
    if not kernel.axes and not kernel.raxes:
        kernel = dataclasses.replace(kernel, axes=(loops.Axis("unit", 1, "p"),))
    return neighbours_written_out(nest.unfolded(nest.joined(kernel, nest.walked_as_one), SHORTEST_PERIOD))


@dataclass
class Layout:
    """The decisions for one normalised kernel. ``ready``/``stage`` count passes: a row-level value is ready before pass
    ``ready``, an element-level statement belongs to pass ``stage``."""

    kernel: loops.Kernel
    vector: loops.Axis
    rows: list  # parallel axes outside the vector axis, outermost first
    loops: list  # reduction axes outside the vector axis, outermost first
    definition: dict = field(default_factory=dict)
    varying: set = field(default_factory=set)  # the vector axis and the values that depend on it
    stage: list = field(default_factory=list)  # per statement
    inner: list = field(default_factory=list)  # per statement, whether it runs once per element; a Reduce does
    passes: int = 0
    kept: set = field(default_factory=set)  # element-level values stored between passes
    arrays: set = field(default_factory=set)  # row-level values stored per vector position (column mode)
    # segments[k]: statement numbers of the loop before pass k (column mode) or of scalars.
    segments: list = field(default_factory=list)
    bodies: list = field(default_factory=list)  # bodies[k]: statement numbers of pass k

    @property
    def element(self) -> frozenset:
        """The names of the element-level values."""
        return self.kernel.element_values

    @property
    def column(self) -> bool:
        """Whether the vector axis is a parallel one."""
        return self.vector.kind == "p"


def choose_vector(kernel: loops.Kernel) -> loops.Axis:
    """The axis along which most bytes are contiguous."""
    sizes = {a.name: hint(a.extent) for a in kernel.axes + kernel.raxes}
    ordered = any(s.ordered for s in kernel.body)
    candidates = list(kernel.axes) + list(kernel.raxes[-1:] if ordered else kernel.raxes)
    # Pointwise kernels can transpose what they load in cache, not what they store.
    store_weight = 1.5 if kernel.raxes else 8.0
    best, best_score = None, None
    for axis in candidates:
        score = 0.0
        for s in kernel.body:
            if not s.accessed:
                continue
            count = 1
            for name in dims.free_symbols(s.index):
                count *= sizes.get(name, 1)
            stride = dims.coefficient(s.index, axis.name)
            if type(stride) is int and 0 < stride <= CLOSE:
                weight = store_weight if s.stored else 1.0
                score += count * kernel.buffer_of[s.buffer].dtype.itemsize * weight / stride
            elif not (type(stride) is int and stride == 0):
                score -= 0.5 * count * kernel.buffer_of[s.buffer].dtype.itemsize
        if sizes[axis.name] < 16:
            score *= sizes[axis.name] / 16 if score > 0 else 16 / max(sizes[axis.name], 1)
        if best is None or score >= best_score:  # a tie goes to the inner axis, and to a reduction axis
            best, best_score = axis, score
    return best


def analyse(kernel: loops.Kernel, kept_bytes: int | None = None) -> Layout:
    """Decide everything about a kernel's loops. ``kept_bytes`` bounds what is kept per row instead of being computed
    again: what fits into a core's own cache, where it is not said."""
    kernel = normalise(kernel)
    vector = choose_vector(kernel)
    out = Layout(kernel, vector, [a for a in kernel.axes if a is not vector],
                 [a for a in kernel.raxes if a is not vector])
    _levels(out)
    _plan_passes(out, devices.of_type(kernel.device).architecture().local if kept_bytes is None else kept_bytes)
    return out


def _levels(out: Layout) -> None:
    level = {}  # value -> pass it belongs to (element-level) or is ready before (row-level)
    out.varying.add(out.vector.name)
    for i, s in enumerate(out.kernel.body):
        out.stage.append(max([level[n] for n in s.uses if n in level], default=0))
        out.inner.append(s.reduces or out.kernel.is_element(s))
        if not s.effect:
            out.definition[s.dst] = i
            level[s.dst] = out.stage[i] + s.reduces
            if (out.column or s.scans) if s.combine else not out.varying.isdisjoint(s.uses):
                out.varying.add(s.dst)
    out.passes = max([t + 1 for t, inner in zip(out.stage, out.inner) if inner], default=0)


def _plan_passes(out: Layout, kept_bytes: int) -> None:
    """Walk from the last pass to the first: what a pass needs from an earlier one is computed again when cheap, else
    kept and thereby wanted there."""
    body = out.kernel.body
    row_elements = 1
    for a in out.kernel.raxes:
        row_elements *= hint(a.extent)
    room = kept_bytes // max(4 * row_elements * (64 if out.column else 1), 1)
    stores = [(out.stage[i], s.index) for i, s in enumerate(body) if s.stored]
    segments = [set() for _ in range(out.passes + 1)]
    bodies = [set() for _ in range(out.passes)]

    def roots(k: int, element: bool) -> Iterator[int]:
        for i, s in enumerate(body):
            if out.stage[i] != k or out.inner[i] != element:
                continue
            if s.effect or s.reduces or s.dst in (out.kept if element else out.arrays):
                yield i

    def close(found: set[int], k: int, i: int, element: bool) -> None:
        """Add statement i, and whatever it needs inside the same loop, to ``found``."""
        if i in found:
            return
        found.add(i)
        s = body[i]
        for n in dict.fromkeys(s.uses):
            d = out.definition.get(n)
            if d is None or body[d].constant is not None or body[d].reduces:
                continue
            if n in out.element:
                if out.stage[d] < k and not _cheap(out, n, k, stores, room > len(out.kept)):
                    out.kept.add(n)
                    continue
                close(found, k, d, element)
            elif not out.column or n not in out.varying:
                close(segments[out.stage[d]], out.stage[d], d, False)
            elif (element or out.stage[d] < k) and not _cheap(out, n, k, stores, True):
                out.arrays.add(n)
            else:
                close(found, k, d, element)

    for k in range(out.passes, -1, -1):
        if k < out.passes:
            for i in roots(k, True):
                close(bodies[k], k, i, True)
        for i in roots(k, False):
            close(segments[k], k, i, False)
    out.segments = [sorted(x) for x in segments]
    out.bodies = [sorted(x) for x in bodies]


def _cheap(out: Layout, name: str, k: int, stores: list[tuple[int, IntExpr]], room: bool) -> bool:
    """Whether ``name``, from an earlier pass, is better computed again in pass ``k``.

    It has to be kept when something it loads may have been overwritten by then: a store of an earlier pass to the same
    index (in-place execution).
    """
    cost, seen, todo, safe = 0, set(), [name], True
    while todo:
        n = todo.pop()
        d = out.definition.get(n)
        if d is None or n in seen:
            continue
        seen.add(n)
        s = out.kernel.body[d]
        if n != name and (n in out.kept or n in out.arrays):
            cost += 1
            continue
        if s.reduces or (n not in out.element and n not in out.varying):
            continue
        if s.loaded:
            cost += 2
            if any(stage < k and dims.structurally_equal(index, s.index) for stage, index in stores):
                safe = False
        elif s.scans:
            safe = False
        elif s.prim:
            cost += COST.get(s.prim, 1)
        todo.extend(s.uses)
    return safe and (cost <= CHEAP or not room)


def tail(count: int) -> list:
    """``count`` positions, fewer than a strip, as lengths that a compiler turns into whole vectors, and a rest of less
    than the shortest one. A vector function costs what one call of the scalar function does: the last 4 of a row of 100
    exponentials took as long as all the others."""
    sizes = [count // 16 * 16, count & 8, count & 4, count & 3]
    return [size for size in sizes if size]
