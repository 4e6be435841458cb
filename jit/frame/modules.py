"""Compiled modules: an instance of a subclass made for it, sharing the module's ``__dict__``, whose call is a
dispatcher.

``isinstance`` holds, state_dict keys stay, an attribute written on either is seen on both, and so is a class given to
either, as parametrizations do. A module compiled in place stays the object that it is: PyTorch's own call of it looks
for what was compiled.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from typing import Callable

import torch

from .. import torch_private
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


# Methods by which a library calls a module beside calling it, by the name of the class that declares them.
ENTRIES = {"LightningModule": ("training_step", "validation_step", "test_step", "predict_step")}


def compile_module(module: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The compiled form of a module."""
    original = getattr(type(module), "_jit_original_module", None)
    if original is not None:
        module = original
    dispatcher = make_dispatcher(_calls(type(module).__call__), settings, bound=module)
    shared = {
        "__call__": dispatcher, "_jit_original_module": module, "_jit_dispatcher": dispatcher,
        "_orig_mod": module,  # by which libraries find what torch.compile was given
        "__class__": property(lambda self: type(module), give_class),
        "__getattr__": lambda self, name: getattr(module, name),
        "__copy__": lambda self: compile_module(copy.copy(module), settings),
        "__deepcopy__": lambda self, memo: compile_module(copy.deepcopy(module, memo), settings),
        "__reduce_ex__": lambda self, protocol: (_compile_again, (module, _plain_settings(settings))),
        # For another device: one of these is made for each call, which is too short a life to be compiled for.
        "_replicate_for_data_parallel": lambda self: type(module)._replicate_for_data_parallel(module),
        **{name: _entry(getattr(type(module), name), module, settings)
           for cls in type(module).__mro__ for name in ENTRIES.get(cls.__name__, ())
           if isinstance(getattr(type(module), name, None), types.FunctionType)},
    }

    def class_of(cls: type) -> type:
        """The class of the compiled form of a module of class ``cls``."""
        return type(cls.__name__, (cls,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__,
                                           "__doc__": cls.__doc__, "_jit_class_of": staticmethod(class_of), **shared})

    compiled = object.__new__(class_of(type(module)))
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled


def _entry(method: types.FunctionType, module: torch.nn.Module, settings: Settings):
    """A method of a compiled module, compiled too."""
    return make_dispatcher(method, settings, bound=module)


def give_class(compiled: torch.nn.Module, cls: type) -> None:
    """``compiled.__class__ = cls``: the module gets this class, and its compiled form one made for it."""
    made = type(compiled)
    made._jit_original_module.__class__ = cls  # type: ignore[attr-defined]
    object.__dict__["__class__"].__set__(compiled, made._jit_class_of(cls))  # type: ignore[attr-defined]


def compile_in_place(module: torch.nn.Module, settings: Settings | None) -> torch.nn.Module:
    """Have the calls of a module compiled, or no more where ``settings`` is None; gives it back. ``Module.__call__``
    calls what is stored under this name."""
    module = getattr(type(module), "_jit_original_module", module)
    if settings is None:
        vars(module).pop(torch_private.COMPILED_CALL, None)
    else:
        dispatcher = make_dispatcher(_calls_impl, settings, bound=module)
        vars(module)[torch_private.COMPILED_CALL] = dispatcher
    return module


def _calls_impl(self, /, *args, **kwargs):
    return self._call_impl(*args, **kwargs)
