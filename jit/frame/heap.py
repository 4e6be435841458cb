"""Identities: how a real object becomes a value, and stays that one value however the program comes to it again."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..runtime import facts
from . import source as src
from . import tables
from .values.base import Value
from .values.constant import Constant, is_leaf
from .values.containers import TupleValue
from .values.mappings import DictValue
from .values.functions import CellValue, ClassValue, DispatcherValue
from .values.objects import ModuleObject, ObjectValue, instance_dict

if TYPE_CHECKING:
    from .session import Session


class Heap:
    """The real objects that a capture has come to.

    Attributes:
        by_object: id of an object -> its value.
        by_source: source -> the value of what is there.
        templates: id of what stands for a value in a class made while capturing -> the value.
        dicts: id of an instance dictionary that was looked into -> the value of its first owner.
        touched: values of the real objects that the program has changed.
    """

    def __init__(self, s: Session) -> None:
        self.s = s
        self.by_object: dict[int, Value] = {}
        self.by_source: dict = {}
        self.templates: dict[int, Value] = {}
        self.dicts: dict[int, ObjectValue] = {}
        self.touched: dict[Value, bool] = {}
        self._kept: list = []

    def close(self) -> None:
        for held in (self.by_object, self.by_source, self.templates, self.dicts, self.touched, self._kept):
            held.clear()

    def kept(self, start: int) -> list:
        """What is kept alive since there were ``start`` such objects: all that have become values since, and more."""
        return self._kept[start:]

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    def keep(self, obj) -> None:
        """Keep an object alive for as long as the capture goes on, so that no other one gets its identity."""
        self._kept.append(obj)

    # -- objects with a source ----------------------------------------------------------------------------------------

    def wrap(self, obj, source) -> Value:
        """The value of a real object reached by ``source``. One object is one value, however it was reached."""
        if source is not None and (heard := self.s.guards.heard) is not None:
            heard.wrapped.append((source, obj))
            heard.hears(source)
        if self.templates:
            known = self.templates.get(id(obj))
            if known is not None:
                return known
        if source is not None:
            known = self.by_source.get(source)
            if known is not None:
                return known
        varying = self.s.varying
        if is_leaf(obj):
            value = Constant(obj, source)
            if type(obj) in (int, float) and varying.history is not None and src.changeable(source):
                value = varying.number(obj, source, value)
        else:
            if source is not None and source.slot and varying.is_replaced(source, obj):
                source = dataclasses.replace(source, fresh=True)
                self.s.guards.fresh.add(source)
            value = self.by_object.get(id(obj))
            if value is None:
                value = self._make(obj, source)
                if type(value) is ModuleObject and source is not None:
                    self.s.guards.note(source)
                self.by_object[id(obj)] = value
                self.keep(obj)
                for changed in self.touched:
                    self.keep_apart(changed, value)
            elif source is not None:
                value = self._again(obj, value, source)
        if source is not None:
            self.by_source[source] = value
        return value

    def _again(self, obj, value, source):
        """The same object through a second source: later calls must have them the same too."""
        if value.source is None:
            value.source = source
        elif isinstance(value.source, src.Const):
            self.s.guards.pin(source, obj)
        elif type(obj) is not tuple:
            self.s.guards.add(source, facts.Same(value.source))
        else:
            return self._make(obj, source)
        return value

    def _make(self, obj, source):
        cls = type(obj)
        if cls is dict and id(obj) in self.dicts:
            raise Unsupported("the dictionary is used in which an object keeps its attributes", kind="attribute")
        if cls is list and self.s.effects.records_into(obj):
            raise Unsupported("the list in which warnings are recorded is read", kind="warning")
        if cls.__module__ == "jit.runtime.native" and hasattr(obj, "__wrapped__"):
            return DispatcherValue(cls, obj, source)
        maker = next((tables.wrappers[base] for base in cls.__mro__ if base in tables.wrappers), None)
        return self.opaque(obj, source) if maker is None else maker(self.s, obj, source)

    def opaque(self, obj, source) -> ObjectValue:
        """An object that nothing is done with but passing it on."""
        self.s.asker.meets(type(obj))
        return ObjectValue(type(obj), obj, source)

    def wrap_key(self, key):
        """A dict key or set element of a real container: known by the guard on the keys."""
        if type(key) is tuple:
            return TupleValue([self.wrap_key(k) for k in key])
        if is_leaf(key):
            return Constant(key)
        return self.wrap(key, src.Const(key))

    def wrap_class(self, cls) -> ClassValue:
        return self.wrap(cls, src.Const(cls, cls.__qualname__))

    def wrap_raw(self, fn) -> Value:
        """A function found by a lookup that is guarded already."""
        return self.wrap(fn, src.Const(fn, getattr(fn, "__qualname__", "")))

    def wrap_cell(self, cell, source) -> CellValue:
        value = self.by_object.get(id(cell))
        if value is None:
            value = self.by_object[id(cell)] = CellValue(real=cell, source=source)
            self.keep(cell)
        if source.watched:
            self.s.guards.add(source, facts.At(cell))
        elif value.source != source:
            self.s.guards.add(source, facts.Same(value.source))
        return value

    # -- objects made while capturing ---------------------------------------------------------------------------------

    def from_python(self, obj) -> Value:
        """A new value for a plain result that was computed while capturing."""
        if is_leaf(obj):
            return Constant(obj)
        maker = tables.new_values.get(type(obj))
        if maker is not None:
            return maker(self.s, obj)
        if isinstance(obj, (type, types.ModuleType, types.FunctionType,
                            types.BuiltinFunctionType, types.MethodDescriptorType)):
            return self.wrap(obj, src.Const(obj, getattr(obj, "__qualname__", ""), owned=True))
        if isinstance(obj, tuple):
            return TupleValue([self.from_python(v) for v in obj], type(obj))
        raise Unsupported(f"a {type(obj).__module__}.{type(obj).__qualname__} made while capturing", kind="instantiate")

    # -- objects that change ------------------------------------------------------------------------------------------

    def touch(self, value) -> None:
        """A real object is about to change: what is read or changed besides must be other objects on later calls
        too."""
        if value.source is None or value in self.touched:
            return
        self.s.siblings.settle()
        self.s.set_entry(self.touched, value, True)
        for other in list(self.by_object.values()):
            self.keep_apart(value, other)

    def keep_apart(self, changed, other: object) -> None:
        """Guard that two real objects of one class stay two. Objects of a module tree are taken to: pairs of them are
        too many."""
        if other is changed or not (other.is_object or other.is_tensor) or other.source is None:
            return
        guards, sides = self.s.guards, (dictionary_of(changed), dictionary_of(other))
        if None not in sides and (other.cls is changed.cls or not (changed.source.watched or other.source.watched)):
            if changed.attrs is not other.attrs and not (changed.source.watched and other.source.watched):
                guards.add(sides[0], facts.Distinct(sides[1]))
            return
        if other.cls is not changed.cls:
            return
        if changed.source.watched and other.source.watched and changed.cls not in (list, set, collections.deque):
            return
        if (changed.source.base is not None or other.source.base is not None
            or not (changed.source.watched and other.source.watched)):
            guards.add(changed.source, facts.Distinct(other.source))


def dictionary_of(value):
    """The source of the dictionary in which a real object keeps its attributes, or which it is; None for other
    values."""
    if type(value) is DictValue and value.obj is not None and type(value.obj) is dict:
        return value.source
    if type(value) in (ObjectValue, ModuleObject) and value.obj is not None and instance_dict(value.obj) is not None:
        return src.InstanceDict(value.source)
    return None
