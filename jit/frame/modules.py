"""Compiled modules: an instance of a subclass made for it, sharing the module's ``__dict__``, whose call is a
dispatcher.

``isinstance`` holds, state_dict keys stay, and an attribute written on either is seen on both.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from typing import Callable

import torch

from .dispatch import Settings, make_dispatcher


def _compile_again(module, options):
    """The compiled form of an unpickled module."""
    return compile_module(module, Settings(**options)) if options else module


def _plain_settings(settings) -> dict | None:
    """The settings as a dict that can be pickled, or None where the backend cannot be found by its name."""
    backend = settings.backend
    if getattr(sys.modules.get(getattr(backend, "__module__", None)), getattr(backend, "__qualname__", ""),
               None) is not backend:
        return None
    return dict(backend=backend, fullgraph=settings.fullgraph, dynamic=settings.dynamic,
                options=settings.options, mode=settings.mode)


def _calls(function: Callable) -> types.FunctionType:
    """A function that calls its first argument, so that a ``__call__`` that its class is given later counts. Messages
    name ``function``."""
    code = getattr(function, "__code__", None)
    forward = lambda self, *args, **kwargs: self(*args, **kwargs)  # noqa: E731
    if code is None:
        return forward
    named = ("co_name", "co_qualname", "co_filename", "co_firstlineno")
    forward.__code__ = forward.__code__.replace(**{name: getattr(code, name) for name in named})
    return functools.update_wrapper(forward, function, updated=())


def compile_module(module: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The compiled form of a module."""
    original = getattr(type(module), "_jit_original_module", None)
    if original is not None:
        module = original
    cls = type(module)
    dispatcher = make_dispatcher(_calls(cls.__call__), settings, bound=module)
    compiled_class = type(cls.__name__, (cls,), {
        "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
        "__call__": dispatcher, "_jit_original_module": module, "_jit_dispatcher": dispatcher,
        "__copy__": lambda self: compile_module(copy.copy(module), settings),
        "__deepcopy__": lambda self, memo: compile_module(copy.deepcopy(module, memo), settings),
        "__reduce_ex__": lambda self, protocol: (_compile_again, (module, _plain_settings(settings))),
    })
    compiled = object.__new__(compiled_class)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled
