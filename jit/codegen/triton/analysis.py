"""What the emitter and its heuristics ask about a kernel's body: passes over a row, maxima taken with sums, and which
values may be approximate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import torch

from ... import devices
from ...graph import dims
from .. import loops
from ..indexing import size_hint

if TYPE_CHECKING:
    from ...graph.dims import Dim, IntExpr
    from ..loops import Kernel, Load, Statement, Store

# Elements per aligned access: 16 bytes of a half type.
VECTOR = 8
NEIGHBOURS = (2, 4, 8)  # how many accesses, or results, that lie interleaved are one vector: they are halved
POINTS = 2  # for each place, the fewest that are counted so
MOST_PLACES = 4100  # of which it is counted on chip how often data decide for each


class Schedule:
    """The statements of a reduction dealt into passes over the row.

    Args:
        online: take ``sum(exp(x - max(x)))`` and its maximum in one pass, and ``sum((x - mean)**2)`` in that of the
            mean.

    Attributes:
        at: per statement, the pass in which it runs; for a row-level one, the number of passes before it.
        count: the number of passes.
        pairs: maxima and the sums that are taken with them.
        moments: sums of squares, with what is squared, that are taken before what is subtracted there is known.
    """

    def __init__(self, kernel: loops.Kernel, online: bool) -> None:
        self.kernel, self.body = kernel, kernel.body
        self.pairs = online_pairs(kernel) if online else {}
        self.moments = squares(kernel) if online and _read_again_from_memory(kernel) else {}
        self.phase = {}
        self.at = [self._place(s) for s in self.body]
        self.is_element = [kernel.is_element(s) for s in self.body]
        self.count = 1 + max((self.at[i] for i in range(len(self.body)) if self._is_sink(i)), default=-1)
        self._keep_writes_behind_reads()

    def _place(self, s: Statement) -> int:
        p = max([self.phase.get(n, 0) for n in s.uses], default=0)
        if s.dst in self.moments and self.phase.get(self.moments[s.dst].args[0], 0) >= p:
            del self.moments[s.dst]
        if s.dst in self.pairs.values() or s.dst in self.moments:
            p -= 1
        if not s.effect:
            self.phase[s.dst] = p + s.reduces
        return p

    def _keep_writes_behind_reads(self) -> None:
        """A buffer that is read in a later pass is written in the last of these, not before."""
        last = {}
        for p in range(self.count):
            for i in self.needed(self.sinks(p)):
                last[self.body[i].loaded] = p
        for i, s in enumerate(self.body):
            if s.stored and self.is_element[i]:
                self.at[i] = max(self.at[i], last.get(s.stored, 0))

    def _is_sink(self, i: int) -> bool:
        return self.body[i].reduces or self.is_element[i] and self.body[i].effect

    def sinks(self, p: int) -> list:
        """The positions of what a pass is made for: its reductions, element-level stores and checks."""
        return [i for i in range(len(self.body)) if self.at[i] == p and self._is_sink(i)]

    def needed(self, sinks: list[int]) -> list:
        """The positions of the element-level statements that the sinks depend on, and of the sinks, in order."""
        names, chosen = set(), set(sinks)
        for i in sinks:
            s = self.body[i]
            names.update(s.uses if s.dst not in self.moments or s.effect else self.moments[s.dst].args[:1])
        for i in range(len(self.body) - 1, -1, -1):
            s = self.body[i]
            if i not in chosen and self.is_element[i] and s.dst in names:
                chosen.add(i)
                names.update(s.uses)
        return sorted(chosen)

    def loads_by_pass(self) -> dict:
        """Name of a loaded element-level value -> the passes that need it."""
        found = {}
        for p in range(self.count):
            for i in self.needed(self.sinks(p)):
                if self.body[i].loaded:
                    found.setdefault(self.body[i].dst, []).append(p)
        return found


def held_bytes(kernel: loops.Kernel) -> int:
    """Bytes per element that a row on chip has to keep, because they are needed before and after a reduction."""
    loads = Schedule(kernel, online=False).loads_by_pass()
    return sum(kernel.dtypes[n].itemsize for n, where in loads.items() if len(where) > 1)


def read_once(kernel: loops.Kernel) -> frozenset:
    """The values that are loaded from memory of which each element is read once: by one load, at another place for each
    point."""
    loads: dict = {}
    for s in kernel.body:
        if s.loaded:
            loads.setdefault(s.loaded, []).append(s)
    points = 1
    for a in kernel.axes + kernel.raxes:
        points *= size_hint(a.extent)
    found, axes = set(), {a.name for a in kernel.axes + kernel.raxes if not dims.is_one(a.extent)}
    for every in loads.values():
        first, *others = sorted(every, key=lambda s: not s.symbols >= axes)
        others = [s for s in others if s.symbols >= axes]  # what is read along fewer axes is little
        last = dims.bounds(first.index)[1] if isinstance(first.index, dims.Dim) else first.index
        if not others and first.symbols >= axes and (last is None or last + 1 >= points):
            found.add(first.dst)
    return frozenset(found)


def has_scan(kernel: loops.Kernel) -> bool:
    return any(s.scans for s in kernel.body)


def sorts(kernel: loops.Kernel) -> bool:
    """Whether it needs whole rows on chip, as there is no way to sort a row in parts."""
    return any(s.scans and s.combine == "sort" for s in kernel.body)


def pieces_allowed(kernel: loops.Kernel) -> bool:
    """Whether a block may be combined in pieces: only reductions of values, not of positions, and no scan."""
    return not any(s.ordered for s in kernel.body)


def writes_elements(kernel: loops.Kernel) -> bool:
    return any(s.stored and kernel.is_element(s) for s in kernel.body)


def row_part(index: Dim) -> IntExpr:
    """An index without its term in ``@r``."""
    return dims.subst(index, {"@r": 0})


def along_row(index: Dim, row_start: Dim) -> bool:
    """Whether an access walks along ``@r`` from ``row_start``, or from a whole number of vectors away from it."""
    stride = dims.coefficient(index, "@r")
    return type(stride) is int and stride == 1 and dims.divisible(row_part(index) - row_start, VECTOR)


def odd_row_start(kernel: loops.Kernel) -> Dim | None:
    """Where a row begins that is not aligned to vectors, for the access that decides (the first store, else the first
    load); None when all are aligned."""
    accesses = [s for s in kernel.body if s.accessed and "@r" in s.symbols]
    for s in sorted(accesses, key=lambda s: not s.stored):
        stride, start = dims.coefficient(s.index, "@r"), row_part(s.index)
        free = dims.free_symbols(start) - {"@x"}
        if (type(stride) is int and stride == 1 and not free and type(start) is not int
            and not dims.divisible(start, VECTOR)):
            return start
    return None


def online_pairs(kernel: loops.Kernel) -> dict:
    """Maxima and the sums of exponentials that are taken with them in one pass: {max: sum} for ``sum(exp(x - m))``,
    where ``m`` is ``max(x)`` or (as in logsumexp) that with 0 in the place of infinities."""
    pairs = {}
    for s in kernel.body:
        if s.reduces and s.op == "sum" and s.dtype.is_floating_point:
            _, sub = exponent_of(kernel, s.dst) or (None, None)
            if sub:
                m = _without_infinities(kernel.definition[sub.args[1]], kernel.definition)
                if (m.reduces and m.op == "max" and m.arg == sub.args[0]
                    and m.dst not in pairs and m.dtype is s.dtype):
                    pairs[m.dst] = s.dst
    return pairs


def _read_again_from_memory(kernel: loops.Kernel) -> bool:
    """Whether another pass over a row costs its bytes: not where it writes elements, and so reads the row again in any
    case, and the cache holds the rows of all programs. A second pass takes less than squares about a guess then."""
    if not writes_elements(kernel):
        return True
    length = math.prod(size_hint(a.extent) for a in kernel.raxes)
    widest = max((kernel.buffer_of[s.loaded].dtype.itemsize for s in kernel.body if s.loaded and kernel.is_element(s)),
                 default=4)
    arch = devices.of_type(kernel.device).architecture()
    return length * widest * arch.processors > arch.cache


def squares(kernel: loops.Kernel) -> dict:
    """The sums of squares of ``x - m``, where ``m`` is known for a row: {sum: the statement that subtracts}."""
    found = {}
    for s in kernel.body:
        if s.reduces and s.op == "sum" and s.dtype is torch.float32 and not s.precise:
            square = kernel.definition[s.arg]
            if square.prim == "mul" and square.args[0] == square.args[1]:
                sub = kernel.definition[square.args[0]]
                if (sub.prim == "sub" and sub.dtype is torch.float32 and sub.args[0] in kernel.element_values
                    and sub.args[1] not in kernel.element_values and kernel.dtypes[sub.args[0]] is torch.float32):
                    found[s.dst] = sub
    return found


def _without_infinities(s: Statement, by_name: dict[str, Statement]) -> Statement:
    """The statement of ``m`` when ``s`` is ``where(isinf(m), 0, m)``, else ``s``."""
    if s.prim == "where":
        condition, zero, m = (by_name[a] for a in s.args)
        if condition.prim == "isinf" and condition.args[0] == m.dst and zero.constant == 0:
            return m
    return s


def exponent_of(kernel: loops.Kernel, total: str) -> tuple[Statement, Statement] | None:
    """The statements ``exp`` and ``sub`` of a sum of ``exp(x - m)``; None for other sums."""
    exp = kernel.definition[kernel.definition[total].arg]
    sub = kernel.definition[exp.args[0]] if exp.prim == "exp" else exp
    return (exp, sub) if sub.prim == "sub" else None


def summed_exponentials(kernel: loops.Kernel) -> frozenset:
    """The values ``exp(x - max(x))`` of float32 of which only the sum over the row is taken. They need not be more
    exact than the sum: the error of the device's own instruction is a rounding of what is in the exponent, and where
    that is large, the value is as nothing beside the 1 of the maximum."""
    users: dict = {}
    for s in kernel.body:
        for n in (*s.operands, *s.symbols):
            users.setdefault(n, []).append(s)

    def only_summed(name: str) -> bool:
        return all(s.reduces and s.op == "sum" or s.prim == "where" and name in s.args[1:] and only_summed(s.dst)
                   for s in users.get(name, ()))

    found = set()
    for s in kernel.body:
        sub = kernel.definition[s.args[0]] if s.prim == "exp" and s.dtype is torch.float32 else s
        if s.prim == "exp" and sub.prim == "sub" and only_summed(s.dst):
            top = _without_infinities(kernel.definition[sub.args[1]], kernel.definition)
            if top.reduces and top.op == "max" and top.arg == sub.args[0]:
                found.add(s.dst)
    return frozenset(found)


def counted(kernel: Kernel) -> Optional[tuple[loops.Update, int]]:
    """The statement with which a kernel counts, where that is all that it does, and for how many places: it adds one
    number at a place that data decide, of a few. None for other kernels."""
    effects = [s for s in kernel.body if s.effect and s.limit is None]
    if kernel.raxes or not kernel.axes or len(effects) != 1 or not isinstance(effects[0], loops.Update):
        return None
    (s,) = effects
    number, place = kernel.definition[s.value].constant, kernel.definition.get(next(iter(s.symbols), ""))
    if s.op != "sum" or type(number) is not int or s.mask is not None or len(s.symbols) != 1 or place is None:
        return None
    step = dims.coefficient(s.index, place.dst)
    points = math.prod(size_hint(a.extent) for a in kernel.axes)
    few = type(place.limit) is int and 0 < place.limit <= MOST_PLACES and points >= POINTS * place.limit
    return (s, place.limit) if few and type(step) is int and step == 1 else None


@dataclass(frozen=True)
class Group:
    """Accesses of one buffer at ``rest + step * x + k``, for each ``k`` from 0 on, as many as ``step`` is, or, where
    the order of an axis is turned around, ``-step``. ``first`` and ``last``: the positions of those that come first
    and last in the kernel's body."""

    members: tuple[Load, ...] | tuple[Store, ...]
    first: int
    last: int
    step: int

    @property
    def count(self) -> int:
        return len(self.members)


def interleaved(kernel: Kernel, axis: str) -> list[Group]:
    """The accesses of a kernel that are interleaved along an axis."""
    alike: dict = {}
    for i, s in enumerate(kernel.body):
        if s.accessed and s.mask is None and axis in s.symbols:
            step = dims.coefficient(s.index, axis)
            if type(step) is int and abs(step) in NEIGHBOURS:
                key = (bool(s.stored), s.accessed, loops.index_key(s.index - s.index.const), step)
                alike.setdefault(key, {}).setdefault(s.index.const, (i, s))
    found = []
    for (stored, buffer, _, step), places in alike.items():
        count = abs(step)
        for start in sorted(places):
            run = [places.get(start + k) for k in range(count)]
            if None in run:
                continue
            at = [i for i, _ in run]
            if _together(kernel, buffer, stored, min(at)):
                found.append(Group(tuple(s for _, s in run), min(at), max(at), step))
                for k in range(count):
                    del places[start + k]
    return found


def _together(kernel: Kernel, buffer: str, stored: bool, first: int) -> bool:
    """Whether accesses of a buffer may be done at once: reads where the first of them is, writes where the last is."""
    if not stored:
        return kernel.buffer_of[buffer].role == "in"
    return not any(s.loaded == buffer for s in kernel.body[first:])
