"""Counts of how often data decide for each of a few places: a program goes through many points, counts on chip, and
adds its counts to the others' at the end. Atomic additions for each point would wait for each other, since a few places
are all that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import devices
from ...graph import dims
from . import analysis
from .emit import EMITTERS, Emitter
from .heuristics import next_power_of_two
from .types import tl_dtype

if TYPE_CHECKING:
    from ...graph.dims import IntExpr

PROGRAMS = 8  # for each processor


class CountsEmitter(Emitter):
    """The text of such a kernel."""

    walked = ("x",)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        most = PROGRAMS * devices.of_type(self.kernel.device).architecture().processors
        blocks = dims.ceil_div(self.extents["x"], self.block["x"])
        self.steps = dims.ceil_div(blocks, most)
        self.programs = dims.ceil_div(blocks, max(self.steps, 1)) if type(self.steps) is int else dims.Min(blocks, most)
        if not dims.divisible(self.extents["x"], self.block["x"]) or not dims.structurally_equal(
                blocks, self.programs * self.steps):
            self.masked.add("x")

    def grid(self) -> IntExpr:
        return self.programs

    def _statements(self) -> None:
        s = analysis.counted(self.kernel)
        assert s is not None
        (name,) = s.symbols
        limit = self.kernel.definition[name].limit
        bins = next_power_of_two(max(limit, 2))
        block, extent = self.block["x"], self.text(self.extents["x"])
        first = "tl.program_id(0)" + (".to(tl.int64)" if "x" in self.wide else "")
        self.line(f"counts = tl.zeros([{bins}], tl.int32)")
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
            self.line(f"counts += tl.histogram({place}, {bins}" + (f", mask={mask})" if mask else ")"))
            for conditions in self.bad.values():
                self.trap(conditions)
        dtype = self.kernel.buffer_of[s.buffer].dtype
        number = self.kernel.definition[s.value].constant
        value = "counts" if number == 1 else f"counts * {number}"
        self.line(f"place = tl.arange(0, {bins})")
        address = self.address(s.buffer, dims.subst(s.index, {name: 0}))
        self.line(f"tl.atomic_add({address} + place, ({value}).to({tl_dtype(dtype)}), "
                  f'mask=(place < {limit}) & (counts != 0), sem="relaxed")')


EMITTERS["counts"] = CountsEmitter
