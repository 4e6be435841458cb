"""Calls and function objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ...errors import Unsupported
from ..executor import NULL, op
from ..values.base import Raised
from ..values.mappings import DictValue, Unpacked, mapping_items
from ..values.functions import FunctionValue, MethodValue, SuperValue
from ..values.generators import no_stop_iteration
from ..values.objects import ObjectValue

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


@op("CALL")
def call(f: Frame, i: Instr) -> None:
    total, names = i.arg
    values = f.popn(total)
    kwargs = dict(zip(names, values[total - len(names):])) if names else {}
    args = values[: total - len(names)]
    f.push(invoke(f, *called(f, args), kwargs))


def called(f: Frame, args: list[Value]) -> tuple[Value, list[Value]]:
    """The callable and the arguments of a call, from the two slots below these: a callable and NULL, in the order of
    the running CPython, or a method and its self."""
    second, first = f.pop(), f.pop()
    if first is NULL:
        return second, args
    return first, args if second is NULL else [second, *args]


def invoke(f: Frame, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if callee.as_class is super and not args:
        return zero_argument_super(f)
    if f.spliceable:
        return call_directly(f.s, callee, args, kwargs)
    return callee.call(f.s, args, kwargs)


def call_directly(s: Session, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call whose result is the result of the Python function that it enters: a break in there can be resumed in
    there."""
    if type(callee).call is ObjectValue.call:
        function = s.function_of_class(callee.pytype(s), "__call__")
        if function is not None:
            callee = s.bound_method(function, callee)
    while type(callee) is MethodValue:
        args = [callee.owner, *args]
        callee = callee.fn
    if type(callee) is FunctionValue:
        callee.pin(s)
        return s.calls.call_function(callee, args, kwargs, direct=True)
    return callee.call(s, args, kwargs)


def zero_argument_super(f: Frame) -> Value:
    """``super()``: the ``__class__`` cell and the first argument of the frame."""
    cell = f.cells.get("__class__")
    code = f.fn.code
    if cell is None or not code.co_argcount:
        raise Raised(f.s.exception(RuntimeError("super(): no arguments" if not code.co_argcount
                                                else "super(): __class__ cell not found")))
    name = code.co_varnames[0]
    owner = f.cells[name].get(f.s) if name in f.cells else f.locals.get(name)
    return SuperValue(cell.get(f.s).const(f.s), owner)


@op("CALL_FUNCTION_EX")
def call_function_ex(f: Frame, i: Instr) -> None:
    kwargs: dict[str, Value] = Unpacked() if i.arg else {}
    if i.arg:
        for key, value in mapping_items(f.s, f.pop()):
            name = key.const(f.s)
            if not isinstance(name, str):
                raise Raised(f.s.exception(TypeError("keywords must be strings")))
            kwargs[name] = value
    packed = f.pop()
    if not packed.has_slot(f.s, "__iter__"):
        raise Unsupported(f"{packed.describe()} stands after * in a call", kind="argument-error")
    f.push(invoke(f, *called(f, packed.listed(f.s)), kwargs))


@op("MAKE_FUNCTION")
def make_function(f: Frame, i: Instr) -> None:
    code = f.pop().const(f.s)
    parts = {name: f.pop() for name in reversed(i.arg)}
    annotations = parts.get("annotations")
    if annotations is not None and annotations.builtin is tuple:
        flat = annotations.load(f.s)
        annotations = DictValue({k.const(f.s): (k, v) for k, v in zip(flat[::2], flat[1::2])})
    made = FunctionValue(None, None, code=code, globals=f.globals, defaults=parts.get("defaults"),
                         kwdefaults=parts.get("kwdefaults"),
                         closure=tuple(parts["closure"].load(f.s)) if "closure" in parts else (),
                         annotations=annotations)
    if "annotate" in parts:
        made.attrs["__annotate__"] = parts["annotate"]
    f.push(made)


@op("CALL_INTRINSIC_1")
def call_intrinsic_1(f, i) -> None:
    if i.arg == "STOPITERATION_ERROR":
        f.push(no_stop_iteration(f.s, f.fn.code, f.pop()))
    elif i.arg == "IMPORT_STAR":
        raise Unsupported("import * is used in a function", kind="import")
    else:
        raise Unsupported(f"the interpreter's function {i.arg} is not supported", kind="opcode")


@op("CALL_INTRINSIC_2")
def call_intrinsic_2(f, i) -> NoReturn:
    raise Unsupported(f"the interpreter's function {i.arg} is not supported", kind="opcode")
