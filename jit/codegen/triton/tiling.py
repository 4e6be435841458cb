"""From axes to tile dimensions: which axes are one linear range, which range is which dimension of a block, and how
wide indices are.

A kernel's iteration space is laid over at most three of these dimensions:

- ``x``: parallel, the fastest-varying one of the main store; in a pointwise kernel usually all axes as one range
- ``y``: parallel, a second contiguous axis (a transposed read), or the outer axes where a division per element would be
  slow
- ``z``: parallel, what is left, always a single point per program
- ``r``: all reduction axes as one range, in row-major order
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...graph import dims
from ...graph.prims import info
from .. import loops, nest, parts, unrolling
from ..indexing import size_hint
from . import analysis, neighbours
from .analysis import NEIGHBOURS

if TYPE_CHECKING:
    from ...graph.dims import Atom, Dim, IntExpr
    from ..loops import Axis, Kernel, Load, Statement, Store

INT32_MAX = 2**31 - 1
FEWEST_SHARED = 512  # points of a block whose work is shared; smaller ones read too little at a time
# Elements from which pieces of one row lose nothing against one range over all rows, and need no division.
LONG_ROW = 4096
ROW = ("t", "s", "r")  # the dimensions of a row, outermost first
MOST_VECTORS = 16
SHORTEST_VECTOR = 4  # elements that are worth reading as one
SHORTEST_ROW = 64  # elements for which a row's place is worth finding on its own
MANY_DIVISIONS = 3  # for each element, which cost more than to read it
SHORT_ROW = 32  # places that data decide, the most whose sum is written out
# Results for each point that share what they read, the share of reads from which that pays, and how long a kernel's
# body may be for it.
RESULTS, LEAST_SHARED, MOST_STATEMENTS = (2, 3, 4, 5), 0.8, 300
LONGEST_BODY = 900  # of a kernel with several results for a point


def simplify(kernel: loops.Kernel) -> loops.Kernel:
    """An equal kernel without axes of one iteration, and with neighbouring axes joined wherever no index becomes harder
    to compute."""
    return nest.joined(nest.without_ones(kernel), _join)


def _join(outer: loops.Axis, inner: loops.Axis, body: tuple) -> tuple[Axis, tuple] | None:
    """The two axes as one, with the rewritten body; None where an index would need a new division."""
    axis = loops.Axis(f"{outer.name}_{inner.name}", outer.extent * inner.extent, outer.kind)
    names = frozenset((outer.name, inner.name))
    values = dict(zip((outer.name, inner.name), _parted(axis.sym, inner.extent)))
    new = loops.substituted(body, values)
    if any(a is not b and divisions(a.expression, {axis.name}) > divisions(b.expression, names)
           for a, b in zip(new, body)):
        return None
    return axis, new


def _parted(index: Dim, extent: IntExpr) -> tuple:
    """(index // extent, index % extent); an axis without elements has no index."""
    return (0, 0) if type(extent) is int and extent == 0 else (index // extent, index % extent)


def divisions(e: IntExpr, names: Collection[str]) -> int:
    """How many divisions and remainders in ``e`` depend on one of the names."""
    if type(e) is int:
        return 0
    total = 0
    for mono in e.terms:
        for atom in mono:
            if atom.kind != "sym" and not atom.free.isdisjoint(names):
                total += 1 + divisions(atom.a, names) + divisions(atom.b, names)
    return total


@dataclass(frozen=True)
class Tiling:
    """A kernel whose axes are the tile dimensions, named as above with an ``@`` before (axis ``@x`` is dimension
    ``x``). ``kind``: "flat" (x alone), "tile" (x and y both contiguous somewhere), "strip" (y are the outer axes),
    "shared" (likewise, and much is computed along x alone), "inner" (rows lie along r), "outer" (rows lie along x),
    "totals" (rows along r, and x is walked through by the program of a z, which adds up), "counts" (x, walked through),
    "product" (of matrices: y are rows, x columns), "thin" (see ``thin``) or "vectors" (x alone, each of whose points
    has several results)."""

    kernel: loops.Kernel
    kind: str

    @functools.cached_property
    def extents(self) -> dict:
        """Dimension name -> number of points, outermost first."""
        return {a.name[1:]: a.extent for a in self.kernel.axes + self.kernel.raxes}

    def extent(self, name: str) -> IntExpr:
        """The number of points along a dimension; 1 where there is none."""
        return self.extents.get(name, 1)


def tiling(kernel: Kernel, kind: str, **groups: tuple[Axis, ...] | list[Axis]) -> Tiling:
    """The kernel with each group of axes, outermost first, as one linear range."""
    values, axes = {}, {"p": [], "r": []}
    for name, group in groups.items():
        if not group:
            continue
        axis = loops.Axis("@" + name, dims.product(a.extent for a in group), group[0].kind)
        axes[axis.kind].append(axis)
        rest = axis.sym
        for i, a in reversed(list(enumerate(group))):
            values[a.name] = rest
            if i:
                rest, values[a.name] = _parted(rest, a.extent)
    return Tiling(dataclasses.replace(kernel, axes=tuple(axes["p"]), raxes=tuple(axes["r"]),
                                      body=loops.substituted(kernel.body, values)), kind)


def _is_unit(stride: IntExpr) -> bool:
    return type(stride) is int and abs(stride) == 1


def _walks(index: IntExpr, name: str, step: int) -> bool:
    """Whether an index goes on by so many elements along an axis."""
    found = dims.coefficient(index, name)
    return type(found) is int and found == step


def unit_stride(index: IntExpr, name: str) -> bool:
    """Whether an index goes one by one along an axis."""
    return _is_unit(dims.coefficient(index, name))


def contiguous_axes(kernel: loops.Kernel, statements: list[Load | Store] | None = None) -> dict:
    """Axis name -> bytes that statements access with stride 1 along that axis, each counted over the axes on which it
    depends."""
    found, axes = {}, kernel.axes + kernel.raxes
    for s in statements or kernel.body:
        if s.accessed:
            names, total = s.symbols, kernel.buffer_of[s.buffer].dtype.itemsize
            for a in axes:
                total *= size_hint(a.extent) if a.name in names else 1
            for a in axes:
                if _is_unit(dims.coefficient(s.index, a.name)):
                    found[a.name] = found.get(a.name, 0) + total
    return found


def tile(kernel: loops.Kernel) -> Tiling:
    """Choose the tile dimensions of a kernel, from its index expressions and present sizes."""
    if any(s.totals for s in kernel.body):
        kernel = nest.joined(kernel, lambda outer, *rest: _join(outer, *rest) if outer.kind == "r" else None)
        return tiling(kernel, "totals", z=kernel.axes[:1], x=kernel.axes[1:], r=kernel.raxes)
    if analysis.counted(kernel):
        kernel = simplify(kernel)
        return tiling(kernel, "counts", x=kernel.axes)
    kernel = without_short_rows(simplify(_in_memory_order(_neighbours(kernel))))
    if kernel.raxes:
        found = thin(kernel)
        if found is not None:
            return found
        kernel = _without_shared_rows(kernel)
    return _tile_reduction(kernel) if kernel.raxes else _tile_pointwise(kernel)


def _in_memory_order(kernel: Kernel) -> Kernel:
    """The kernel with the axis of a row along which most is contiguous as its innermost one, where the order of a row's
    elements has no meaning: the channels of a group, in images of which they come last."""
    if len(kernel.raxes) < 2 or any(s.ordered for s in kernel.body):
        return kernel
    contiguous = contiguous_axes(kernel, [s for s in kernel.body if s.accessed and kernel.is_element(s)] or None)
    best = max(reversed(kernel.raxes), key=lambda a: contiguous.get(a.name, 0))
    others = tuple([a for a in kernel.raxes if a is not best])
    return dataclasses.replace(kernel, raxes=(*others, best))


def side_by_side(tiling: Tiling, most: int) -> int:
    """How many neighbouring rows, up to ``most``, lie within the same few bytes: a row has a piece of memory, the next
    one the piece behind it, and then comes a gap. 1 where rows are longer than that, or lie apart."""
    kernel = tiling.kernel
    loads = [s for s in kernel.body if s.loaded and {"@x", "@r"} <= s.symbols and s.symbols <= {"@x", "@r"}]
    if not loads or type(tiling.extent("r")) is not int:
        return 1
    s = max(loads, key=lambda s: kernel.buffer_of[s.loaded].dtype.itemsize)

    def at(x: int, r: int) -> int:
        return dims.evaluate(s.index, {"@x": x, "@r": r}) - dims.evaluate(s.index, {"@x": 0, "@r": 0})

    most //= kernel.buffer_of[s.loaded].dtype.itemsize
    piece = next((r for r in range(1, min(most, tiling.extent("r"))) if at(0, r) != r), most)
    rows = 1
    while 2 * rows * piece <= most and 2 * rows <= size_hint(tiling.extent("x")) and all(
            at(x, 0) == x * piece for x in range(rows, 2 * rows)):
        rows *= 2
    return rows


def _without_shared_rows(kernel: Kernel) -> Kernel:
    """The kernel with sums over a few places written out, where what each of them reads is read for many results, as
    distances between all points of two sets do."""
    rows, every = dims.product(a.extent for a in kernel.raxes), {a.name for a in kernel.axes}
    if type(rows) is not int or not 0 < rows <= SHORT_ROW // 2 or any(
            s.loaded and kernel.along(s) >= every for s in kernel.body):
        return kernel
    return unrolling.unrolled(kernel, {}) or kernel


def _neighbours(kernel: Kernel) -> Kernel:
    """The kernel with neighbouring results, or those of equal parts of an axis, written out where that saves reads or
    makes vectors."""
    for i in range(len(kernel.axes)):
        if i < len(kernel.axes):
            made = unrolling.neighbours_written_out(kernel, NEIGHBOURS, kernel.axes[i : i + 1])
            if made is not kernel and _worthwhile(kernel, made):
                kernel = made
    return parts.in_parts(kernel)


def _worthwhile(kernel: Kernel, made: Kernel) -> bool:
    """Whether a kernel with several results for each point reads less, or has vectors where it had none."""
    points, fewer = (math.prod(size_hint(a.extent) for a in k.axes) for k in (kernel, made))
    before, after = (sum(bool(s.loaded) for s in k.body) for k in (kernel, made))
    return after * fewer < before * points or bool(made.axes and analysis.interleaved(made, made.axes[-1].name))


def without_short_rows(kernel: Kernel) -> Kernel:
    """The kernel with sums over a few places that data decide written out: each thread then has the reads of all of
    them in flight, with its neighbours along what they read."""
    rows = dims.product(a.extent for a in kernel.raxes)
    bounded = {s.dst for s in kernel.body if s.limit is not None and not s.effect}
    if (not kernel.raxes or type(rows) is not int or not 0 < rows <= SHORT_ROW
        or not any(s.loaded and not bounded.isdisjoint(s.symbols) for s in kernel.body)):
        return kernel
    return unrolling.unrolled(kernel, {}) or kernel


def shares_reads(kernel: Kernel) -> Kernel:
    """The kernel with several results for each point, along an axis that is not the innermost, where these read and
    compute much of the same: of a window that moves by less than its width."""
    if len(kernel.axes) < 2 or not reads_around(kernel) or len(kernel.body) > MOST_STATEMENTS:
        return kernel
    loads = [s for s in kernel.body if s.loaded]
    best, least = kernel, LEAST_SHARED
    for axis in kernel.axes[:-1]:
        own = sum(axis.name in kernel.along(s) for s in loads)
        for count in RESULTS:
            made = unrolling.several_results(kernel, axis.name, count) if own else None
            if made is None or len(made.body) > 4 * MOST_STATEMENTS:
                continue
            read = sum(bool(s.loaded) for s in made.body) - len(loads) + own
            share = read * -(-axis.extent // count) / (axis.extent * own)
            if share < least:
                best, least = made, share
    return best


def _of_neighbours(kernel: Kernel) -> Kernel | None:
    """The kernel with several results for each point, side by side or of several images, where these share what they
    read or where they read it, and no other order of the axes is wanted."""
    if not kernel.axes or _transposed_axis(kernel, kernel.axes[-1]) is not None:
        return None
    around = reads_around(kernel, 2)
    if not around and not _reads_with_gaps(kernel):
        return None
    shared = shares_reads(kernel)
    if neighbours.reads_vectors(shared):
        return None
    found = [k for base in (shared, kernel) for k in neighbours.neighbours(base, LONGEST_BODY)]
    if not found and not around:
        return None
    made = min(found, key=neighbours.cost_of_store, default=shared)
    stores = [sum(bool(s.stored) for s in k.body) for k in (kernel, made)]
    more = neighbours.images(made, 3 * LONGEST_BODY // 2, stores[1] // stores[0])
    return None if more is shared else more


def _reads_with_gaps(kernel: Kernel) -> bool:
    """Whether it reads places that sizes alone decide, and that do not go on by a fixed number of elements."""
    plain, inner = {a.name for a in kernel.axes} | set(kernel.sizes), kernel.axes[-1].name
    return any(s.loaded and s.symbols <= plain and dims.coefficient(s.index, inner) is None for s in kernel.body)


def _tile_pointwise(kernel: Kernel) -> Tiling:
    made = _of_neighbours(kernel)
    if made is not None:
        return tiling(made, "vectors", x=made.axes)
    kernel = shares_reads(kernel)
    kernel = _turned_around(kernel)
    axes = kernel.axes
    if len(axes) < 2:
        return tiling(kernel, "flat", x=axes)
    inner = axes[-1]
    other = _transposed_axis(kernel, inner)
    if other is not None:
        y, x = _runs(kernel, other, inner)
        rest = [a for a in axes if a not in x and a not in y]
        return tiling(kernel, "tile", z=rest, y=y, x=x)
    short = _interleaved_axis(kernel)
    if short is not None:
        kernel = simplify(unrolling.unrolled(kernel, {short.name: short.extent}) or kernel)
        axes = kernel.axes
        if len(axes) < 2:
            return tiling(kernel, "flat", x=axes)
        inner = axes[-1]
    groups = _shared_work(kernel)
    if groups:
        found = tiling(kernel, "shared", **groups)
        x, y = (size_hint(found.extents.get(n, 1)) for n in "xy")
        if x >= 32 and min(x, 1024) * min(y, 32) >= FEWEST_SHARED:
            return found
    flat = tiling(kernel, "flat", x=axes)
    if (not all(type(a.extent) is int for a in axes) or inner.extent >= LONG_ROW or _finds_rows(kernel, inner)
        or _makes_rows(inner) and _counts_out_places(flat.kernel)
        or len(analysis.interleaved(kernel, inner.name)) > len(analysis.interleaved(flat.kernel, "@x"))):
        return tiling(kernel, "strip", y=axes[:-1], x=[inner])
    return flat


def _counts_out_places(kernel: Kernel) -> bool:
    """Whether a kernel over one range finds, for each element by itself and with several divisions, where it lies: not
    where the elements of a vector lie side by side."""
    reads = [s for s in kernel.body if s.loaded and "@x" in s.symbols]
    apart = [s for s in reads if not in_vectors(s.index)]
    return len(apart) * 2 > len(reads) and len({a for s in apart for a in _quotients(s.index)}) >= MANY_DIVISIONS


def _quotients(e: IntExpr) -> set:
    """The quotients and remainders in an expression by numbers that are no powers of two."""
    if type(e) is int:
        return set()
    atoms = {a for mono in e.terms for a in mono if a.kind != "sym"}
    divided = {a for a in atoms if a.kind in ("//", "%") and not (type(a.b) is int and a.b > 0 and not a.b & a.b - 1)}
    return divided.union(*(_quotients(v) for a in atoms for v in (a.a, a.b)))


def in_vectors(index: Dim) -> bool:
    """Whether eight neighbours along ``@x`` lie side by side, from a multiple of eight on."""
    def whole(e: IntExpr) -> bool:
        return type(e) is int and e % analysis.VECTOR == 0

    for mono, c in index.terms.items():
        (atom, *others) = mono
        along = "@x" in atom.free
        steps = c == 1 and not others and along and (
            atom.kind == "sym" or atom.kind == "%" and whole(atom.b) and unit_stride(atom.a, "@x"))
        if not steps and not (whole(c) and not others and _stays(atom)):
            return False
    return whole(index.const)


def _stays(atom: Atom) -> bool:
    """Whether an atom is one number for each eight neighbours along ``@x``."""
    if "@x" not in atom.free:
        return True
    if atom.kind not in ("//", "%"):
        return False
    inner = [a for mono in atom.a.terms for a in mono if "@x" in a.free]
    if all(a.kind != "sym" for a in inner):
        return all(map(_stays, inner))
    return atom.kind == "//" and type(atom.b) is int and atom.b % analysis.VECTOR == 0


def _makes_rows(inner: Axis) -> bool:
    """Whether rows are long enough, and of whole vectors, so that they are written as fast as one range."""
    return inner.extent >= SHORTEST_ROW // 2 and inner.extent % SHORTEST_VECTOR == 0 and _fills(inner.extent)


def _fills(length: int) -> bool:
    """Whether rows of a length leave little of a block empty."""
    return length * 4 >= 3 << max(length - 1, 1).bit_length()


def _finds_rows(kernel: Kernel, inner: Axis) -> bool:
    """Whether data decide where rows lie, which is then looked up and checked once for a row."""
    return inner.extent >= SHORTEST_ROW and _fills(inner.extent) and any(
        s.effect and s.limit is not None and inner.name not in kernel.along(s) for s in kernel.body)


def reads_vectors(found: Tiling) -> bool:
    """Whether most of what is read lies side by side along x, and begins where vectors begin."""
    loads = [s for s in found.kernel.body if s.loaded and "@x" in found.kernel.along(s)]
    return sum(unit_stride(s.index, "@x") and dims.divisible(dims.subst(s.index, {"@x": 0}), SHORTEST_VECTOR)
               for s in loads) * 2 > len(loads)


def _shared_work(kernel: Kernel) -> dict | None:
    """The axes as x, y and z, so that most of what is computed along some of the axes alone is computed once for the
    points of a block along the others: the places and weights of resizing are the same for all images and channels.
    None where there is little of that."""
    axes, every = kernel.axes, frozenset(a.name for a in kernel.axes)
    part = [(kernel.along(s), _work(s, every)) for s in kernel.body]
    part = [(along, w) for along, w in part if along and along < every and w]
    along_axis = {a.name: sum(w for along, w in part if a.name in along) for a in axes}
    free = [a for a in axes if along_axis[a.name] * 4 <= max(along_axis.values())]
    if not free or len(axes) < 2 or not reads_around(kernel):
        return None
    if free[-1] is axes[-1]:
        loads = [s for s in kernel.body if s.loaded]
        if sum(unit_stride(s.index, axes[-1].name) for s in loads) * 2 > len(loads):
            return {"y": axes[:-1], "x": axes[-1:]} if size_hint(axes[-1].extent) >= 8 else None
        free = list(axes[:1])
    inner = len(axes) - max(axes.index(a) for a in free) - 1
    outer = [a for a in axes[: len(axes) - inner] if a not in free]
    # Triton deals threads out along the first dimension of blocks whose addresses it knows nothing of.
    return {"z": outer, "x": axes[len(axes) - inner :], "y": free}


def _work(s: Statement, names: frozenset) -> int:
    """About how many instructions a statement's index and arithmetic take."""
    own = info(s.prim).cost.gpu if s.prim else 0
    index = s.expression if not s.accessed else None
    return own + (0 if index is None else 1 + 4 * divisions(index, names)) + (2 if s.limit is not None else 0)


def reads_around(kernel: Kernel, least: int = 3) -> bool:
    """Whether it reads ``least`` places of one tensor or more for an element, under conditions, at places that are
    computed, or with gaps."""
    plain = {a.name for a in kernel.axes} | set(kernel.sizes)
    loads: dict = {}
    if not kernel.axes:
        return False
    together = {s for group in analysis.interleaved(kernel, kernel.axes[-1].name) for s in group.members}
    for s in kernel.body:
        if s.loaded:
            stride = dims.coefficient(s.index, kernel.axes[-1].name)
            near = s in together and least > 2 or (
                s.mask is None and s.symbols <= plain and type(stride) is int and abs(stride) <= 1
                and all(dims.coefficient(s.index, a.name) is not None for a in kernel.axes))
            all_of, far = loads.get(s.loaded, (0, 0))
            loads[s.loaded] = all_of + 1, far + (not near)
    return any(all_of >= least and far > 1 for all_of, far in loads.values())


def _transposed_axis(kernel: Kernel, inner: Axis) -> Axis | None:
    """The axis along which most bytes are accessed contiguously by statements that stride along ``inner``; None without
    any."""
    weight = {}
    for s in kernel.body:
        if s.accessed:
            stride = dims.coefficient(s.index, inner.name)
            if stride is None or type(stride) is int and abs(stride) <= 1:
                continue
            for a in kernel.axes:
                if a is not inner and _is_unit(dims.coefficient(s.index, a.name)) and _reaches(kernel, a, inner, s):
                    weight[a.name] = weight.get(a.name, 0) + kernel.buffer_of[s.buffer].dtype.itemsize
    best = next((a for a in kernel.axes if weight and a.name == max(weight, key=weight.get)), None)
    return None if best is None or _length(_runs(kernel, best, inner)[1]) < 4 else best


def _interleaved_axis(kernel: Kernel) -> Axis | None:
    """A short axis along which an access walks whose elements lie interleaved with those of another axis, as pixels
    that become channels do; written out, they are read, or written, as one range. None without any."""
    for axis in kernel.axes:
        n = axis.extent
        if type(n) is int and n in NEIGHBOURS and n * len(kernel.body) <= unrolling.LONGEST_BODY and any(
                s.accessed and s.mask is None and unit_stride(s.index, axis.name)
                and any(_walks(s.index, a.name, n) for a in kernel.axes) for s in kernel.body):
            return axis
    return None


def _turned_around(kernel: Kernel) -> Kernel:
    """The kernel with the results of a vector written out where what it reads along its innermost axis comes in the
    opposite order: it is read as vectors, and turned around in registers."""
    if not kernel.axes:
        return kernel
    inner = kernel.axes[-1]
    turned = [s for s in kernel.body if s.loaded and s.mask is None and _walks(s.index, inner.name, -1)]
    if not turned or type(inner.extent) is not int:
        return kernel
    n = min(max(16 // kernel.buffer_of[s.loaded].dtype.itemsize for s in turned), NEIGHBOURS[-1])
    if n not in NEIGHBOURS or inner.extent % n or n * len(kernel.body) > unrolling.LONGEST_BODY:
        return kernel
    return simplify(unrolling.unrolled(kernel, {inner.name: n}) or kernel)


def _reaches(kernel: Kernel, axis: Axis, inner: Axis, s: Statement) -> bool:
    """Whether an access goes on along an axis, and those behind it, for as long as is worth a tile."""
    run = [axis]
    while _length(run) < 8:
        more = _next([a for a in kernel.axes if a is not inner], run, [s])
        if more is None:
            return False
        run.insert(0, more)
    return True


def _length(axes: list[Axis]) -> int:
    return size_hint(dims.product(a.extent for a in axes))


def _next(axes: list[Axis], run: list[Axis], accesses: list) -> Axis | None:
    """The axis along which accesses go on where they have come to the end of a run of axes, outermost first."""
    taken = dims.product(a.extent for a in run)
    return next((a for a in axes if a not in run and all(
        dims.structurally_equal(dims.coefficient(s.index, a.name) or 0, taken) for s in accesses)), None)


def _runs(kernel: Kernel, other: Axis, inner: Axis) -> tuple[list, list]:
    """Two axes, each with those along which the accesses that are contiguous there go on, as short axes make no tile:
    the shorter run goes on first, so that each gets enough."""
    runs = [[other], [inner]]
    accesses = [[s for s in kernel.body if s.accessed and unit_stride(s.index, a.name)] for a in (other, inner)]
    while True:
        taken = [a for run in runs for a in run]
        found = [(_length(run), k, axis) for k, run in enumerate(runs)
                 if (axis := _next([a for a in kernel.axes if a not in taken], run, accesses[k]))]
        if not found:
            return runs[0], runs[1]
        _, k, axis = min(found, key=lambda f: f[:2])
        runs[k].insert(0, axis)


def _tile_reduction(kernel: Kernel) -> Tiling:
    element = [s for s in kernel.body if s.accessed and kernel.is_element(s)]
    contiguous = contiguous_axes(kernel, element or None)
    last = kernel.raxes[-1]
    parallel = {a.name: contiguous.get(a.name, 0) for a in kernel.axes}
    best = max(parallel, key=parallel.get, default=None)
    if best is not None and parallel[best] > contiguous.get(last.name, 0):
        inner = next(a for a in kernel.axes if a.name == best)
        if size_hint(inner.extent) >= 16:
            return tiling(kernel, "outer", z=[a for a in kernel.axes if a is not inner], x=[inner], r=kernel.raxes)
        return tiling(kernel, "outer", x=kernel.axes, r=kernel.raxes)
    return tiling(kernel, "inner", x=kernel.axes, r=kernel.raxes)


def thin(kernel: Kernel) -> Tiling | None:
    """A kernel that is nothing but sums of products of a matrix and a few vectors, with the matrix's rows as the
    dimension ``x``, the vectors as ``y``, and each axis of a row as a dimension; None for any other."""
    sums = [s for s in kernel.body if s.combine]
    if not sums or any(s.combine != "sum" or not s.reduces or s.dtype is not torch.float32 or s.precise for s in sums):
        return None
    if len(kernel.raxes) > len(ROW) or any(s.effect and kernel.is_element(s) for s in kernel.body):
        return None
    later: set = set()
    for s in kernel.body:
        if any(n in later for n in s.uses):
            if kernel.is_element(s):
                return None  # the row is needed again
            later.add(s.dst)
        elif s.combine:
            later.add(s.dst)
    terms = [t for s in sums for t in products(kernel, s.arg)]
    if not all(kernel.definition[t].prim == "mul" for t in terms):
        return None
    loads = [s for s in kernel.body if s.loaded and kernel.is_element(s)]
    matrix = max(loads, key=lambda s: _bytes(kernel, s), default=None)
    if matrix is None:
        return None
    rows = [a for a in kernel.axes if a.name in kernel.varies[matrix.dst]]
    vectors = [a for a in kernel.axes if a not in rows]
    count = dims.product(a.extent for a in vectors)
    if type(count) is not int or count > MOST_VECTORS or not rows:
        return None
    # Each has a factor that does not vary along all rows of the matrix, and is read again for them.
    if not all(any(_vector(kernel, o, matrix) for o in kernel.definition[t].operands) for t in terms):
        return None
    row = kernel.raxes[-1]
    across = contiguous_axes(kernel, [matrix])
    halves = count > 1 and all(kernel.buffer_of[s.loaded].dtype in loops.HALF for s in loads if s is not matrix)
    if len(kernel.raxes) == 1 and row.name not in across and not halves:
        return None
    return tiling(kernel, "thin", y=vectors, x=rows, **{n: [a] for n, a in zip(ROW[-len(kernel.raxes):], kernel.raxes)})


def _vector(kernel: Kernel, name: str, matrix: Load) -> bool:
    """Whether a value is of a vector: the same for some rows of the matrix."""
    return not kernel.varies[matrix.dst] - kernel.reduced <= kernel.varies[name] and name in kernel.element_values


def _bytes(kernel: Kernel, s: Statement) -> int:
    total = kernel.buffer_of[s.loaded].dtype.itemsize
    for a in kernel.axes + kernel.raxes:
        total *= size_hint(a.extent) if a.name in kernel.varies[s.dst] else 1
    return total


def products(kernel: Kernel, name: str) -> list[str]:
    """The values whose sum a value is."""
    s = kernel.definition[name]
    if s.prim == "add" and s.dtype is torch.float32:
        return [t for a in s.operands for t in products(kernel, a)]
    return [name]
