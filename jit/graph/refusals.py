"""Operations that eager refuses because of a dtype, such as ``argmax`` of booleans, or of the type of an argument, such as a text for a number.

Most of the types that PyTorch's kernels do not take are known to the kernels alone, so that no type rule and no run on meta tensors tells of them. In the
program the call raises where it stands, whether or not anybody reads its result; in a graph a result that nobody reads is never
computed. So the first call of an operation with operands of such dtypes is tried on zeros while tracing.
"""

from __future__ import annotations

import re
import warnings

import torch

from jit.errors import EagerRaises, Unsupported
from jit.graph import aten
from jit.graph.binding import Binding
from jit.graph.dims import Dim, hint
from jit.graph.handles import SymSize, TensorHandle
from jit.graph.registry import OPS
from jit.graph.sym_float import SymFloat

_SAYS = re.compile(r"not (yet )?implement|(not|only) (intended to )?support.*(bool|complex|integ|float|dtype)|dtypes match", re.IGNORECASE)
_NUMEL = 1 << 14  # elements of an operand up to which a call is tried

_found: dict = {}  # (op, what the operands are) -> None, or the error's (class, arguments)


def worth_trying(v) -> bool:
    """Whether an argument is a tensor, or holds one, that operations may refuse: of no floating dtype, or without elements."""
    if isinstance(v, TensorHandle):
        return not v.type.dtype.is_floating_point or _is_empty(v.type)
    return isinstance(v, (list, tuple)) and any(map(worth_trying, v))


def _is_empty(t) -> bool:
    return any(type(n) is int and n == 0 for n in t.shape)


def check(fn, binding: Binding, args, kwargs, zeros):
    """Raise EagerRaises where ``fn`` takes no operands of these dtypes. ``zeros``: from arguments with handles to arguments with tensors of zeros.

    Operands without elements have no values either: of those eager's own error is found, whatever it is about.
    """
    plain = binding.name.removesuffix("_")
    if binding.python is not None or "::" in plain or not (plain in OPS or aten.overloads(plain)) or plain in OPS and OPS[plain].alias:
        return
    types: list = []
    key = (binding.name, _kind(args, types), tuple((k, _kind(v, types)) for k, v in kwargs.items()))
    if any(t.device.type != "cpu" or hint(t.numel) > _NUMEL for t in types):
        return
    empty = any(map(_is_empty, types))
    found = _found.get(key, key)
    if empty or found is key:
        found = _try(fn, zeros(list(args)), zeros(dict(kwargs)), empty)
        if not empty:
            _found[key] = found
    if found is not None:
        cls, given = found
        raise EagerRaises(cls(*given))


# Arguments that say nothing new of whether a call is well formed; what else there is may be of a type that the function does not take.
_USUAL = (TensorHandle, int, Dim, SymFloat, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, slice)
_NESTED = (tuple, list, torch.Size, SymSize)


def has_odd_types(args, kwargs) -> bool:
    """Whether an argument is of a type that the function may not take, or a number comes first, where most functions take a tensor."""
    return any(map(_is_odd, args)) or bool(kwargs) and any(map(_is_odd, kwargs.values())) or bool(args) and isinstance(args[0], int)


def _is_odd(v) -> bool:
    return type(v) is bool or not isinstance(v, _USUAL)


def _is_plain(v) -> bool:
    """Whether ``zeros`` makes a real argument of it."""
    if type(v) in _NESTED:
        return all(map(_is_plain, v))
    if type(v) is dict:
        return all(map(_is_plain, v.values()))
    return isinstance(v, (*_USUAL, float, complex, str, bytes, range, type, type(None), type(...)))


def check_types(fn, binding: Binding, args, kwargs, zeros):
    """Raise EagerRaises, or Unsupported where eager's own words are not known, for arguments of types that ``fn`` does not take."""
    if binding.python is not None or not _is_plain(list(args)) or not _is_plain(dict(kwargs)):
        return
    types: list = []
    key = (fn, tuple(map(type, args)), _kind(args, types), tuple((k, type(v), _kind(v, types)) for k, v in kwargs.items()))
    if not types:  # it makes a tensor, however large
        return
    exact = all(t.device.type == "cpu" and hint(t.numel) <= _NUMEL for t in types)
    try:
        found = _found.get((key, exact), key)
    except TypeError:  # an unhashable argument
        return
    if found is key:
        given = zeros(list(args)), zeros(dict(kwargs))
        error = _error(fn, *map(_on_meta, given))
        if isinstance(error, TypeError) and exact:
            error = _error(fn, *given)
        found = _found[key, exact] = (type(error), error.args) if isinstance(error, TypeError) else None
    if found is not None and exact:
        raise EagerRaises(found[0](*found[1]))
    if found is not None:
        raise Unsupported("a torch function refuses its arguments", "check the call against the documentation", kind="argument-error")


def _on_meta(v):
    if isinstance(v, torch.Tensor):
        return v.to("meta")
    if isinstance(v, (list, tuple)):
        return type(v)(map(_on_meta, v))
    return {k: _on_meta(e) for k, e in v.items()} if isinstance(v, dict) else v


def _kind(v, types):
    """What decides about a refusal: dtypes and ranks of tensors, small integers, which may be dimensions, and types of all else. ``types`` gets those of
    the tensors."""
    if isinstance(v, TensorHandle):
        types.append(v.type)
        return v.type.dtype, len(v.type.shape)
    if isinstance(v, (list, tuple)):
        return tuple(_kind(e, types) for e in v)
    return v if isinstance(v, (str, torch.dtype, bool)) or type(v) is int and -8 < v < 8 else type(v)


def of_dtypes(error: Exception) -> bool:
    """Whether an error of eager's is about dtypes, and so the same for all values."""
    return isinstance(error, NotImplementedError) or _SAYS.search(str(error)) is not None


def _try(fn, args, kwargs, empty):
    error = _error(fn, args, kwargs)
    if not isinstance(error, (RuntimeError, TypeError, IndexError)):  # none, or one of the values
        return None
    return (type(error), error.args) if of_dtypes(error) or empty and not isinstance(error, TypeError) else None


def _error(fn, args, kwargs) -> Exception | None:
    """What a call raises. It leaves no warning and no drawn number behind."""
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fn(*args, **kwargs)
    except Exception as error:
        return error
    finally:
        torch.random.set_rng_state(state)
    return None
