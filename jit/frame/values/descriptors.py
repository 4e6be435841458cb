"""The descriptor protocol: what an attribute of a class is when it is read through an object, or through the class.

A rule stands for a ``__get__`` that is written in C, and is found by the class that has it. One written in Python is
called.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from ...errors import Unsupported
from .. import source as src
from .. import tables
from ..tables import on_class_descriptor, on_descriptor
from .base import Raised, Value
from .constant import Constant

if TYPE_CHECKING:
    from ..session import Session

_DISPATCHERS = "jit.runtime.native"


def through_object(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    """``raw``, found under ``name`` on ``cls``, an object's type or one of its bases, as the object's attribute."""
    found, _, kind = s.class_lookup(type(raw), "__get__")
    rule = tables.descriptors.get(kind)
    if rule is not None:
        return rule(s, value, raw, name, cls)
    getter = s.function_of_class(type(raw), "__get__")
    if getter is not None:
        return getter.call(s, [s.wrap_class_attr(cls, name), value, s.wrap_class(value.pytype(s))], {})
    if kind is not None and kind.__module__ == _DISPATCHERS:
        attribute = s.wrap_class_attr(cls, name)
        return attribute if hasattr(raw, "__self__") else s.bound_method(attribute, value)
    if found:
        raise Unsupported(f"descriptor {type(raw).__name__} for attribute {name!r} of {cls.__name__}",
                          kind="descriptor")
    return s.wrap_class_attr(cls, name)


def through_class(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    """``raw``, found under ``name`` on a class ``cls``, as an attribute of that class or of one derived from it."""
    kind = s.class_lookup(type(raw), "__get__")[2]
    rule = tables.class_descriptors.get(kind)
    if rule is not None:
        return rule(s, value, raw, name, cls)
    getter, attribute = s.function_of_class(type(raw), "__get__"), s.wrap_class_attr(cls, name)
    return attribute if getter is None else getter.call(s, [attribute, Constant(None), value], {})


@on_descriptor(types.FunctionType)
def bound_function(s: Session, value: Value, raw: types.FunctionType, name: str, cls: type) -> Value:
    return s.bound_method(s.wrap_raw(raw), value)


@on_descriptor(staticmethod, classmethod)
def bound_static(s: Session, value: Value, raw: staticmethod | classmethod, name: str, cls: type) -> Value:
    return s.lookups.bind_static(raw, value.pytype(s))


@on_descriptor(property)
def read_property(s: Session, value: Value, raw: property, name: str, cls: type) -> Value:
    if raw.fget is None:
        raise Raised(s.exception(AttributeError(
            f"property {name!r} of {value.pytype(s).__name__!r} object has no getter")))
    return s.wrap_raw(raw.fget).call(s, [value], {})


@on_descriptor(types.MethodDescriptorType, types.WrapperDescriptorType)
def bound_builtin(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    return value.bound_builtin(s, raw)


@on_descriptor(types.MemberDescriptorType)
def read_slot(s: Session, value: Value, raw: types.MemberDescriptorType, name: str, cls: type) -> Value:
    return value.getset(s, raw, name) if name == "__dict__" else value.slot(s, raw, name)


@on_descriptor(types.GetSetDescriptorType)
def read_getset(s: Session, value: Value, raw: types.GetSetDescriptorType, name: str, cls: type) -> Value:
    return value.getset(s, raw, name)


@on_class_descriptor(types.FunctionType)
def function_itself(s: Session, value: Value, raw: types.FunctionType, name: str, cls: type) -> Value:
    return s.wrap_raw(raw)


@on_class_descriptor(staticmethod, classmethod)
def static_of_class(s: Session, value: Value, raw: staticmethod | classmethod, name: str, cls: type) -> Value:
    return s.lookups.bind_static(raw, value.obj)


@on_class_descriptor(property, types.MemberDescriptorType, types.GetSetDescriptorType)
def descriptor_itself(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    return s.heap.opaque(raw, src.ClassAttr(src.Const(cls), name))
