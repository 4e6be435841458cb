"""What callables take: how many arguments, under which names.

Functions in C that have no signature say in their ``PyMethodDef`` whether they take names, and whether they take no
argument or one. Of classes in C that say nothing, the documentation does.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import inspect
import types
from collections.abc import Sequence
from typing import Callable

import torch

_WORD = ctypes.sizeof(ctypes.c_void_p)
# Where an object has the pointer to its PyMethodDef: behind its head, and of a method of a class behind three words.
_DEFINITION = {types.BuiltinFunctionType: object.__basicsize__,
               types.MethodDescriptorType: object.__basicsize__ + 3 * _WORD,
               types.ClassMethodDescriptorType: object.__basicsize__ + 3 * _WORD}
_FLAGS = 2 * _WORD  # in a PyMethodDef, behind the name and the function
_KEYWORDS, _NO_ARGUMENTS, _ONE_ARGUMENT = 0x0002, 0x0004, 0x0008

_ANY = "_any"  # the arguments of a function of which nothing more is known

_DOCUMENTED = {
    **dict.fromkeys((bool, set, frozenset, types.CellType), lambda value=None, /: None),
    **dict.fromkeys((dict, collections.OrderedDict), lambda value=None, /, **entries: None),
    collections.deque: lambda iterable=(), maxlen=None: None,
    slice: lambda start, stop=None, step=None, /: None,
    zip: lambda *iterables, strict=False: None,
    map: lambda function, /, *iterables: None,
    str: lambda object="", encoding=None, errors=None: None,
    dir: lambda object=None, /: None,
    iter: lambda object, sentinel=None, /: None,
    getattr: lambda object, name, default=None, /: None,
    torch.get_autocast_dtype: lambda device_type: None,
    torch.is_autocast_enabled: lambda device_type=None: None,
}


@functools.lru_cache(maxsize=1024)
def signature_of(fn: Callable) -> inspect.Signature | None:
    """The signature of a callable; None where it does not say what it takes."""
    try:
        return inspect.signature(_DOCUMENTED.get(fn, fn))
    except (TypeError, ValueError):
        return _by_flags(fn)


def _by_flags(fn: Callable) -> inspect.Signature | None:
    at = _DEFINITION.get(type(fn))
    if at is None:
        return None
    definition = ctypes.c_void_p.from_address(id(fn) + at).value
    flags = ctypes.c_int.from_address(definition + _FLAGS).value  # type: ignore[operator]
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    if flags & _KEYWORDS:
        return None
    parameters = own if type(fn) is types.MethodDescriptorType else []
    if flags & _ONE_ARGUMENT:
        parameters = [*parameters, inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    elif not flags & _NO_ARGUMENTS:
        parameters = [inspect.Parameter(_ANY, inspect.Parameter.VAR_POSITIONAL)]
    return inspect.Signature(parameters)


def is_exact(fn: Callable) -> bool:
    """Whether a callable refuses what its signature does, and nothing else for its number and names."""
    signature = signature_of(fn)
    return signature is not None and not any(p.name == _ANY for p in signature.parameters.values())


def takes(fn: Callable, args: Sequence[object], kwargs: dict) -> bool:
    """Whether a callable takes that many arguments and these names; True where it does not say."""
    try:
        return _takes(fn, len(args), tuple(kwargs))
    except TypeError:  # it cannot be a key
        return True


@functools.lru_cache(maxsize=1024)
def _takes(fn: Callable, n: int, names: tuple[str, ...]) -> bool:
    signature = signature_of(fn)
    if signature is None:
        return True
    try:
        signature.bind(*[None] * n, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
