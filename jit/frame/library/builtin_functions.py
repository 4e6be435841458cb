"""Builtin functions."""

from __future__ import annotations

import functools
import math
import sys
import types
from typing import TYPE_CHECKING, Callable

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import protocols
from ..operators import BINARY, COMPARE, DIVMOD
from .. import source as src
from ..tables import add_forbidden, add_pure, on_call
from ..values.byte_arrays import ByteArrayValue
from ..values.base import IMMUTABLE_TYPE, Raised, Value, lookup, type_name
from ..values.constant import Constant
from ..values.numbers import DimValue, integer
from ..values.containers import ContainerValue, ListValue, SequenceValue, TupleValue
from ..values.mappings import DictValue
from ..values.deferred import defer
from ..values.numbers import FloatValue, compute
from ..values.functions import BuiltinValue, ClassValue, FunctionValue, MethodValue, SuperValue
from ..values.iterators import (EnumerateIterator, FilterIterator, FunctionIterator,
                                IteratorValue, MapIterator, SequenceIterator,
                                ZipIterator)
from ..values.objects import BuiltinMethod, ObjectValue
from ..values.slices import RangeValue, SliceValue
from ..values.tensor import TensorValue
from ..values.text import TensorText
from .class_statements import class_of_three

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session

add_pure(abs, divmod, round, pow, ord, chr, hex, oct, bin, ascii, format,
         hash, math.prod, str.maketrans, bytes.maketrans)
add_forbidden("print() writes to standard output", "print outside the compiled function", print)
add_forbidden("input and files are not captured", "do it outside the compiled function", input, open, breakpoint)
add_forbidden("code made from text is not captured", "", eval, exec, compile, __import__)


def class_of(s: Session, value: Value) -> type:
    """``type(value)``, guarded."""
    return value.pytype(s)


def length_value(s: Session, value: Value) -> Value:
    return integer(value.length(s))


@on_call(len)
def len_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if isinstance(value, Constant) and not hasattr(value.value, "__len__"):
        return s.fold(len, args, {})
    if isinstance(value, (FunctionValue, MethodValue, BuiltinValue)) or isinstance(value, IteratorValue):
        raise Raised(s.exception(TypeError(f"object of type '{type_name(class_of(s, value))}' has no len()")))
    return length_value(s, value)


def is_callable(s: Session, value: Value) -> bool:
    if isinstance(value, (FunctionValue, MethodValue, BuiltinValue, ClassValue, BuiltinMethod)):
        return True
    if isinstance(value, ObjectValue):
        return value.has_special(s, "__call__")
    return lookup(class_of(s, value), "__call__")[0]


@on_call(callable)
def callable_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(is_callable(s, args[0]))


@on_call(type)
def type_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        return class_of_three(s, args, kwargs)
    return s.wrap_class(class_of(s, args[0]))


class IdentityNumber(Constant):
    """``id()`` of an object made while capturing; only the object that is rebuilt from it has the number that
    leaves."""

    def __init__(self, owner: Value) -> None:
        super().__init__(id(owner))
        self.owner = owner

    def emit(self, e: Emitter) -> None:
        e.call_const(id, [self.owner])


@on_call(id)
def id_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0]
    obj = getattr(value, "obj", None)
    if obj is None:
        return IdentityNumber(value)
    if value.source is not None:
        s.guards.add(value.source, facts.identity(obj))
    return Constant(id(obj))


@on_call(getattr)
def getattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = args[1].const(s)
    try:
        return args[0].getattr(s, name)
    except Raised as raised:
        if len(args) < 3 or not s.is_exception(raised.value, AttributeError):
            raise
        return args[2]


@on_call(hasattr)
def hasattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        args[0].getattr(s, args[1].const(s))
        return Constant(True)
    except Raised as raised:
        if not s.is_exception(raised.value, AttributeError):
            raise
        return Constant(False)


@on_call(setattr)
def setattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].setattr(s, args[1].const(s), args[2])
    return Constant(None)


@on_call(delattr)
def delattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].delattr(s, args[1].const(s))
    return Constant(None)


@on_call(vars)
def vars_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise Unsupported("vars() without an argument", kind="frame-inspection")
    try:
        return args[0].getattr(s, "__dict__")
    except Raised as raised:
        if not s.is_exception(raised.value, AttributeError):
            raise
        raise Raised(s.exception(TypeError("vars() argument must have __dict__ attribute"))) from None


def names_of(cls) -> tuple:
    return tuple(dir(cls))


@on_call(dir)
def dir_(s: Session, args, kwargs: dict[str, Value]):
    if isinstance(args[0], Constant) or isinstance(args[0], ClassValue) and args[0].obj.__flags__ & IMMUTABLE_TYPE:
        return s.fold(dir, args, {})
    if isinstance(args[0], ClassValue) and id(args[0].obj) not in s.heap.templates:
        ask = functools.partial(names_of, args[0].pin(s))
        s.guards.add(src.Returned(src.Const(ask, "dir")), facts.Equals(ask()))
        return s.from_python(list(ask()))
    if isinstance(args[0], ContainerValue) and args[0].cls is args[0].builtin:
        return s.from_python(dir(args[0].builtin))
    raise Unsupported("dir() of an object", kind="attribute")


@on_call(globals)
def globals_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.lookups.globals_value(s.frames[-1].globals)


@on_call(iter)
def iter_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1:
        return args[0].iter(s)
    fn, sentinel = args
    if not is_callable(s, fn):
        # Its TypeError has other words in each version of Python.
        return s.fold(iter, [Constant(None), Constant(None)], {})

    def step(s: Session):
        value = fn.call(s, [], {})
        return None if protocols.same_or_equal(s, value, sentinel) else value

    return FunctionIterator(step)


@on_call(next)
def next_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0]
    value = it.next(s)
    if value is not None:
        return value
    if len(args) > 1:
        return args[1]
    result = getattr(it, "result", None)
    stop = [] if result is None or (isinstance(result, Constant) and result.value is None) else [result]
    raise Raised(s.exception(StopIteration, stop))


@on_call(range)
def range_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        return RangeValue(range(*(a.index(s) for a in args)))
    except (TypeError, ValueError) as error:
        raise Raised(s.exception(error)) from None


@on_call(enumerate)
def enumerate_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    return EnumerateIterator(args[0].iter(s), start.index(s))


@on_call(zip)
def zip_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ZipIterator([a.iter(s) for a in args], kwargs["strict"].truth(s) if "strict" in kwargs else False)


@on_call(map)
def map_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MapIterator(args[0], [a.iter(s) for a in args[1:]])


@on_call(filter)
def filter_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0]
    return FilterIterator(None if isinstance(fn, Constant) and fn.pytype(s) is type(None) else fn, args[1].iter(s))


@on_call(reversed)
def reversed_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if isinstance(value, SequenceValue):
        return SequenceIterator(value, len(value.load(s)) - 1, -1)
    if isinstance(value, RangeValue):
        return RangeValue(value.const(s)[::-1]).iter(s)
    if isinstance(value, DictValue):
        keys = [k for k, v in value.load(s).values()]
        return SequenceIterator(keys[::-1])
    if isinstance(value, ObjectValue):
        if value.has_special(s, "__reversed__"):
            return value.call_special(s, "__reversed__", [])
        if not value.has_special(s, "__getitem__"):
            raise Raised(s.exception(TypeError(f"'{type_name(value.pytype(s))}' object is not reversible")))
        n = length_value(s, value).index(s)
        return SequenceIterator([value.call_special(s, "__getitem__", [Constant(i)]) for i in reversed(range(n))])
    if isinstance(value, (TensorValue,)):
        raise Unsupported("reversed() of a tensor", kind="iterate")
    if hasattr(value, "entries_view"):
        return SequenceIterator(value.items_list(s)[::-1])
    if value.is_const() and lookup(value.pytype(s), "__getitem__")[0]:
        return SequenceIterator(value.items_list(s)[::-1])
    return s.fold(reversed, args, {})


@on_call(sorted)
def sorted_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = args[0].items_list(s)
    return ListValue(sort_values(s, values, kwargs.get("key"), kwargs.get("reverse")))


def sort_values(s: Session, values: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """The values as ``list.sort`` orders them."""
    rows, failed = sort_rows(s, values, key, reverse)
    if failed is not None:
        raise failed
    return rows


class _Ranked:
    """A value that the real ``list.sort`` orders by ``<`` on symbolic values, so that the comparisons are eager's and
    come in its order."""

    __slots__ = ("s", "key", "value")

    def __init__(self, s: Session, key: Value, value: Value) -> None:
        self.s, self.key, self.value = s, key, value

    def __lt__(self, other: _Ranked) -> bool:
        return protocols.rich_compare(self.s, COMPARE["<"], self.key, other.key).truth(self.s)


def sort_rows(s: Session, values: list[Value], key: Value | None, reverse: Value | None) -> tuple:
    """-> (the values as ``list.sort`` leaves them, the program's exception that ended it or None)."""
    backwards = False
    if reverse is not None:
        backwards = reverse.truth(s) if sys.version_info >= (3, 12) else bool(reverse.index(s))
    if key is not None and not (isinstance(key, Constant) and key.value is None):
        keyed = [(key.call(s, [v], {}), v) for v in values]
    else:
        keyed = [(v, v) for v in values]
    if all(k.is_const() and not isinstance(k, DimValue) for k, v in keyed):
        known, order, failed = [k.const(s) for k, v in keyed], list(range(len(keyed))), None
        try:
            order.sort(key=known.__getitem__, reverse=backwards)
        except TypeError as error:
            failed = Raised(s.exception(error))
        return [keyed[i][1] for i in order], failed
    rows, failed = [_Ranked(s, k, v) for k, v in keyed], None
    try:
        rows.sort(reverse=backwards)
    except Raised as raised:
        failed = raised
    return [row.value for row in rows], failed


def _extreme(symbol: str) -> Callable:
    def extreme(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            raise Unsupported("max() or min() without arguments", kind="argument-error")
        values = args[0].items_list(s) if len(args) == 1 else list(args)
        key = kwargs.get("key")
        if not values:
            if "default" in kwargs:
                return kwargs["default"]
            return s.fold(max if symbol == ">" else min, [Constant(())], {})
        if isinstance(key, Constant) and key.value is None:
            key = None
        best, best_key = None, None
        for v in values:
            k = v if key is None else key.call(s, [v], {})
            if best is None or protocols.rich_compare(s, COMPARE[symbol], k, best_key).truth(s):
                best, best_key = v, k
        return best

    return extreme


on_call(max)(_extreme(">"))
on_call(min)(_extreme("<"))


@on_call(sum)
def sum_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    it = args[0].iter(s)
    while (value := it.next(s)) is not None:
        total = protocols.binary_op(s, BINARY["+"], total, value)
    return total


@on_call(any)
def any_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0].iter(s)
    while (value := it.next(s)) is not None:
        if value.truth(s):
            return Constant(True)
    return Constant(False)


@on_call(all)
def all_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0].iter(s)
    while (value := it.next(s)) is not None:
        if not value.truth(s):
            return Constant(False)
    return Constant(True)


@on_call(bool)
def bool_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], TensorValue) and args[0].known(s) is None:
        s.recording.tensor_slot(args[0].cls, "__bool__")
        return defer(s, bool, args, kwargs, Unsupported("bool() of a tensor reads its value",
            kind="data-dependent-value", hint="keep it a tensor, and use torch.where"))
    return Constant(args[0].truth(s) if args else False)


@on_call(int)
def int_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], DimValue):
        return args[0]
    if len(args) == 1 and isinstance(args[0], TensorValue):
        if args[0].known(s) is not None:
            return args[0].getattr(s, "__int__").call(s, [], {})
        error = Unsupported("int() of a tensor reads its value", kind="data-dependent-value", hint="keep it a tensor")
        if args[0].handle(s).dtype.is_floating_point:
            raise error  # NaN is no integer
        return defer(s, int, args, kwargs, error)
    if len(args) == 1 and isinstance(args[0], ObjectValue) and not isinstance(args[0], ContainerValue):
        for name in ("__int__", "__index__"):
            if args[0].has_special(s, name):
                number = args[0].call_special(s, name, [])
                cls = number.pytype(s)
                if not issubclass(cls, int):
                    raise Raised(s.exception(TypeError(f"{name} returned non-int (type {type_name(cls)})")))
                return number if cls is int else s.fold(int, [number], {})
    return s.fold(int, args, kwargs)


@on_call(float)
def float_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], TensorValue):
        if args[0].known(s) is not None:
            return args[0].getattr(s, "__float__").call(s, [], {})
        return defer(s, float, args, kwargs, Unsupported("float() of a tensor reads its value",
                                                         kind="data-dependent-value", hint="keep it a tensor"))
    if len(args) == 1 and isinstance(args[0], FloatValue):
        return args[0]
    if len(args) == 1 and isinstance(args[0], DimValue):
        return compute(s, float, args) or s.fold(float, args, kwargs)
    if args and isinstance(args[0], ObjectValue) and args[0].has_special(s, "__float__"):
        return args[0].call_special(s, "__float__", [])
    return s.fold(float, args, kwargs)


on_call(complex)(lambda s, args, kwargs: s.fold(complex, args, kwargs))
on_call(bytes)(lambda s, args, kwargs: s.fold(bytes, [_as_plain(s, a) for a in args], kwargs))


def _as_plain(s: Session, value: Value) -> Value:
    return TupleValue(value.items_list(s)) if isinstance(value, (ListValue, ByteArrayValue)) else value


@on_call(abs)
def abs_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    if isinstance(value, TensorValue):
        return s.torch_call(torch.abs, args, {})
    if isinstance(value, ObjectValue):
        return value.call_special(s, "__abs__", [])
    return s.fold(abs, args, {})


@on_call(round)
def round_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], TensorValue):
        cls = args[0].pytype(s)
        if not hasattr(cls, "__round__"):
            raise Raised(s.exception(TypeError(f"type {type_name(cls)} doesn't define __round__ method")))
        return s.torch_call(torch.round, args[:1], {} if len(args) == 1 else {"decimals": args[1]})
    if isinstance(args[0], ObjectValue):
        return args[0].call_special(s, "__round__", args[1:])
    return s.fold(round, args, kwargs)


@on_call(pow)
def pow_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return protocols.binary_op(s, BINARY["**"], *args) if len(args) == 2 else s.fold(pow, args, kwargs)


@on_call(divmod)
def divmod_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    kinds = set(map(type, args))
    if not kinds <= {Constant, DimValue, FloatValue} or kinds == {Constant} or not all(a.is_numeric for a in args):
        return protocols.binary_op(s, DIVMOD, *args)
    return TupleValue([protocols.binary_op(s, BINARY["//"], *args), protocols.binary_op(s, BINARY["%"], *args)])


@on_call(hash)
def hash_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], TensorValue):
        return args[0].call_method(s, "__hash__")
    if isinstance(args[0], ObjectValue) and args[0].user_special(s, "__hash__"):
        return args[0].call_special(s, "__hash__", [])
    if isinstance(args[0], ContainerValue) and not args[0].is_const() and not isinstance(args[0], TupleValue):
        args[0].hash_key(s)  # raises for what cannot be hashed
    if isinstance(args[0], TupleValue) and not args[0].is_const():
        return Constant(hash(_plain_tuple(s, args[0])))
    return s.fold(hash, args, {})


def _plain_tuple(s: Session, value):
    """A tuple, or a named one, as a plain tuple of constants: they hash alike."""
    return tuple(_plain_tuple(s, v) for v in value.load(s)) if isinstance(value, TupleValue) else value.const(s)


@on_call(str)
def str_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return Constant("")
    return to_text(s, args[0], "__str__") if len(args) == 1 else s.fold(str, args, kwargs)


@on_call(repr)
def repr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return to_text(s, args[0], "__repr__")


def to_text(s: Session, value: Value, method: str) -> Value:
    """``str`` or ``repr`` of a value."""
    if isinstance(value, ObjectValue) and not isinstance(value, (ContainerValue, ClassValue, FunctionValue)):
        if issubclass(value.cls, BaseException) and not value.user_special(s, method):
            return Constant(getattr(s.real_exception(value), method)())
        if value.user_special(s, method):
            return value.call_special(s, method, [])
        if method == "__str__" and value.user_special(s, "__repr__"):
            return value.call_special(s, "__repr__", [])
        if issubclass(value.cls, types.SimpleNamespace):
            return value.call_special(s, "__repr__", [])
        raise Unsupported(f"the text of {value.describe()}", kind="format")
    if isinstance(value, TensorValue):
        return TensorText.of(s, value, "str" if method == "__str__" else "repr")
    if isinstance(value, TensorText):
        if method != "__str__":
            value.const(s)
        return value
    if isinstance(value, ContainerValue) and value.cls is not value.builtin:
        for name in (method, "__repr__"):
            if value.user_special(s, name):
                return value.call_special(s, name, [])
    if isinstance(value, ContainerValue) and value.cls in (list, tuple, dict, set):
        return Constant(container_text(s, value))
    if value.is_const():
        return s.fold(str if method == "__str__" else repr, [value], {})
    raise Unsupported(f"the text of {value.describe()}", kind="format")


def container_text(s: Session, value: Value) -> str:
    def text(v: Value) -> str:
        return to_text(s, v, "__repr__").const(s)

    if isinstance(value, DictValue):
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.load(s).values()) + "}"
    parts = [text(v) for v in value.items_list(s)]
    if value.cls is list:
        return "[" + ", ".join(parts) + "]"
    if value.cls is tuple:
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
    return "{" + ", ".join(parts) + "}" if parts else "set()"


def format_value(s: Session, value: Value, conversion: str | None, spec: Value) -> Value:
    """One replacement field of an f-string."""
    if isinstance(value, TensorValue):
        return TensorText.of(s, value, conversion, spec.const(s))
    if conversion in ("repr", "ascii"):
        value = to_text(s, value, "__repr__")
        if conversion == "ascii":
            value = Constant(value.const(s).encode("ascii", "backslashreplace").decode())
    elif conversion == "str":
        value = to_text(s, value, "__str__")
    spec_text = spec.const(s)
    if (isinstance(value, ObjectValue) and not isinstance(value, (ClassValue, ContainerValue))
        and value.user_special(s, "__format__")):
        return value.call_special(s, "__format__", [spec])
    if not spec_text and not (isinstance(value, Constant) and isinstance(value.value, (str, int, float))):
        return to_text(s, value, "__str__")
    if value.is_const():
        return s.fold(format, [value, spec], {})
    raise Unsupported(f"formatting {value.describe()}", kind="format")


@on_call(format)
def format_(s: Session, args, kwargs: dict[str, Value]) -> Value:
    return format_value(s, args[0], None, args[1] if len(args) > 1 else Constant(""))


@on_call(object)
def object_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@on_call(object.__new__)
def object_new(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.calls.allocate(args[0].const(s), args[1:], kwargs)


@on_call(object.__setattr__)
def object_setattr(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].plain_setattr(s, args[1].const(s), args[2])
    return Constant(None)


@on_call(object.__getattribute__)
def object_getattribute(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].plain_getattr(s, args[1].const(s))


@on_call(object.__init_subclass__)
def object_init(s: Session, args, kwargs: dict[str, Value]) -> Constant:
    return Constant(None)


@on_call(super)
def super_(s: Session, args, kwargs: dict[str, Value]) -> SuperValue:
    if len(args) != 2:
        raise Unsupported("super() called indirectly", kind="super")
    return SuperValue(args[0].const(s), args[1])


@on_call(slice)
def slice_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = Constant(None)
    return SliceValue(*((none, args[0], none) if len(args) == 1 else (*args, none)[:3]))
