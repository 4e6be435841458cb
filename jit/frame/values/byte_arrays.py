"""``bytearray`` made while capturing: its bytes are constants, and its methods are run for real on a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tables import new_value, on_call
from .base import Raised, Value
from .constant import Constant, repeat_count
from .containers import SequenceValue, TupleValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary
    from ..session import Session
    from .objects import SymbolicKey


class ByteArrayValue(SequenceValue):
    builtin = bytearray

    def real(self, s: Session) -> bytearray:
        """A copy as it is now."""
        return bytearray(v.const(s) for v in self.load(s))

    def apply(self, s: Session, fn) -> Value:
        """What ``fn`` gives for the real bytearray, which it may change."""
        real = self.real(s)
        result = s.really(fn, real)
        s.set_elements(self, [Constant(b) for b in real])
        return s.from_python(result)

    def like(self, elements: list[Value]) -> ByteArrayValue:
        return ByteArrayValue(elements)

    def getattr(self, s: Session, name: str) -> Value:
        if callable(getattr(bytearray, name, None)) and not name.startswith("__"):
            return ByteArrayMethod(self, name)
        return super().getattr(s, name)

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        given = plain(s, other)
        if op.inplace is None:
            return self.apply(s, lambda real: real + given)
        self.apply(s, lambda real: real.__iadd__(given))
        return self

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        count = repeat_count(s, times)
        if op.inplace is None:
            return self.apply(s, lambda real: real * count)
        self.apply(s, lambda real: real.__imul__(count))
        return self

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        if op.symbol != "%" or self is not a:
            return None
        given = plain(s, b)
        return self.apply(s, lambda real: real % given)

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        if not issubclass(other.pytype(s), (bytes, bytearray)):
            return None
        given = plain(s, other)
        return self.apply(s, lambda real: op.fn(real, given)).const(s)

    def plain_setitem(self, s: Session, key: Value, value) -> None:
        index = key.as_slice(s) if key.is_slice else key.const(s)
        given = plain(s, value)
        self.apply(s, lambda real: real.__setitem__(index, given))

    def delitem(self, s: Session, key: Value) -> None:
        index = key.as_slice(s) if key.is_slice else key.const(s)
        self.apply(s, lambda real: real.__delitem__(index))

    def plain_contains(self, s: Session, item: Value) -> bool | None:
        wanted = plain(s, item)
        return self.apply(s, lambda real: wanted in real).const(s)

    def hash_key(self, s: Session) -> SymbolicKey:
        raise Raised(s.exception(TypeError("unhashable type: 'bytearray'")))

    def emit(self, e: Emitter) -> None:
        e.call_const(bytearray, [Constant(bytes(v.value for v in self.elements))])


class ByteArrayMethod(Value):
    """A method of a ``bytearray``."""

    def __init__(self, owner, name: str) -> None:
        self.owner, self.name = owner, name

    def pytype(self, s: Session) -> type:
        return type(bytearray().append)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        real, real_kw = [plain(s, a) for a in args], {k: plain(s, v) for k, v in kwargs.items()}
        return self.owner.apply(s, lambda array: getattr(array, self.name)(*real, **real_kw))

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr(self.name)


def plain(s: Session, value):
    """A constant, or the constants of a sequence."""
    if value.builtin is bytearray:
        return value.real(s)
    return TupleValue(value.items_list(s)).const(s) if value.is_sequence else value.const(s)


@on_call(bytearray)
def make(s: Session, args, kwargs: dict[str, Value]) -> Value:
    real, real_kw = [plain(s, a) for a in args], {k: plain(s, v) for k, v in kwargs.items()}
    return s.fold(lambda: bytearray(*real, **real_kw), [], {})


new_value(bytearray)(lambda s, obj: ByteArrayValue([Constant(b) for b in obj]))
