"""Sums of rows at places that data decide, in Triton: a program has a row of the result, or a piece of one, and goes
through the positions that are added up there, a few of which are read at once.

Of a row with many positions, the parts that lie in it as a whole have been summed before; what is left of it at both
ends is less than two parts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import loops
from ..grouped import Parts
from ..indexing import size_hint
from ..template import Layout
from ...graph import dims
from . import types
from .emit import Emitter, Source
from .heuristics import Config, next_power_of_two
from .tiling import Tiling, tiling

if TYPE_CHECKING:
    from ...graph.dims import IntExpr

AT_ONCE, PARTS_AT_ONCE = 4, 8  # positions, and parts, that are read at once
EACH = 8  # elements of a thread
MOST_WARPS = 8
NAMES, ROWS = 256, 1024  # of a program that counts names, or gives ranges of positions to rows


@dataclass(frozen=True)
class GroupedLayout(Layout):
    parts: Parts
    version: int = 1

    def emit(self, kernel: loops.Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        if not kernel.raxes:
            made = tiling(kernel, "grouped", x=kernel.axes)
            most = NAMES if self.parts.kind == "ranks" else ROWS
            block = min(next_power_of_two(max(size_hint(made.extent("x")), 2)), most)
            config = Config(x=block, warps=max(block // 128, 1))
            return _Names(made, self.parts, config, aligned, interpret).source()
        made = tiling(kernel, "grouped", y=kernel.axes[:1], x=kernel.axes[1:], r=kernel.raxes)
        block = next_power_of_two(size_hint(made.extent("x")))
        warps = max(min(block // (32 * EACH), MOST_WARPS), 1)
        config = Config(x=min(block, 32 * EACH * warps), looped=True, warps=warps)
        return _Sums(made, self.parts, config, aligned, interpret).source()


class _Names(Emitter):
    """Numbers of names, and ranges of positions: what atomic additions give."""

    word = "names"

    def __init__(self, made: Tiling, parts: Parts, config: Config, aligned: Collection[str] | None,
                 interpret: bool) -> None:
        self.parts = parts
        super().__init__(made, config, aligned, interpret)

    def statement(self, s: loops.Statement) -> None:
        if s.dst is not None and s.dst == self.parts.counted:
            return
        if type(s) is not loops.Given:
            super().statement(s)
            return
        at = self.kernel.definition[self.parts.counted]
        address, made = self.address(at.buffer, at.index), self.names[s.dst]
        mask = self.mask(frozenset("x"), self.parts.kept)
        if self.parts.kind == "ranks":
            self.line(f"ones = tl.full({self.shape}, 1, tl.int32)")
            self.line(f"{made} = tl.atomic_add({address}, ones"
                      + (f", mask={mask}" if mask else "") + ', sem="relaxed")')
        else:
            count = self.names[self.parts.count]
            self.line(f"own = tl.where({mask}, {count}, 0)" if mask else f"own = {count}")
            self.line(f'begin = tl.atomic_add({address}, tl.sum(own, 0), sem="relaxed")')
            self.line(f"{made} = begin + tl.cumsum(own, 0) - own")


class _Sums(Emitter):
    word = "rows"
    registers = 64  # for the reads of AT_ONCE positions

    def __init__(self, made: Tiling, parts: Parts, config: Config, aligned: Collection[str] | None,
                 interpret: bool) -> None:
        self.parts = parts
        super().__init__(made, config, aligned, interpret)
        self.inside: str | None = None  # the condition that a position is one of those that are added
        body = self.kernel.body
        self.total = next(s.dst for s in body if type(s) is loops.Given)
        along = {s.dst for s in body if not s.effect and "@r" in self.kernel.varies[s.dst]}
        self.added = [s for s in body if s.dst in along and s.dst not in (parts.part, self.total)]
        self.part = [s for s in body if s.dst is not None and s.dst == parts.part]
        rest = [s for s in body if s.dst is None or s.dst not in along]
        at = next(i for i, s in enumerate(rest) if s.dst == self.total)
        self.before, self.behind = rest[:at], rest[at + 1 :]

    def _dimensions(self) -> list:
        return ["x"]

    def grid(self) -> IntExpr:
        return self.extents["y"] * dims.ceil_div(self.extents["x"], self.block["x"])

    def _statements(self) -> None:
        self.bad = {}
        for s in self.before:
            self.statement(s)
        length = self.parts.length
        self.line(f"own_first = {self.names[self.parts.first]}")
        self.line(f"own_last = own_first + {self.names[self.parts.count]}")
        # What changes no number that it is added to, where 0.0 makes one of -0.0.
        self.line(f"nothing = {types.constant(-0.0, torch.float32)}")
        self.line(f"total = tl.broadcast_to(nothing, [{self.block['x']}])")
        if self.parts.kind == "parts":
            self.line(f"first = (y * {length}).to(tl.int32)")
            self.line(f"whole = (own_first <= first) & (first + {length} <= own_last)")
            self.line(f"last = tl.where(whole, first + {length}, first)")
            self._sum("first", "last", self.added, self.parts.value, AT_ONCE)
        else:
            self.line(f"inner = (own_first + {length - 1}) // {length}")
            self.line(f"outer = own_last // {length}")
            self.line("whole = outer > inner")
            self.line(f"end = tl.where(whole, inner * {length}, own_last)")
            self._sum("own_first", "end", self.added, self.parts.value, AT_ONCE)
            self.line("if whole:")
            with self.indented():
                self._sum("inner", "outer", self.part, self.parts.part, PARTS_AT_ONCE)
                self._sum(f"outer * {length}", "own_last", self.added, self.parts.value, AT_ONCE)
        self.names[self.total] = "total"
        for s in self.behind:
            self.statement(s)
        for conditions in self.bad.values():
            self.trap(conditions)

    def _sum(self, first: str, last: str, body: list, value: str, count: int) -> None:
        """Add ``value``, which ``body`` computes, at the positions from ``first`` to before ``last``. Each statement is
        written for all positions before the next one, so that all reads are on their way before one is waited for."""
        saved = dict(self.names)
        self.line(f"position = {first}")
        self.line(f"while position < {last}:")
        with self.indented():
            for k in range(count):
                self.line(f"r_{k} = position + {k}" + (".to(tl.int64)" if "r" in self.wide else ""))
            for s in body:
                for k in range(count):
                    self.names = self._at(saved, body, k)
                    self.inside = f"r_{k} < {last}"
                    self.statement(s)
            for k in range(count):
                self.line(f"total += tl.where(r_{k} < {last}, {saved[value]}_{k}, nothing)")
            self.line(f"position += {count}")
        self.names, self.inside = saved, None

    @staticmethod
    def _at(names: dict, body: list, k: int) -> dict:
        """The names of values at the k-th of the positions that are gone through at once."""
        return {**names, "@r": f"r_{k}", **{s.dst: f"{names[s.dst]}_{k}" for s in body}}

    def mask(self, along: frozenset[str], value: str | None = None) -> str | None:
        found = super().mask(along, value)
        return found if self.inside is None else f"({self.inside})" + (f" & {found}" if found else "")
