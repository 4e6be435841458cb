"""How what outlives a capture refers to objects of the program, so that it keeps none of them alive that the program
could let go of."""

from __future__ import annotations

import collections
import enum
import types
from typing import Any

import torch

from jit.runtime.extension import native

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that is not built into the interpreter
_KEPT = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.CodeType, enum.Enum)


def holding(obj: Any) -> str:
    """How what outlives a capture may refer to an object of the program. "kept": itself, for constants, classes and
    code, which hold nothing. "weak": as a ``native().Weak``. "place": by nothing but its source, since it cannot be
    referred to weakly and holds other objects. "itself": there is no other way."""
    if isinstance(obj, _KEPT):
        return "kept"
    if isinstance(obj, torch.Tensor):
        return "weak"
    cls = type(obj)
    if cls is types.FunctionType:
        given = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        return "weak" if obj.__closure__ or not all(isinstance(v, _KEPT) for v in given) else "kept"
    if cls is types.BuiltinFunctionType:
        return "kept" if isinstance(obj.__self__, (type(None), type, types.ModuleType)) else "weak"
    if cls.__weakrefoffset__ and (cls.__flags__ & _HEAP_TYPE
                                  or isinstance(obj, (types.MethodType, set, frozenset, collections.deque))):
        return "weak"
    if isinstance(obj, tuple):
        return "kept" if all(isinstance(v, _KEPT) for v in obj) else "place"
    return "place" if isinstance(obj, (dict, list, types.CellType)) or cls.__flags__ & _HEAP_TYPE else "itself"


def lightly(obj: object) -> object:
    """An object as facts and sources hold it: a ``native().Weak`` where it is to be held so."""
    return native().Weak(obj) if holding(obj) == "weak" else obj


def loosely(obj: object) -> object:
    """``lightly`` of an object, or of all in a tuple."""
    return tuple(map(loosely, obj)) if type(obj) is tuple else lightly(obj)


def behind(held: Any) -> Any:
    """The object that ``lightly`` was given; None once it is gone."""
    return held() if type(held) is native().Weak else held
