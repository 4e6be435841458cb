"""Functions that a program calls to talk to the compiler, and decorators that say how a function is captured; what they
mean in captured code is in ``library/interpreter.py`` and ``library/compiler_control.py``."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Callable, TypeVar, overload

from . import marks, tables

_F = TypeVar("_F")


def is_compiling() -> bool:
    """True inside captured code, False in eager."""
    return False


is_dynamo_compiling = is_compiling  # the name that libraries know it by


def graph_break(msg: str = "") -> None:
    """End the captured region here; nothing in eager."""


def cudagraph_mark_step_begin() -> None:
    """Nothing: results of recorded CUDA graphs stay the caller's, and no call takes back those of an earlier one."""


def assume_constant_result(fn: _F) -> _F:
    """Mark a Python function whose result, for constant arguments, is taken to be what it is while its caller is
    compiled: it is called then, and no more. Usable as a decorator."""
    marks.put(fn, marks.CONSTANT)
    return fn


def allow_in_graph(fn: _F) -> _F:
    """Mark a function, or each of a list, that belongs into the graph: where its bytecode cannot be followed, it is run
    once, while its caller is compiled, on stand-ins for tensors that record what is done with them. What else it does,
    it does then, and not at each call. Usable as a decorator.

    Raises:
        TypeError: for what is not callable.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(one) for one in fn]
    if not callable(fn):
        raise TypeError(f"jit.allow_in_graph takes a function, not {type(fn).__name__}")
    if isinstance(fn, types.FunctionType):
        marks.put(fn, marks.IN_GRAPH)
    else:
        tables.in_graph.add(fn)
    return fn


def substitute_in_graph(original: Callable, *, can_constant_fold_through: bool = False,
                        skip_signature_check: bool = False) -> Callable[[_F], _F]:
    """A decorator for a Python function that is followed wherever captured code calls ``original``, usually a function
    in C that the compiler does not know, and does the same.

    Args:
        original: the callable that programs call.
        can_constant_fold_through: call ``original`` itself where all its arguments are constants.
        skip_signature_check: take one with other parameters too.

    Raises:
        TypeError: where one of the two is not callable, or their parameters differ.
        ValueError: where one has been given already.
    """
    if not callable(original):
        raise TypeError(f"jit.substitute_in_graph takes a function, not {type(original).__name__}")
    if original in tables.substitutes:
        raise ValueError(f"{original!r} has a substitute already: {tables.substitutes[original]!r}")

    def substitute(fn: Callable) -> Callable:
        if not isinstance(fn, types.FunctionType):
            raise TypeError(f"a substitute is a Python function, not {type(fn).__name__}")
        if not skip_signature_check and not _same_parameters(original, fn):
            raise TypeError(f"{fn.__qualname__}{inspect.signature(fn)} does not take what {original!r} takes: "
                            f"{inspect.signature(original)}")
        tables.substitutes[original] = fn
        if can_constant_fold_through:
            tables.pure.add(original)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        return call

    return substitute


def _same_parameters(original: Callable, fn: Callable) -> bool:
    """Whether two callables take the same, or that is not known of the first."""
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):  # of C, without one
        return True
    both = [[(p.kind, p.default, p.name if p.kind is not p.POSITIONAL_ONLY else "")
             for p in signature.parameters.values()] for signature in (wanted, inspect.signature(fn))]
    return both[0] == both[1]


@overload
def nested_compile_region(fn: None = None) -> Callable[[_F], _F]: ...


@overload
def nested_compile_region(fn: _F) -> _F: ...


def nested_compile_region(fn: Any = None) -> Any:
    """Mark a function that is called many times in one graph, such as a layer's. It is captured at each call, and its
    kernels, which have the same text each time, are compiled once. Usable as a decorator."""
    return nested_compile_region if fn is None else fn
