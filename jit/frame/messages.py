"""Texts of errors that differ between versions of CPython: the running one is asked by operations that fail, and the
names in its answers are replaced."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Callable

from .guards import Element
from .values.base import Raised, type_name

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value


def _said(operation: Callable, *args: object) -> str:
    try:
        operation(*args)
    except (AttributeError, TypeError, ValueError) as error:
        return str(error)
    return ""


class _Slotted:
    __slots__ = ("probe",)
    __module__ = "probed"


class _Absent:
    __module__ = "probed"
    __bool__ = None


def _unpacked() -> None:
    _one, _other = [1, 2, 3]


_SLOTTED = _Slotted()
NO_SLICE = (_said([0].__setitem__, slice(0, 1), 5), _said([0].__setitem__, slice(0, 1, 2), 5))
"""What a list says of what is no iterable, for a slice, and one with steps."""
NO_SLICE_INDEX = _said(operator.getitem, [0], slice(0.5))
_NO_MAPPING = _said(lambda: {**_SLOTTED})  # type: ignore[dict-item]
_TOO_MANY = _said(_unpacked)
_NO_TRUTH = _said(lambda: bool(_Absent()))
_NO_CONTAINER = _said(lambda: "probe" in 5)  # type: ignore[operator]
_NO_PAIR = _said(dict, [5])
_NOT_IN_LIST = _said([].index, 5)
_NO_SLOT = _said(lambda: _SLOTTED.probe)
_NOT_SET = _said(lambda: setattr(_SLOTTED, "other", 5))
_BARE = "unhashable type: 'list'"
_NO_KEY = _said(lambda: {[]: 0})
_NO_ELEMENT = _said(lambda: {[]})


def full_name(cls: type) -> str:
    """A class's name with its module, but for builtins and the main program."""
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def _named(text: str, cls: type, probe: type) -> str:
    """A text about ``cls`` of one about ``probe``."""
    return text.replace(full_name(probe), full_name(cls)).replace(probe.__name__, type_name(cls))


class _Answer:
    __module__ = "answered"


_ASKED = {"__int__": int, "__float__": float, "__index__": operator.index, "__bool__": bool, "__hash__": hash,
          "__repr__": repr, "__str__": str, "__format__": format, "__iter__": iter}


@functools.cache
def _wrong(name: str) -> tuple[str, type]:
    probe = type("_Answering", (), {name: lambda *args: _Answer(), "__module__": "probed"})
    return _said(_ASKED[name], probe()), probe


def wrong_result(cls: type, name: str, given: type) -> str:
    """Of a special method ``name`` of ``cls`` that gives an object of the class ``given``, which it must not."""
    text, probe = _wrong(name)
    return _named(_named(text, cls, probe), given, _Answer)


def not_a_mapping(cls: type) -> str:
    """Of ``{**object}``."""
    return _named(_NO_MAPPING, cls, _Slotted)


def not_a_container(cls: type) -> str:
    """Of ``item in object``."""
    return _NO_CONTAINER.replace("'int'", f"'{type_name(cls)}'")


def not_a_pair(at: int) -> str:
    """Of the ``at``-th element of what a dict is made of."""
    return _NO_PAIR.replace("#0", f"#{at}")


def not_in_list(shown: str) -> str:
    """Of ``list.index``; ``shown``: the element's repr."""
    return shown + _NOT_IN_LIST[1:] if _NOT_IN_LIST.startswith("5") else _NOT_IN_LIST


def too_many(wanted: int, given: int | None) -> str:
    """Of unpacking; ``given``: how many there are, of a plain tuple, list or dict."""
    text = _TOO_MANY.replace("2", str(wanted), 1)
    return text.replace(", got 3", "" if given is None else f", got {given}")


def not_a_truth(cls: type) -> str:
    """Of a class whose ``__bool__`` is None."""
    return _named(_NO_TRUTH, cls, _Absent)


def no_slot(cls: type, name: str) -> str:
    """Of an attribute in ``__slots__`` that is not set."""
    return _named(_NO_SLOT.replace("'probe'", f"'{name}'"), cls, _Slotted)


def cannot_be_set(cls: type, name: str) -> str:
    """Of setting an attribute that is not in ``__slots__``."""
    return _named(_NOT_SET.replace("'other'", f"'{name}'"), cls, _Slotted)


def _hashed(s: Session, key: Value, text: str, holder: Value | None, is_new: bool) -> object:
    if key.stands_for_itself and (is_new or holder is not None and holder.obj is None):  # type: ignore[attr-defined]
        with s.guards.asked_as(Element(holder)):
            return key.hash_key(s)
    if text == _BARE:
        return key.hash_key(s)
    try:
        return key.hash_key(s)
    except Raised as raised:
        error = raised.value
        if error.pytype(s) is not TypeError:
            raise
        inner = error.text(s, "__str__").const(s)
        whole = text.replace("use 'list'", f"use '{full_name(key.pytype(s))}'").replace(_BARE, inner)
        raise Raised(s.exception(TypeError(whole))) from None


def dict_key(s: Session, key: Value, holder: Value | None = None, is_new: bool = False) -> object:
    """``key.hash_key`` with what a dict says of a key that cannot be hashed. ``holder``: the dict, where nothing but
    its entry is asked for; ``is_new``: it is just being made."""
    return _hashed(s, key, _NO_KEY, holder, is_new)


def set_element(s: Session, element: Value, holder: Value | None = None, is_new: bool = False) -> object:
    """``element.hash_key`` with what a set says of an element that cannot be hashed. ``holder``: the set, where nothing
    but whether it is in there is asked for; ``is_new``: it is just being made."""
    return _hashed(s, element, _NO_ELEMENT, holder, is_new)
