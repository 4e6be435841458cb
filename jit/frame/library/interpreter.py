"""What a program asks of the interpreter itself: frames, the exception being handled, functions made from code."""

from __future__ import annotations

import _thread
import functools
import inspect
import sys
import traceback
import types
from typing import TYPE_CHECKING, NoReturn

from ... import turns
from ...errors import Unsupported
from ..markers import graph_break, is_compiling
from ..tables import on_call, on_code, on_descriptor, on_function
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.mappings import DictValue
from ..values.functions import FunctionValue
from ..values.objects import TracebackValue

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..values.base import Value


@on_call(sys._getframe)
@on_function(inspect.currentframe, inspect.stack, traceback.extract_stack,
             traceback.format_stack, traceback.print_stack)
def frame_inspection(s: Session, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    raise Unsupported("the interpreter's frames are inspected", kind="frame-inspection",
                      hint="do it outside the compiled function")


@on_call(sys.exc_info)
def exc_info(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    error = s.current_exception[-1] if s.current_exception else None
    if error is None:
        return TupleValue([Constant(None)] * 3)
    return TupleValue([s.wrap_class(error.cls), error, TracebackValue(error)])


if hasattr(sys, "exception"):
    @on_call(sys.exception)
    def exception_(s: Session, args: list[Value], kwargs: dict[str, Value]):
        error = s.current_exception[-1] if s.current_exception else None
        return Constant(None) if error is None else error


class ThreadNumber(Constant):
    """``threading.get_ident()``: a number for as long as the captured code runs; what leaves is asked for again."""

    def emit(self, e: Emitter) -> None:
        e.call_const(_thread.get_ident, [])


@on_call(_thread.get_ident)
def get_ident(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    turns.only_in_call("the number of the thread is asked for")
    return ThreadNumber(_thread.get_ident())


@on_call(locals)
def locals_(s: Session, args: list[Value], kwargs: dict[str, Value]):
    """The dict of the frame's variables: one object per frame, brought up to date by each call."""
    frame = s.frames[-1]
    code = frame.fn.code
    entries = {}
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name in entries:
            continue
        value = frame.cells[name].get(s) if name in frame.cells else frame.locals.get(name)
        if value is not None:
            entries[name] = (Constant(name), value)
    if frame.namespace is None:
        s.set_field(frame, "namespace", DictValue({}))
    kept = {k: v for k, v in frame.namespace.entries.items()
            if k not in code.co_varnames + code.co_cellvars + code.co_freevars}
    frame.namespace.replace(s, {**kept, **entries} if not kept else {**frame.namespace.entries, **entries})
    return frame.namespace


@on_call(types.FunctionType)
def function_type(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("code", "globals", "name", "argdefs", "closure")
    given = {**dict(zip(names, args)), **kwargs}
    namespace = s.lookups.plain_namespace(given["globals"])
    closure, defaults = (given.get(name, Constant(None)) for name in ("closure", "argdefs"))
    name = given.get("name")
    code = given["code"].const(s)
    made = FunctionValue(code=code, globals=namespace,
                         closure=tuple(closure.load(s)) if closure.builtin is tuple else (),
                         defaults=defaults if defaults.builtin is tuple else None)
    if name is not None and name.const(s) not in (None, code.co_name):
        made.attrs["__name__"] = name
    return made


@on_function(is_compiling)
def is_compiling_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    return Constant(True)


@on_function(graph_break)
def graph_break_(s: Session, args: list[Value], kwargs: dict[str, Value]) -> None:
    text = args[0] if args else kwargs.get("msg", Constant(""))
    said = text.const(s)
    raise Unsupported("jit.graph_break() was called" + (f": {said}" if said else ""), kind="graph-break")


_DISPATCH = functools.singledispatch(lambda x: x).dispatch.__code__


@on_code(_DISPATCH)
def singledispatch_impl(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``dispatch(cls)`` of a ``functools.singledispatch`` function: what its registry says now."""
    cells = dict(zip(fn.code.co_freevars, fn.cells(s)))
    token = cells["cache_token"].get(s)
    if not token.is_nothing(s):
        raise Unsupported("a functools.singledispatch function has an implementation for an abstract class",
                          kind="singledispatch")
    token.const(s)
    registry = cells["registry"].get(s)
    for key, value in registry.load(s).values():
        key.const(s)
        if value.is_function:
            value.pin(s)
    return s.wrap_raw(fn.obj(args[0].const(s)))


@on_descriptor(functools.singledispatchmethod)
def single_dispatch_method(s: Session, owner, raw, name: str, cls: type) -> NoReturn:
    raise Unsupported("a functools.singledispatchmethod is called", kind="singledispatch")

