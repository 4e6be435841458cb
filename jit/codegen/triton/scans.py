"""Running values along a row as Triton text: scans with any associative combination, and sorted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from ...errors import Unsupported
from . import types

if TYPE_CHECKING:
    from ..loops import Scan
    from .emit import Emitter

# One term more: the logarithm of a sum of exponentials.
_LOG_ADD_EXP = """
@triton.jit
def _log_add_exp(a, b):
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    plain = (low == high) & (tl.abs(low) == float("inf"))
    return tl.where(plain, a, tl.log(1.0 + tl.exp(low - high)) + high)
"""

# The last of equal extremes, a NaN before all others; with its position. In whichever order it is given the two: a
# reduction keeps to none.
_LAST = """
@triton.jit
def {name}(a, at, b, bt):
    better = {better}
    return tl.where(better, b, a), tl.where(better, bt, at)
"""


def _function(e: Emitter, op: str, dtype: torch.dtype) -> str:
    """The name of the function that combines two running values, or two pairs of a value and its position."""
    if op == "logaddexp":
        e.helpers["_log_add_exp"] = _LOG_ADD_EXP.strip("\n") + "\n"
        return "_log_add_exp"
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


def whole(e: Emitter, s: Scan) -> str:
    """The scan of a block that holds the whole row."""
    value, dtype = _of_argument(e, s)
    if s.op == "sum":
        return f"tl.cumsum({e.full(s.arg)}, {e.axis}).to({types.tl_dtype(s.dtype)})"
    if s.op == "sort":  # along the last dimension alone
        last = e.axis == len(e.dimensions) - 1
        return f"tl.sort({value})" if last else f"tl.trans(tl.sort(tl.trans({value})))"
    function = _function(e, s.op, dtype)
    if not s.op.startswith("arg"):
        return f"tl.associative_scan({value}, {e.axis}, {function})"
    v = e.names[s.dst]
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
