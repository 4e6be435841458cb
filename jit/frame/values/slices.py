"""Slices and ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import Unsupported
from ...runtime import facts
from .. import messages
from .base import Raised, Value, type_name
from .constant import Constant
from .iterators import RangeIterator
from .numbers import scalar

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Comparison
    from ..session import Session


class SliceValue(Value):
    """A slice of values."""

    is_slice = True

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.parts = (start, stop, step)

    def pytype(self, s: Session) -> type:
        return slice

    def is_const(self) -> bool:
        return all(p.is_const() for p in self.parts)

    def const(self, s: Session) -> slice:
        return slice(*(p.const(s) for p in self.parts))

    def nested(self, s: Session) -> list[Value]:
        return list(self.parts)

    def with_nested(self, values: list[Value]) -> Value:
        return SliceValue(*values)

    def probed(self, s: Session) -> slice:
        return slice(*(p.probed(s) for p in self.parts))

    def as_slice(self, s: Session) -> slice:
        known = []
        for p in self.parts:
            if p.is_nothing(s):
                known.append(p.const(s))
            elif p.has_index(s):
                known.append(p.index(s))
            else:
                p.pytype(s)
                raise Raised(s.exception(TypeError(messages.NO_SLICE_INDEX)))
        return slice(*known)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        """As tuples of the parts."""
        if type(other) is not SliceValue:
            return None
        if not (self.is_const() and other.is_const()):
            raise Unsupported("a comparison of slices that are not constants", kind="operator")
        return s.fold(op.fn, [self, other], {})

    def getattr(self, s: Session, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        if name == "indices":
            return Constant(self.const(s)).getattr(s, name)
        return super().getattr(s, name)

    def lower(self, s: Session) -> Any:
        return slice(*(p.lower(s) for p in self.parts))

    def emit(self, e: Emitter) -> None:
        for part in self.parts:
            e.load(part)
        e.build_slice(3)

    def describe(self) -> str:
        return "a slice"


class RangeValue(Value):
    """A range with known bounds."""

    is_plain = True

    def __init__(self, value: range, source=None) -> None:
        self.value, self.source = value, source

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(range))
        return range

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> range:
        if self.source is not None:
            s.guards.add(self.source, facts.Equals(self.value))
        return self.value

    def truth(self, s: Session) -> bool:
        return bool(self.const(s))

    def length(self, s: Session) -> int:
        return len(self.const(s))

    def iter(self, s: Session) -> Value:
        if max(abs(self.value.start), abs(self.value.stop)) >= 1 << 62:
            raise Unsupported("iteration over a range of very large numbers", kind="iterate")
        self.written_out(s)
        return RangeIterator(self.const(s))

    def written_out(self, s: Session) -> None:
        """A loop over all of it is captured step by step, which takes one of the same length each time."""
        if self.source is not None and not self.source.watched:
            s.varying.expect(self.source, len(self.value), range)

    def backwards(self, s: Session) -> Value:
        self.written_out(s)
        return RangeIterator(self.const(s)[::-1])

    def contains(self, s: Session, item: Value) -> bool | None:
        return (item.const(s) if item.symbolic is int else scalar(s, item)) in self.const(s)

    def getitem(self, s: Session, key: Value) -> Value:
        if key.is_slice:
            return RangeValue(self.const(s)[key.as_slice(s)])
        if not key.has_index(s):
            raise Raised(s.exception(TypeError("range indices must be integers or slices, not "
                                               f"{type_name(key.pytype(s))}")))
        try:
            return Constant(self.const(s)[key.index(s)])
        except IndexError as error:
            raise Raised(s.exception(error)) from None

    def getattr(self, s: Session, name: str) -> Value:
        return Constant(self.const(s)).getattr(s, name)

    def hash_key(self, s: Session) -> range:
        return self.const(s)

    def emit(self, e: Emitter) -> None:
        e.load_known(self, self.value)
