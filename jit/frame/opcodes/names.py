"""Locals, cells, globals, attributes and imports."""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING

from ...errors import Unsupported
from ...runtime import facts
from .. import source as src
from ..cpython import NULL_FIRST
from ..executor import NULL, op
from ..values.base import Raised, lookup
from ..values.constant import Constant
from ..values.mappings import DictValue
from ..values.functions import BuiltinValue, CellValue, PyModuleValue, SuperValue

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


def unbound(f: Frame, name: str, free: bool = False) -> Raised:
    text = (f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope" if free
            else f"cannot access local variable '{name}' where it is not associated with a value")
    return Raised(f.s.exception((NameError if free else UnboundLocalError)(text)))


@op("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(f: Frame, i: Instr) -> None:
    if i.arg in f.cells:
        f.push(f.cells[i.arg])
        return
    value = f.locals.get(i.arg)
    if value is None:
        raise unbound(f, i.arg)
    f.push(value)


@op("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(f: Frame, i: Instr) -> None:
    f.push(f.cells.pop(i.arg) if i.arg in f.cells else f.locals.pop(i.arg, NULL))


@op("STORE_FAST")
def store_fast(f: Frame, i: Instr) -> None:
    value = f.pop()
    if value.is_cell:
        f.cells[i.arg] = value
    elif value is NULL:
        f.locals.pop(i.arg, None)
        f.cells.pop(i.arg, None)
    else:
        let_go(f.locals.get(i.arg))
        f.cells.pop(i.arg, None)
        f.locals[i.arg] = value


@op("DELETE_FAST")
def delete_fast(f: Frame, i: Instr) -> None:
    if i.arg not in f.locals:
        raise unbound(f, i.arg)
    let_go(f.locals[i.arg])
    del f.locals[i.arg]


def let_go(value: Value | None) -> None:
    """A variable lets go of a real object. That may be the end of it: a finalizer of the program's then runs here and
    not at the end of the region."""
    if (value is not None and value.is_object and value.obj is not None and value.source is not None
        and not value.source.watched):
        if isinstance(lookup(type(value.obj), "__del__")[1], types.FunctionType):
            raise Unsupported(f"{value.describe()}, which has a finalizer, is let go of", kind="finalizer")


@op("MAKE_CELL")
def make_cell(f: Frame, i: Instr) -> None:
    value = f.locals.pop(i.arg, None)
    f.cells[i.arg] = CellValue(CellValue.UNSET if value is None else value)


@op("LOAD_CLOSURE")
def load_closure(f: Frame, i: Instr) -> None:
    f.push(f.cells[i.arg])


@op("LOAD_DEREF")
def load_deref(f: Frame, i: Instr) -> None:
    value = f.cells[i.arg].get(f.s)
    if value is None:
        raise unbound(f, i.arg, free=i.arg in f.fn.code.co_freevars)
    f.push(value)


@op("STORE_DEREF")
def store_deref(f: Frame, i: Instr) -> None:
    f.cells[i.arg].set(f.s, f.pop())


@op("DELETE_DEREF")
def delete_deref(f: Frame, i: Instr) -> None:
    if f.cells[i.arg].get(f.s) is None:
        raise unbound(f, i.arg, free=i.arg in f.fn.code.co_freevars)
    f.cells[i.arg].set(f.s, None)


def class_name(f: Frame, name: str) -> Value | None:
    """A name that the class body has assigned, or None."""
    entry = f.names.entries.get(name) if f.names is not None else None
    return None if entry is None else entry[1]


@op("LOAD_NAME")
def load_name(f: Frame, i: Instr) -> None:
    value = class_name(f, i.arg) or f.s.lookups.load_name(f.globals, i.arg)
    if value is None:
        raise Raised(f.s.exception(NameError(f"name '{i.arg}' is not defined")))
    f.push(value)


@op("STORE_NAME")
def store_name(f: Frame, i: Instr) -> None:
    f.names.plain_setitem(f.s, Constant(i.arg), f.pop())


@op("DELETE_NAME")
def delete_name(f: Frame, i: Instr) -> None:
    if class_name(f, i.arg) is None:
        raise Raised(f.s.exception(NameError(f"name '{i.arg}' is not defined")))
    f.names.plain_delitem(f.s, Constant(i.arg))


@op("LOAD_LOCALS")
def load_locals(f: Frame, i: Instr) -> None:
    if f.names is None:
        raise Unsupported("bytecode instruction LOAD_LOCALS outside of a class body", kind="opcode")
    f.push(f.names)


@op("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
def load_classderef(f: Frame, i: Instr) -> None:
    if i.op == "LOAD_FROM_DICT_OR_DEREF":
        f.pop()
    value = class_name(f, i.arg)
    if value is None:
        load_deref(f, i)
    else:
        f.push(value)


@op("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(f: Frame, i: Instr) -> None:
    f.pop()
    load_name(f, i)


@op("SETUP_ANNOTATIONS")
def setup_annotations(f: Frame, i: Instr) -> None:
    if class_name(f, "__annotations__") is None:
        f.names.plain_setitem(f.s, Constant("__annotations__"), DictValue({}))


@op("LOAD_GLOBAL")
def load_global(f: Frame, i: Instr) -> None:
    value = f.s.lookups.load_name(f.globals, i.arg)
    if value is None:
        raise Raised(f.s.exception(NameError(f"name '{i.arg}' is not defined")))
    f.push(value)


@op("STORE_GLOBAL")
def store_global(f: Frame, i: Instr) -> None:
    f.s.lookups.store_global(f.globals, i.arg, f.pop())


@op("DELETE_GLOBAL")
def delete_global(f: Frame, i: Instr) -> None:
    if f.s.lookups.load_global(f.globals, i.arg) is None:
        raise Raised(f.s.exception(NameError(f"name '{i.arg}' is not defined")))
    f.s.lookups.delete_global(f.globals, i.arg)


@op("LOAD_ATTR")
def load_attr(f: Frame, i: Instr) -> None:
    f.push(f.pop().getattr(f.s, i.arg))


def push_callable(f: Frame, value: Value) -> None:
    """What CALL takes for a callable without a self."""
    for v in (NULL, value) if NULL_FIRST else (value, NULL):
        f.push(v)


@op("LOAD_METHOD")
def load_method(f: Frame, i: Instr) -> None:
    push_callable(f, f.pop().getattr(f.s, i.arg))


@op("STORE_ATTR")
def store_attr(f: Frame, i: Instr) -> None:
    obj, value = f.pop(), f.pop()
    obj.setattr(f.s, i.arg, value)


@op("DELETE_ATTR")
def delete_attr(f: Frame, i: Instr) -> None:
    f.pop().delattr(f.s, i.arg)


@op("LOAD_SUPER_ATTR")
def load_super_attr(f: Frame, i: Instr) -> None:
    name, is_method, two_args = i.arg
    owner, cls, factory = f.pop(), f.pop(), f.pop()
    if factory.as_class is super:
        value = SuperValue(cls.const(f.s), owner).getattr(f.s, name)
    else:
        value = factory.call(f.s, [cls, owner] if two_args else [], {}).getattr(f.s, name)
    if is_method:
        push_callable(f, value)
    else:
        f.push(value)


@op("IMPORT_NAME")
def import_name(f: Frame, i: Instr) -> None:
    fromlist, level = f.pop().const(f.s), f.pop().const(f.s)
    package = f.globals.get("__package__") or f.globals.get("__name__", "")
    if level:
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - level + 1])
        full = f"{base}.{i.arg}" if i.arg else base
    else:
        full = i.arg
    module = sys.modules.get(full)
    if module is None:
        raise Unsupported(f"import of {full}, which is not loaded yet",
                          kind="import", hint="import it at the top of the file")
    for name in fromlist or ():
        if name != "*" and not hasattr(module, name) and f"{full}.{name}" not in sys.modules:
            raise Unsupported(f"import of {full}.{name}, which is not loaded yet", kind="import")
    loaded(f.s, full)
    f.push(loaded(f.s, full if fromlist or level else full.split(".")[0]))


_MODULES = src.Const(sys.modules, "sys.modules")


def loaded(s: Session, name: str) -> Value:
    """A module that was imported, guarded to be the one under its name."""
    module = sys.modules[name]
    s.guards.add(src.Item(_MODULES, name), facts.identity(module))
    return s.wrap(module, src.Const(module, name))


@op("IMPORT_FROM")
def import_from(f: Frame, i: Instr) -> None:
    module = f.stack[-1]
    try:
        f.push(module.getattr(f.s, i.arg))
    except Raised:
        if not isinstance(module, PyModuleValue):
            raise Unsupported("import from an object that is not a module", kind="import") from None
        full = f"{module.module.__name__}.{i.arg}"
        if full not in sys.modules:
            f.s.guards.add(_MODULES, facts.DictLacks(full))
            raise Raised(f.s.exception(ImportError(
                f"cannot import name {i.arg!r} from {module.module.__name__!r}"))) from None
        f.push(loaded(f.s, full))


@op("LOAD_ASSERTION_ERROR")
def load_assertion_error(f: Frame, i: Instr) -> None:
    f.push(f.s.wrap_class(AssertionError))


@op("LOAD_BUILD_CLASS")
def load_build_class(f: Frame, i: Instr) -> None:
    f.push(BuiltinValue(builtins.__build_class__))
