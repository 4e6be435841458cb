"""What programs say to a compiler: our functions, and those of ``torch.compiler`` and ``torch._dynamo``, of which
docs/torch_compile.md has the whole list."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from ... import torch_private
from ...errors import Unsupported
from ...runtime import native
from .. import marks
from ..markers import cudagraph_mark_step_begin
from ..tables import on_function, on_mark, on_name
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue


def _closed_over(s: Session, fn: FunctionValue, name: str) -> Value:
    """What a closure of PyTorch's has in a cell."""
    return dict(zip(fn.code.co_freevars, fn.cells(s)))[name].get(s)


# -- functions that are left alone --------------------------------------------------------------------------------


def _left_alone(fn: FunctionValue, by: str, reason: object) -> NoReturn:
    raise Unsupported(f"call of {fn.obj.__qualname__}, which is disabled" + (f": {reason}" if reason else ""),
                      f"take {by} off it, or call it before or after the compiled function, if the break costs too "
                      "much",
                      kind="disabled")


@on_mark(marks.DISABLED)
def disabled(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    _left_alone(fn, "jit.disable", fn.obj.__dict__.get(marks.REASON))


@on_name(torch_private.TORCH_HIDDEN)
def hidden_from_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.compiler.disable``. What PyTorch so hides of its own from its compiler is followed."""
    if fn.obj is None or (fn.obj.__module__ or "").startswith("torch."):
        return _closed_over(s, fn, "fn").call(s, args, kwargs)
    native().quiet_code(fn.code)  # all that it calls is left alone too
    _left_alone(fn, "torch.compiler.disable", fn.obj.__dict__.get(torch_private.TORCH_REASON))


@on_name(torch_private.TORCH_LEFT_ALONE)
def left_alone_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    """``torch.compiler.disable(recursive=False)``: the function, and not what it calls."""
    inner = _closed_over(s, fn, "fn")
    if fn.obj is None:  # the program has marked it in this very call
        return inner.call(s, args, kwargs)
    if inner.is_function:
        native().skip_code(inner.code)
    _left_alone(fn, "torch.compiler.disable", fn.obj.__dict__.get(torch_private.TORCH_REASON))


@on_mark(torch_private.TORCH_DISABLED)
def skipped_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    native().skip_code(fn.code)
    _left_alone(fn, "torch.compiler.disable", fn.obj.__dict__.get(torch_private.TORCH_REASON))


@on_name(torch_private.TORCH_LEAF)
def leaf_of_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    native().quiet_code(fn.code)
    _left_alone(fn, "torch._dynamo.decorators.leaf_function", None)


@on_mark(torch_private.TORCH_FORBIDDEN)
def forbidden_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    native().skip_code(fn.code)
    _left_alone(fn, "torch._dynamo.forbid_in_graph", None)


# -- functions that are followed in their own way -----------------------------------------------------------------


@on_mark(marks.CONSTANT, torch_private.MARKED_CONSTANT)
def constant_result(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.fold(fn.obj, args, kwargs)


@on_name(torch_private.TORCH_COMPILED)
def compiled_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function that ``torch.compile`` has compiled too: what it was given is followed, in our graph."""
    return _closed_over(s, fn, "fn").call(s, args, kwargs)


@on_name(torch_private.TORCH_MODULE_CALL)
def module_compiled_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A module around the one that ``torch.compile`` was given: as any other module."""
    return s.wrap_raw(torch.nn.Module.__call__).call(s, args, kwargs)


@on_name(torch_private.TORCH_REGION)
def nested_region(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.compiler.nested_compile_region``: the function. Kernels of the same text are compiled once."""
    return args[0].call(s, args[1:], kwargs)


@on_name(torch_private.TORCH_NOTED_INIT, torch_private.TORCH_NOTED_STATE)
def noted_by_torch(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Module.__init__`` and ``__setstate__`` once torch.compile has been used: PyTorch's own, behind which the module
    is noted in a table by weak references, from which its compiler tells modules that compiled code has made. That
    table is none of the program's."""
    return _closed_over(s, fn, "init" if "init" in fn.code.co_freevars else "setstate").call(s, args, kwargs)


# -- calls that are steps of no graph -----------------------------------------------------------------------------


@on_function(torch.compiler.cudagraph_mark_step_begin, cudagraph_mark_step_begin)
def mark_step(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    """Results of our CUDA graphs are the caller's: there are no steps."""
    return Constant(None)


@on_name(*torch_private.TORCH_BREAKS)
def torch_break(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    """The program's own. PyTorch, whose optimizers ask so for smaller graphs of its compiler, is not heeded."""
    if s.frames and str(s.frames[-1].globals.get("__name__")).startswith("torch."):
        return Constant(None)
    text = args[0] if args else kwargs.get("msg", Constant(""))
    said = text.const(s)
    raise Unsupported(f"torch._dynamo.{fn.code.co_name}() was called" + (f": {said}" if said else ""),
                      f"remove the call of torch._dynamo.{fn.code.co_name}()", kind="graph-break")


@on_name(*torch_private.TORCH_FOLLOWED)
def torch_mark(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A mark on a tensor is an attribute of it."""
    return s.inline(fn, args, kwargs)


@on_function(torch.compile, *(getattr(torch.compiler, name) for name in (
    "compile", "disable", "reset", "allow_in_graph", "substitute_in_graph", "list_backends", "set_default_backend",
    "get_default_backend", "save_cache_artifacts", "load_cache_artifacts", "load_compiled_function",
    "nested_compile_region") if hasattr(torch.compiler, name)))
@on_name(*torch_private.TORCH_CONTROL)
@on_name(*(("jit.api", name) for name in ("compile", "compile_in_place", "disable", "explain", "verify", "reset")))
def control(s: Session, *call: object) -> NoReturn:
    raise Unsupported("control of a compiler inside a captured region", kind="forbidden-call")
