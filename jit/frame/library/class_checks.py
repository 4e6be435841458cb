"""``isinstance`` and ``issubclass``: Python's own protocol, in which a metaclass may answer, with what the answer
depends on as guards."""

from __future__ import annotations

import abc
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import source as src
from ..tables import on_call, on_function, on_method
from ..values.base import Raised
from ..values.constant import Constant
from ..values.objects import ObjectValue, check_attributes

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_INSTANCE, _SUBCLASS = type.__dict__["__instancecheck__"], type.__dict__["__subclasscheck__"]
_TYPING = ("typing", "typing_extensions")


# -- by the order of the bases ---------------------------------------------------------------------------------


def classes_of(s: Session, value: Value) -> Iterator[type | None]:
    """The type of a value, and the class that it says it has where that is another one."""
    cls = value.pytype(s)
    yield cls
    if type(value) is ObjectValue and has_class_of_its_own(s, value, cls):
        apparent = value.getattr(s, "__class__").const(s)
        if isinstance(apparent, type) and apparent is not cls:
            yield apparent


def has_class_of_its_own(s: Session, value: Value, cls) -> bool:
    """Whether an object may say that its ``__class__`` is another one than its type."""
    check_attributes(cls)
    own = s.class_lookup(cls, "__class__")[1] is not object.__dict__["__class__"]
    return own or s.function_of_class(cls, "__getattribute__") is not None


@on_method((type, "__instancecheck__"))
def type_instancecheck(s: Session, target: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(any(s.inherits(cls, target.const(s)) for cls in classes_of(s, args[0])))


@on_method((type, "__subclasscheck__"))
def type_subclasscheck(s: Session, target: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(s.inherits(_class(s, args[0]), target.const(s)))


def _class(s: Session, value: Value) -> type:
    if value.as_class is None:
        raise Raised(s.exception(TypeError("issubclass() arg 1 must be a class")))
    return value.const(s)


# -- by abstract classes -------------------------------------------------------------------------------------


def answered(s: Session, cls, target: type) -> bool:
    """What ``issubclass`` says where ``target`` keeps a memory of its answers, as abstract classes and protocols do: a
    yes is for ever in one process, a no until something is registered."""
    try:
        found = issubclass(cls, target)
    except Exception as error:  # of the program's own __subclasscheck__
        raise Unsupported(f"issubclass() raises {type(error).__name__}: {error}", kind="special-method") from None
    if id(cls) in s.heap.templates:
        raise Unsupported("issubclass() asks an abstract class about a class that is made here", kind="special-method")
    s.guards.add(src.Const(cls, cls.__qualname__), facts.Subclass(target, found))
    return found


@on_function(abc.ABCMeta.__instancecheck__)
def abstract_instancecheck(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target, value = args
    return Constant(any(is_subclass(s, s.wrap_class(cls), target) for cls in classes_of(s, value)))


@on_function(abc.ABCMeta.__subclasscheck__)
def abstract_subclasscheck(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(answered(s, _class(s, args[1]), args[0].const(s)))


def has_members(s: Session, value: Value, protocol) -> bool:
    """Whether an object that is made or changed while capturing has what a protocol asks for."""
    if not getattr(protocol, "_is_runtime_protocol", False):
        raise Unsupported(f"isinstance() asks {protocol.__qualname__} about an object that is made here",
                          kind="special-method")
    members = getattr(protocol, "__protocol_attrs__", None) or typing._get_protocol_attrs(protocol)
    for name in sorted(members):
        try:
            found = value.getattr(s, name)
        except Raised as raised:
            if not s.is_exception(raised.value, AttributeError):
                raise
            return False
        if found.is_nothing(s) and callable(getattr(protocol, name, None)):
            return False
    return True


def protocol_instance(s: Session, value: Value, target) -> bool:
    """``isinstance`` of a class of ``typing`` that looks at what the object has: asked of the object itself, on every
    call."""
    plain = isinstance(target, type) and not getattr(target, "_is_protocol", False)
    if plain and s.inherits(value.pytype(s), target):
        return True
    obj = value.value if type(value) is Constant else getattr(value, "obj", None)
    if obj is None and not value.is_nothing(s) or value in s.heap.touched:
        if not isinstance(target, type):
            return answered(s, value.pytype(s), target)
        return has_members(s, value, target)
    try:
        found = isinstance(obj, target)
    except Exception as error:  # of the program's own __instancecheck__
        raise Unsupported(f"isinstance() raises {type(error).__name__}: {error}", kind="special-method") from None
    s.guards.add(value.source, facts.Instance(target, found))
    return found


# -- by PyTorch ----------------------------------------------------------------------------------------------


@on_function(type(torch.nn.Parameter).__instancecheck__)
def parameter_instancecheck(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target, value = args
    if s.inherits(value.pytype(s), target.const(s)):
        return Constant(True)
    if not value.is_tensor or target.const(s) is not torch.nn.Parameter:
        return Constant(False)
    marked = value.own_attr(s, "_is_param")
    return Constant(marked is not None and marked.truth(s))


@on_method((type(torch.FloatTensor), "__instancecheck__"))
def tensor_type_instancecheck(s: Session, target, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    """``isinstance(x, torch.FloatTensor)``: by dtype and device, as a tensor without elements says."""
    (value,) = args
    if not value.is_tensor:
        return Constant(False)
    handle = value.handle(s)
    return Constant(isinstance(torch.empty(0, dtype=handle.type.dtype, device=handle.type.device), target.const(s)))


# -- the builtins --------------------------------------------------------------------------------------------


def is_instance(s: Session, value: Value, classes: Value) -> bool:
    """``isinstance`` with a class, a tuple of classes or a union."""
    several = alternatives(s, classes)
    if several is not None:
        return any(is_instance(s, value, c) for c in several)
    target = _target(s, classes, "isinstance() arg 2 must be a type, a tuple of types, or a union")
    cls = value.pytype(s)
    if cls is target:
        return True
    check = s.class_lookup(type(target), "__instancecheck__")[1]
    if getattr(check, "__module__", None) in _TYPING:
        return protocol_instance(s, value, target)
    return _ask(s, check, "__instancecheck__", target, value)


def is_subclass(s: Session, cls, classes: Value) -> bool:
    """``issubclass`` with a class, a tuple of classes or a union."""
    several = alternatives(s, classes)
    if several is not None:
        return any(is_subclass(s, cls, c) for c in several)
    target = _target(s, classes, "issubclass() arg 2 must be a class, a tuple of classes, or a union")
    check = s.class_lookup(type(target), "__subclasscheck__")[1]
    if getattr(check, "__module__", None) in _TYPING or not isinstance(target, type):
        return answered(s, _class(s, cls), target)
    return _ask(s, check, "__subclasscheck__", target, cls)


def alternatives(s: Session, classes: Value) -> list[Value] | None:
    """The members of a tuple or a union, any of which is enough; None for all else."""
    if classes.builtin is tuple:
        return classes.load(s)
    union = classes.real(s)
    if type(union) is not types.UnionType:
        return None
    if not all(isinstance(c, type) and not isinstance(c, types.GenericAlias) for c in union.__args__):
        raise Unsupported("isinstance() or issubclass() is given a union that holds something else than classes",
                          kind="special-method")
    return [s.wrap_class(c) for c in union.__args__]


def _target(s: Session, classes: Value, refusal: str) -> type:
    """The object that stands at the place of the class. Raises the program's TypeError for one that cannot."""
    target = classes.real(s)
    if isinstance(target, (type, types.GenericAlias)) or type(target).__module__ in _TYPING:
        return target
    raise Raised(s.exception(TypeError(refusal)))


def _ask(s: Session, check: object, name: str, target: type, value: Value) -> bool:
    """The answer of the metaclass."""
    asked = s.wrap(target, src.Const(target))
    written = s.function_of_class(type(target), name)
    if written is not None:
        return written.call(s, [asked, value], {}).truth(s)
    if check is None or asked.as_class is None:
        raise Unsupported(f"{name} of {asked.describe()}", kind="special-method")
    return asked.builtin_method(s, check, [value], {}).truth(s)


@on_call(isinstance)
def isinstance_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(is_instance(s, *args))


@on_call(issubclass)
def issubclass_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(is_subclass(s, *args))


# -- patterns ------------------------------------------------------------------------------------------------


def matches(s: Session, value: Value, abstract: type) -> bool:
    """Whether a value is a sequence or a mapping for a ``match`` statement: classes may be registered as such."""
    cls = value.pytype(s)
    if issubclass(cls, (str, bytes, bytearray)):
        return False
    return answered(s, cls, abstract) if id(cls) not in s.heap.templates else issubclass(cls, abstract)
