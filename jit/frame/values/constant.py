"""Immutable plain objects (numbers, strings, dtypes, enum members, ...) and symbolic integers."""

from __future__ import annotations

import contextlib
import enum
import operator
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ... import torch_private
from ...errors import Unsupported
from ...runtime import facts
from .. import tables
from ..guards import Compared
from ..source import Const, DictAttr
from .base import Raised, Value, lookup, special_error, type_name

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary, Comparison
    from ..session import Session
    from ..source import Source

LEAF_TYPES = (type(None), bool, int, float, complex, str, bytes, type(...),
              type(NotImplemented), torch.dtype, torch.device,
              torch.layout, torch.memory_format, types.CodeType, torch.finfo, torch.iinfo,
              torch_private.GpuProperties)


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


_LEAVES = frozenset(LEAF_TYPES)


def is_leaf(obj: object) -> bool:
    """True for objects that are represented by ``Constant``."""
    return type(obj) in _LEAVES or isinstance(obj, (enum.Enum, np.generic, np.dtype)) or is_c_enum(obj)


def is_c_enum(obj: object) -> bool:
    """Whether an object is a member of an enumeration that is written in C++."""
    return type(type(obj)).__name__ == "pybind11_type" and hasattr(type(obj), "__members__")


class Constant(Value):
    """A plain immutable object. From outside, its value is guarded when it is first used."""

    is_plain = is_leaf = can_wait = True

    def __init__(self, value: object, source: Source | None = None) -> None:
        self.value, self.source = value, source

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> object:
        if self.source is not None:
            by_value = (isinstance(self.value, (bool, int, float, complex, str, bytes, np.generic))
                        and not isinstance(self.value, enum.Enum))
            if isinstance(self.value, (torch.device, torch.finfo, torch.iinfo)):
                by_value = True
            if type(self.value) is str and not self.source.watched:
                s.varying.specialize(self.source, self.value)
            s.guards.add(self.source, facts.Equals(self.value) if by_value else facts.identity(self.value))
        return self.value

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            if self.value is None or self.value is True or self.value is False:
                self.const(s)
            else:
                s.guards.add(self.source, facts.TypeIs(type(self.value)))
        return type(self.value)

    def truth(self, s: Session) -> bool:
        try:
            return bool(self.const(s))
        except TypeError as error:  # NotImplemented's
            raise Raised(s.exception(error)) from None

    def identity(self) -> tuple:
        if (self.value is None or isinstance(self.value, (bool, enum.Enum, torch.dtype))
            or self.value in (..., NotImplemented)):
            return ("const", id(self.value))
        return ("const", type(self.value), repr(self.value) if isinstance(self.value, float) else self.value)

    def memo_key(self) -> tuple:
        return ("constant", id(self))

    def hash_key(self, s: Session) -> object:
        return self.const(s)

    def instance_key(self, s: Session) -> tuple | tuple[str, int]:
        return self.hash_key(s)

    @property
    def is_none(self) -> bool:
        return self.value is None

    def length(self, s: Session) -> int:
        try:
            return len(self.const(s))
        except TypeError as error:
            raise Raised(s.exception(error)) from None

    def backwards(self, s: Session) -> Value:
        return s.iterate([s.from_python(v) for v in s.really(reversed, self.const(s))])

    def formatted(self, s: Session, spec: Value) -> Value:
        return s.fold(format, [self, spec], {})

    def attribute_names(self, s: Session) -> Value:
        return s.fold(dir, [self], {})

    def getattr(self, s: Session, name: str) -> Value:
        value = self.const(s)
        if isinstance(value, enum.Enum):
            found = self.member_attr(s, value, name)
            if found is not None:
                return found
        try:
            attr = getattr(value, name)
        except AttributeError as error:
            raise Raised(s.exception(error)) from None
        if (isinstance(value, enum.Enum) and isinstance(attr, types.MethodType)
            and isinstance(attr.__func__, types.FunctionType)):
            return s.bound_method(s.wrap_class_attr(type(value), name), self)
        if callable(attr) and not isinstance(attr, type):
            return PureMethod(self, name)
        return s.from_python(attr)

    def member_attr(self, s: Session, member: object, name: str) -> Value | None:
        """An attribute of a member of an enumeration, where it is one that the program can change; None for any
        other."""
        raw = s.class_lookup(type(member), name)[1]
        if type(raw) is property and isinstance(raw.fget, types.FunctionType):
            return s.wrap_raw(raw.fget).call(s, [self], {})
        kept = f"_{name}_" if name in ("name", "value") and raw is enum.Enum.__dict__[name] else name
        if kept in member.__dict__ and (kept != name or not isinstance(raw, types.FunctionType)):
            return s.wrap(member.__dict__[kept], DictAttr(Const(member, type(member).__qualname__), kept))
        return None

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if callable(self.value):
            return super().call(s, args, kwargs)
        raise Raised(s.exception(TypeError(f"'{type_name(self.pytype(s))}' object is not callable")))

    def setattr(self, s: Session, name: str, value: Value) -> None:
        if type(self.value) not in _PLAIN:
            super().setattr(s, name, value)
        try:
            setattr(self.const(s), name, None)
        except AttributeError as error:
            raise Raised(s.exception(error)) from None

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        if not lookup(type(self.value), name)[0]:
            raise Raised(s.exception(TypeError(special_error(self.pytype(s), name))))
        return self.getattr(s, name).call(s, args, {})

    def getitem(self, s: Session, key: Value) -> Value:
        if not lookup(type(self.value), "__getitem__")[0] and not isinstance(self.value, type):
            return self.call_special(s, "__getitem__", [key])
        return PureMethod(self, "__getitem__").call(s, [key], {})

    def iter(self, s: Session) -> Value:
        value = self.const(s)
        try:
            elements = list(value)
        except TypeError as error:
            raise Raised(s.exception(error)) from None
        py = type(iter(value)) if isinstance(value, (str, bytes)) else None
        return s.iterate([s.from_python(v) for v in elements], py)

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        if a.is_plain and b.is_plain:
            return s.fold(op.fn, [a, b], {})
        if type(self.value) is str and op.symbol == "%" and self is a:
            return tables.methods[str, "__mod__"](s, self, [b], {})
        formats = type(self.value) is bytes and op.symbol == "%" and self is a
        if formats or isinstance(self.value, np.generic):
            if (b if self is a else a).is_const():
                return s.fold(op.fn, [a, b], {})
            if (b if self is a else a).is_array:
                return None  # the array's own answer comes next
            if formats:
                raise Unsupported("a value is formatted that is known only at run time", kind="format")
            raise Unsupported("an operator has a NumPy scalar as an operand", kind="numpy",
                              hint="write the tensor first, or use a Python number")
        return None

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if isinstance(self.value, np.generic) and not other.is_plain and not other.is_array:
            raise Unsupported("a NumPy scalar is compared", kind="numpy")
        use = self.compared_as(op, other)
        with s.guards.asked_as(use) if use is not None else contextlib.nullcontext():
            return super().compare(s, op, other)

    def compared_as(self, op: Comparison, other: Value) -> Compared | None:
        """What a comparison finds of a number from outside; None where it is of something else."""
        outside = [v for v in (self, other) if v.source is not None]
        if len(outside) != 1 or type(other) is not Constant or not type(self.value) is type(other.value) is int:
            return None
        known = self.value if outside[0] is other else other.value
        return Compared(op.fn, known, outside[0] is other, bool(op.fn(self.value, other.value)))

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        cls = type(self.value)
        if not issubclass(cls, (str, bytes)):
            return None
        if other.is_const():
            return cls is str and other.behind(s, self) or s.fold(op.fn, [self, other], {})
        if issubclass(other.pytype(s), str if cls is str else (bytes, bytearray, memoryview)):
            raise Unsupported(f"{self.describe()} + {other.describe()}", kind="operator")
        raise Raised(s.exception(TypeError(
            f"can't concat {type_name(other.pytype(s))} to bytes" if cls is bytes
            else f'can only concatenate str (not "{type_name(other.pytype(s))}") to str')))

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        if not isinstance(self.value, (str, bytes)):
            return None
        return s.fold(op.fn, [self, Constant(repeat_count(s, times))], {})

    @property
    def is_numeric(self) -> bool:
        return isinstance(self.value, (int, float, complex, np.generic))

    def at_hand(self, s: Session) -> Any:
        return self.const(s) if type(self.value) in (int, float, bool) else None

    def has_index(self, s: Session) -> bool:
        return hasattr(type(self.value), "__index__")

    def exact_int(self) -> None:
        return self.value if type(self.value) is int else None

    def told_apart(self, s: Session, other: Value) -> None:
        """The type of the other tells."""
        if other.source is not None:
            other.pytype(s)

    def contains(self, s: Session, item: Value) -> bool:
        if isinstance(self.value, enum.Enum) and lookup(type(self.value), "__contains__")[0]:
            return bool(self.call_special(s, "__contains__", [item]).const(s))
        return s.fold(operator.contains, [self, item], {}).truth(s)

    def lower(self, s: Session) -> Any:
        plain = self.const(s)
        if isinstance(plain, enum.Enum) and isinstance(plain, (int, float)):
            return plain.value
        if is_c_enum(plain):
            return int(plain)
        if type(plain) is int and not -(1 << 63) <= plain < 1 << 64:
            raise Unsupported("a torch function is given an integer of more than 64 bits",
                              kind="torch-argument")
        return plain.item() if isinstance(plain, np.generic) else plain

    def emit(self, e: Emitter) -> None:
        e.load_const(self.value)

    def describe(self) -> str:
        return repr(self.value) if self.source is None else f"{self.source}={self.value!r}"


def repeat_count(s: Session, times: Value) -> int:
    """How often a sequence is repeated."""
    if not times.has_index(s):
        raise Raised(s.exception(TypeError(
            f"can't multiply sequence by non-int of type '{type_name(times.pytype(s))}'")))
    return times.index(s)


class PureMethod(Value):
    """A method of a constant; called for real when every argument is constant."""

    def __init__(self, owner: Constant, name: str) -> None:
        self.owner, self.name = owner, name

    def pytype(self, s: Session) -> type:
        return type(getattr(self.owner.value, self.name))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = tables.methods.get((type(self.owner.value), self.name))
        if handler is not None:
            return handler(s, self.owner, args, kwargs)
        return s.fold(getattr(self.owner.const(s), self.name), args, kwargs)

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr(self.name)

    def describe(self) -> str:
        return f"method {self.name} of {self.owner.describe()}"


class Previous(Constant):
    """The exception that was being handled before, on the stack below the present one."""

    def __init__(self, error, handled) -> None:
        super().__init__(None)
        self.error, self.handled = error, handled
