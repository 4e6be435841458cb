"""Classes made while capturing, by a class statement or by ``type()`` with three arguments.

The class exists at once, as a template: its namespace holds stand-ins, each of which is known to be the value that the
program put there, so that lookups, instances and ``super()`` work as for any class. If the class or an instance of it
outlives the captured region, the rewritten function makes the real one, anew at each call.
"""

from __future__ import annotations

import abc
import builtins
import types
from typing import TYPE_CHECKING, NoReturn

from ...errors import Unsupported
from ..executor import Frame
from ..tables import on_call
from ..values.base import Value, lookup
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.mappings import DictValue, mapping_items
from ..values.functions import CellValue, ClassValue
from ..values.overlays import DELETED

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session

_METACLASSES = (type, abc.ABCMeta)


class MadeClass(ClassValue):
    """A class made while capturing; ``obj`` is its template."""

    fills_cells = True

    def __init__(self, template: type, bases: list[Value], namespace: dict[str, tuple[Value, ...]]) -> None:
        super().__init__(template)
        self.parts = Constant(template.__name__), TupleValue(bases), DictValue(namespace)

    def emit(self, e: Emitter) -> None:
        e.call_const(type(self.obj), self.parts)
        e.remember(self)
        e.fill_cells(self)


class DescriptorValue(Value):
    """A ``property``, ``classmethod`` or ``staticmethod`` made while capturing."""

    def __init__(self, kind: type, args: list[Value]) -> None:
        self.kind, self.args = kind, list(args)

    def pytype(self, s: Session) -> type:
        return self.kind

    def getattr(self, s: Session, name: str) -> Value:
        fields = ("fget", "fset", "fdel") if self.kind is property else ("__func__",)
        if name in fields:
            at = fields.index(name)
            return self.args[at] if at < len(self.args) else Constant(None)
        if self.kind is property and name in ("getter", "setter", "deleter"):
            return PropertyPart(self, ("getter", "setter", "deleter").index(name))
        return super().getattr(s, name)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.args[0].call(s, args, kwargs) if self.kind is staticmethod else super().call(s, args, kwargs)

    def emit(self, e: Emitter) -> None:
        e.call_const(self.kind, self.args)


class PropertyPart(Value):
    """``prop.setter`` and its kin: a property with one function replaced."""

    def __init__(self, owner: Value, at: int) -> None:
        self.owner, self.at = owner, at

    def pytype(self, s: Session) -> type:
        return types.BuiltinFunctionType

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        parts = (self.owner.args + [Constant(None)] * 3)[:3]
        parts[self.at] = args[0]
        return DescriptorValue(property, parts)


def refuse(why: str) -> NoReturn:
    raise Unsupported(why, kind="class-statement")


def template(s: Session, value: Value) -> object:
    """What stands for a value in the namespace of a template."""
    if value.is_function and value.obj is not None:
        return value.pin_object(s)
    if value.is_const():
        return value.const(s)
    if value.is_function:
        code = value.code
        made = types.FunctionType(code, value.globals, code.co_name, None,
                                  tuple(types.CellType() for _ in code.co_freevars))
        for name, attr in value.attrs.items():
            if attr is not DELETED and attr.is_const():
                setattr(made, name, attr.const(s))
    elif isinstance(value, DescriptorValue):
        made = value.kind(*(template(s, a) for a in value.args))
    else:
        if value.is_object and any(lookup(value.cls, n)[0]
                                   for n in ("__get__", "__set__", "__delete__", "__set_name__")):
            refuse("a descriptor object in a class made while capturing")
        made = types.SimpleNamespace()
    s.heap.templates[id(made)] = value
    s.heap.keep(made)
    return made


def make_class(s: Session, name: str, bases: list, namespace: dict, cell: CellValue | None = None) -> MadeClass:
    """The class of these bases and entries (name -> value). ``cell``: the ``__class__`` cell of its methods."""
    meta = type
    for base in bases:
        if base.as_class is None or type(base.obj) not in _METACLASSES:
            refuse("a class with a metaclass, or with a base that is not a class")
        if lookup(base.obj, "__init_subclass__")[1] is not object.__dict__["__init_subclass__"]:
            refuse("a class whose base has __init_subclass__")
        meta = type(base.obj) if issubclass(type(base.obj), meta) else meta
    plain = {}
    for key, value in namespace.items():
        if key == "__slots__" and value.builtin in (list, tuple):
            plain[key] = tuple(v.const(s) for v in value.items_list(s))
        elif key == "__annotations__":
            plain[key] = {}
        elif key not in ("__classcell__", "__classdictcell__"):  # which type() takes out
            plain[key] = template(s, value)
    real = s.really(meta, name, tuple(b.obj for b in bases), plain)
    made = MadeClass(real, bases, {k: (Constant(k), v) for k, v in namespace.items()})
    s.heap.templates[id(real)] = made
    s.heap.keep(real)
    if cell is not None:
        cell.set(s, made)
    return made


@on_call(builtins.__build_class__)
def class_statement(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    body, name, *bases = args
    if kwargs:
        refuse("a class statement with keyword arguments")
    frame = Frame(s, body, {})
    frame.names = DictValue({})
    cell = frame.run_inlined()
    entries = {k: v for k, (_, v) in frame.names.load(s).items()}
    return make_class(s, name.const(s), bases, entries, cell if cell.is_cell else None)


def class_of_three(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``type(name, bases, namespace)``."""
    if kwargs or len(args) != 3 or args[1].builtin is not tuple:
        refuse("a class made by type()")
    entries = {k.const(s): v for k, v in mapping_items(s, args[2])}
    entries.setdefault("__module__", Constant(s.frames[-1].globals.get("__name__")))
    return make_class(s, args[0].const(s), args[1].items_list(s), entries)


def _descriptor(kind: type) -> None:
    def make(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        names = ("fget", "fset", "fdel", "doc")
        if any(k not in names for k in kwargs) or kind is not property and (kwargs or len(args) != 1):
            refuse(f"{kind.__name__}() with these arguments")
        parts = [*args, *(kwargs.get(n, Constant(None)) for n in names[len(args):])] if kwargs else args
        return DescriptorValue(kind, parts)

    on_call(kind)(make)


for _kind in (property, classmethod, staticmethod):
    _descriptor(_kind)
