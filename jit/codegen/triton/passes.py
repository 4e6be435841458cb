"""The passes over a row that one block does not hold, or that is computed again from what was loaded.

In a loop, statements are dealt into passes: pass ``p`` computes, per block, all that the reductions and stores of phase
``p`` need, reading it again. Two kinds of sums are taken a pass earlier than they could be by what they read:
``sum(exp(x - max(x)))`` with its maximum, and ``sum((x - mean)**2)`` with its mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .. import loops
from ..handlers import Handlers
from . import analysis, ops, scans, types
from .analysis import VECTOR
from .tiling import INT32_MAX

if TYPE_CHECKING:
    from ..loops import Reduce, Scan, Statement
    from .emit import Emitter

in_loop = Handlers("Triton's loop over a row")


def limit(emitter: Emitter, name: str) -> str:
    return str(2**62) if name in emitter.wide else str(INT32_MAX)


class Passes:
    """Emits the passes over a row, as loops or, with ``recompute``, in line."""

    def __init__(self, emitter: Emitter) -> None:
        self.e, self.kernel = emitter, emitter.kernel
        self.body, self.loaded = self.kernel.body, set()
        self.schedule = analysis.Schedule(self.kernel, online=emitter.config.looped)

    def emit(self) -> None:
        e = self.e
        schedule = self.schedule
        if e.config.looped:
            block = e._arange("r")
            e.line(f"r_block = ({block}).to(tl.int64)" if "r" in e.wide else f"r_block = {block}")
        for p in range(schedule.count + 1):
            for i, s in enumerate(self.body):
                if s.reduces and s.dst in schedule.moments:
                    if schedule.at[i] == p - 1:
                        self._finish_squares(s)
                elif schedule.at[i] == p and not schedule.is_element[i] and not s.reduces:
                    e.statement(s)
            if p < schedule.count:
                (self._pass if e.config.looped else self._held_pass)(p)

    def _held_pass(self, p: int) -> None:
        """All that a phase needs, computed again from what was loaded."""
        e = self.e
        for i in self.schedule.needed(self.schedule.sinks(p)):
            s = self.body[i]
            if s.dst not in self.loaded:
                e.statement(s)
            elif self.kernel.dtypes[s.dst].itemsize == 2:
                e.assign(s.dst, f"{e.helper('_again')}({e.names[s.dst]})")
            if s.loaded:
                self.loaded.add(s.dst)

    def _pass(self, p: int) -> None:
        e = self.e
        sinks = self.schedule.sinks(p)
        statements = self.schedule.needed(sinks)
        reduces = [self.body[i] for i in sinks if self.body[i].reduces]
        running = [self.body[i] for i in statements if self.body[i].scans]
        paired = {m: s for m, s in self.schedule.pairs.items() if any(r.dst == m for r in reduces)}
        skipped = self._exponentials(paired, statements)
        e.read_again = frozenset(n for n, where in self.schedule.loads_by_pass().items() if max(where) > p)
        for s in reduces:
            self._start(s, paired)
        for s in running:
            scans.start(e, s, self._row_constant)
        extent = e.extents["r"] if e.row_start is None else e.extents["r"] + (VECTOR - 1)
        e.line(f"for r_start in {e.steps(extent, e.block['r'])}:")
        with e.indented():
            e.r_positions("r_start + r_block")
            for i in statements:
                if i not in skipped:
                    in_loop[type(self.body[i])](self, self.body[i], paired)
        for s in reduces:
            if s.dst not in self.schedule.moments:
                self._finish(s, paired)

    def _exponentials(self, paired: dict[str, str], statements: list[int]) -> set:
        """The statements that compute ``exp(x - max)`` for an online pair: they are part of the pair's own step."""
        own = {s.dst for total in paired.values() for s in analysis.exponent_of(self.kernel, total)}
        return {i for i in statements if self.body[i].dst in own}

    @in_loop(loops.Statement)
    def _plain(self, s: Statement, paired: dict[str, str]) -> None:
        self.e.statement(s)

    def _row_constant(self, text: str, dtype: torch.dtype) -> str:
        e = self.e
        shape = [str(e.block[n]) if n != "r" else "1" for n in e.order] if len(e.order) > 1 else []
        return f"tl.full([{', '.join(shape)}], {text}, {types.tl_dtype(dtype)})"

    def _accumulator(self, text: str, dtype: torch.dtype) -> str:
        e = self.e
        lengths = ["1" if n == "part" else str(e.length[n]) for n in e.combined_order]
        return f"tl.full([{', '.join(lengths)}], {text}, {types.tl_dtype(dtype)})"

    def _start(self, s: Reduce, paired: dict[str, str]) -> None:
        e, v = self.e, self.e.names[s.dst]
        dtype = self.kernel.dtypes[s.arg]
        if s.dst in paired.values():
            e.line(f"{v}_acc = {self._accumulator('0', s.dtype)}")
            return
        if s.dst in self.schedule.moments:
            for name in ("base", "off", "squares", *(["count"] if "r" in e.masked else [])):
                e.line(f"{v}_{name} = {self._accumulator('0', s.dtype)}")
            return
        op = s.op.removeprefix("arg")
        e.line(f"{v}_acc = {self._accumulator(neutral(op, dtype), dtype)}")
        if s.ordered:
            e.line(f"{v}_at = tl.full({e.shape}, {limit(e, 'r')}, {'tl.int64' if 'r' in e.wide else 'tl.int32'})")

    @in_loop(loops.Reduce)
    def _step(self, s: Reduce, paired: dict[str, str]) -> None:
        e, v = self.e, self.e.names[s.dst]
        if s.dst in paired.values():
            return
        if s.dst in self.schedule.moments:
            self._squares_step(s)
            return
        dtype = self.kernel.dtypes[s.arg]
        op = s.op.removeprefix("arg")
        value = e.masked_value(e.full(s.arg), neutral(op, dtype))
        if s.ordered:
            e.line(f"{v}_new = {value}")
            better = f"({v}_new {'>' if op == 'max' else '<'} {v}_acc)"
            if dtype.is_floating_point:
                better += f" | (({v}_new != {v}_new) & ({v}_acc == {v}_acc))"
            first = f"({v}_at == {limit(e, 'r')})" + (" & r_in" if "r" in e.masked else "")
            e.line(f"{v}_better = {better} | ({first})")
            e.line(f"{v}_acc = tl.where({v}_better, {v}_new, {v}_acc)")
            e.line(f"{v}_at = tl.where({v}_better, r, {v}_at)")
        elif s.dst in paired:
            self._online_step(v, e.names[paired[s.dst]], value, dtype)
        else:
            if e.config.parts > 1:
                value = e.combined(op, value, dtype, pieces=True)
            if s.op == "sum":
                e.line(f"{v}_acc += {value}")
            elif s.op == "prod":
                e.line(f"{v}_acc *= {value}")
            elif s.op in ("any", "all") or dtype is torch.bool:
                e.line(f"{v}_acc = {v}_acc {'|' if s.op in ('any', 'max') else '&'} ({value})")
            else:
                e.line(f"{v}_new = {value}")
                e.line(f"{v}_acc = {self._maximum(f'{v}_acc', f'{v}_new', dtype, s.op + 'imum')}")

    def _maximum(self, a: str, b: str, dtype: torch.dtype, op: str = "maximum") -> str:
        return ops.emit(op, ops.Context(dtype, (dtype, dtype), interpret=self.e.interpret, helpers=self.e.helpers),
                        a, b)

    def _exp(self, text: str, dtype: torch.dtype) -> str:
        context = ops.Context(dtype, (dtype,), dtype is torch.float32, self.e.interpret, helpers=self.e.helpers)
        return ops.emit("exp", context, text)

    def _online_step(self, v: str, total: str, value: str, dtype: torch.dtype) -> None:
        """A block's maximum and sum of exponentials; the sum so far is scaled to the new maximum. 0 stands for a
        maximum that is infinite."""
        e = self.e
        e.line(f"{v}_new = {value}")
        e.line(f"{v}_old = {v}_acc")
        block = e.combined("max", f"{v}_new", dtype, pieces=True) if e.config.parts > 1 else f"{v}_new"
        e.line(f"{v}_acc = {self._maximum(f'{v}_old', block, dtype)}")
        e.line(f'{v}_safe = tl.where(tl.abs({v}_acc) == float("inf"), 0.0, {v}_acc)')
        fresh = self._exp(f"{v}_new - {v}_safe", dtype)
        context = ops.Context(dtype, (dtype,) * 3, interpret=e.interpret, helpers=e.helpers)
        scaled = ops.emit("fma", context, f"{total}_acc", self._exp(f"{v}_old - {v}_safe", dtype),
                          e.over_pieces(fresh) if e.config.parts > 1 else fresh)
        e.line(f"{total}_acc = {scaled}")

    def _squares_step(self, s: Reduce) -> None:
        """Each thread's sums of ``x - base`` and of its square, ``base`` being about its first value."""
        e, v = self.e, self.e.names[s.dst]
        many, masked = e.config.parts, "r" in e.masked
        x = e.full(self.schedule.moments[s.dst].args[0])
        sum_ = e.over_pieces if many > 1 else (lambda text: text)
        if masked:
            e.line(f"{v}_here = {sum_(f'tl.broadcast_to(r_in, {e.shape}).to(tl.float32)')}")
            first, when = f"{sum_(e.masked_value(x, '0.0'))} / tl.maximum({v}_here, 1.0)", f"{v}_count == 0"
        else:
            first, when = f"{sum_(x)} * {1 / many!r}" if many > 1 else x, "r_start == 0"
        e.line(f"{v}_base = tl.where({when}, {first}, {v}_base)")
        e.line(f"{v}_new = {e.masked_value(f'{x} - {v}_base', '0.0')}")
        e.line(f"{v}_off += {sum_(f'{v}_new')}")
        e.line(f"{v}_squares += {sum_(f'{v}_new * {v}_new')}")
        if masked:
            e.line(f"{v}_count += {v}_here")

    def _finish_squares(self, s: Reduce) -> None:
        """The sum about ``m``, which is known now, of the threads' sums about their own means (as in ``moments``)."""
        e, v = self.e, self.e.names[s.dst]
        count = f"{v}_count"
        if "r" not in e.masked:
            e.line(f"{count} = {e.text(e.extents['r'])} * {1 / e.length['r']!r}")
        m = e.names[self.schedule.moments[s.dst].args[1]]
        e.line(f"{v}_mean = {v}_off / {f'tl.maximum({count}, 1.0)' if 'r' in e.masked else count}")
        e.line(f"{v}_far = {v}_base + {v}_mean - {m}")
        own = f"tl.maximum({v}_squares - {v}_off * {v}_mean, 0.0)"
        e.assign(s.dst, e.combined("sum", f"{own} + {count} * {v}_far * {v}_far", s.dtype))

    def _finish(self, s: Reduce, paired: dict[str, str]) -> None:
        e, v = self.e, self.e.names[s.dst]
        dtype = self.kernel.dtypes[s.arg]
        if s.dst in paired.values():
            m = e.names[next(k for k, t in paired.items() if t == s.dst)]
            shift = analysis.exponent_of(self.kernel, s.dst)[1].args[1]
            m_text = m
            if e.names[shift] != m:
                m_text = f"{v}_shift"
                e.line(f'{m_text} = tl.where(tl.abs({m}) == float("inf"), 0.0, {m})')
            e.assign(s.dst, e.combined("sum", f"{v}_acc * {self._exp(f'{m}_acc - {m_text}', s.dtype)}", s.dtype))
        elif s.ordered:
            e.assign(s.dst, e._position_of_extreme(s, f"{v}_acc", f"{v}_at", dtype))
        else:
            e.assign(s.dst, e.combined(s.op, f"{v}_acc", dtype))

    @in_loop(loops.Scan)
    def _scan(self, s: Scan, paired: dict[str, str]) -> None:
        e, v = self.e, self.e.names[s.dst]
        scans.step(e, s, v)


def neutral(op: str, dtype: torch.dtype) -> str:
    """The value that changes nothing under a reduction, as a literal."""
    value = loops.neutral(op, dtype)
    return f'float("{value}")' if value in (math.inf, -math.inf) else str(value)
