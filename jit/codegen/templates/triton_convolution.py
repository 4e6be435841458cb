"""Convolutions in Triton, on the matrix units of GPUs: products of which the rows are pixels and the columns channels
of the result, summed over the channels of the images and the pixels under the kernel.

Nothing is copied for it: a program reads, for its block of pixels, what lies under one pixel of the kernel after the
other, with zeros for what lies beyond the image. What follows is computed on what is in registers, as by every
template. A convolution of one pixel is a product, and laid out like one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...devices.cuda import H200
from ...graph import dims
from ..indexing import size_hint
from ..template import Candidate, Layout, template
from ..triton.emit import Source, _fits, _reach
from ..triton.heuristics import Config
from ..triton.tiling import simplify, tiling
from .convolutions import Convolution, parts
from .products import sum_of_loads
from .triton_product import (COPY_ENGINE, Blocks, ProductEmitter, ProductLayout, TritonProduct, in_reach, same,
                             settled_blocks, streamed, tiled)

if TYPE_CHECKING:
    from ...devices import Architecture
    from ...graph.ir import Node
    from ..epilogues import Call
    from ..loops import Kernel, Load, Reduce, Statement
    from ..triton.tiling import Tiling

FEW = 16  # channels of images, below which the library has no good kernels
SHORTEST = 28  # neighbouring elements of a sum that are worth a step of their own
WHOLE = 64  # channels, of which there are to be a multiple: they are read, and made, in blocks of so many
MOST_TAPS = 9  # pixels under a kernel for which the speed is known
# Of the device's fastest rate what the library's convolutions reach, and the share of their time by which ours may take
# longer: a pass over the result has to take more.
LIBRARY, BEHIND = 0.53, 0.12
LAUNCH = 2e-6  # seconds, of a kernel
BITS = 31  # pixels under a kernel whose conditions fit in a word


class Form(NamedTuple):
    """A kernel that is a convolution with what follows it: as tiles, in which ``y`` are pixels, ``x`` channels of the
    result, ``r`` neighbours in the images' memory, ``u`` and ``v`` what is left of the sum, if there is anything."""

    tiling: Tiling
    total: Reduce
    images: Load
    weights: Load


@template
class TritonConvolution(Convolution):
    name = "triton convolution"
    emitter = "jit.codegen.triton.target"
    alone = True

    def matches(self, node: Node) -> bool:
        # float32: the library may round operands to TF32, and else adds in several chains.
        return super().matches(node) and node.type.dtype in (torch.float16, torch.bfloat16)

    def problem(self, kernel: Kernel) -> tuple[int, int, int, int, bool] | None:
        """As for products: (pixels, channels, length of the sums, bytes of an element of the operands) at the present
        sizes, and that the copy engine does not take them."""
        as_product = TritonProduct().problem(kernel)
        if as_product is not None:
            return (*as_product[:4], False)
        found = formed(kernel)
        if found is None:
            return None
        depth = size_hint(dims.product(a.extent for a in found.tiling.kernel.raxes))
        return (*(size_hint(found.tiling.extent(n)) for n in "yx"), depth,
                found.tiling.kernel.dtypes[found.images.dst].itemsize, False)

    def configurations(self, problem: tuple, architecture: Architecture) -> list[Blocks]:
        return TritonProduct().configurations(problem, architecture)

    def cost(self, problem: tuple, configuration: Blocks, architecture: Architecture) -> float:
        return TritonProduct().cost(problem, configuration, architecture)

    def settled(self, call: Call, candidates: list[Candidate], architecture: Architecture) -> Candidate | None:
        problem, p = self.problem(call.kernel), parts(call.node)
        if problem is None:
            return None
        few = p.weights.type.shape[1] < FEW
        if few or p.stride == tuple(p.weights.type.shape[2:]) and not any(p.padding):
            # The library is up to ten times slower for images of few channels, and for patches of images.
            piece = _piece(call.kernel)
            if few or piece >= 8:
                found = formed(call.kernel)
                piece = problem[2] if found is None else found.tiling.extent("r")
                return Candidate(self, settled_blocks(problem, architecture, piece, 256 if piece < 64 else 128))
        found = tiled(call.kernel)
        if len(call.group.members) == 1:
            return None
        if found is None:
            return self.spatial(call, problem, architecture)
        return streamed(self, call, problem, found.kernel, architecture)

    def spatial(self, call: Call, problem: tuple, architecture: Architecture) -> Candidate | None:
        """The candidate for a convolution of several pixels of many channels: these are as fast as the library's up to
        a tenth (H200), which the kernel behind the library's call takes where sums are not too long."""
        pixels, made, depth, itemsize, _ = problem
        found = formed(call.kernel)
        channels = parts(call.node).weights.type.shape[1]
        if (architecture.capability != COPY_ENGINE or found is None or itemsize != 2 or made % WHOLE or channels % WHOLE
            or found.tiling.extent("r") % WHOLE or depth > MOST_TAPS * channels):
            return None
        passed = 2 * pixels * made * itemsize / (0.8 * (architecture.bandwidth or H200.bandwidth)) + LAUNCH
        summed = 2 * pixels * made * depth / (LIBRARY * (architecture.products or H200.products))
        if passed < BEHIND * summed or not in_reach(found.tiling.kernel):
            return None
        columns = 128 if made % 128 == 0 else 64
        programs = -(-pixels // 128) * (made // columns)
        if columns == 64 or programs >= 2 * architecture.processors:
            blocks = Blocks(128, columns, WHOLE, columns // 16, 3)
        else:  # all at once, two or three on a processor
            programs = -(-pixels // 64) * (made // columns)
            blocks = Blocks(64, columns, WHOLE, 4, 4 if programs <= 2 * architecture.processors else 3)
        return Candidate(self, blocks)

    def lay_out(self, kernel: Kernel, configuration: Blocks) -> Kernel:
        as_product = tiled(kernel) is not None
        return replace(kernel, layout=(ProductLayout if as_product else ConvolutionLayout)(configuration))


@dataclass(frozen=True)
class ConvolutionLayout(Layout):
    """Blocks of pixels and channels."""

    blocks: Blocks
    version: int = 2  # of the text, for what is remembered of its speed

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        b, found = self.blocks, formed(kernel)
        config = Config(x=b.columns, y=b.rows, r=b.depth, looped=True, warps=b.warps, stages=b.stages)
        return _ConvolutionEmitter(found, config, aligned, interpret).source()


def formed(kernel: Kernel) -> Form | None:
    """A kernel as a convolution; None for any other."""
    kernel = simplify(kernel)
    found = sum_of_loads(kernel)
    if found is None or found[2].mask is not None:
        return None
    _, left, right = found
    varies = [kernel.varies[s.dst] - kernel.reduced for s in (left, right)]
    rows, columns = ([a for a in kernel.axes if a.name in v] for v in varies)
    if not rows or not columns or sorted(a.name for a in rows + columns) != sorted(a.name for a in kernel.axes):
        return None
    if not all(type(a.extent) is int for a in kernel.raxes):
        return None
    near = [a for a in kernel.raxes if same(dims.coefficient(left.index, a.name), 1)
            and dims.coefficient(right.index, a.name) is not None
            and not (left.mask and a.name in kernel.varies[left.mask])]
    along = near if near and near[0].extent >= SHORTEST else kernel.raxes
    others = [a for a in kernel.raxes if a not in along]
    if len(others) > 2 or any(dims.coefficient(s.index, a.name) is None for a in others for s in (left, right)):
        return None
    made = tiling(kernel, "product", y=rows, x=columns, r=along, **{n: [a] for n, a in zip("uv", others)})
    total, left, right = sum_of_loads(made.kernel)
    if left.mask is not None and "@x" in made.kernel.varies[left.mask]:
        return None
    if made.kernel.dtypes[left.dst] is not made.kernel.dtypes[right.dst]:
        return None
    return Form(made, total, left, right)


def _piece(kernel: Kernel) -> int:
    """How many elements of an image that are summed up lie side by side."""
    kernel = simplify(kernel)
    left = sum_of_loads(kernel)[1]
    return max([a.extent for a in kernel.raxes if same(dims.coefficient(left.index, a.name), 1)], default=1)


class _ConvolutionEmitter(ProductEmitter):
    """The sum as a loop over what is under one pixel of the kernel after the other."""

    word = "convolution"

    def __init__(self, form: Form, config: Config, aligned: Collection[str] | None, interpret: bool) -> None:
        self.form = form
        super().__init__(form.tiling, config, aligned, interpret)

    def grid(self) -> dims.IntExpr:
        return dims.product(dims.ceil_div(self.extents[n], self.block[n]) for n in "yx")

    def _found(self) -> tuple[Reduce, Load, Load]:
        return self.form[1:]

    def _product(self, total: Reduce, left: Load, right: Load) -> None:
        step, extent, out = self.block["r"], self.extents["r"], self.names[total.dst]
        taps = [n for n in "uv" if n in self.extents]
        steps = -(-extent // step)
        wide = ".to(tl.int64)" if "r" in self.wide else ""
        sides = (("left", left, "y", "None, :"), ("right", right, "x", ":, None"))
        masks = self._behind(left.mask)
        for s in masks:
            if not self.kernel.is_element(s):
                self._condition(s)
        bits, at = self._bits(masks, taps), {}
        for side, s, n, shape in sides:
            self.line(f"r_{side} = tl.arange(0, {step})[{shape}]{wide}")
            moving, still = self._divided(s)
            near = None if wide else dims.coefficient(s.index, "@r")
            if near is None:
                self.line(f"{side}_at = {self.address(s.buffer, still)}")
                at[side] = f"(r_{side} + r_start)"
            else:  # what a thread reads first; then the same is added for all
                self.names["@r"] = f"r_{side}"
                self.line(f"{side}_at = {self.address(s.buffer, still + near * dims.Sym('@r'))}")
                at[side] = "r_start"
        self.line(f"{out} = tl.zeros([{self.block['y']}, {self.block['x']}], tl.float32)")
        count = dims.product([self.extents[n] for n in taps]) * steps
        self.line(f"for step in range(0, {count}):")
        with self.indented():
            rest = "step" if steps == 1 else f"(step // {steps})"
            for n in reversed(taps):
                self.line(f"{n} = {rest}" + (f" % {self.extents[n]}" if n != taps[0] else ""))
                rest = f"({rest} // {self.extents[n]})"
            if bits:
                self.line("tap = step" + (f" // {steps}" if steps > 1 else ""))
            self.line(f"r_start = step % {steps} * {step}" if steps > 1 and taps else f"r_start = step * {step}"
                      if steps > 1 else "r_start = 0")
            self.line("r_near = r_left + r_start")
            self.names["@r"] = "r_near"
            for s in masks:
                if self.kernel.is_element(s) and not bits:
                    self._condition(s)
            for side, s, n, _ in sides:
                moving, _ = self._divided(s)
                self.names["@r"] = at[side]
                mask = [f"{n}_in"] if n in self.masked else []
                mask += [f"(r_{side} < {extent} - r_start)"] if "r" in self.masked else []
                if s.mask is not None:
                    mask.append("(((under >> tap) & 1) != 0)" if bits else self.names[s.mask])
                text = f"{side}_at + {self.text(moving)}" if type(moving) is not int or moving else f"{side}_at"
                self.line(f"{side} = tl.load({text}" + (f", mask={' & '.join(mask)}, other=0.0)" if mask else ")"))
            self.line(f'{out} = tl.dot(left, right, {out}, input_precision="ieee")')

    def _bits(self, masks: list[Statement], taps: list[str]) -> bool:
        """Where what lies beyond the image is told by rows and by pixels of the kernel alone: a word for each row, with
        a bit for each of these pixels, so that the loop computes no conditions."""
        count = dims.product([self.extents[n] for n in taps])
        if not masks or not taps or count > BITS or any("r" in self.varies.get(s.dst, ()) for s in masks):
            return False
        self.line(f"under = tl.zeros([{self.block['y']}, 1], tl.int32)")
        self.line(f"for bit in range(0, {count}):")
        with self.indented():
            rest = "bit"
            for n in reversed(taps):
                self.line(f"{n} = {rest}" + (f" % {self.extents[n]}" if n != taps[0] else ""))
                rest = f"({rest} // {self.extents[n]})"
            for s in masks:
                if self.kernel.is_element(s):
                    self._condition(s)
            self.line(f"under |= ({self.names[masks[-1].dst]}).to(tl.int32) << bit")
        return True

    def _divided(self, s: Load) -> tuple[dims.IntExpr, dims.IntExpr]:
        """The parts of an index that vary along the sum, and that do not."""
        moving = 0
        for mono, c in s.index.terms.items():
            if any("@" + n in atom.free for atom in mono for n in "uvr"):
                moving = moving + dims.Dim({mono: c}, 0)
        return moving, s.index - moving

    def _behind(self, name: str | None) -> list[Statement]:
        """The statements that a value needs, in their order."""
        wanted = set() if name is None else {name}
        for s in reversed(self.kernel.body):
            if s.dst in wanted:
                wanted.update(s.uses)
        return [s for s in self.kernel.body if s.dst in wanted]

    def _condition(self, s: Statement) -> None:
        """A statement of what says where an image ends: of positions, which mostly fit in 32 bits."""
        if s.expression is not None and _fits(_reach(s.expression)) and not s.loaded:
            self.assign(s.dst, self.text(s.expression))
        elif s.constant is not None and abs(s.constant) < 2**31:
            self.assign(s.dst, str(int(s.constant)))
        else:
            self.statement(s)
