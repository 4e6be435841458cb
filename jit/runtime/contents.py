"""What cannot change about an object in one process, but may be another thing in the next.

A capture records a fact for whatever it reads that a program may change. What cannot change is known with the object:
the pattern of a compiled regular expression, the arguments of a ``functools.partial``, the number that an
``itemgetter`` takes. So where another process has only the way to an object, what lies there is to have the same
contents.

Objects of classes that Python code has made hold what they hold in dicts and slots, which can change. So do the builtin
containers. All others are asked for their contents as they are pickled.
"""

from __future__ import annotations

import array
import collections
import contextvars
import pickle
import types
import weakref
from typing import Any, Callable

import torch

from jit.runtime import names, naming

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that is not built into the interpreter
_OF_C = (types.WrapperDescriptorType, types.MethodDescriptorType)
_PLAIN = object.__basicsize__
_PLACES = (names.Given, names.Importable, names.Reached)
_OURS = ("jit.", "_jit_native")
# What holds nothing that is not read by facts, is nothing but what its name says, or is itself a part of the way.
_FREE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType,
         types.CellType, types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
         types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodWrapperType, property, classmethod,
         staticmethod, super, list, dict, set, bytearray, array.array, types.MappingProxyType,
         weakref.ReferenceType, torch.Tensor, torch.Generator, torch.dtype, torch.device, torch.layout,
         torch.memory_format, torch.Size, type(None), bool, type(Ellipsis), type(NotImplemented))  # fmt: skip


class Untold(Exception):
    """The contents of an object cannot be told; the text says of which."""


def _of_variable(variable: contextvars.ContextVar) -> object:
    """The default of a ContextVar."""
    try:
        return (contextvars.Context().run(variable.get),)
    except LookupError:
        return ()


# Class -> function that gives its contents, where those are not what is pickled.
_CONTENTS: dict[type, Callable[[Any], object]] = {
    collections.deque: lambda found: found.maxlen,
    contextvars.ContextVar: _of_variable,
    torch.finfo: lambda info: info.dtype, torch.iinfo: lambda info: info.dtype,
    tuple: lambda items: tuple(map(_constant, tuple.__iter__(items))),
    frozenset: lambda items: sorted(repr(_constant(item)) for item in frozenset.__iter__(items)),
    str: str.__str__, bytes: bytes.__bytes__ if hasattr(bytes, "__bytes__") else bytes, int: int.__int__,
    float: float.__float__, complex: lambda number: (number.real, number.imag),
}


def _constant(item: object) -> object:
    """An item of a tuple: itself if it is a constant; others have facts of their own."""
    if type(item) is tuple:
        return tuple(map(_constant, item))
    return (type(item), item) if type(item) in (str, bytes, int, float, bool, complex, type(None)) else type(item)


def holder(cls: type) -> type | None:
    """The class among the bases of one that C code has made, and that holds something."""
    for base in type.mro(cls) if cls is not type else ():
        native = not base.__flags__ & _HEAP_TYPE or any(
            type(found) in _OF_C and found.__objclass__ is base for found in vars(base).values())
        if native and (base.__basicsize__ > _PLAIN or base.__itemsize__):
            return base
    return None


def contents(obj: Any) -> bytes | None:
    """What cannot change about an object, or None where that is nothing. Raises Untold."""
    if isinstance(obj, _FREE):
        return None
    cls = type(obj)
    base = holder(cls)
    if base is None or hasattr(cls, "__next__") or hasattr(cls, "__await__"):
        return None
    given = _CONTENTS.get(base)
    try:
        return pickle.dumps(obj if given is None else (cls.__qualname__, given(obj)), 4)
    except Exception as error:  # whatever is asked, an object may refuse
        raise Untold(f"{cls.__module__}.{cls.__qualname__}: {error}") from None


class Naming(naming.Naming):
    """Names that lead to objects with the same contents."""

    def found(self, obj: object) -> names.Name:
        name = super().found(obj)
        # What is on the way need not be asked, and what a call of ours makes is what it is made of.
        if self.named_before is None or type(name) not in _PLACES or type(obj).__module__.startswith(_OURS):
            return name
        try:
            inside = contents(obj)
        except Untold as error:
            return names.Unnameable(f"what is in it cannot be told: {error}")
        return name if inside is None else names.calling(holding, name, names.Value(inside))


def holding(found: Any, expected: bytes) -> Any:
    """``found`` if it has these contents. Raises Unbound."""
    try:
        same = contents(found) == expected
    except Untold:
        same = False
    if not same:
        raise names.Unbound(f"a {type(found).__qualname__} has other contents")
    return found
