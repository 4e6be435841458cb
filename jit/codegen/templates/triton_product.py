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

from ... import devices
from ...graph import dims
from ...devices.cuda import H200
from ..indexing import size_hint
from ..loops import HALF
from ..memory import storage_numel
from ..template import Candidate, Layout, Template, template
from ..triton.emit import Emitter, Source
from ..triton.heuristics import Config, next_power_of_two
from ..triton.tiling import Tiling, simplify, tiling
from .products import Product, parts, sum_of_products

if TYPE_CHECKING:
    from ...devices import Architecture
    from ...graph.ir import Node
    from ..epilogues import Call
    from ..loops import Kernel, Load, Reduce

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Sums of float32 are one chain here and several in the library, which is more exact: at 4,100 the error was 3.7 times
# the library's, at 1,024 about the same.
LONGEST = 1024
SMALLEST = 16  # side of a block that matrix units take
GROUP = 8  # rows of blocks that are done column by column, so that what they read stays in the cache
# The share of the operations that a device could do while it moves the bytes of a product, below which it streams.
STREAMED = 1.05
FEWEST_ROWS = 2048
VECTOR_BYTES = 16
EFFICIENCY = 0.7  # of the fastest rate, reached with blocks of 128 by 128
COPY_ENGINE = 90  # the capability from which there is one
# (rows, columns, warps, stages, programs that stay on a processor) with the share of the fastest rate that the sums
# reach, as measured on an H200.
RESIDENT = {(128, 256, 8, 4, 1): 0.72, (128, 256, 8, 3, 1): 0.70, (128, 128, 8, 4, 1): 0.64, (256, 128, 8, 3, 1): 0.68,
            (128, 128, 4, 3, 2): 0.62, (64, 256, 4, 4, 1): 0.5, (64, 128, 4, 4, 2): 0.5}
DESCRIPTOR = 128  # bytes
# Length of sums up to which two programs on a processor, of which one adds while the other computes its epilogue, are
# faster than one with larger blocks.
LONG = 2048
SURE = 0.085  # of a product's time: what a pass over the result has to take for the product to be fused untimed

# The same of a result of half the cache or more, and how many of the places for programs are then in use on average.
# With gelu, 4096 x 4096 by 1024: 59.5 us (the library and a kernel behind it 70.2); 8192 x 3072 by 768: 69.6 (85.3).
SURE_IN_CACHE, FULL = 0.25, 0.9


@dataclass(frozen=True)
class Blocks:
    """A configuration: ``rows`` by ``columns`` of the result for a program of ``warps`` warps, the sum by ``depth``
    elements, of which ``stages`` blocks are on their way or in use. ``resident``: so many programs stay on each
    processor, take one block after the other, and have the operands brought by the copy engine; 0: there is a program
    for each block, whose threads load the operands."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    resident: int = 0

    def __str__(self) -> str:
        stay = f", {self.resident} stay" if self.resident else ""
        return f"{self.rows}x{self.columns}x{self.depth}, {self.warps} warps, {self.stages} stages{stay}"


@template
class TritonProduct(Product):
    name = "triton product"
    emitter = "jit.codegen.triton.target"

    def matches(self, node: Node) -> bool:
        if not super().matches(node) or node.type.dtype not in DTYPES:
            return False
        depth = parts(node)[0].type.shape[-1]
        return node.type.dtype is not torch.float32 or type(depth) is int and depth <= LONGEST

    def problem(self, kernel: Kernel) -> tuple[int, int, int, int, bool] | None:
        """(rows, columns, length of the sums, bytes of an element of the operands) at the present sizes, and whether
        the copy engine can bring the operands."""
        found = tiled(kernel)
        if found is None:
            return None
        left = sum_of_products(found.kernel)[1]
        return (*(size_hint(found.extent(n)) for n in "yxr"), found.kernel.dtypes[left.dst].itemsize,
                matrices(found) is not None)

    def configurations(self, problem: tuple, architecture: Architecture) -> list[Blocks]:
        rows, columns, depth, itemsize, copied = problem
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
        if copied and architecture.capability >= COPY_ENGINE and itemsize == 2:
            for m, n, warps, stages, resident in RESIDENT:
                if (m <= max(next_power_of_two(rows), 64) and n <= max(next_power_of_two(columns), 64)
                    and resident * (m + n) * 64 * itemsize * stages <= architecture.local):
                    found.append(Blocks(m, n, 64, warps, stages, resident))
        return found

    def cost(self, problem: tuple, configuration: Blocks, architecture: Architecture) -> float:
        """As many rounds as the programs take on all processors, each as long as its arithmetic or its reads take,
        whichever is longer, and the time until its first operands are there."""
        rows, columns, depth, itemsize, _ = problem
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
        if c.resident:
            at_once = c.resident * architecture.processors
            share = RESIDENT[c.rows, c.columns, c.warps, c.stages, c.resident] / c.resident
            rounds, latency = -(-programs // at_once), 0.0
            arithmetic = 2 * c.rows * c.columns * c.depth * architecture.processors / (architecture.products or 1e14)
            return rounds * (steps * arithmetic / share + c.rows * c.columns / c.resident * 1e-10)
        return rounds * (steps * max(arithmetic, read, latency) + 2e-6)

    def sure(self, problem: tuple, architecture: Architecture) -> Blocks | None:
        """Where the result does not fit in the cache, so that the kernel behind the product takes the time to read and
        write it, and the sums are short beside that; and where it takes half of the cache, and they are shorter."""
        rows, columns, depth, itemsize, copied = problem
        size = rows * columns * itemsize
        if not copied or itemsize != 2 or architecture.capability != COPY_ENGINE or size < architecture.cache // 2:
            return None
        passed = 2 * size / (0.8 * architecture.bandwidth)
        summed = 2 * rows * columns * depth / (EFFICIENCY * architecture.products)
        if passed < (SURE if size >= architecture.cache else SURE_IN_CACHE) * summed:
            return None
        if size < architecture.cache:
            blocks, places = -(-rows // 128) * -(-columns // 128), 2 * architecture.processors
            full = blocks / (-(-blocks // places) * places)
            return Blocks(128, 128, 64, 4, 3, 2) if depth <= LONG and full >= FULL else None
        return Blocks(128, 256, 64, 8, 4, 1) if depth > LONG else Blocks(128, 128, 64, 4, 3, 2)

    def lay_out(self, kernel: Kernel, configuration: Blocks) -> Kernel:
        return replace(kernel, layout=ProductLayout(configuration))

    def settled(self, call: Call, candidates: list[Candidate], architecture: Architecture) -> Candidate | None:
        found = tiled(call.kernel)
        if found is None or call.node.type.dtype not in HALF:
            return None
        return streamed(self, call, self.problem(call.kernel), found.kernel, architecture)


def streamed(template: Template, call: Call, problem: tuple, kernel: Kernel,
             architecture: Architecture) -> Candidate | None:
    """The candidate for a call which computes little for each byte that it reads or writes, if what follows it is in
    reach of its blocks. There the library's call and a kernel behind it take as long as the result needs to be written
    and read once more. For more arithmetic the library's kernels are better by what that costs."""
    rows, columns, depth, itemsize = problem[:4]
    read = {*call.inputs, *call.results}
    moved = sum(size_hint(storage_numel(n.type)) * n.type.dtype.itemsize for n in read)
    intensity = 2 * rows * columns * depth / max(moved, 1)
    balance = (architecture.products or H200.products) / (architecture.bandwidth or H200.bandwidth)
    if intensity > STREAMED * balance or rows < FEWEST_ROWS or min(columns, depth) < 32:
        return None
    return Candidate(template, settled_blocks(problem, architecture)) if in_reach(kernel) else None


def in_reach(kernel: Kernel) -> bool:
    """Whether a product, with its rows as ``y`` and its columns as ``x``, reads its operands in whole vectors, and what
    is read and written beside them too."""
    for s in kernel.body:
        if not s.accessed:
            continue
        unit = VECTOR_BYTES // kernel.buffer_of[s.buffer].dtype.itemsize
        along = [n for n in "xyr" if same(dims.coefficient(s.index, "@" + n), 1)]
        strides = [c for n in "xyr" for c in [dims.coefficient(s.index, "@" + n)]]
        if "@y" in s.symbols and s.symbols & {"@x", "@r"} or "@r" in s.symbols:
            if not along or any(c is not None and not dims.divisible(c, unit) for c in strides if not same(c, 1)):
                return False
            if kernel.is_element(s) and not set(along) & {"x", "r"} or not kernel.is_element(s) and "x" not in along:
                return False
    return True


def same(a: dims.IntExpr | None, b: int) -> bool:
    return type(a) is int and a == b


def settled_blocks(problem: tuple, architecture: Architecture, piece: int = 0, most: int = 128) -> Blocks:
    """Blocks that are good without trying: large enough for the matrix units, small enough for every processor to have
    some, and no deeper than the sum, or than a ``piece`` of it that is read at once. ``most``: rows of narrow ones.

    Several small blocks on a processor hide each other's beginnings and ends, of which short sums have many: of 19
    products of a residual net, 64 by 128 or 128 by 64 were the fastest for 14, by up to 30 %, and within 8 % for others
    (H200)."""
    rows, columns, depth, itemsize = problem[:4]
    narrow = columns <= 64
    n, m = min(next_power_of_two(max(columns, SMALLEST)), 64 if narrow else 128), most if narrow else most // 2
    while m > 32 and -(-rows // m) * -(-columns // n) < architecture.processors:
        m //= 2
    while n > 32 and -(-rows // m) * -(-columns // n) < architecture.processors:
        n //= 2
    deepest, piece = 128 // itemsize, piece or depth
    k = next((k for k in (deepest, deepest // 2, deepest // 4) if k >= SMALLEST and piece % k == 0),
             max(SMALLEST, min(next_power_of_two(piece), deepest)))
    return Blocks(m, n, k, 8 if m * n > 16384 else 4, max(1, min(3, depth // k)))


@dataclass(frozen=True)
class ProductLayout(Layout):
    """Blocks of rows and columns."""

    blocks: Blocks
    version: int = 1  # of the text, for what is remembered of its speed

    def scratch(self, kernel: Kernel) -> int:
        found = tiled(kernel)
        if not self.blocks.resident or matrices(found) is None:
            return 0
        return 2 * DESCRIPTOR * programs_of(found, self.blocks)

    def aligned(self, kernel: Kernel, everything: bool) -> Layout:
        if self.blocks.resident and not (everything and matrices(tiled(kernel)) is not None):
            return replace(self, blocks=replace(self.blocks, resident=0))
        return self

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        b = self.blocks
        config = Config(x=b.columns, y=b.rows, r=b.depth, looped=True, warps=b.warps, stages=b.stages)
        found = tiled(kernel)
        if b.resident and not interpret:
            return _ResidentEmitter(found, config, aligned, programs_of(found, b), matrices(found)).source()
        return ProductEmitter(found, config, aligned, interpret).source()


def programs_of(found: Tiling, b: Blocks) -> int:
    """How many programs there are of a kernel whose programs stay."""
    blocks = -(-size_hint(found.extent("y")) // b.rows) * -(-size_hint(found.extent("x")) // b.columns)
    architecture = devices.of_type(found.kernel.device).architecture()
    return min(blocks, b.resident * architecture.processors)


@dataclass(frozen=True)
class Matrix:
    """An operand as the copy engine takes it: a row-major matrix that begins ``offset`` elements behind a buffer's
    start, with rows ``stride`` elements apart. ``turned``: its rows lie along the sum."""

    offset: int
    stride: int
    turned: bool


def matrices(found: Tiling | None) -> tuple[Matrix, Matrix] | None:
    """The operands of a product for the copy engine; None where it cannot take them: sizes have to be known, rows and
    what is before them multiples of 16 bytes."""
    if found is None or any(type(e) is not int for e in found.extents.values()):
        return None
    made = []
    for s, n in zip(sum_of_products(found.kernel)[1:], ("@y", "@x")):
        along, across = dims.coefficient(s.index, "@r"), dims.coefficient(s.index, n)
        offset = dims.subst(s.index, {"@r": 0, n: 0})
        if any(type(v) is not int for v in (along, across, offset)):
            return None
        turned = along != 1
        stride = along if turned else across
        width = found.extents["x" if n == "@x" else "y"] if turned else found.extents["r"]
        unit = 16 // found.kernel.dtypes[s.dst].itemsize
        if (across if turned else along) != 1 or stride < width or offset < 0 or stride % unit or offset % unit:
            return None
        made.append(Matrix(offset, stride, turned))
    return made[0], made[1]


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


class ProductEmitter(Emitter):
    """The sum as a loop of block products; all statements of the epilogue as in any kernel."""

    word = "product"

    def _dimensions(self) -> list:
        return ["y", "x"]

    def _positions(self) -> None:
        """The block of a program: down a few rows of blocks, then the next column of them."""
        self.line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide - {"r"} else ""))
        self._block_of_program()

    def _block_of_program(self) -> None:
        rows, columns = (self.text(dims.ceil_div(self.extents[n], self.block[n])) for n in "yx")
        self.line(f"group = {GROUP} * {columns}")
        self.line(f"first = program // group * {GROUP}")
        self.line(f"height = tl.minimum({rows} - first, {GROUP})")
        places = {"y": "first + program % group % height", "x": "program % group // height"}
        for n, place in places.items():
            self.line(f"{n}_block = {place}")
            self.line(f"{n} = {n}_block * {self.block[n]} + {self._arange(n)}")
            if n in self.masked:
                self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")

    def _statements(self) -> None:
        total, left, right = self._found()
        self._product(total, left, right)
        for s in self.kernel.body:
            if s is not total and s.dst not in self.kernel.element_values:
                self.statement(s)

    def _found(self) -> tuple[Reduce, Load, Load]:
        return sum_of_products(self.kernel)

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


class _ResidentEmitter(ProductEmitter):
    """Programs that stay: blocks one after the other in one loop with their sums, so that the operands of the next are
    on their way while the epilogue of one is computed."""

    def __init__(self, found: Tiling, config: Config, aligned: Collection[str] | None, programs: int,
                 operands: tuple[Matrix, Matrix]) -> None:
        super().__init__(found, config, aligned, False)
        self.programs, self.operands = programs, operands

    def grid(self) -> int:
        return self.programs

    def source(self) -> Source:
        return replace(super().source(), scratch=2 * DESCRIPTOR)

    def _positions(self) -> None:
        rows, columns, depth = (self.text(self.extents[n]) for n in "yxr")
        _, *loads = sum_of_products(self.kernel)
        for side, s, m, n, extent in zip(("left", "right"), loads, self.operands, "yx", (rows, columns)):
            base = self.names[s.buffer] + (f" + {m.offset}" if m.offset else "")
            shape, block = [extent, depth], [self.block[n], self.block["r"]]
            if m.turned:
                shape, block = shape[::-1], block[::-1]
            self.line(f"{side}_matrix = tl.make_tensor_descriptor({base}, [{', '.join(shape)}], [{m.stride}, 1], "
                      f"{block})")
        blocks = dims.ceil_div(self.extents["y"], self.block["y"]) * dims.ceil_div(self.extents["x"], self.block["x"])
        self.line(f"for program in tl.range(tl.program_id(0), {blocks}, {self.programs}, flatten=True):")
        self.depth += 1
        if self.wide - {"r"}:
            self.line("program = program.to(tl.int64)")
        self._block_of_program()

    def _product(self, total: Reduce, left: Load, right: Load) -> None:
        out, step = self.names[total.dst], self.block["r"]
        self.line(f"{out} = tl.zeros([{self.block['y']}, {self.block['x']}], tl.float32)")
        self.line(f"for r in range(0, {self.text(self.extents['r'])}, {step}):")
        with self.indented():
            for side, m, n, turned in zip(("left", "right"), self.operands, "yx", (False, True)):
                place = f"{n}_block * {self.block[n]}"
                place = f"({place}).to(tl.int32)" if self.wide - {"r"} else place
                self.line(f"{side} = {side}_matrix.load([{f'r, {place}' if m.turned else f'{place}, r'}])"
                          + (".T" if m.turned is not turned else ""))
            self.line(f"{out} = tl.dot(left, right, {out})")
