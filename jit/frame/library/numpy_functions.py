"""numpy on constants: scalars are plain immutable objects, and functions of constants that give scalars are called for
real."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import Unsupported
from ..tables import on_method

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

# Functions that are dispatched by their array arguments, without effects.
_PURE = {getattr(np, name) for name in (
    "prod sum mean max min amax amin std var median argmax argmin any all round ndim size isclose allclose array_equal "
    "dot count_nonzero ptp "
    "cumsum interp clip").split() if hasattr(np, name)}


def plain(s: Session, value: Value):
    """A value as a real object: constants, and lists and tuples of them."""
    if value.builtin in (list, tuple) and value.cls is value.builtin:
        return value.cls(plain(s, v) for v in value.load(s))
    if not value.is_leaf:
        raise Unsupported(f"{value.describe()} as an argument of a numpy function",
                          kind="numpy", hint="use torch, or call it outside")
    return value.const(s)


def _call(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real, real_kw = [plain(s, a) for a in args], {k: plain(s, v) for k, v in kwargs.items()}
    if "out" in real_kw:
        raise Unsupported("a numpy function with out=", kind="numpy")
    return s.fold(lambda: fn(*real, **real_kw), [], {})


@on_method((np.ufunc, "__call__"))
def ufunc_call(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _call(s, fn.pin(s), args, kwargs)


@on_method((type(np.prod), "__call__"))
def dispatched_call(s: Session, fn, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = fn.pin(s)
    if real not in _PURE:
        raise Unsupported(f"call of numpy.{real.__name__}", kind="numpy",
                          hint="use torch, or call it outside the compiled function")
    return _call(s, real, args, kwargs)
