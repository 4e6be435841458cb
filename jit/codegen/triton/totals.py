"""Rows that are held on chip, with the sums of their columns: a program goes through many rows, adds up as it goes, and
writes its totals at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import loops
from . import heuristics
from .emit import EMITTERS, Emitter

if TYPE_CHECKING:
    from .heuristics import Config
    from .tiling import Tiling


class TotalsEmitter(Emitter):
    """The text of such a kernel."""

    walked = ("x", "r")

    def __init__(self, tiling: Tiling, config: Config, *args: object) -> None:
        super().__init__(tiling, heuristics.whole_rows(tiling, config), *args)

    def _statements(self) -> None:
        body, extent, block = self.kernel.body, self.text(self.extents["x"]), self.block["x"]
        totals = [s for s in body if s.totals]
        for s in totals:
            self.line(f"{self.names[s.buffer]}_total = tl.full({self.shape}, 0.0, tl.float32)")
        fixed = [s for s in body if not s.effect and not s.reduces and "x" not in self.varies[s.dst]]
        for s in fixed:
            self.statement(s)
        self.line(f"for x_start in tl.range(0, {extent}, {block}, num_stages={self.config.stages}):")
        with self.indented():
            start = "x_start.to(tl.int64)" if "x" in self.wide else "x_start"
            self.line(f"x = {start}" if block == 1 else f"x = {start} + {self._arange('x')}")
            if "x" in self.masked:
                self.line(f"x_in = x < {extent}")
            for s in body:
                if s.totals:
                    self._add(s)
                elif s not in fixed:
                    self.statement(s)
        for s in totals:
            value = f"{self.names[s.buffer]}_total"
            if "x" in self.order:
                value = f"tl.sum({value}, 0)[None, :]"
            mask = self.mask(frozenset("r"))
            self.line(f"tl.store({self.address(s.buffer, s.index)}, {value}" + (f", mask={mask})" if mask else ")"))

    def _add(self, s: loops.Total) -> None:
        value, mask = self.full(s.value), self.mask(frozenset("x"))
        self.line(f"{self.names[s.buffer]}_total += " + (f"tl.where({mask}, {value}, 0.0)" if mask else value))


EMITTERS["totals"] = TotalsEmitter
