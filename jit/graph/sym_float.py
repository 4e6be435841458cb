"""A Python float that changes between calls, as operations get it: its value is known when the plan is called."""

from __future__ import annotations

import struct
from typing import Callable

from jit.graph.dims import Dim
from jit.graph.nested import replaced

_double, _words = struct.Struct("<d"), struct.Struct("<ii")


FLOAT32_MAX = 3.4028234663852886e38


def to_words(value: float) -> tuple[int, int] | None:
    """The low and the high 32 bits of a double, as signed integers; None for a finite number that float32 cannot hold,
    which eager refuses as an operand of narrower tensors."""
    if value - value == 0 and not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        return None
    return _words.unpack(_double.pack(value))


def from_words(low: int, high: int) -> float:
    """The double of these 32-bit halves."""
    return _double.unpack(_words.pack(low, high))[0]


class SymFloat:
    """A float operand whose bits are two integer symbols. An operation that needs to know the number calls ``float()``
    on it, or computes or compares with it, which makes the present value a condition of the capture.

    Args:
        low, high: Dims of the two halves.
        value: the value at hand.
        specialize: called without arguments when the value is relied on; gives it.
    """

    __slots__ = ("low", "high", "value", "specialize")

    def __init__(self, low: Dim, high: Dim, value: float, specialize: Callable) -> None:
        self.low, self.high, self.value, self.specialize = low, high, value, specialize

    def __float__(self):
        return self.specialize()

    def __repr__(self) -> str:
        return f"SymFloat({self.value})"

    __hash__ = None


def _relies(name: str) -> Callable:
    def method(self, *others):
        return getattr(float(self), name)(*(float(o) if isinstance(o, SymFloat) else o for o in others))

    return method


for _name in """__bool__ __int__ __neg__ __pos__ __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__
__sub__ __rsub__ __mul__ __rmul__
        __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__""".split():
    setattr(SymFloat, _name, _relies(_name))


def plain(v: object) -> object:
    """The argument structure with every SymFloat replaced by its number."""
    return replaced(SymFloat, float, v)
