"""Builtin functions."""

from __future__ import annotations

import math
import types
from typing import TYPE_CHECKING, Callable


from ...errors import Unsupported
from ...runtime import facts
from .. import protocols
from ..cpython import ROW
from ..operators import BINARY, COMPARE, DIVMOD
from ..tables import add_forbidden, add_pure, on_call
from ..values.base import Raised, Value, lookup, type_name
from ..values.constant import Constant
from ..values.numbers import DimValue, integer
from ..values.containers import ListValue, TupleValue
from ..values.numbers import FloatValue
from ..values.functions import SuperValue
from ..values.iterators import (EnumerateIterator, FilterIterator, FunctionIterator,
                                MapIterator, ZipIterator)
from ..values.objects import ObjectValue
from ..values.slices import RangeValue, SliceValue
from .class_statements import class_of_three

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session

add_pure(ord, chr, hex, oct, bin, math.prod, str.maketrans, bytes.maketrans)
add_forbidden("input and files are not captured", "do it outside the compiled function", input, open)
add_forbidden("code made from text is not captured", "", eval, exec, compile, __import__)


@on_call(len)
def len_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return integer(value.length(s))


@on_call(callable)
def callable_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(args[0].is_callable(s))


@on_call(type)
def type_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        return class_of_three(s, args, kwargs)
    return s.wrap_class(args[0].pytype(s))


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


def _attribute_name(s: Session, fn: Callable, value: Value) -> str:
    """The name that a function such as ``getattr`` is given, which refuses what is no text."""
    name = value.const(s)
    if not isinstance(name, str):
        try:
            fn(None, name, *[None] * (fn is setattr))
        except TypeError as error:
            raise Raised(s.exception(error)) from None
    return name


_HOOKS = ("__getattribute__", "__getattr__")


@on_call(getattr)
def getattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = _attribute_name(s, getattr, args[1])
    if len(args) < 3:
        return args[0].getattr(s, name)

    def follow() -> Value:
        found = _found(s, args[0], name)
        return args[2] if found is None else found

    return _asked(s, getattr, args, follow)


@on_call(hasattr)
def hasattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = _attribute_name(s, hasattr, args[1])
    return _asked(s, hasattr, args, lambda: Constant(_found(s, args[0], name) is not None))


def _found(s: Session, value: Value, name: str) -> Value | None:
    """An attribute; None where there is none."""
    try:
        return value.getattr(s, name)
    except Raised as raised:
        if not s.is_exception(raised.value, AttributeError):
            raise
        return None


def _asked(s: Session, what: Callable, args: list[Value], follow: Callable[[], Value]) -> Value:
    """What ``follow`` gives. Where the class of the object says itself what its attributes are, asking the same again
    may be told."""
    first = args[0]
    if (type(first) is ObjectValue and s.siblings.may_ask(first)
        and any(isinstance(lookup(first.cls, hook)[1], types.FunctionType) for hook in _HOOKS)):
        return s.siblings.ask((what,), args, {}, follow)
    return follow()


@on_call(setattr)
def setattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].setattr(s, _attribute_name(s, setattr, args[1]), args[2])
    return Constant(None)


@on_call(delattr)
def delattr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].delattr(s, _attribute_name(s, delattr, args[1]))
    return Constant(None)


@on_call(vars)
def vars_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise Unsupported("vars() is called without an argument", kind="frame-inspection")
    try:
        return args[0].getattr(s, "__dict__")
    except Raised as raised:
        if not s.is_exception(raised.value, AttributeError):
            raise
        raise Raised(s.exception(TypeError("vars() argument must have __dict__ attribute"))) from None


@on_call(dir)
def dir_(s: Session, args, kwargs: dict[str, Value]):
    if not args:
        raise Unsupported("dir() is called without an argument", kind="frame-inspection")
    return args[0].attribute_names(s)


@on_call(globals)
def globals_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.lookups.globals_value(s.frames[-1].globals)


@on_call(iter)
def iter_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1:
        return args[0].iter(s)
    fn, sentinel = args
    if not fn.is_callable(s):
        # Its TypeError has other words in each version of Python.
        return s.fold(iter, [Constant(None), Constant(None)], {})

    def step(s: Session):
        value = fn.call(s, [], {})
        return None if protocols.same_or_equal(s, value, sentinel) else value

    return FunctionIterator(step, type(iter(int, 1)))


@on_call(next)
def next_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0]
    value = it.next(s)
    if value is not None:
        return value
    if len(args) > 1:
        return args[1]
    stop = [] if it.result is None or it.result.is_nothing(s) else [it.result]
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
    return FilterIterator(None if fn.is_nothing(s) else fn, args[1].iter(s))


@on_call(reversed)
def reversed_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return value.backwards(s)


@on_call(sorted)
def sorted_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = args[0].listed(s)
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


def c_int(s: Session, value: Value) -> int:
    """An argument that a C function takes as an ``int``."""
    number = value.index(s)
    if not -1 << 31 <= number < 1 << 31:
        raise Raised(s.exception(OverflowError("Python int too large to convert to C int")))
    return number


def sort_rows(s: Session, values: list[Value], key: Value | None, reverse: Value | None) -> tuple:
    """-> (the values as ``list.sort`` leaves them, the program's exception that ended it or None)."""
    backwards = False
    if reverse is not None:
        backwards = reverse.truth(s) if ROW.sorts_by_truth else bool(c_int(s, reverse))
    if key is not None and not key.is_nothing(s):
        keyed = [(key.call(s, [v], {}), v) for v in values]
    else:
        keyed = [(v, v) for v in values]
    if all(k.is_leaf for k, v in keyed):  # a tuple may hold sizes, of which no more is asked than how they compare
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


def _chosen(s: Session, fn: Callable, a: Value, b: Value) -> Value | None:
    """The greater or the smaller of two numbers of which a call knows one no earlier than it runs, None of others."""
    found = (v.extreme(s, fn, a, b) for v in sorted((a, b), key=lambda v: not v.is_read))
    return next((value for value in found if value is not None), None)


def _extreme(fn: Callable, symbol: str) -> Callable:
    def extreme(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            raise Unsupported("max() or min() is called without arguments", kind="argument-error")
        values = args[0].items_list(s) if len(args) == 1 else list(args)
        key = kwargs.get("key")
        if not values:
            if "default" in kwargs:
                return kwargs["default"]
            return s.fold(fn, [Constant(())], {})
        if key is not None and key.is_nothing(s):
            key = None
        best, best_key = None, None
        for v in values:
            k = v if key is None else key.call(s, [v], {})
            chosen = None if best is None or key is not None else _chosen(s, fn, best, v)
            if chosen is not None:
                best = best_key = chosen
            elif best is None or protocols.rich_compare(s, COMPARE[symbol], k, best_key).truth(s):
                best, best_key = v, k
        return best

    return extreme


on_call(max)(_extreme(max, ">"))
on_call(min)(_extreme(min, "<"))


_NOT_SUMMED = {str: "strings [use ''", bytes: "bytes [use b''", bytearray: "bytearray [use b''"}


@on_call(sum)
def sum_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    it = args[0].iter(s)
    refused = next((why for cls, why in _NOT_SUMMED.items() if issubclass(total.pytype(s), cls)), None)
    if refused is not None:
        raise Raised(s.exception(TypeError(f"sum() can't sum {refused}.join(seq) instead]")))
    known = [total]
    while (value := it.next(s)) is not None:
        if known and _is_summed_at_once(s, total) and _is_summed_at_once(s, value):
            known.append(value)
            continue
        total = protocols.binary_op(s, BINARY["+"], _total(s, known, total), value)
        known = []
    return _total(s, known, total)


def _is_summed_at_once(s: Session, value: Value) -> bool:
    return value.is_leaf and type(value.const(s)) in (int, float)


def _total(s: Session, known: list[Value], total: Value) -> Value:
    """The sum of the numbers that a sum begins with, as Python adds them: since 3.12 it keeps what roundings of floats
    lose."""
    return Constant(sum([v.const(s) for v in known[1:]], known[0].const(s))) if len(known) > 1 else total


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
    return args[0].truth_value(s) if args else Constant(False)


@on_call(int)
def int_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.fold(int, args, kwargs) if kwargs or len(args) != 1 else args[0].to_int(s)


@on_call(float)
def float_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.fold(float, args, kwargs) if kwargs or len(args) != 1 else args[0].to_float(s)


on_call(complex)(lambda s, args, kwargs: s.fold(complex, args, kwargs))
on_call(bytes)(lambda s, args, kwargs: s.fold(bytes, [_as_plain(s, a) for a in args], kwargs))


def _as_plain(s: Session, value: Value) -> Value:
    return TupleValue(value.items_list(s)) if value.builtin in (list, bytearray) else value


@on_call(abs)
def abs_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return value.absolute(s)


@on_call(round)
def round_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    number, *digits = [*args, *(kwargs[name] for name in ("number", "ndigits") if name in kwargs)]
    return number.rounded(s, digits)


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
    (value,) = args
    return value.hashed(s)


@on_call(str)
def str_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return Constant("")
    return args[0].text(s, "__str__") if len(args) == 1 and not kwargs else s.fold(str, args, kwargs)


@on_call(repr)
def repr_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return value.text(s, "__repr__")


@on_call(ascii)
def ascii_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return value.text(s, "__repr__").escaped(s)


CONVERSIONS = {None: lambda s, value: value, "str": lambda s, value: value.text(s, "__str__"),
               "repr": lambda s, value: value.text(s, "__repr__"),
               "ascii": lambda s, value: value.text(s, "__repr__").escaped(s)}


def format_value(s: Session, value: Value, conversion: str | None, spec: Value) -> Value:
    """One replacement field of an f-string."""
    return CONVERSIONS[conversion](s, value).formatted(s, spec)


@on_call(format)
def format_(s: Session, args, kwargs: dict[str, Value]) -> Value:
    value, spec = args if len(args) == 2 else (*args, Constant(""))
    if not issubclass(spec.pytype(s), str):
        shown = "None" if spec.is_nothing(s) else type_name(spec.pytype(s))
        raise Raised(s.exception(TypeError(f"format() argument 2 must be str, not {shown}")))
    return value.formatted(s, spec)


@on_call(object)
def object_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@on_call(object.__setattr__)
def object_setattr(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].plain_setattr(s, args[1].const(s), args[2])
    return Constant(None)


@on_call(object.__getattribute__)
def object_getattribute(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = _attribute_name(s, getattr, args[1])
    return args[0].plain_getattr(s, name) if args[0].is_object else args[0].getattr(s, name)


@on_call(object.__init_subclass__)
def object_init(s: Session, args, kwargs: dict[str, Value]) -> Constant:
    return Constant(None)


@on_call(super)
def super_(s: Session, args, kwargs: dict[str, Value]) -> SuperValue:
    if len(args) != 2:
        raise Unsupported("super() is not called by its own name", kind="super")
    return SuperValue(args[0].const(s), args[1])


@on_call(slice)
def slice_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = Constant(None)
    return SliceValue(*((none, args[0], none) if len(args) == 1 else (*args, none)[:3]))
