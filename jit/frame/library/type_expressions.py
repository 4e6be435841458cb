"""Type expressions such as ``List[int]`` and ``Optional[Tensor]``: subscripts of typing's forms, evaluated for real on
known classes."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import TYPE_CHECKING

from ..source import Const
from ..tables import new_value, on_function, on_method
from ..values.base import Raised

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def plain(s: Session, value: Value) -> object:
    """The class, form, tuple or list of these behind a value."""
    if value.builtin is tuple:
        return tuple(plain(s, v) for v in value.items_list(s))
    if value.builtin is list:
        return [plain(s, v) for v in value.items_list(s)]
    known = value.real(s)
    return value.const(s) if known is None else known


@on_method((type, "__class_getitem__"))
def subscript_class(s: Session, cls, args, kwargs: dict[str, Value]) -> Value:
    """``C[...]`` of an abstract class of collections."""
    return subscript(s, [cls, *args], kwargs)


def subscript(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    form, parameters = (plain(s, v) for v in args)
    try:
        made = form[parameters]
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    return known(s, made)


@new_value(types.GenericAlias, types.UnionType, type(collections.abc.Callable[[], None]))
def known(s: Session, made: object) -> Value:
    """A type expression is immutable, and so may be the one that was made while capturing."""
    return s.wrap(made, Const(made, repr(made), owned=True))


for _cls in [c for c in vars(typing).values() if isinstance(c, type) and c.__module__ == "typing"]:
    if type(_cls) is type and _cls.__name__.endswith("Alias"):  # a deprecated one warns of itself when it is compared
        new_value(_cls)(known)
    for _name in ("__getitem__", "__class_getitem__"):
        _found = vars(_cls).get(_name)
        _found = getattr(_found, "__func__", _found)
        if isinstance(_found, types.FunctionType):
            on_function(_found)(subscript)


def _either(s: Session, left: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``left | right``."""
    try:
        return known(s, plain(s, left) | plain(s, args[0]))
    except TypeError as error:
        raise Raised(s.exception(error)) from None


for _cls in (types.GenericAlias, types.UnionType, type(collections.abc.Callable[[], None])):
    on_method((_cls, "__or__"))(_either)
