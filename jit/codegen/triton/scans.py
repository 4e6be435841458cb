"""Running values along a row as Triton text: scans with any associative combination, and sorted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from ...errors import Unsupported
from . import ops, types

if TYPE_CHECKING:
    from ..loops import Scan
    from .emit import Emitter

# Sums of exponentials, as a largest exponent and the sum of what is relative to it: one exponential for each pair, and
# one logarithm in the end.
_ADD_EXP = """
@triton.jit
def {name}(a, s, b, t):
    smaller = {exp}
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL), tl.where(a >= b, s + t * smaller, t + s * smaller)
"""

# The last of equal extremes, a NaN before all others; with its position. In whichever order it is given the two: a
# reduction keeps to none.
_LAST = """
@triton.jit
def {name}(a, at, b, bt):
    better = {better}
    return tl.where(better, b, a), tl.where(better, bt, at)
"""

# One step of a sorting network over a block seen as a cube, two places along each dimension: an element and the one
# across dimension ``i`` (from the last) are put in order, the other way round where ``flip`` is 1. Where both lie in
# one thread, that is a single instruction for each.
_EXCHANGED = """
@triton.jit
def _side(dims: tl.constexpr, i: tl.constexpr):
    return tl.reshape(tl.arange(0, 2), [1] * (dims - i - 1) + [2] + [1] * i)


@triton.jit
def _exchanged(x, flip, dims: tl.constexpr, i: tl.constexpr):
    y = x ^ tl.xor_sum(x, dims - 1 - i, True)
    upper = (flip ^ _side(dims, i)) != 0
    return tl.where(upper, tl.maximum(x, y), tl.minimum(x, y))
"""


def _log2(n: int) -> int:
    return n.bit_length() - 1


def _network(e: Emitter, x: int, r: int, kept: int) -> str:
    """The name of a function that sorts the rows of a block, by K. Batcher's bitonic network. Where fewer are ``kept``,
    all powers of two, rows of that length are sorted first; then of two of them, in opposite orders, the smaller ones
    are kept, and merged. All of a row's places are written, over and over with these."""
    rows, n, k = map(_log2, (x, r, kept))
    lines = ["@triton.jit", f"def _sorted_{x}_{r}_{kept}(x):",
             f"    h = tl.reshape(x, [{', '.join(['2'] * (rows + n))}])"]

    def merge(steps: int, dims: int, turn: int | None) -> None:
        for i in reversed(range(steps)):
            flip = "0" if turn is None else f"_side({dims}, {turn})"
            lines.append(f"    h = _exchanged(h, {flip}, {dims}, {i})")

    for s in range(1, k + 1):
        merge(s, rows + n, s if s < n else None)
    for s in range(k + 1, n + 1):
        left = rows + n - (s - k)
        lines.append(f"    h = tl.min(h, {left - k})")
        merge(k, left, k if s < n else None)
    if k < n:
        lines += [f"    h = tl.reshape(h, [{x}, 1, {kept}])",
                  f"    h = tl.broadcast_to(h, [{x}, {r // kept}, {kept}])"]
    lines.append(f"    return tl.reshape(h, [{x}, {r}])")
    e.helpers["_exchanged"] = _EXCHANGED.strip("\n") + "\n"
    name = f"_sorted_{x}_{r}_{kept}"
    e.helpers[name] = "\n".join(lines) + "\n"
    return name


def _sorted(e: Emitter, s: Scan, value: str) -> str:
    """A block's rows in order, along the last dimension alone."""
    x, r = e.block.get("x", 1), e.block["r"]
    if e.interpret or e.axis != len(e.dimensions) - 1:
        last = e.axis == len(e.dimensions) - 1
        return f"tl.sort({value})" if last else f"tl.trans(tl.sort(tl.trans({value})))"
    kept = r
    while s.upto and kept >= 4 * s.upto:
        kept //= 2
    kept = kept if kept <= r // 4 else r
    name = _network(e, x, r, kept)
    return f"{name}({value})" if len(e.dimensions) > 1 else f"tl.reshape({name}({value}), [{r}])"


def _function(e: Emitter, op: str, dtype: torch.dtype) -> str:
    """The name of the function that combines two running values, or two pairs of a value and its position."""
    if op == "logaddexp":
        name = f"_add_exp_{types.bits(dtype)}"
        apart = "tl.where(a == b, 0.0, -tl.abs(a - b))"
        exp = f"{e.helper('_exp_fast')}({apart})" if dtype is torch.float32 else f"tl.exp({apart})"
        e.helpers[name] = _ADD_EXP.format(name=name, exp=exp).strip("\n") + "\n"
        return name
    if not op.startswith("arg"):
        return e.combiner(op, dtype)
    name = f"_last_{op}_{'float' if dtype.is_floating_point else 'int'}"
    better, equal = f"b {'>' if op == 'argmax' else '<'} a", "a == b"
    if dtype.is_floating_point:
        better, equal = f"({better}) | ((b != b) & (a == a))", f"({equal}) | ((a != a) & (b != b))"
    better = f"({better}) | (({equal}) & (bt > at))"
    e.helpers[name] = _LAST.format(name=name, better=better).strip("\n") + "\n"
    return name


def _of_argument(e: Emitter, s: Scan) -> tuple[str, torch.dtype]:
    """(the values of a block, the neutral one in the place of what lies behind the row; their dtype)."""
    dtype = e.kernel.dtypes[s.arg]
    return e.masked_value(e.full(s.arg), e.neutral(s.op.removeprefix("arg"), dtype)), dtype


def _position(e: Emitter) -> str:
    return f"tl.broadcast_to(r, {e.shape})"


def _one_each(e: Emitter, dtype: torch.dtype) -> str:
    return f"tl.full({e.shape}, 1.0, {types.tl_dtype(dtype)})"


def _log(e: Emitter, s: Scan, text: str) -> str:
    """The logarithm of a sum of exponentials."""
    return ops.emit("log", ops.Context(s.dtype, (s.dtype,), s.dst in e.fast, e.interpret, helpers=e.helpers), text)


def whole(e: Emitter, s: Scan) -> str:
    """The scan of a block that holds the whole row."""
    value, dtype = _of_argument(e, s)
    if s.op == "sum":
        return f"tl.cumsum({e.full(s.arg)}, {e.axis}).to({types.tl_dtype(s.dtype)})"
    if s.op == "sort":
        return _sorted(e, s, value)
    function, v = _function(e, s.op, dtype), e.names[s.dst]
    if s.op == "logaddexp":
        e.line(f"{v}_top, {v}_sum = tl.associative_scan(({value}, {_one_each(e, dtype)}), {e.axis}, {function})")
        return f"{v}_top + {_log(e, s, f'{v}_sum')}"
    if not s.op.startswith("arg"):
        return f"tl.associative_scan({value}, {e.axis}, {function})"
    e.line(f"{v}_value, {v}_at = tl.associative_scan(({value}, {_position(e)}), {e.axis}, {function})")
    return f"{v}_at.to(tl.int64)"


def start(e: Emitter, s: Scan, constant: Callable) -> None:
    """What a row begins with, before the loop over its blocks."""
    v, dtype = e.names[s.dst], e.kernel.dtypes[s.arg]
    if s.op == "sort":
        raise Unsupported("a GPU kernel that sorts rows that it does not hold", kind="kernel")
    e.line(f"{v}_carry = {constant(e.neutral(s.op.removeprefix('arg'), dtype), dtype)}")
    if s.op.startswith("arg"):
        e.line(f"{v}_place = {constant('0', torch.int64)}")
    if s.op == "logaddexp":
        e.line(f"{v}_rest = {constant('1.0', dtype)}")


def step(e: Emitter, s: Scan, v: str) -> None:
    """One block of a row."""
    value, dtype = _of_argument(e, s)
    t = types.tl_dtype(dtype)
    e.line(f"{v}_new = {value}")
    if s.op == "sum":
        e.line(f"{v} = {v}_carry + tl.cumsum({v}_new, {e.axis}).to({t})")
        total = e.expanded(f"tl.sum({v}_new, {e.axis})")
        e.line(f"{v}_carry = ({v}_carry + {total}).to({t})")
        return
    function = _function(e, s.op, dtype)
    if s.op == "logaddexp":
        pair = f"({v}_new, {_one_each(e, dtype)}), {e.axis}, {function}"
        e.line(f"{v}_block, {v}_sum = tl.associative_scan({pair})")
        e.line(f"{v}_top, {v}_sum = {function}({v}_carry, {v}_rest, {v}_block, {v}_sum)")
        e.line(f"{v} = {v}_top + {_log(e, s, f'{v}_sum')}")
        e.line(f"{v}_total, {v}_share = tl.reduce({pair})")
        total, share = (e.expanded(f"{v}_{part}") for part in ("total", "share"))
        e.line(f"{v}_carry, {v}_rest = {function}({v}_carry, {v}_rest, {total}, {share})")
        return
    if not s.op.startswith("arg"):
        e.line(f"{v} = {function}({v}_carry, tl.associative_scan({v}_new, {e.axis}, {function}))")
        total = e.expanded(f"tl.reduce({v}_new, {e.axis}, {function})")
        e.line(f"{v}_carry = {function}({v}_carry, {total}).to({t})")
        return
    e.line(f"{v}_block, {v}_at = tl.associative_scan(({v}_new, {_position(e)}.to(tl.int64)), {e.axis}, {function})")
    e.line(f"{v}_value, {v} = {function}({v}_carry, {v}_place, {v}_block, {v}_at)")
    e.line(f"{v}_total, {v}_total_at = tl.reduce(({v}_new, {_position(e)}.to(tl.int64)), {e.axis}, {function})")
    total, at = (e.expanded(f"{v}_total{part}") for part in ("", "_at"))
    e.line(f"{v}_carry, {v}_place = {function}({v}_carry, {v}_place, {total}, {at})")
