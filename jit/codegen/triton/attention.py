"""Attention in Triton: blocks of scores are made, changed and used up on chip.

A program of the forward has a block of queries, and goes along the keys with the largest score of each row so far, the
sum of exponentials and the weighted sum of values, which are scaled whenever a larger score is found. One of the
backward makes the weights again from the forward's sums: with a block of queries along the keys for the gradients of
queries, with a block of keys along the queries for those of keys and values. Where a map of blocks is given, a program
goes from the first block of which anything is kept to the last one, and does not ask for each score in the blocks
between of which all is.

Block sizes were fitted on an H200 (bfloat16, 64 heads of 4,096, widths 64 and 128).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass

import torch

from .. import loops, reference
from ..attention import GRADIENT, SCORE, Parts
from ..indexing import size_hint
from ..template import Layout
from ...graph import dims
from ...graph.prim_info import IN_ALL, IN_EACH, info
from .emit import Emitter, Source
from .heuristics import Config, next_power_of_two
from . import types
from .tiling import INT32_MAX, tiling

LOG2E, LN2 = 1.0 / math.log(2.0), math.log(2.0)
SMALLEST = 16  # side of a block that matrix units take


@dataclass(frozen=True)
class AttentionLayout(Layout):
    parts: Parts
    version: int = 1

    def emit(self, kernel: loops.Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        z, y, x = kernel.axes
        r, d = kernel.raxes
        made = tiling(kernel, "attention", z=[z], y=[y], x=[x], r=[r], d=[d])
        widest = max(next_power_of_two(size_hint(a.extent)) for a in (r, d))
        config = configuration(self.parts, widest, size_hint(y.extent))
        return _Attention(made, self.parts, config, aligned, interpret).source()


def configuration(parts: Parts, widest: int, queries: int) -> Config:
    """Blocks of queries (y) and keys (x)."""
    if parts.kind == "forward" and queries <= SMALLEST:
        return Config(y=SMALLEST, x=64, looped=True, warps=4, stages=3 if widest <= 128 else 2)
    narrow = widest <= 64
    if widest > 128:
        return Config(y=64, x=32, looped=True, warps=8 if parts.kind == "keys" else 4, stages=2)
    if parts.kind == "keys":
        return Config(y=64, x=64 if narrow else 128, looped=True, warps=4 if narrow else 8, stages=3)
    if parts.kind == "queries":
        return Config(y=64 if narrow else 128, x=64, looped=True, warps=4 if narrow else 8, stages=3)
    return Config(y=64, x=64, looped=True, warps=4, stages=3)


def _narrow(kernel: loops.Kernel) -> frozenset:
    """The int64 values that are known to fit into 32 bits, by what they are made of."""
    bounds: dict = {}
    for s in kernel.body:
        if s.effect or s.dtype_in(kernel) is not torch.int64:
            continue
        found = None
        if type(s) is loops.IndexValue:
            found = (s.expr, s.expr) if type(s.expr) is int else dims.bounds(s.expr)
        elif s.constant is not None:
            found = (s.constant, s.constant)
        elif s.prim and info(s.prim).linear in (IN_ALL, IN_EACH) and all(n in bounds for n in s.operands):
            corners = [int(reference.pointwise(s.prim, list(map(torch.tensor, ends)), torch.int64))
                       for ends in itertools.product(*(bounds[n] for n in s.operands))]
            found = min(corners), max(corners)
        if found is not None and None not in found and -INT32_MAX <= found[0] and found[1] <= INT32_MAX:
            bounds[s.dst] = found
    return frozenset(bounds)


class _Attention(Emitter):
    word = "attention"

    def __init__(self, tiling_, parts: Parts, config: Config, aligned, interpret: bool) -> None:
        self.parts = parts
        super().__init__(tiling_, config, aligned, interpret)
        self.width = {n: max(next_power_of_two(size_hint(self.extents[n])), SMALLEST) for n in "rd"}
        self.masked -= {"r", "d"}
        self.cut = {n for n in "rd" if self.width[n] != self.extents[n]}
        self.along, self.across = ("y", "x") if parts.kind == "keys" else ("x", "y")  # the loop's, and the program's
        self.order = ["x", "y"] if parts.kind == "keys" else ["y", "x"]
        definition = self.kernel.definition
        self.scores = next(s.dst for s in self.kernel.body if type(s) is loops.Given and s.number == SCORE)
        self.gradient = next((s.dst for s in self.kernel.body if type(s) is loops.Given and s.number == GRADIENT), None)
        self.operand = {role: definition[name] for role, name in parts.loads}
        self.dtype = "tl." + str(self.kernel.dtypes[self.operand["q"].dst]).removeprefix("torch.")
        self.results = {s.value: s for s in self.kernel.body if s.effect and s.stored}
        self.narrow = _narrow(self.kernel)

    def _dimensions(self) -> list:
        return ["y", "x"]

    def grid(self):
        return self.extents["z"] * dims.ceil_div(self.extents[self.across], self.block[self.across])

    # text

    def _line_of(self, n: str, first: str, text: str, shape: str) -> None:
        wide = ".to(tl.int64)" if n in self.wide else ""
        self.line(f"{text} = ({first} + tl.arange(0, {self.block[n]})){shape}{wide}")

    def _positions(self) -> None:
        n = self.across
        count = self.text(dims.ceil_div(self.extents[n], self.block[n]))
        self.line("program = tl.program_id(0)")
        # The last queries of causal attention have most to do, and the first keys.
        place = f"program % {count}"
        self.line(f"{n}_block = " + (place if n == "x" else f"{count} - 1 - {place}"))
        self.line(f"z = (program // {count}).to(tl.int64)")
        self._line_of(n, f"{n}_block * {self.block[n]}", n, "[:, None]")
        if n in self.masked:
            self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")

    def statement(self, s: loops.Statement) -> None:
        """Integers that fit are computed in 32 bits, which takes half the instructions."""
        if s.dst in self.narrow:
            if type(s) is loops.IndexValue and type(s.expr) is not int:
                self.assign(s.dst, f"{self.text(s.expr)}.to(tl.int32)")
                return
            if s.constant is not None or type(s) is loops.IndexValue:
                self.assign(s.dst, types.constant(s.constant if s.constant is not None else s.expr, torch.int32))
                return
        saved = dict(self.names)
        if not (s.dst in self.narrow or s.prim == "cast" or info(s.prim).compares and self.narrow.issuperset(s.operands)
                if s.prim else False):
            for n in s.uses:
                if n in self.narrow:
                    self.names[n] = f"{saved[n]}.to(tl.int64)"
        super().statement(s)
        self.names = saved

    def _read(self, role: str, name: str, rows: str, column: str, transposed: bool = False) -> None:
        """Load a block of an operand: ``rows`` is the text of its rows' numbers, of which those outside are zeros."""
        s = self.operand[role]
        n, k = ("y" if role in ("q", "g") else "x"), ("r" if role in "qk" else "d")
        saved = dict(self.names)
        self.line(f"{name}_at = tl.arange(0, {self.width[k]}){'[:, None]' if transposed else '[None, :]'}")
        self.names["@" + n], self.names["@" + k] = rows, f"{name}_at"
        mask = [f"({rows} < {self.text(self.extents[n])})"] if n in self.masked else []
        mask += [f"({name}_at < {self.text(self.extents[k])})"] if k in self.cut else []
        address = self.address(s.buffer, s.index)
        self.names = saved
        self.line(f"{name} = tl.load({address}" + (f", mask={' & '.join(mask)}, other=0.0)" if mask else ")"))

    def _needed(self, wanted: Collection[str], without: Collection[str]) -> list:
        """The statements behind values, in order, beside those that are there."""
        live, found = set(wanted), []
        skip = {s.dst for s in self.operand.values()} | set(without)
        for s in reversed(self.kernel.body):
            if type(s) in (loops.Given, loops.Store):
                continue
            reached = s.dst in live and s.dst not in skip if not s.effect else any(
                b.limit is not None and b.dst in live and b.value == s.value for b in self.kernel.body
                if not b.effect)
            if reached:
                live.update(s.uses)
                found.append(s)
        return found[::-1]

    def _statements(self) -> None:
        {"forward": self._forward, "queries": self._queries, "keys": self._keys}[self.parts.kind]()

    def _fixed(self) -> list:
        """What does not vary along the loop is computed before it."""
        wanted = {n for names in self.parts.results for n in names}
        return [s for s in self._needed(wanted, ()) if self.along not in self._ranges(self.kernel.along(s))]

    def _dot(self, a: str, b: str, total: str | None = None) -> str:
        return f"tl.dot({a}, {b}{'' if total is None else ', ' + total})"

    def _loops(self, body) -> None:
        """The loop over blocks: ``body(number of the tree, whether every score is kept)`` writes it."""
        fixed = self._fixed()
        for s in fixed:
            self.statement(s)
        self.fixed = {s.dst for s in fixed if not s.effect}
        step, n = self.block[self.along], self.along
        count = self.text(dims.ceil_div(self.extents[n], step))
        if "blocks" not in self.operand:
            self._loop(f"0, {count}", lambda: body(0))
            return
        self._ranges_of_blocks(step)
        self._loop("full_first, full_last", lambda: body(1))
        self.line("before = full_first - first")
        self._loop("0, before + last - full_last", lambda: body(0),
                   f"{n}_number = tl.where(step < before, first + step, full_last + step - before)")

    def _ranges_of_blocks(self, step: int) -> None:
        """``first`` to ``last``: the blocks of which any score is kept; ``full_first`` to ``full_last``: of which all
        are, without a gap."""
        s, side = self.operand["blocks"], self.parts.side
        sides = {n: self.extents[n] for n in "yx"}
        n, m = self.along, self.across
        blocks = dims.ceil_div(sides[n], side)
        width = next_power_of_two(size_hint(blocks))
        saved = dict(self.names)
        self.line(f"number = tl.arange(0, {width})")
        own = f"({m}_block * {self.block[m]} // {side})"
        self.names["@" + n], self.names["@" + m] = "number", own
        address = self.address(s.buffer, s.index)
        self.names = saved
        self.line(f"state = tl.load({address}, mask=number < {self.text(blocks)}, other=0)")
        ratio = side // step
        self.line(f"first = tl.min(tl.where(state > 0, number, {width}))")
        self.line("last = tl.max(tl.where(state > 0, number + 1, 0))")
        self.line("first = tl.minimum(first, last)")
        self.line("full_first = tl.min(tl.where(state == 2, number, last))")
        self.line(f"full_last = tl.min(tl.where((state < 2) & (number >= full_first), number, {width}))")
        self.line("full_last = tl.maximum(tl.minimum(full_last, last), full_first)")
        if ratio > 1:
            for name in ("first", "full_first", "full_last"):
                self.line(f"{name} *= {ratio}")
            count = self.text(dims.ceil_div(sides[n], step))
            self.line(f"last = tl.minimum(last * {ratio}, {count})")

    def _loop(self, extent: str, body, place: str | None = None) -> None:
        n = self.along
        number = f"{n}_number" if place is None else "step"
        self.line(f"for {number} in range({extent}):")
        with self.indented():
            if place is not None:
                self.line(place)
            self._line_of(n, f"{n}_number * {self.block[n]}", n, "[None, :]")
            self._line_of(n, f"{n}_number * {self.block[n]}", f"{n}_rows", "[:, None]")
            if n in self.masked:
                self.line(f"{n}_in = {n} < {self.text(self.extents[n])}")
            body()

    def _tree(self, number: int, place: int, without: Collection[str] = ()) -> str:
        """The statements of a tree's result, and its name."""
        name = self.parts.results[number][place]
        for s in self._needed([name], {*self.fixed, *without}):
            self.statement(s)
        return self.names[name]

    def _emitted(self, number: int, place: int) -> set:
        name = self.parts.results[number][place]
        return {s.dst for s in self._needed([name], self.fixed) if not s.effect}

    def _inside(self, value: str, other: str) -> str:
        mask = " & ".join(f"{n}_in" for n in "yx" if n in self.masked)
        return f"tl.where({mask}, {value}, {other})" if mask else value

    def _write(self, role: str, value: str) -> None:
        name = dict(self.parts.stores).get(role)
        if name is None:
            return
        s = self.results[name]
        n, k = {"out": "yd", "q": "yr", "k": "xr", "v": "xd"}[role]
        saved = dict(self.names)
        self.line(f"{role}_column = tl.arange(0, {self.width[k]})[None, :]")
        self.names["@" + k] = f"{role}_column"
        mask = [f"{n}_in"] if n in self.masked else []
        mask += [f"({role}_column < {self.text(self.extents[k])})"] if k in self.cut else []
        dtype = self.kernel.buffer_of[s.buffer].dtype
        text = f"tl.store({self.address(s.buffer, s.index)}, ({value}).to(tl.{str(dtype)[6:]})"
        self.names = saved
        self.line(text + (f", mask={' & '.join(mask)})" if mask else ")"))

    # the kernels

    def _forward(self) -> None:
        rows, width, s = self.block["y"], self.width["d"], self.names[self.scores]
        self._read("q", "query", "y", "r")
        self.line(f'top = tl.full([{rows}, 1], float("-inf"), tl.float32)')
        self.line(f"total = tl.zeros([{rows}, 1], tl.float32)")
        self.line(f"out = tl.zeros([{rows}, {width}], tl.float32)")

        def body(number: int) -> None:
            self._read("k", "key", "x", "r", True)
            self.line(f"{s} = {self._dot('query', 'key')}")
            value = self._tree(number, 0)
            mask = "x_in" if "x" in self.masked else None
            self.line("value = " + (value if mask is None else f'tl.where({mask}, {value}, float("-inf"))'))
            self.line("old = top")
            factor = "" if self.parts.far else f" * {LOG2E}"
            self.line(f"top = tl.maximum(old, tl.max(value, 1)[:, None]{factor})")
            self.line('base = tl.where(top == float("-inf"), 0.0, top)')
            if self.parts.far:
                self.line(f"weight = tl.exp2((value - base) * {LOG2E})")
                self.line(f"scale = tl.exp2((old - base) * {LOG2E})")
            else:
                self.line(f"weight = tl.exp2(tl.fma(value, {LOG2E}, -base))")
                self.line("scale = tl.exp2(old - base)")
            self.line("total = total * scale + tl.sum(weight, 1)[:, None]")
            self.line("out = out * scale")
            self._read("v", "values", "x_rows", "d")
            self.line(f"out = {self._dot(f'weight.to({self.dtype})', 'values', 'out')}")

        self._loops(body)
        stores = dict(self.parts.stores)
        empty = 'float("-inf")' if self.parts.safe else 'float("nan")'
        self.line("empty = total == 0.0")
        self.line("divisor = " + ("tl.where(empty, 1.0, total)" if self.parts.safe else "total"))
        self._write("out", "out / divisor")
        self.line(f"rest = tl.log2(total) * {LN2}")
        if not self.parts.far:
            self.line(f"top = top * {LN2}")
        for role, text in (("sums", "top + rest"), ("top", "top"), ("rest", "rest")):
            if role in stores:
                s_ = self.results[stores[role]]
                mask = ", mask=y_in" if "y" in self.masked else ""
                other = "0.0" if role == "rest" and self.parts.safe else empty
                self.line(f"tl.store({self.address(s_.buffer, s_.index)}, tl.where(empty, {other}, {text}){mask})")

    def _weights(self, number: int) -> None:
        """``weight``, from scores, and the gradients of the scores, ``ds``."""
        value = self._tree(number, 0)
        shifted = f"({value} - sums - rest) * {LOG2E}" if self.parts.far else f"tl.fma({value}, {LOG2E}, -sums)"
        self.line(f"weight = {self._inside(f'tl.exp2({shifted})', '0.0')}")

    def _rows_of(self, role: str, name: str) -> None:
        s = self.operand[role]
        mask = ", mask=y_in, other=0.0" if "y" in self.masked else ""
        self.line(f"{name} = tl.load({self.address(s.buffer, s.index)}{mask})")

    def _statistics(self) -> None:
        self._rows_of("sums", "sums")
        if self.parts.safe:
            self.line('sums = tl.where(sums == float("-inf"), 0.0, sums)')
        if self.parts.far:
            self._rows_of("rest", "rest")
        else:
            self.line(f"sums = sums * {LOG2E}")
        self._rows_of("delta", "delta")

    def _gradient(self, number: int) -> str | None:
        """The gradient of the scores, from ``dp``."""
        if len(self.parts.results[number]) < 2:
            return None
        if self.gradient is not None:
            self.line(f"{self.names[self.gradient]} = weight * (dp - delta)")
        value = self._tree(number, 1, self._emitted(number, 0))
        rows = f"[{self.block[self.order[0]]}, {self.block[self.order[1]]}]"
        self.line(f"ds = tl.broadcast_to({self._inside(value, '0.0')}, {rows})")
        return "ds"

    def _queries(self) -> None:
        s = self.names[self.scores]
        self._read("q", "query", "y", "r")
        self._read("g", "given", "y", "d")
        self._statistics()
        self.line(f"out = tl.zeros([{self.block['y']}, {self.width['r']}], tl.float32)")

        def body(number: int) -> None:
            self._read("k", "key", "x", "r", True)
            self.line(f"{s} = {self._dot('query', 'key')}")
            self._weights(number)
            self._read("v", "values", "x", "d", True)
            self.line(f"dp = {self._dot('given', 'values')}")
            if self._gradient(number):
                self.line(f"out = {self._dot(f'ds.to({self.dtype})', 'tl.trans(key)', 'out')}")

        self._loops(body)
        self._write("q", "out")

    def _keys(self) -> None:
        s, stores = self.names[self.scores], dict(self.parts.stores)
        self._read("k", "key", "x", "r")
        self._read("v", "values", "x", "d")
        self.line(f"key_out = tl.zeros([{self.block['x']}, {self.width['r']}], tl.float32)")
        self.line(f"value_out = tl.zeros([{self.block['x']}, {self.width['d']}], tl.float32)")

        def body(number: int) -> None:
            self._read("q", "query", "y", "r", True)
            self.line(f"{s} = {self._dot('key', 'query')}")
            self._statistics()
            self._weights(number)
            self._read("g", "given", "y_rows", "d")
            self.line(f"value_out = {self._dot(f'weight.to({self.dtype})', 'given', 'value_out')}")
            if "k" in stores:
                self.line(f"dp = {self._dot('values', 'tl.trans(given)')}")
                if self._gradient(number):
                    self.line(f"key_out = {self._dot(f'ds.to({self.dtype})', 'tl.trans(query)', 'key_out')}")

        self._loops(body)
        self._write("k", "key_out")
        self._write("v", "value_out")

