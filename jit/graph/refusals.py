"""Operations that eager refuses because of a dtype, such as ``argmax`` of booleans.

Most of the types that PyTorch's kernels do not take are known to the kernels alone, so that no type rule and no run on meta tensors tells of them. In the
program the call raises where it stands, whether or not anybody reads its result; in a graph a result that nobody reads is never
computed. So the first call of an operation with operands of such dtypes is tried on zeros while tracing.
"""

from __future__ import annotations

import re

import torch

from jit.errors import EagerRaises
from jit.graph import aten
from jit.graph.binding import Binding
from jit.graph.dims import hint
from jit.graph.handles import TensorHandle
from jit.graph.registry import OPS

_SAYS = re.compile(r"not (yet )?implement|(not|only) (intended to )?support.*(bool|complex|integ|float|dtype)", re.IGNORECASE)
_NUMEL = 1 << 14  # elements of an operand up to which a call is tried

_found: dict = {}  # (op, what the operands are) -> None, or the error's (class, arguments)


def check(fn, binding: Binding, args, kwargs, zeros):
    """Raise EagerRaises where ``fn`` takes no operands of these dtypes. ``zeros``: from arguments with handles to arguments with tensors of zeros."""
    plain = binding.name.removesuffix("_")
    if binding.python is not None or "::" in plain or not (plain in OPS or aten.overloads(plain)) or plain in OPS and OPS[plain].alias:
        return
    small: list = []
    key = (binding.name, _kind(args, small), tuple((k, _kind(v, small)) for k, v in kwargs.items()))
    if not all(small):
        return
    if key not in _found:
        _found[key] = _try(fn, zeros(list(args)), zeros(dict(kwargs)))
    if _found[key] is not None:
        cls, given = _found[key]
        raise EagerRaises(cls(*given))


def _kind(v, small):
    """What decides about a refusal: dtypes and ranks of tensors, types of all else. ``small`` gets whether each tensor can be tried."""
    if isinstance(v, TensorHandle):
        t = v.type
        small.append(t.device.type == "cpu" and hint(t.numel) <= _NUMEL)
        return t.dtype, len(t.shape)
    if isinstance(v, (list, tuple)):
        return tuple(_kind(e, small) for e in v)
    return v if isinstance(v, (str, torch.dtype, bool)) else type(v)


def _try(fn, args, kwargs):
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            fn(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        return (type(error), error.args) if isinstance(error, NotImplementedError) or _SAYS.search(str(error)) else None
    except Exception:  # of the values
        return None
    finally:
        torch.random.set_rng_state(state)
    return None
