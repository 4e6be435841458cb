"""Objects with a class and attributes: user objects, real or made while capturing, and the attribute protocol
itself."""

from __future__ import annotations

import ctypes
import math
import types
import weakref
from typing import TYPE_CHECKING, Callable, NoReturn

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import messages, tables
from .. import source as src
from ..protocols import length_hint, same_or_equal
from .base import Raised, Value, is_made_by_program, lookup, special_error, type_name
from .constant import Constant
from .descriptors import through_object
from .overlays import DELETED, Overlay

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session
    from ..source import Source

_SET_ON_EXCEPTIONS = ("__cause__", "__context__", "__traceback__", "__suppress_context__", "args")
NOT_IMPLEMENTED = Constant(NotImplemented)
# Where a type object keeps its C function for attributes: ``tp_getattro``.
_GETATTRO = object.__basicsize__ + 16 * ctypes.sizeof(ctypes.c_void_p)
_plain_classes: weakref.WeakSet = weakref.WeakSet()
_BUILTIN_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def check_attributes(cls) -> None:
    """Raises Unsupported for objects whose attributes are looked up by a C function of their own."""
    if cls in _plain_classes or issubclass(cls, (types.GenericAlias, types.UnionType)):
        return
    getter = next(raw for raw in (c.__dict__.get("__getattribute__") for c in cls.__mro__)
                  if type(raw) is types.WrapperDescriptorType)
    generic, own = (ctypes.c_void_p.from_address(id(c) + _GETATTRO).value for c in (object, getter.__objclass__))
    if generic != own:
        raise Unsupported(f"attributes of a {cls.__module__}.{cls.__qualname__}, which it looks up in its own way",
                          kind="attribute")
    _plain_classes.add(cls)


def instance_dict(obj: object) -> dict[str, object] | None:
    """The real instance dictionary, or None; never runs user code."""
    try:
        d = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return None
    return d if type(d) is dict else None


class ObjectValue(Value):
    """An instance of ``cls``. ``obj`` is the real object, or None for one made while capturing; ``attrs`` overlays its
    instance dictionary with what the captured code has read or written so far."""

    is_data, is_object = False, True
    compared = 0  # of a module: how often it was asked which object it is
    # How its class's C code looks attributes up, sets and deletes them, and where the real object has them.
    check_attributes, instance_dict = staticmethod(check_attributes), staticmethod(instance_dict)
    set_real, delete_real = object.__setattr__, object.__delattr__

    def __init__(self, cls: type, obj: object = None, source: Source | None = None) -> None:
        self.cls, self.obj, self.source = cls, obj, source
        self.attrs = Overlay(obj is not None)
        self.init_args: tuple = ()
        self.was_raised = False  # of an exception

    @property
    def is_new(self) -> bool:
        return self.obj is None

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(self.cls))
        return self.cls

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def pin(self, s: Session) -> object:
        """Guard that the object itself is the same one, so that it may be used as a constant."""
        if self.source is not None and not self.source.owned:
            s.guards.pin(self.source, self.obj)
        return self.obj

    def is_exception(self, cls: type) -> bool:
        return issubclass(self.cls, cls)

    def overrides_functions(self, s: Session) -> bool:
        return s.class_lookup(self.cls, "__torch_function__")[0]

    def real(self, s: Session) -> object:
        return None if self.obj is None else self.pin(s)

    # -- attributes ---------------------------------------------------------------------------------------------

    def getattr(self, s: Session, name: str) -> Value:
        cls = self.pytype(s)
        getter = s.function_of_class(cls, "__getattribute__")
        if getter is not None:
            return getter.call(s, [self, Constant(name)], {})
        try:
            return self.plain_getattr(s, name)
        except Raised as raised:
            if not s.is_exception(raised.value, AttributeError):
                raise
            found, fallback, owner = s.class_lookup(cls, "__getattr__")
            if not found:
                raise
            return self.missing_attr(s, name, fallback)

    def missing_attr(self, s: Session, name: str, fallback: Callable) -> Value:
        return s.bound_method(s.wrap_class_attr(self.cls, "__getattr__"), self).call(s, [Constant(name)], {})

    def plain_getattr(self, s: Session, name: str) -> Value:
        """``object.__getattribute__``."""
        cls = self.pytype(s)
        self.check_attributes(cls)
        found, raw, owner = s.class_lookup(cls, name)
        if found and s.lookups.is_data_descriptor(raw):
            return self.bind(s, raw, name)
        value = self.instance_attr(s, name)
        if value is not None:
            return value
        written = s.lookups.written_on_class(cls, name) if s.effects.class_written else None
        if written is not None:
            return written
        if found:
            return self.bind(s, raw, name)
        self.no_attribute(s, name)

    def no_attribute(self, s: Session, name: str, text: str | None = None) -> NoReturn:
        text = text or f"'{type_name(self.cls)}' object has no attribute '{name}'"
        raise Raised(s.exception(AttributeError(text, name=name)))

    def instance_attr(self, s: Session, name: str) -> Value | None:
        """The entry of the instance dictionary, or None."""
        value = self.attrs.get(name)
        if value is DELETED:
            return None
        if value is not None:
            return value
        if self.obj is None:
            return None
        known = self.attrs
        real = self.own_dict(s)
        if real is None:
            return None
        if self.attrs is not known:
            return self.instance_attr(s, name)
        if name not in real:
            if self.source is not None:
                s.guards.add(self.source, facts.NoDictAttr(name))
            return None
        source = src.DictAttr(self.source, name, hides(self.cls, name)) if self.source is not None else None
        s.guards.add_presence(source)
        return s.wrap(real[name], source)

    def own_dict(self, s: Session) -> dict[str, object] | None:
        """The real instance dictionary, or None. Objects that share one have one overlay."""
        real = self.instance_dict(self.obj)
        first = None if real is None else s.heap.dicts.setdefault(id(real), self)
        if first is not None and first is not self and first.attrs is not self.attrs:
            if self.attrs or has_slots(self.cls) or has_slots(first.cls):
                raise Unsupported("objects that share their attributes", kind="attribute")
            if self.source is not None and first.source is not None:
                s.guards.add(src.InstanceDict(self.source), facts.Same(src.InstanceDict(first.source)))
            self.attrs = first.attrs
        elif first is self and id(real) in s.heap.by_object:
            raise Unsupported("an object whose attributes are in a dictionary that is used otherwise", kind="attribute")
        return real

    def has_own_dict(self) -> bool:
        if self.obj is not None:
            return self.instance_dict(self.obj) is not None
        return bool(getattr(self.cls, "__dictoffset__", 0))

    def bind(self, s: Session, raw: object, name: str) -> Value:
        """A class attribute seen through the instance: the descriptor protocol."""
        return through_object(s, self, raw, name, self.cls)

    def bound_builtin(self, s: Session, raw: object) -> Value:
        if self.cls is types.GetSetDescriptorType:  # what classes with ``__torch_function__`` are given, and compare
            return s.wrap_raw(raw.__get__(self.pin(s)))
        return BuiltinMethod(self, raw)

    def slot(self, s: Session, raw: object, name: str) -> Value:
        value = self.attrs.get(name)
        if value is None and issubclass(self.cls, BaseException):
            return self.exception_field(s, name)
        if value is DELETED or (value is None and self.obj is None):
            self.no_attribute(s, name, messages.no_slot(self.cls, name))
        if value is not None:
            return value
        try:
            real = raw.__get__(self.obj)
        except AttributeError as error:
            raise Unsupported(f"the slot {name!r} of a {self.cls.__name__} is read before it is set",
                              kind="attribute") from error
        return s.wrap(real, src.GetAttr(self.source, name) if self.source is not None else None)

    def getset(self, s: Session, raw: object, name: str) -> Value:
        if name == "__class__":
            return s.wrap_class(self.cls)
        if name == "__dict__":
            return s.instance_dict(self)
        if name in ("__doc__", "__weakref__"):
            return Constant(None)
        if isinstance(self.cls, type) and issubclass(self.cls, BaseException):
            return self.exception_field(s, name)
        if self.obj is None:
            raise Unsupported(f"attribute {name!r} of a {self.cls.__name__} that is made here is read",
                              kind="attribute")
        return s.wrap(raw.__get__(self.obj), src.GetAttr(self.source, name) if self.source is not None else None)

    def exception_field(self, s: Session, name: str) -> Value:
        if name in self.attrs:
            return self.attrs[name]
        if self.obj is not None:
            return s.wrap(getattr(self.obj, name), src.GetAttr(self.source, name) if self.source is not None else None)
        if name == "args":
            return s.tuple_of(self.init_args)
        if name == "__traceback__" and self.was_raised:
            return TracebackValue(self)
        if name in ("__cause__", "__context__", "__traceback__"):
            return Constant(None)
        if name == "__suppress_context__":
            return Constant(False)
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.init_args[0] if self.init_args else Constant(None)
        if not all(a.is_const() for a in self.init_args):
            raise Unsupported(f"field {name!r} of an exception", kind="attribute")
        return s.from_python(getattr(s.real_exception(self), name))

    def setattr(self, s: Session, name: str, value: Value) -> None:
        setter = s.function_of_class(self.pytype(s), "__setattr__")
        if setter is not None:
            s.bound_method(setter, self).call(s, [Constant(name), value], {})
        else:
            self.plain_setattr(s, name, value)

    def plain_setattr(self, s: Session, name: str, value: Value) -> None:
        """``object.__setattr__``."""
        cls = self.pytype(s)
        self.check_attributes(cls)
        found, raw, owner = s.class_lookup(cls, name)
        kind = s.class_lookup(type(raw), "__set__")[2] if found else None
        if kind is property:
            if raw.fset is None:
                raise Raised(s.exception(AttributeError(f"property {name!r} of {cls.__name__!r} object has no setter")))
            s.wrap_raw(raw.fset).call(s, [self, value], {})
            return
        if kind is not None and by_python(kind, "__set__"):
            s.wrap_class_attr(type(raw), "__set__").call(s, [s.wrap_class_attr(cls, name), self, value], {})
            return
        if kind is not types.MemberDescriptorType:
            if found and s.lookups.is_data_descriptor(raw):
                if not (issubclass(cls, BaseException) and name in _SET_ON_EXCEPTIONS):
                    raise Unsupported(f"{name!r} of {self.describe()} is set through a descriptor", kind="descriptor")
            elif not self.has_own_dict():
                self.no_attribute(s, name, messages.cannot_be_set(cls, name))
        if self.obj is not None:
            self.own_dict(s)
        self.attrs.put(s, name, value)
        if self.obj is not None:
            s.heap.touch(self)
            s.effect(type(self).set_real, [self, Constant(name), value])

    def delattr(self, s: Session, name: str) -> None:
        deleter = s.function_of_class(self.pytype(s), "__delattr__")
        if deleter is not None:
            s.bound_method(deleter, self).call(s, [Constant(name)], {})
        else:
            self.plain_delattr(s, name)

    def plain_delattr(self, s: Session, name: str) -> None:
        self.check_attributes(self.cls)
        found, raw, owner = s.class_lookup(self.cls, name)
        kind = s.class_lookup(type(raw), "__delete__")[2] if found else None
        if kind is property:
            if raw.fdel is None:
                raise Raised(s.exception(AttributeError(f"property {name!r} of {self.cls.__name__!r} object has no "
                                                        "deleter")))
            s.wrap_raw(raw.fdel).call(s, [self], {})
            return
        if kind is not None and by_python(kind, "__delete__"):
            s.wrap_class_attr(type(raw), "__delete__").call(s, [s.wrap_class_attr(self.cls, name), self], {})
            return
        if kind is types.MemberDescriptorType:
            self.slot(s, raw, name)
        elif found and s.lookups.is_data_descriptor(raw):
            raise Unsupported(f"{name!r} is deleted through a descriptor", kind="descriptor")
        elif self.instance_attr(s, name) is None:
            self.no_attribute(s, name)
        self.attrs.delete(s, name)
        if self.obj is not None:
            s.heap.touch(self)
            s.effect(type(self).delete_real, [self, Constant(name)])

    def dict_names(self, s: Session) -> list[str]:
        """The names in the instance dictionary, in order, guarded."""
        names = []
        if self.obj is not None:
            names = list(self.own_dict(s) or ())
            if self.source is not None:
                s.guards.add(src.InstanceDict(self.source), facts.DictKeys(tuple(names)))
        slots = {n for c in self.cls.__mro__ for n, v in c.__dict__.items()
                 if isinstance(v, types.MemberDescriptorType)}
        return [n for n in self.attrs.names(names) if n in names or n not in slots]

    # -- special methods ----------------------------------------------------------------------------------------

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return self.special(s, name).call(s, list(args), {})

    def special(self, s: Session, name: str) -> Value:
        cls = self.pytype(s)
        found, raw, owner = s.class_lookup(cls, name)
        if not found or raw is None:
            refusal = messages.not_a_truth(cls) if name == "__bool__" else "'NoneType' object is not callable"
            raise Raised(s.exception(TypeError(refusal if found else special_error(cls, name))))
        return self.bind(s, raw, name)

    def user_special(self, s: Session, name: str) -> bool:
        """True if the special method is defined in Python."""
        found, raw, owner = s.class_lookup(self.pytype(s), name)
        return found and not isinstance(raw, (*_BUILTIN_METHODS, type(None)))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cls = self.pytype(s)
        found, raw, owner = s.class_lookup(cls, "__call__")
        if not found:
            raise Raised(s.exception(TypeError(f"'{type_name(cls)}' object is not callable")))
        return self.bind(s, raw, "__call__").call(s, args, kwargs)

    def iter(self, s: Session) -> Value:
        if self.has_special(s, "__iter__"):
            iterator = self.call_special(s, "__iter__", [])
            if not iterator.has_slot(s, "__next__"):
                raise Raised(s.exception(TypeError(
                    messages.wrong_result(self.pytype(s), "__iter__", iterator.pytype(s)))))
            return iterator
        if self.has_special(s, "__getitem__") and not self.has_slot(s, "__iter__"):
            return self.by_subscripts(s, 0, 1)
        raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object is not iterable")))

    def by_subscripts(self, s: Session, start: int, by: int) -> Value:
        """An iterator over ``self[start]``, ``self[start + by]`` and so on, until there is an IndexError."""
        at = [start]

        def step(s: Session) -> Value | None:
            if at[0] < 0:
                return None
            try:
                value = self.call_special(s, "__getitem__", [Constant(at[0])])
            except Raised as raised:
                if s.is_exception(raised.value, IndexError):
                    s.set_entry(at, 0, -1)
                    return None
                raise
            s.set_entry(at, 0, at[0] + by)
            return value

        return s.iterate_by(step)

    def next(self, s: Session) -> Value | None:
        try:
            return self.call_special(s, "__next__", [])
        except Raised as raised:
            if s.is_exception(raised.value, StopIteration):
                return None
            raise

    def backwards(self, s: Session) -> Value:
        if self.has_special(s, "__reversed__"):
            return self.call_special(s, "__reversed__", [])
        if self.has_slot(s, "__reversed__") or not self.has_special(s, "__getitem__"):
            raise Raised(s.exception(TypeError(f"'{type_name(self.pytype(s))}' object is not reversible")))
        return self.by_subscripts(s, s.integer(self.length(s)).index(s) - 1, -1)

    def length(self, s: Session) -> IntExpr:
        number = self.call_special(s, "__len__", [])
        if number.exact_int() is None:
            number = Constant(number.index(s))
        if number.exact_int() < 0:
            raise Raised(s.exception(ValueError("__len__() should return >= 0")))
        return s.scalar(number)

    def tells_length(self, s: Session) -> bool:
        return self.user_special(s, "__len__") or self.user_special(s, "__length_hint__")

    def tell_length(self, s: Session) -> None:
        length_hint(s, self)

    def truth(self, s: Session) -> bool:
        if self.has_slot(s, "__bool__"):
            return self.expect(s, "__bool__", bool).truth(s)
        if self.has_slot(s, "__len__"):
            return bool(self.length(s) != 0)
        return True

    def is_callable(self, s: Session) -> bool:
        return self.has_slot(s, "__call__")

    # -- conversions --------------------------------------------------------------------------------------------

    def expect(self, s: Session, name: str, cls: type, *args: Value) -> Value:
        """What a special method gives, which has to be of a class."""
        result = self.call_special(s, name, list(args))
        given = result.pytype(s)
        if not issubclass(given, cls):
            raise Raised(s.exception(TypeError(messages.wrong_result(self.pytype(s), name, given))))
        return result

    def to_int(self, s: Session) -> Value:
        for name in ("__int__", "__index__"):
            if self.has_slot(s, name):
                number = self.expect(s, name, int)
                return number if number.pytype(s) is int else s.fold(int, [number], {})
        return super().to_int(s)

    def to_float(self, s: Session) -> Value:
        if self.has_slot(s, "__float__"):
            number = self.expect(s, "__float__", float)
            return number if number.pytype(s) is float else s.fold(float, [number], {})
        if self.has_slot(s, "__index__"):
            return Constant(self.index(s)).to_float(s)
        return super().to_float(s)

    def absolute(self, s: Session) -> Value:
        return self.call_special(s, "__abs__", [])

    def rounded(self, s: Session, digits: list[Value]) -> Value:
        return self.call_special(s, "__round__", digits)

    def integral(self, s: Session, fn: Callable) -> Value:
        """By its own special method, and ``floor`` and ``ceil`` else of it as a float."""
        special, shown = f"__{fn.__name__}__", type_name(self.pytype(s))
        if self.has_slot(s, special):
            return self.call_special(s, special, [])
        if fn is math.trunc:
            raise Raised(s.exception(TypeError(f"type {shown} doesn't define __trunc__ method")))
        if not (self.has_slot(s, "__float__") or self.has_slot(s, "__index__")):
            raise Raised(s.exception(TypeError(f"must be real number, not {shown}")))
        return s.fold(fn, [self.to_float(s)], {})

    def hashed(self, s: Session) -> Value:
        if not self.user_special(s, "__hash__"):
            return super().hashed(s) if self.has_special(s, "__hash__") else self.unhashable(s)
        number = self.expect(s, "__hash__", int).const(s)
        fits = -1 << 63 <= number < 1 << 63 and number != -1
        return Constant(int(number) if fits else hash(number))

    def unhashable(self, s: Session) -> NoReturn:
        raise Raised(s.exception(TypeError(f"unhashable type: '{type_name(self.cls)}'")))

    def text(self, s: Session, method: str) -> Value:
        if not self.user_special(s, method):
            if issubclass(self.cls, BaseException):
                return Constant(getattr(s.real_exception(self), method)())
            if method == "__str__":
                return self.text(s, "__repr__")
            if not issubclass(self.cls, types.SimpleNamespace):
                return super().text(s, method)
        return self.expect(s, method, str)

    def formatted(self, s: Session, spec: Value) -> Value:
        if self.user_special(s, "__format__"):
            return self.expect(s, "__format__", str, spec)
        return super().formatted(s, spec)

    def contains(self, s: Session, item: Value) -> bool | None:
        if self.has_special(s, "__contains__"):
            return self.call_special(s, "__contains__", [item]).truth(s)
        if s.class_lookup(self.cls, "__contains__")[0]:
            raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object is not a container")))
        return None

    def ask(self, s: Session, name: str, *args: object) -> Value | None:
        """What a special method gives; None where there is none, or for NotImplemented."""
        if not self.has_special(s, name):
            return None
        result = self.call_special(s, name, args)
        return None if result.is_plain and result.identity() == NOT_IMPLEMENTED.identity() else result

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        method, other = self.asked(s, op, a, b)
        return None if method is None else self.ask(s, method, other)

    def asked(self, s: Session, op, a: Value, b: Value) -> tuple:
        """(the special method that an operator asks this operand for, the other one); of the right operand none where
        the left one has the same class."""
        if self is a:
            return op.forward, b
        return (None if a.pytype(s) is self.cls else op.reflected), a

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        return self.ask(s, op.inplace, other)

    def unary(self, s: Session, op: Unary) -> Value | None:
        if not self.has_special(s, op.method):
            raise Raised(s.exception(TypeError(f"bad operand type for unary {op.symbol}: '{type_name(self.cls)}'")))
        return self.call_special(s, op.method, [])

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if self.user_special(s, op.method):
            return self.ask(s, op.method, other)
        if op.equality is False and self.user_special(s, "__eq__"):  # object.__ne__ asks for it
            equal = self.ask(s, "__eq__", other)
            return None if equal is None else Constant(not equal.truth(s))
        found = s.class_lookup(self.pytype(s), op.method)[1]
        if isinstance(found, types.WrapperDescriptorType) and found is not getattr(object, op.method):
            raise Unsupported(f"comparison {op.symbol} of {self.describe()} and {other.describe()}, by code in C",
                              kind="operator")
        return None

    def overrides(self, s: Session, method: str, left: Value) -> bool:
        return (self.derives(s, left) and self.has_special(s, method)
                and lookup(self.cls, method)[1] is not lookup(left.pytype(s), method)[1])

    def derives(self, s: Session, other: Value) -> bool:
        cls = other.pytype(s)
        return self.cls is not cls and s.inherits(self.cls, cls)

    def has_index(self, s: Session) -> bool:
        return self.has_slot(s, "__index__")

    def index(self, s: Session) -> int:
        if not self.has_index(s):
            raise Raised(s.exception(TypeError(
                f"'{type_name(self.pytype(s))}' object cannot be interpreted as an integer")))
        return self.expect(s, "__index__", int).index(s)

    @property
    def stands_for_itself(self) -> bool:
        return self.obj is not None and lookup(self.cls, "__hash__")[1] is object.__hash__

    def hash_key(self, s: Session) -> object:
        if self.user_special(s, "__hash__"):
            return SymbolicKey(s, self, self.hashed(s).const(s))
        if lookup(self.cls, "__hash__")[1] is None:
            self.unhashable(s)
        return self.pin(s) if self.obj is not None else ("new", id(self), self)

    def builtin_method(self, s: Session, raw: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a method that is implemented in C, ``raw``, on this object."""
        name = raw.__name__
        if name == "__init__" and raw.__objclass__ is object:
            if args or kwargs:
                self.refuse_arguments(s)
            return Constant(None)
        if name == "__getattribute__":
            return self.plain_getattr(s, args[0].const(s))
        if name == "__setattr__":
            self.plain_setattr(s, args[0].const(s), args[1])
            return Constant(None)
        if name == "__delattr__":
            self.plain_delattr(s, args[0].const(s))
            return Constant(None)
        if name in ("__eq__", "__ne__") and raw.__objclass__ is object:
            same = self.identity() == args[0].identity()
            if not same and name == "__eq__":
                return Constant(NotImplemented)
            return Constant(same if name == "__eq__" else (False if same else NotImplemented))
        if name == "__init_subclass__":
            return Constant(None)
        if name == "__hash__" and raw.__objclass__ is object and self.obj is not None:
            return Constant(hash(self.pin(s)))
        if issubclass(self.cls, BaseException):
            if name == "__init__":
                s.set_field(self, "init_args", tuple(args))
                return Constant(None)
            if name == "__str__" or name == "__repr__":
                return Constant(getattr(s.real_exception(self), name)())
            if name == "with_traceback":
                return self
            if name == "add_note":
                return self.add_note(s, args[0])
        handler = tables.methods.get((raw.__objclass__, name))
        if handler is not None:
            return handler(s, self, args, kwargs)
        raise Unsupported(f"method {raw.__qualname__} (implemented in C) of {self.describe()}", kind="c-call")

    def refuse_arguments(self, s: Session) -> None:
        """What ``object.__init__`` says of arguments; with a ``__new__`` of its own and no ``__init__`` a class takes
        any."""
        if s.class_lookup(self.cls, "__init__")[1] is not object.__init__:
            raise Raised(s.exception(TypeError("object.__init__() takes exactly one argument (the instance to "
                                               "initialize)")))
        if s.class_lookup(self.cls, "__new__")[1] is object.__new__:
            raise Raised(s.exception(TypeError(f"{type_name(self.cls)}() takes no arguments")))

    def add_note(self, s: Session, note) -> Constant:
        if not (note.is_leaf and isinstance(note.value, str)):
            raise Raised(s.exception(TypeError(f"note must be a str, not '{type_name(note.pytype(s))}'")))
        notes = self.instance_attr(s, "__notes__")
        if notes is None:
            self.plain_setattr(s, "__notes__", s.list_of([note]))
        else:
            notes.call_method(s, "append", [note])
        return Constant(None)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None and self.source is not None:
            e.load_source(self.source)
            return
        if self.obj is not None:
            e.load_const(self.obj)
            return
        if issubclass(self.cls, BaseException):
            e.build_object(self, self.cls.__new__, [e.class_value(self.cls), *self.init_args])
            if self.was_raised:
                e.run_on_top(give_traceback)
        else:
            if issubclass(self.cls, types.SimpleNamespace):
                e.build_object(self, types.SimpleNamespace.__new__, [e.class_value(self.cls)])
                return
            if not has_plain_layout(self.cls):
                raise Unsupported(f"a {self.cls.__name__} that is made here, and has a base implemented in C, would "
                                  "have to be made again after the graph",
                                  kind="rebuild")
            e.build_object(self, object.__new__, [e.class_value(self.cls)])

    def describe(self) -> str:
        return (f"an object of {self.cls.__module__}.{self.cls.__qualname__}" +
                (f" ({self.source})" if self.source is not None else ""))


class HashedAs:
    """Stands for an element where a tuple is hashed."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number


class SymbolicKey:
    """Stands for an object with its own ``__hash__`` in the dicts of container values; equality is the object's
    ``__eq__``."""

    __slots__ = ("session", "value", "number")

    def __init__(self, session: Session, value: Value, number: int) -> None:
        self.session, self.value, self.number = session, value, number

    def __hash__(self) -> int:
        return self.number  # as it is: the order of a set depends on all of it

    def __eq__(self, other: object) -> bool:
        other = other.value if isinstance(other, SymbolicKey) else self.session.from_python(other)
        return same_or_equal(self.session, self.value, other)


def give_traceback(error: Exception) -> None:
    """Raise and catch a rebuilt exception that had been raised while capturing: those have tracebacks."""
    context = error.__context__
    try:
        raise error
    except type(error):
        error.__context__ = context


class TracebackValue(Value):
    """The traceback of an exception raised while capturing: it can be passed on but not looked into."""

    def __init__(self, error: Value) -> None:
        self.error = error

    def pytype(self, s: Session) -> type:
        return types.TracebackType

    def identity(self) -> tuple[str, int]:
        return ("traceback", id(self.error))

    def describe(self) -> str:
        return "the traceback of a captured exception"


def has_slots(cls) -> bool:
    """Whether objects of a class have attributes outside of their ``__dict__`` that the program can set."""
    return any(isinstance(v, types.MemberDescriptorType) for c in cls.__mro__ if is_made_by_program(c)
               for v in c.__dict__.values())


def has_plain_layout(cls) -> bool:
    """True if ``object.__new__`` makes the objects of a class: no base that is implemented in C has a ``__new__`` of
    its own."""
    for c in cls.__mro__:
        new = c.__dict__.get("__new__")
        if not is_made_by_program(c) or new is not None and not is_static_function(new):
            return new is object.__new__
    return True


def is_static_function(raw: object) -> bool:
    """Whether what a class has under a name is a static method in Python, as ``__new__`` is."""
    return isinstance(raw, staticmethod) and isinstance(raw.__func__, types.FunctionType)


def by_python(cls: type, name: str) -> bool:
    """Whether a special method of a class is written in Python."""
    return isinstance(cls.__dict__[name], types.FunctionType)


def is_data_descriptor(raw: object) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def hides(cls, name: str) -> bool:
    """Whether an attribute of an instance may be another thing than the entry of its ``__dict__``."""
    own = lookup(cls, "__getattribute__")[1] not in (object.__getattribute__, types.ModuleType.__getattribute__)
    return own or is_data_descriptor(lookup(cls, name)[1])


class BuiltinMethod(Value):
    """A bound method implemented in C: ``raw`` is its descriptor."""

    def __init__(self, owner: Value, raw: object) -> None:
        self.owner, self.raw = owner, raw

    def pytype(self, s: Session) -> type:
        return types.BuiltinMethodType

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        s.calls.guard_kinds(args, kwargs, self.raw)
        return self.owner.builtin_method(s, self.raw, args, kwargs)

    def hash_key(self, s: Session) -> tuple:
        return ("builtin-method", self.owner.instance_key(s), self.raw)

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__qualname__", "__doc__"):
            return Constant(getattr(self.raw, name))
        return super().getattr(s, name)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if op.equality is None or type(other) is not BuiltinMethod:
            return None
        same = self.owner.identity() == other.owner.identity() and self.raw is other.raw
        return Constant(same == op.equality)

    def emit(self, e: Emitter) -> None:
        cls = self.raw.__objclass__
        if getattr(self.owner, "cls", None) is cls and not issubclass(cls, type):
            e.load(self.owner)
            e.load_attr(self.raw.__name__)
        else:  # reached through super(), perhaps: the object's own attribute may be another
            e.call(_bound, lambda: e.load(e.class_value(cls)), e.const(self.raw.__name__), lambda: e.load(self.owner))

    def describe(self) -> str:
        return f"method {self.raw.__qualname__}"


def _bound(cls: type, name: str, owner: object) -> object:
    """The method in C that a class has in its own dictionary, bound to an object."""
    return cls.__dict__[name].__get__(owner)


class ModuleObject(ObjectValue):
    """A ``torch.nn.Module``: its ``__getattr__`` is the three dictionaries, without inlining Python for each
    attribute."""

    def identity(self) -> tuple[str, int]:
        self.compared += 1
        return super().identity()

    def missing_attr(self, s: Session, name: str, fallback: Callable) -> Value:
        if fallback is torch.nn.Module.__getattr__:
            for table in ("_parameters", "_buffers", "_modules"):
                holder = self.instance_attr(s, table)
                if holder is not None:
                    entry = holder.get_constant(s, name)
                    if entry is not None:
                        return entry
            raise Raised(s.exception(AttributeError(
                f"'{type_name(type(self.obj) if self.obj is not None else self.cls)}' object has no attribute '{name}'",
                name=name)))
        return super().missing_attr(s, name, fallback)
