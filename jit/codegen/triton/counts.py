"""Counts of how often data decide for each of a few places: a program goes through many points, counts on chip, and
adds its counts to the others' at the end. Atomic additions for each point would wait for each other, since a few places
are all that there are.

They are kept in memory next to the processor, by atomic additions there. Triton has neither these nor a way to ask for
such memory: it is declared in the text for the assembler, which adds it to what Triton asks for. Triton's own
histogram, in registers, compares each value of a warp with each place: twice the time for 100 places (67 million
numbers, 223 us and 106). It serves where Triton is interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import devices
from ...graph import dims
from . import analysis
from .emit import EMITTERS, Emitter
from .heuristics import COUNTING, next_power_of_two
from .types import tl_dtype

if TYPE_CHECKING:
    from ...graph.dims import IntExpr

WARP = 32  # threads
# The memory of a program's counts, and what is done there; ``at`` is a byte in it, behind the counts for what is not
# counted, or, where little is done, -1.
_MEMORY = """
@triton.jit
def _memory(any):
    return tl.inline_asm_elementwise(".shared .align 16 .b32 jit_counts[{places}]; mov.u32 $0, jit_counts;", "=r,r",
        [any], dtype=tl.int32, is_pure=False, pack=1)
"""
_ZERO = """
@triton.jit
def _zero(at):
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ge.s32 p, $1, 0; @p st.shared.u32 [$1], 0; mov.u32 $0, $1; }", "=r,r", [at],
        dtype=tl.int32, is_pure=False, pack=1)
"""
_ONE_MORE = """
@triton.jit
def _one_more(at):
    return tl.inline_asm_elementwise(
        "red.shared.add.u32 [$1], 1; mov.u32 $0, $1;", "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)
"""
_COUNT = """
@triton.jit
def _count(at):
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ge.s32 p, $1, 0; mov.u32 $0, 0; @p ld.shared.u32 $0, [$1]; }", "=&r,r", [at],
        dtype=tl.int32, is_pure=False, pack=1)
"""


class CountsEmitter(Emitter):
    """The text of such a kernel."""

    walked = ("x",)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        found = analysis.counted(self.kernel)
        assert found is not None
        self.update, self.places = found
        alone = self.block["x"] >= self.config.warps * WARP  # whether a point has one thread, which counts it in memory
        self.in_registers = self.interpret or not alone
        processors = devices.of_type(self.kernel.device).architecture().processors
        most = COUNTING * processors
        blocks = dims.ceil_div(self.extents["x"], self.block["x"])
        self.steps = dims.ceil_div(blocks, most)
        self.programs = dims.ceil_div(blocks, max(self.steps, 1)) if type(self.steps) is int else dims.Min(blocks, most)
        if not dims.divisible(self.extents["x"], self.block["x"]) or not dims.structurally_equal(
                blocks, self.programs * self.steps):
            self.masked.add("x")

    def grid(self) -> IntExpr:
        return self.programs

    def _statements(self) -> None:
        s, limit, in_registers = self.update, self.places, self.in_registers
        (name,) = s.symbols
        bins = next_power_of_two(max(limit, 2))
        block, extent = self.block["x"], self.text(self.extents["x"])
        first = "tl.program_id(0)" + (".to(tl.int64)" if "x" in self.wide else "")
        if in_registers:
            self.line(f"counts = tl.zeros([{bins}], tl.int32)")
        else:
            self._clear(limit, bins)
        self.line(f"for step in range(0, {self.text(self.steps)}):")
        with self.indented():
            self.line(f"x = ({first} + step * {self.text(self.programs)}) * {block} + {self._arange('x')}")
            if "x" in self.masked:
                self.line(f"x_in = x < {extent}")
            self.bad = {}
            for other in self.kernel.body:
                if other is not s:
                    self.statement(other)
            place = f"tl.broadcast_to({self.names[name]}, {self.shape}).to(tl.int32)"
            mask = self.mask(frozenset("x"))
            if in_registers:
                self.line(f"counts += tl.histogram({place}, {bins}" + (f", mask={mask})" if mask else ")"))
            else:
                place = f"tl.where({mask}, {place}, {limit})" if mask else place
                self.line(f"_one_more(memory + 4 * {place})")
            for conditions in self.bad.values():
                self.trap(conditions)
        dtype = self.kernel.buffer_of[s.buffer].dtype
        number = self.kernel.definition[s.value].constant
        value = "counts" if number == 1 else f"counts * {number}"
        if in_registers:
            self.line(f"place = tl.arange(0, {bins})")
        else:
            self.line("tl.debug_barrier()")
            self.line("counts = _count(at)")
        address = self.address(s.buffer, dims.subst(s.index, {name: 0}))
        self.line(f"tl.atomic_add({address} + place, ({value}).to({tl_dtype(dtype)}), "
                  f'mask=(place < {limit}) & (counts != 0), sem="relaxed")')

    def _clear(self, places: int, bins: int) -> None:
        """Counts in memory, of zero."""
        for name, text in (("_memory", _MEMORY.replace("{places}", str(places + 1))), ("_zero", _ZERO),
                           ("_one_more", _ONE_MORE), ("_count", _COUNT)):
            self.helpers[name] = text.strip("\n") + "\n"
        self.line("memory = _memory(tl.program_id(0))")
        self.line(f"place = tl.arange(0, {max(bins, self.config.warps * WARP)})")  # one for each thread, or more
        self.line(f"at = tl.where(place < {places}, memory + 4 * place, -1)")
        self.line("_zero(at)")
        self.line("tl.debug_barrier()")


EMITTERS["counts"] = CountsEmitter
