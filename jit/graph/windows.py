"""Windows: values that are computed from a few places around an element's own, in each of the last dimensions.

Pooling, resizing, padding and their gradients are all one prim, ``window``, of one or two tensors. Its ``axes`` say for
each of the last dimensions at which places an element reads, with which weight, and where there is nothing; ``how``
says what becomes of what is read. A gradient reads too: an element of the input looks up the results that it had a part
in, in a fixed order, so nothing is added up by atomics.

An axis is kept in the node as a tuple, its kind and its numbers, so that nodes print and compare; ``axis_of`` makes the
object. Here stand sizes and what can be known before a kernel runs; ``codegen.windows`` has the statements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from jit.graph import layout
from jit.graph.dims import FloorDiv
from jit.graph.ir import Node, TensorType, contiguous_strides
from jit.graph.prim_info import LOOKUP, prim

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr

AXES: dict[str, type] = {}


@dataclass(frozen=True)
class Axis:
    """Of one dimension: ``source`` places are read for ``size`` results."""

    source: IntExpr
    size: IntExpr

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind, AXES[kind] = kind, cls

    @property
    def count(self) -> int | None:
        """The largest number of places that a result reads; None where that is not known."""
        return 1

    @property
    def name(self) -> str:
        """What sums along it are called where a device says which it wants."""
        return self.kind

    def entry(self) -> tuple:
        """The axis as a node keeps it."""
        return (self.kind, *(getattr(self, f.name) for f in fields(self)))


def axis_of(entry: tuple) -> Axis:
    """The object of an axis as a node keeps it."""
    return AXES[entry[0]](*entry[1:])


def axes_of(node: Node) -> list:
    return [axis_of(a) for a in node.attrs["axes"]]


def places(node: Node) -> int:
    """How many places of its first operand an element of a window reads."""
    return math.prod(a.count for a in axes_of(node))


def _static(*sizes: object) -> bool:
    return all(type(s) is int for s in sizes)


# where a result reads


@dataclass(frozen=True)
class Same(Axis, kind="same"):
    """Its own place."""


@dataclass(frozen=True)
class Strided(Axis, kind="strided"):
    """``o * stride - padding + k * dilation`` for each k; nothing outside."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    count = property(lambda self: self.kernel)


@dataclass(frozen=True)
class Shares(Axis, kind="shares"):
    """``start(o) .. end(o)`` of an adaptive pool."""

    @functools.cached_property
    def count(self) -> int | None:  # type: ignore[override]
        if type(self.size) is int and type(self.source % self.size) is int and self.source % self.size == 0:
            whole = self.source // self.size
            return whole if type(whole) is int else None
        if not _static(self.source, self.size):
            return None
        return max(self._end(o) - o * self.source // self.size for o in range(self.size))

    @property
    def least(self) -> int:
        """How many places every result reads."""
        if self.source % self.size == 0:
            return self.source // self.size
        return min(self._end(o) - o * self.source // self.size for o in range(self.size))

    @property
    def name(self) -> str:
        return "shares" if self.least == self.count else "uneven shares"

    def _end(self, o: int) -> int:
        return -(-(o + 1) * self.source // self.size)


@dataclass(frozen=True)
class Edge(Axis, kind="edge"):
    """``o - before``, mirrored at the edges (``how`` "reflect"), at the nearest edge ("replicate") or from the other
    one ("circular")."""

    before: int
    how: str


# where a result reads: resizing


def _f32(v: float) -> float:
    return torch.tensor(v, dtype=torch.float32, device="cpu").item()


@dataclass(frozen=True)
class Resized(Axis, kind="resized"):
    """Interpolation. ``scale``: the factor that the program gives, or None; ``how``: "nearest", "exact", "linear",
    "cubic", or "smooth linear" and "smooth cubic", which average as far as the image shrinks; ``wide``: it is computed
    in float64.

    The scales are those of ATen's ``area_pixel_compute_scale`` and ``compute_scales_value``.
    """

    how: str
    align: bool
    scale: float | None
    wide: bool = False

    TAPS = {"nearest": 1, "exact": 1, "linear": 2, "cubic": 4}

    @property
    def name(self) -> str:
        return "smoothed" if self.how.startswith("smooth") else self.kind

    @functools.cached_property
    def step(self) -> float | None:
        """How far it is from one result to the next in the source, in the type that eager computes it in; None where
        sizes are not known."""
        rounded = float if self.wide and self.how not in ("nearest", "exact") else _f32
        if not self.align and self.scale is not None and self.scale > 0:
            return rounded(1.0 / self.scale)
        if not _static(self.source, self.size):
            return None
        if self.align:
            return rounded((self.source - 1) / (self.size - 1)) if self.size > 1 else 0.0
        return rounded(self.source / self.size)

    @property
    def reach(self) -> float:
        """Half of the width over which it averages, in places of the source."""
        half = 1.0 if self.how == "smooth linear" else 2.0
        return half * max(self.step, 1.0)

    @functools.cached_property
    def count(self) -> int | None:  # type: ignore[override]
        if self.how in self.TAPS:
            return self.TAPS[self.how]
        if self.first_place is not None:
            a, b, c = self.first_place
            first = (torch.arange(self.size, device="cpu") * a + b) // c
            end = (self.centres() + self.reach + 0.5).trunc().to(torch.int64).clamp(max=self.source)
            return int((end - first).max())
        return None if self.step is None else 2 * math.ceil(self.reach) + 1

    def centres(self) -> torch.Tensor:
        """Where each result lies in the source; of static sizes."""
        kind = torch.float64 if self.wide and self.how not in ("nearest", "exact") else torch.float32
        at = torch.arange(self.size, dtype=kind, device="cpu")
        step = torch.tensor(self.step, dtype=kind, device="cpu")
        if self.how == "nearest" or self.align and self.how in ("linear", "cubic"):
            return at * step
        if self.how == "exact":
            return (at + 0.5) * step
        if self.how.startswith("smooth"):
            return (at + 0.5) * step
        at = (at + 0.5) * step - 0.5
        return at if self.how == "cubic" else at.clamp(min=0)

    @functools.cached_property
    def spans(self) -> tuple | None:
        """For each result the first and the last place that it may read, give or take what roundings could change."""
        if not _static(self.source, self.size):
            return None
        at, last = self.centres().to(torch.float64), self.source - 1
        if self.how in ("nearest", "exact"):
            first = at.floor()
            ends = first, first
        elif self.how == "linear":
            half = torch.arange(self.size, dtype=torch.float64, device="cpu") + 0.5
            # A result before the first place reads that one alone.
            before = half * self.step < 0.5 - 1e-4 if not self.align else half < 0
            ends = (at - 1e-4).floor(), torch.where(before, 0.0, (at + 1e-4).floor() + 1)
        elif self.how == "cubic":
            ends = (at - 1e-4).floor() - 1, (at + 1e-4).floor() + 2
        else:
            ends = (at - self.reach + 0.5 - 1e-3).floor(), (at + self.reach + 0.5 + 1e-3).floor()
        return tuple(e.clamp(0, last).to(torch.int64) for e in ends)

    @functools.cached_property
    def first_place(self) -> tuple | None:
        """(a, b, c) where the first place that result o reads, before edges are looked at, is ``(o * a + b) // c`` for
        every o, by integers alone: of a linear one at least 0, of a smooth one this place or one that is not read. None
        where roundings give another one."""
        if self.how in ("nearest", "exact") or not _static(self.source, self.size):
            return None
        n, size = self.source, self.size
        if self.how.startswith("smooth"):  # where two places are equally near, either may be the first
            half = 1 if self.how == "smooth linear" else 2
            a, b, c = 2 * n, n + size - 2 * half * max(n, size) - 1, 2 * size
        elif self.align:
            a, b, c = (n - 1, 0, size - 1) if size > 1 else (0, 0, 1)
        else:
            a, b, c = 2 * n, n - size, 2 * size
        divisor = math.gcd(a, b, c)
        a, b, c = a // divisor, b // divisor, c // divisor
        found, first = (torch.arange(size, device="cpu") * a + b) // c, self._first
        if self.how == "linear":
            found = found.clamp(min=0)
        right = found <= first if self.how.startswith("smooth") else found == first
        return (a, b, c) if bool(right.all()) else None

    @functools.cached_property
    def period(self) -> int | None:
        """After how many results of a linear or cubic one the distances from the first place that is read repeat to the
        last bit, edges aside; None where they do not."""
        if self.first_place is None or self.how not in ("linear", "cubic") or self.wide:
            return None
        a, b, c = self.first_place
        n = c // math.gcd(a, c)
        o = torch.arange(self.size, device="cpu")
        at, step = o.float(), torch.tensor(self.step, device="cpu")
        at = at * step if self.align else (at + 0.5) * step - 0.5
        far = at - (o * a + b).div(c, rounding_mode="floor")
        return n if n < self.size and torch.equal(far, far[o % n]) else None

    @property
    def _first(self) -> torch.Tensor:
        """The first place of each result, as eager computes it."""
        at = self.centres()
        if self.how.startswith("smooth"):
            at = (at - self.reach + 0.5).clamp(min=0)
        return at.floor().to(torch.int64)

    @functools.cached_property
    def nearest_place(self) -> tuple | None:
        """(a, b, c) where the nearest place is ``(o * a + b) // c`` for every o, by integers alone."""
        if self.how not in ("nearest", "exact") or self.spans is None:
            return None
        a, b, c = (self.source, 0, self.size) if self.how == "nearest" else (2 * self.source, self.source,
                                                                            2 * self.size)
        o = torch.arange(self.size, device="cpu")
        return (a, b, c) if torch.equal((o * a + b) // c, self.spans[0]) else None


# where an element of the source looks up results


@dataclass(frozen=True)
class StridedBack(Axis, kind="strided back"):
    """The windows of a ``Strided`` axis of which a place is part: ``source`` are windows, ``size`` places."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    count = property(lambda self: (self.kernel - 1) * self.dilation // self.stride + 1)


@dataclass(frozen=True)
class SharesBack(Axis, kind="shares back"):
    """The results of an adaptive pool that a place is part of."""

    @functools.cached_property
    def count(self) -> int | None:  # type: ignore[override]
        if type(self.source) is int and type(self.size % self.source) is int and self.size % self.source == 0:
            return 1
        if not _static(self.source, self.size):
            return None
        return max(((i + 1) * self.source - 1) // self.size - i * self.source // self.size
                   for i in range(self.size)) + 1


@dataclass(frozen=True)
class EdgeBack(Axis, kind="edge back"):
    """The results of an ``Edge`` that show a place."""

    before: int
    after: int
    how: str

    @property
    def count(self) -> int:
        if self.how == "replicate":
            return 1 + self.before + self.after
        return 1 + (self.before > 0) + (self.after > 0)


@dataclass(frozen=True)
class ResizedBack(Axis, kind="resized back"):
    """The results of a ``Resized`` axis that read a place; the rest is that axis's."""

    how: str
    align: bool
    scale: float | None
    wide: bool = False

    @property
    def name(self) -> str:
        return "nearest back" if self.how in ("nearest", "exact") else f"{self.forward.name} back"

    @functools.cached_property
    def forward(self) -> Resized:
        return Resized(self.size, self.source, self.how, self.align, self.scale, self.wide)

    @functools.cached_property
    def touching(self) -> tuple | None:
        """(a, b, c, count): all results that read place i are among ``count`` from ``(i * a + b) // c`` on; None of
        sizes that are not known. Found by going through all of them."""
        spans = self.forward.spans
        if spans is None:
            return None
        none = self.source
        low = torch.full((self.size,), none, dtype=torch.int64, device="cpu")
        high = torch.full((self.size,), -1, dtype=torch.int64, device="cpu")
        o = torch.arange(self.source, device="cpu")
        for k in range(int((spans[1] - spans[0]).max()) + 1):
            place = torch.minimum(spans[0] + k, spans[1])
            low.scatter_reduce_(0, place, o, "amin")
            high.scatter_reduce_(0, place, o, "amax")
        read = (high >= 0).nonzero()[:, 0]
        a, c = 2 * self.source, 2 * self.size
        if self.align and self.source > 1 and self.size > 1:
            a, c = 2 * (self.source - 1), 2 * (self.size - 1)
        b = int((c * (low[read] + 1) - 1 - a * read).min())
        first = (read * a + b) // c
        return a, b, c, int((high[read] - first).max()) + 1

    @property
    def count(self) -> int | None:
        return None if self.touching is None else self.touching[3]


def first_touching(axis: ResizedBack, i: IntExpr) -> IntExpr:
    a, b, c, _ = axis.touching
    return FloorDiv(i * a + b, c)


# the prim


def _text(n: Node, a: list[str]) -> str:
    facts = ", ".join(f"{k}={v!r}" for k, v in n.attrs.items() if k != "shape")
    return f"window({', '.join(a)}, {facts})"


@prim("window", "window", _text, cost=LOOKUP, rounds=True)
def _window(types: Sequence[TensorType], attrs: dict[str, Any], dtype: torch.dtype | None) -> TensorType:
    """``x, *others``; ``axes``: of the last dimensions; ``shape``: the result's; ``how``:

    ``sum``: of what is read, times its weight; ``divisor`` is what that is divided by: None, a number, or "read",
        "inside" or "axes": by how many places (of those in the image) there are in each direction together, or one
        after the other.
    ``back``: of what is read, each divided by the ``divisor`` of the window that it stands for.
    ``max``: the largest; NaN is largest. ``position``: ``x, largest``: where that lies, in row-major order: the first
        such, and of NaN the last.
    ``picked``: ``x, positions``: the sum of what is read where the position is the element's own.
    ``columns``: ``x``, (N, C, *size) -> (N, C, *kernel, *results). ``images``: the sum that goes back.
    ``sample``: ``x, grid``: x at the coordinates in ``grid``; ``mode``, ``padding``, ``align`` as in ATen.
    """
    t, shape = types[0], attrs["shape"]
    last = t.rank == len(shape) and layout.memory_format(t) == "channels_last"
    strides = layout.channels_last_strides(shape) if last else contiguous_strides(shape)
    return TensorType(shape, strides, dtype or t.dtype, t.device)


ONCE = {"position"}  # which are smaller than what is read to find them, and found where the largest is
IN_STEP = {"position"}  # of which the second operand is read at the element's own place


def reads(node: Node) -> tuple:
    """For each operand how often an element of the result reads it."""
    how, n = node.attrs["how"], places(node)
    if how == "position":
        return n, 1
    if how == "sample":
        return 2 ** len(node.attrs["axes"]), len(node.attrs["axes"])
    return (n,) * len(node.inputs)
