"""Convolutions of each channel by itself in Triton: a thread makes a tile of pixels of a few neighbouring channels, so
that a pixel of the image that several of them need is read once, and the weights are read once for all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...graph import dims
from ..indexing import size_hint
from ..template import Candidate, Layout, template
from ..triton import emit as triton_emit
from ..triton.heuristics import Config
from ..triton.tiling import simplify, tiling
from ..unrolling import unrolled
from .convolutions import Depthwise
from .products import sum_of_loads

if TYPE_CHECKING:
    from ...devices import Architecture
    from ...graph.ir import Node
    from ..epilogues import Call
    from ..loops import Kernel
    from ..triton.emit import Source

LONGEST_TEXT = 400  # products that are written out: more take a compiler seconds
LARGEST = 121  # products of a sum that is written out


@dataclass(frozen=True)
class Tile:
    """A configuration: a thread makes ``rows`` by ``columns`` pixels of ``channels`` channels."""

    rows: int
    columns: int
    channels: int
    warps: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} pixels of {self.channels} channels, {self.warps} warps"


class Problem(NamedTuple):
    rows: str  # the axes of the result's pixels
    columns: str
    height: int  # and their extents
    width: int
    taps: int
    pixels: int
    channels: int


@template
class TritonDepthwise(Depthwise):
    name = "triton depthwise"
    emitter = "jit.codegen.triton.target"
    alone = True

    def matches(self, node: Node) -> bool:
        return super().matches(node) and node.type.dtype in (torch.float16, torch.bfloat16)

    def problem(self, kernel: Kernel) -> Problem | None:
        found = channel_axis(kernel)
        if found is None:
            return None
        others = [a for a in kernel.axes if a is not found]
        if len(others) < 2 or not all(type(a.extent) is int for a in (*others[-2:], *kernel.raxes)):
            return None
        taps = dims.product(a.extent for a in kernel.raxes)
        if taps > LARGEST:
            return None
        rows, columns = others[-2:]
        return Problem(rows.name, columns.name, rows.extent, columns.extent, taps,
                       size_hint(dims.product(a.extent for a in others)), size_hint(found.extent))

    def configurations(self, problem: Problem, architecture: Architecture) -> list[Tile]:
        largest = min(max(8, 2 * problem.taps // 3), LONGEST_TEXT // problem.taps)
        return [Tile(h, w, c, 4) for h in _dividing(problem.height, (1, 2, 4))
                for w in _dividing(problem.width, (1, 2, 4, 7, 8)) for c in (2, 4, 8)
                if h * w <= largest and h * w * c <= 64]

    def cost(self, problem: Problem, configuration: Tile, architecture: Architecture) -> float:
        """Fitted on an H200: what a thread reads for each result, of the images and of the weights; few threads do not
        wait for memory together."""
        c, side = configuration, problem.taps**0.5
        read = ((c.rows + side - 1) * (c.columns + side - 1) + problem.taps) / (c.rows * c.columns)
        results = problem.pixels * problem.channels
        threads = results / (c.rows * c.columns * c.channels)
        waiting = min(1.0, threads / (512 * architecture.processors))
        return results * (read / 5e12 + 1 / (architecture.bandwidth or 1e12)) * (1 + 0.05 * c.channels) / waiting

    def settled(self, call: Call, candidates: list[Candidate], architecture: Architecture) -> Candidate | None:
        problem = self.problem(call.kernel)
        if problem is None or problem.channels % 8:
            return None
        return min(candidates, key=lambda c: self.cost(problem, c.configuration, architecture))

    def lay_out(self, kernel: Kernel, configuration: Tile) -> Kernel:
        p = self.problem(kernel)
        made = unrolled(kernel, {p.rows: configuration.rows, p.columns: configuration.columns})
        assert made is not None
        return replace(made, layout=Flat(configuration.channels, configuration.warps))


def _dividing(extent: int, sizes: tuple[int, ...]) -> list[int]:
    return [s for s in sizes if extent % s == 0]


def channel_axis(kernel: Kernel):
    """The innermost axis of a kernel that is such a convolution, over images and results whose channels are neighbours
    in memory; None for any other."""
    totals = [s for s in kernel.body if s.combine]
    if len(totals) != 1 or not totals[0].reduces or not kernel.axes or not all(
            type(a.extent) is int for a in kernel.raxes):
        return None
    last = kernel.axes[-1]
    found = sum_of_loads(kernel)
    if found is None or last.name not in found[2].symbols:  # the innermost are not channels
        return None
    large = [s for s in kernel.body if s.accessed and len(kernel.along(s) - kernel.reduced) > 2]
    if not large or any(type(c) is not int or c != 1 for s in large for c in [dims.coefficient(s.index, last.name)]):
        return None
    return last


@dataclass(frozen=True)
class Flat(Layout):
    """One range of all points, with so many for each thread."""

    each: int
    warps: int
    version: int = 1

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        kernel = simplify(replace(kernel, layout=None))
        block = self.each * self.warps * 32
        return triton_emit.emit_tiled(tiling(kernel, "flat", x=kernel.axes), Config(x=block, warps=self.warps),
                                      aligned, interpret)
