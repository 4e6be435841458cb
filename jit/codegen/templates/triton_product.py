"""The product of two matrices in Triton, on the matrix units of GPUs.

A program makes a block of the result: it adds up products of blocks of the operands, and goes on with the epilogue on
what it has in registers. Sums are in float32 whatever the operands, and products of float32 are exact, as eager's are
where TF32 is not allowed. Rows and columns of the operands may lie anyhow, and sizes need not be multiples of the
blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ...graph import dims
from ..indexing import size_hint
from ..template import Layout, template
from ..triton.emit import Emitter, Source
from ..triton.heuristics import Config, next_power_of_two
from ..triton.tiling import Tiling, simplify, tiling
from .products import Product, parts, sum_of_products

if TYPE_CHECKING:
    from ...devices import Architecture
    from ...graph.ir import Node
    from ..loops import Kernel, Load, Reduce

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Sums of float32 are one chain here and several in the library, which is more exact: at 4,100 the error was 3.7 times
# the library's, at 1,024 about the same.
LONGEST = 1024
SMALLEST = 16  # side of a block that matrix units take
GROUP = 8  # rows of blocks that are done column by column, so that what they read stays in the cache
EFFICIENCY = 0.7  # of the fastest rate, reached with blocks of 128 by 128


@dataclass(frozen=True)
class Blocks:
    """A configuration: ``rows`` by ``columns`` of the result for a program of ``warps`` warps, the sum by ``depth``
    elements, of which ``stages`` blocks are on their way or in use."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}, {self.warps} warps, {self.stages} stages"


@template
class TritonProduct(Product):
    name = "triton product"
    emitter = "jit.codegen.triton.target"

    def matches(self, node: Node) -> bool:
        if not super().matches(node) or node.type.dtype not in DTYPES:
            return False
        depth = parts(node)[0].type.shape[-1]
        return node.type.dtype is not torch.float32 or type(depth) is int and depth <= LONGEST

    def problem(self, kernel: Kernel) -> tuple[int, int, int, int] | None:
        """(rows, columns, length of the sums, bytes of an element of the operands) at the present sizes."""
        found = tiled(kernel)
        if found is None:
            return None
        left = sum_of_products(found.kernel)[1]
        return (*(size_hint(found.extent(n)) for n in "yxr"), found.kernel.dtypes[left.dst].itemsize)

    def configurations(self, problem: tuple, architecture: Architecture) -> list[Blocks]:
        rows, columns, depth, itemsize = problem
        sides = [[b for b in (16, 32, 64, 128, 256) if b <= max(next_power_of_two(n), SMALLEST)]
                 for n in (rows, columns)]
        found = []
        for m, n in itertools.product(*sides):
            held = 4 * m * n  # bytes of the sums, in registers
            if held > architecture.registers // 2:
                continue
            for k in (128 // itemsize, 256 // itemsize):  # of small blocks more at once: they wait for memory
                stages = min(architecture.local // ((m + n) * k * itemsize), 4, -(-depth // k))
                if stages >= 1 and (k * itemsize == 128 or held <= architecture.registers // 16):
                    warps = [4] * (held <= architecture.registers // 4) + [8] * (held >= architecture.registers // 4)
                    found += [Blocks(m, n, k, w, stages) for w in warps]
        return found

    def cost(self, problem: tuple, configuration: Blocks, architecture: Architecture) -> float:
        """As many rounds as the programs take on all processors, each as long as its arithmetic or its reads take,
        whichever is longer, and the time until its first operands are there."""
        rows, columns, depth, itemsize = problem
        c = configuration
        programs = -(-rows // c.rows) * -(-columns // c.columns)
        rounds, at_once = -(-programs // architecture.processors), min(programs, architecture.processors)
        steps = -(-depth // c.depth)
        # Small blocks keep the matrix units waiting for operands.
        share = EFFICIENCY * min(1.0, c.rows * c.columns / (c.rows + c.columns) / 64)
        rate = (architecture.products or 1e14) / architecture.processors * share * (1 if itemsize == 2 else 1 / 16)
        arithmetic = 2 * c.rows * c.columns * c.depth / rate
        # Blocks that several programs read come from the cache, about three times as fast as memory.
        read = (c.rows + c.columns) * c.depth * itemsize * at_once / (3 * (architecture.bandwidth or 1e12))
        latency = 1e-6 / max(c.stages - 1, 1)
        return rounds * (steps * max(arithmetic, read, latency) + 2e-6)

    def lay_out(self, kernel: Kernel, configuration: Blocks) -> Kernel:
        return replace(kernel, layout=ProductLayout(configuration))


@dataclass(frozen=True)
class ProductLayout(Layout):
    """Blocks of rows and columns."""

    blocks: Blocks
    version: int = 1  # of the text, for what is remembered of its speed

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        b = self.blocks
        config = Config(x=b.columns, y=b.rows, r=b.depth, looped=True, warps=b.warps, stages=b.stages)
        return _ProductEmitter(tiled(kernel), config, aligned, interpret).source()


def tiled(kernel: Kernel) -> Tiling | None:
    """A kernel that is a product with an epilogue, with its rows as the dimension ``y``, its columns as ``x``; None for
    any other, or one whose operands do not vary along one of these alone."""
    kernel = simplify(kernel)
    found = sum_of_products(kernel)
    if found is None:
        return None
    left, right = ([a for a in kernel.axes if a.name in s.symbols] for s in found[1:])
    if not left or not right or sorted(a.name for a in left + right) != sorted(a.name for a in kernel.axes):
        return None
    made = tiling(kernel, "product", y=left, x=right, r=kernel.raxes)
    _, first, second = sum_of_products(made.kernel)
    if any(made.kernel.dtypes[s.dst] not in DTYPES or dims.coefficient(s.index, "@r") is None for s in (first, second)):
        return None
    return made if made.kernel.dtypes[first.dst] is made.kernel.dtypes[second.dst] else None


class _ProductEmitter(Emitter):
    """The sum as a loop of block products; all statements of the epilogue as in any kernel."""

    word = "product"

    def _dimensions(self) -> list:
        return ["y", "x"]

    def _positions(self) -> None:
        """The block of a program: down a few rows of blocks, then the next column of them."""
        rows, columns = (self.text(dims.ceil_div(self.extents[n], self.block[n])) for n in "yx")
        self.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide - {"r"} else ""))
        self.line(f"group = {GROUP} * {columns}")
        self.line(f"first = program // group * {GROUP}")
        self.line(f"height = tl.minimum({rows} - first, {GROUP})")
        places = {"y": "(first + program % group % height)", "x": "(program % group // height)"}
        for n, place in places.items():
            self.line(f"{n} = {place} * {self.block[n]} + {self._arange(n)}")
            if n in self.masked:
                self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")

    def _statements(self) -> None:
        total, left, right = sum_of_products(self.kernel)
        self._product(total, left, right)
        for s in self.kernel.body:
            if s is not total and s.dst not in self.kernel.element_values:
                self.statement(s)

    def _product(self, total: Reduce, left: Load, right: Load) -> None:
        step, extent, out = self.block["r"], self.text(self.extents["r"]), self.names[total.dst]
        wide = ".to(tl.int64)" if "r" in self.wide else ""
        sides = (("left", left, "y", "r_left", "None, :"), ("right", right, "x", "r_right", ":, None"))
        for side, s, _, along, shape in sides:
            self.line(f"{along} = tl.arange(0, {step})[{shape}]{wide}")
            self.names["@r"] = along
            self.line(f"{side}_at = {self.address(s.buffer, s.index)}")
        self.line(f"{out} = tl.zeros([{self.block['y']}, {self.block['x']}], tl.float32)")
        self.line(f"for r in range(0, {extent}, {step}):")
        with self.indented():
            for side, _, n, along, _ in sides:
                mask = [f"{n}_in"] if n in self.masked else []
                mask += [f"({along} < {extent} - r)"] if "r" in self.masked else []
                self.line(f"{side} = tl.load({side}_at" + (f", mask={' & '.join(mask)}, other=0.0)" if mask else ")"))
            self.line(f'{out} = tl.dot(left, right, {out}, input_precision="ieee")')
            for side, s, *_ in sides:
                stride = dims.coefficient(s.index, "@r") * step
                if type(stride) is not int or stride:
                    self.line(f"{side}_at += {self.text(stride)}")
