"""Kernels in Python that do nothing that the program could see but to compute: then the program's Python code before
and behind a call of one may be captured together.

A function is *quiet* if neither it nor what it calls can reach an object of the program that can change, by a global
name, a cell or a default, nor stores anything outside of its own variables. Numbers, texts, modules and functions of
libraries that compute, quiet functions and Triton kernels are all that it may refer to.
"""

from __future__ import annotations

import builtins
import dis
import types
from typing import Any

import torch

from .. import torch_private

# Packages whose functions compute, as far as a kernel of an operator has a use for them.
_COMPUTING = frozenset(("torch", "numpy", "triton", "scipy", "math", "cmath", "operator", "itertools", "functools",
                        "einops", "typing", "collections"))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
          torch.memory_format, type(Ellipsis), type(NotImplemented), range, slice)
_LOUD_BUILTINS = frozenset((print, open, exec, eval, compile, input, setattr, delattr, globals, locals, vars,
                            __import__, breakpoint, builtins.help))
# Attributes of PyTorch by which a kernel reaches its state, or other operators.
_STATE = frozenset(("ops", "manual_seed", "random", "backends"))
_NAMES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"))
_STORES = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_STAR"))
_KERNELS = ("triton.runtime.jit", "triton.runtime.autotuner", "triton.runtime.interpreter")


def is_quiet(fn: Any, seen: set[int] | None = None) -> bool:
    """Whether an object, if a kernel calls it or refers to it, leaves the program's objects alone."""
    seen = set() if seen is None else seen
    if id(fn) in seen:
        return True
    seen.add(id(fn))
    if isinstance(fn, _PLAIN):
        return True
    if isinstance(fn, (tuple, frozenset)):
        return all(is_quiet(v, seen) for v in fn)
    if isinstance(fn, types.ModuleType):
        return _computes(fn.__name__)
    if isinstance(fn, torch_private.OpOverload | torch_private.OpOverloadPacket):
        return str(fn).startswith("aten.")
    if type(fn).__module__ in _KERNELS:
        return True
    if isinstance(fn, types.FunctionType):
        return _computes(fn.__module__) or _is_quiet_function(fn, seen)
    if isinstance(fn, type):
        return _computes(fn.__module__) or fn.__module__ == "builtins"
    if isinstance(fn, types.BuiltinFunctionType):
        owner = fn.__self__
        return fn not in _LOUD_BUILTINS and (owner is None or isinstance(owner, (types.ModuleType, type)))
    return _computes(getattr(fn, "__module__", None)) and callable(fn) and not isinstance(fn, torch.nn.Module)


def _computes(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _COMPUTING


def _is_quiet_function(fn: types.FunctionType, seen: set[int]) -> bool:
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    held = []
    for cell in cells.values():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # it is set later, to anything
            return False
    held += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    return all(is_quiet(v, seen) for v in held) and _is_quiet_code(fn.__code__, fn, frozenset(cells), seen)


def _is_quiet_code(code: types.CodeType, fn: types.FunctionType, outer: frozenset[str], seen: set[int]) -> bool:
    known = fn.__globals__.get("__builtins__", builtins)
    known = known if isinstance(known, dict) else vars(known)
    for i in dis.get_instructions(code):
        if i.opname in _STORES or i.opname in ("STORE_DEREF", "DELETE_DEREF") and i.argval in outer:
            return False
        if i.opname in _NAMES and (i.argval in _STATE or isinstance(i.argval, str) and i.argval.startswith("set_")):
            return False
        if i.opname == "IMPORT_NAME" and not _computes(i.argval):
            return False
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            missing = object()
            found = fn.__globals__.get(i.argval, known.get(i.argval, missing))
            if found is missing or not is_quiet(found, seen):
                return False
    return all(_is_quiet_code(c, fn, outer, seen) for c in code.co_consts if isinstance(c, types.CodeType))
