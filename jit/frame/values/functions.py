"""Callables: Python functions and closures, bound methods, classes, builtins, partials, cells, modules and
``super``."""

from __future__ import annotations

import functools
import operator
import types
from typing import TYPE_CHECKING, Any, Callable

from ...errors import Unsupported
from ...runtime import facts
from .. import source as src
from .. import tables
from ..tables import on_class_descriptor, on_descriptor
from ..protocols import same_or_equal
from .base import IMMUTABLE_TYPE, Raised, Value, lookup, type_name
from .constant import Constant
from .descriptors import through_class, through_object
from .objects import ObjectValue
from .overlays import DELETED

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..operators import Binary, Comparison, Unary
    from ..session import Session
    from ..source import Source


class CellValue(Value):
    """A closure cell. ``contents`` is None while it is unset or, with ``real``, not read yet."""

    UNSET = object()
    is_cell = True

    def __init__(self, contents: object = UNSET, real: types.CellType | None = None,
                 source: Source | None = None) -> None:
        self.contents, self.real, self.source = contents, real, source
        self.loaded = real is None

    def pytype(self, s: Session) -> type:
        return types.CellType  # only cells are wrapped so, by where they are found

    def get(self, s: Session) -> Value:
        """The contents, or None when the cell is empty."""
        if not self.loaded:
            try:
                value = self.real.cell_contents
            except ValueError:
                raise Unsupported("an empty closure cell is read", kind="cell") from None
            self.contents = s.wrap(value, src.CellContents(self.source) if self.source is not None else None)
            self.loaded = True
        return None if self.contents is CellValue.UNSET else self.contents

    def set(self, s: Session, value: Value | None) -> None:
        s.set_field(self, "contents", CellValue.UNSET if value is None else value)
        s.set_field(self, "loaded", True)
        if self.real is not None:
            if value is None:
                raise Unsupported("a cell from outside is emptied", kind="cell")
            if not self.source.watched:
                for other in list(s.heap.by_object.values()):
                    if other.is_cell and other is not self and other.source is not None and not other.source.watched:
                        s.guards.add(self.source, facts.Distinct(other.source))
            s.effect(setattr, [self, Constant("cell_contents"), value])

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.real)) if self.real is not None else ("value", id(self))

    def getattr(self, s: Session, name: str) -> Value:
        if name == "cell_contents":
            value = self.get(s)
            if value is None:
                raise Raised(s.exception(ValueError("Cell is empty")))
            return value
        return super().getattr(s, name)

    def emit(self, e: Emitter) -> None:
        if self.real is not None:
            e.load_source_or_const(self, self.real)
        else:
            e.build_cell(self)


class FunctionValue(ObjectValue):
    """A Python function: a real one, or one made by MAKE_FUNCTION while capturing (``obj`` is None)."""

    is_function = is_code = fills_cells = True

    def __init__(self, fn: Callable | None = None, source: Source | None = None, *, code: types.CodeType | None = None,
                 globals: dict[str, object] | None = None, defaults: Value | None = None,
                 kwdefaults: Value | None = None, closure: tuple[Value, ...] = (), qualname: str | None = None,
                 annotations: Value | None = None) -> None:
        super().__init__(types.FunctionType, fn, source)
        self.code = fn.__code__ if fn is not None else code
        self.globals = fn.__globals__ if fn is not None else globals
        self.qualname = fn.__qualname__ if fn is not None else qualname or code.co_qualname
        self._defaults, self._kwdefaults, self._closure, self.annotations = defaults, kwdefaults, closure, annotations

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(types.FunctionType))
        return types.FunctionType

    def pin(self, s: Session) -> Callable | None:
        """Guard what the function does: which object it is, or, for a nested function given as an argument, its
        code."""
        if self.source is None:
            return self.obj
        if self.by_structure:
            s.guards.add(self.source, facts.TypeIs(types.FunctionType))
            s.guards.add(src.FunctionField(self.source, "code"), facts.identity(self.code))
            s.guards.add(src.GetAttr(self.source, "__globals__"), facts.identity(self.globals))
        else:
            s.guards.pin(self.source, self.obj)
            s.guards.pin(self.code_place, self.code)
        return self.obj

    @functools.cached_property
    def code_place(self) -> Source:
        """Where the code of this very function is."""
        return src.FunctionField(src.Const(self.obj), "code")

    @property
    def by_structure(self) -> bool:
        return self.source is not None and not self.source.watched and "<locals>" in self.qualname

    def pin_object(self, s: Session) -> Callable:
        """Guard which object it is."""
        if self.source is not None:
            s.guards.pin(self.source, self.obj)
        return self.obj

    def root(self) -> Source:
        return (self.source if self.by_structure or type(self.source) is src.Const
                else src.Const(self.obj, self.qualname))

    def field_value(self, s: Session, field: str) -> Value | None:
        """``__defaults__`` or ``__kwdefaults__`` as a value or None."""
        attr = {"defaults": "__defaults__", "kwdefaults": "__kwdefaults__"}[field]
        if attr in self.attrs:
            return self.attrs[attr]
        if self.obj is None:
            return self._defaults if field == "defaults" else self._kwdefaults
        real = getattr(self.obj, attr)
        source = src.FunctionField(self.root(), field)
        if real is None:
            s.guards.add(source, facts.identity(None))
            return None
        return s.wrap(real, source)

    def cells(self, s: Session) -> tuple:
        if self.obj is None:
            return self._closure
        return tuple(s.wrap_cell(c, src.ClosureCell(self.root(), i)) for i, c in enumerate(self.obj.__closure__ or ()))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.pin(s)
        return s.calls.call_function(self, args, kwargs)

    def getattr(self, s: Session, name: str) -> Value:
        self.pin(s)
        if self.attrs.get(name) is DELETED:
            raise Raised(s.exception(AttributeError(f"'function' object has no attribute '{name}'", name=name)))
        if name in self.attrs:
            return self.attrs[name]
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            if self.obj is not None:
                return s.wrap(getattr(self.obj, name), src.GetAttr(self.root(), name))
            plain = {"__name__": self.code.co_name, "__qualname__": self.qualname,
                     "__module__": self.globals.get("__name__"),
                     "__doc__": self.code.co_consts[0] if self.code.co_consts
                     and isinstance(self.code.co_consts[0], str) else None}
            return Constant(plain[name])
        if name == "__code__":
            return Constant(self.code)
        if name == "__defaults__":
            return self.field_value(s, "defaults") or Constant(None)
        if name == "__kwdefaults__":
            return self.field_value(s, "kwdefaults") or Constant(None)
        if name == "__closure__":
            cells = self.cells(s)
            return s.tuple_of(cells) if cells else Constant(None)
        if name == "__globals__":
            return s.lookups.globals_value(self.globals)
        if name == "__get__":
            return FunctionGet(self)
        if name == "__call__":
            return self
        if name == "__annotations__" and self.obj is not None:
            return s.wrap(self.obj.__annotations__, src.GetAttr(self.root(), name))
        if name == "__annotations__":
            if self.annotations is None:
                annotate = self.attrs.get("__annotate__", Constant(None))
                made = s.dict_of({}) if annotate.is_nothing(s) else annotate.call(s, [Constant(1)], {})
                s.set_field(self, "annotations", made)
            return self.annotations
        if name == "__dict__":
            return s.instance_dict(self)
        if name == "__type_params__" and hasattr(types.FunctionType, name):
            if self.obj is None:
                return Constant(())
            return s.wrap(self.obj.__type_params__, src.GetAttr(self.root(), name))
        if name == "__class__":
            return s.wrap_class(types.FunctionType)
        value = self.own_attr(s, name)
        if value is not None:
            return value
        if hasattr(types.FunctionType, name):
            raise Unsupported(f"attribute {name!r} of a function is read", kind="attribute")
        raise Raised(s.exception(AttributeError(f"'function' object has no attribute '{name}'", name=name)))

    def own_attr(self, s: Session, name: str) -> Value | None:
        if self.obj is None:
            return None
        source = src.FunctionField(self.root(), "dict")
        if name not in self.obj.__dict__:
            s.guards.add(source, facts.DictLacks(name))
            return None
        return s.wrap(self.obj.__dict__[name], src.Item(source, name))

    def instance_attr(self, s: Session, name: str) -> Value | None:
        if name in self.attrs:
            return None if self.attrs[name] is DELETED else self.attrs[name]
        return self.own_attr(s, name)

    def dict_names(self, s: Session) -> list:
        names = []
        if self.obj is not None:
            names = list(self.obj.__dict__)
            s.guards.add(src.FunctionField(self.root(), "dict"), facts.DictKeys(tuple(names)))
        return [n for n in self.attrs.names(names) if n not in _NOT_IN_DICT]

    def setattr(self, s: Session, name: str, value: Value) -> None:
        self.pin(s)
        self.attrs.put(s, name, value)
        if self.obj is not None:
            s.effect(setattr, [self, Constant(name), value])

    def delattr(self, s: Session, name: str) -> None:
        if self.getattr(s, name) is None or name in _NOT_IN_DICT:
            raise Unsupported(f"{name!r} of a function is deleted", kind="attribute")
        self.attrs.delete(s, name)
        if self.obj is not None:
            s.effect(delattr, [self, Constant(name)])

    def has_own_dict(self) -> bool:
        return True

    def hash_key(self, s: Session) -> object:
        return self.pin_object(s) if self.obj is not None else ("new", id(self), self)

    def lower(self, s: Session) -> Any:
        if not (getattr(self.obj, "__module__", None) or "").startswith("torch."):
            return super().lower(s)
        return self.pin(s)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            e.build_function(self)

    def describe(self) -> str:
        return f"function {self.qualname}"


class DispatcherValue(ObjectValue):
    """A compiled function that captured code calls: its original is inlined."""

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        wrapped = self.pin(s).__wrapped__
        if isinstance(wrapped, types.MethodType):
            return s.wrap_raw(wrapped.__func__).call(s, [s.wrap(wrapped.__self__, src.Const(wrapped.__self__)), *args],
                                                     kwargs)
        return s.wrap_raw(wrapped).call(s, args, kwargs)

    def getattr(self, s: Session, name: str) -> Value:
        wrapped = self.pin(s).__wrapped__
        if name == "__wrapped__" and not isinstance(wrapped, types.MethodType):
            return s.wrap_raw(wrapped)
        return s.wrap(wrapped, src.Const(wrapped)).getattr(s, name)

    def describe(self) -> str:
        return f"compiled function {self.obj.__qualname__}"


_FRAME_READERS = (locals, vars, dir, eval, exec)
_NOT_IN_DICT = frozenset({"__name__", "__qualname__", "__module__", "__doc__",
                          "__annotations__", "__annotate__", "__defaults__", "__kwdefaults__", "__code__",
                          "__type_params__"})


class FunctionGet(Value):
    """``function.__get__``."""

    def __init__(self, fn: Value) -> None:
        self.fn = fn

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and not args[0].is_nothing(s):
            return s.bound_method(self.fn, args[0])
        if len(args) == 1 or len(args) == 2 and args[1].is_nothing(s):
            raise Raised(s.exception(TypeError("__get__(None, None) is invalid")))
        return self.fn


class MethodValue(Value):
    """A bound method: ``fn(owner, ...)``."""

    def __init__(self, fn: Value, owner: Value, obj: Callable | None = None, source: Source | None = None) -> None:
        self.fn, self.owner, self.obj, self.source = fn, owner, obj, source

    def pytype(self, s: Session) -> type:
        return types.MethodType

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.fn.call(s, [self.owner, *args], kwargs)

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.fn
        if name == "__call__":
            return self
        return self.fn.getattr(s, name)

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if op.equality is None or type(other) is not MethodValue:
            return None
        same = self.owner.identity() == other.owner.identity() and same_or_equal(s, self.fn, other.fn)
        return Constant(same == op.equality)

    def hash_key(self, s: Session) -> object:
        return ("method", self.fn.hash_key(s), self.owner.instance_key(s))

    def emit(self, e: Emitter) -> None:
        if self.source is not None:
            e.load_source(self.source)
        else:
            e.call_const(types.MethodType, [self.fn, self.owner])

    def describe(self) -> str:
        return f"method {self.fn.describe()}"


def names_of(cls) -> tuple:
    return tuple(dir(cls))


_OF_CLASSES = ("__name__", "__qualname__", "__module__", "__doc__", "__mro__",
               "__bases__", "__base__", "__annotations__")


class ClassValue(ObjectValue):
    """A class. Calling it makes an instance by ``__new__`` and ``__init__``, or through a table for classes written in
    C."""

    is_plain = is_code = True

    def __init__(self, cls, source: Source | None = None) -> None:
        super().__init__(type(cls), cls, source)
        self.as_class = cls

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        """Written in C, such as ``int | None``: of constants."""
        other = b if self is a else a
        if other.is_const() or self.has_special(s, op.forward if self is a else op.reflected):
            return s.fold(op.fn, [a, b], {})
        return None

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        return None

    def unary(self, s: Session, op: Unary) -> Value | None:
        return None

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        return s.method_of_constants(op.method, self, other) if other.is_const() else None

    def overrides(self, s: Session, method: str, left: Value) -> bool:
        return False

    def derives(self, s: Session, other: Value) -> bool:
        return False

    def pytype(self, s: Session) -> type:
        self.pin(s)
        return type(self.obj)

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> type:
        return self.pin(s)

    def hash_key(self, s: Session) -> object:
        return self.pin(s)

    def reads_caller(self, count: int | None) -> bool:
        return self.obj is super and not count

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj))

    def getattr(self, s: Session, name: str) -> Value:
        cls = self.pin(s)
        if name == "__class__":
            return s.wrap_class(type(cls))
        if name == "__dict__":
            raise Unsupported(f"the __dict__ of class {cls.__name__} is read", kind="attribute")
        if name in _OF_CLASSES:
            return self.field(s, name)
        meta_found, meta_raw, meta_owner = s.class_lookup(type(cls), name)
        if meta_found and s.lookups.is_data_descriptor(meta_raw):
            return self.bind(s, meta_raw, name)
        written = s.lookups.written_on_class(cls, name)
        if written is not None:
            return written
        found, raw, owner = s.class_lookup(cls, name)
        if found:
            return through_class(s, self, raw, name, cls)
        if meta_found:
            return self.bind(s, meta_raw, name)
        g = s.class_lookup(type(cls), "__getattr__")
        if g[0]:
            return s.bound_method(s.wrap_class_attr(type(cls), "__getattr__"), self).call(s, [Constant(name)], {})
        try:
            getattr(cls, name)
            text = f"type object '{type_name(cls)}' has no attribute '{name}'"
        except AttributeError as error:
            text = str(error)
        raise Raised(s.exception(AttributeError(text, name=name)))

    def slot(self, s: Session, raw: object, name: str) -> Value:
        return s.from_python(getattr(self.obj, name))

    getset = slot

    def field(self, s: Session, name: str) -> Value:
        """What CPython itself keeps of every class."""
        cls = self.obj
        value = getattr(cls, name)
        if name == "__annotations__":
            held = next((n for n in (name, "__annotations_cache__") if cls.__dict__.get(n) is value), None)
            if type(value) is not dict or held is None:
                raise Unsupported(f"the annotations of class {cls.__name__}", kind="attribute")
            return s.wrap(value, src.DictAttr(src.Const(cls, cls.__qualname__), held))
        if cls.__flags__ & IMMUTABLE_TYPE:
            return s.from_python(value)
        if name in ("__module__", "__doc__"):
            s.class_lookup(cls, name)
        elif type(value) is str:
            return Constant(value, src.GetAttr(src.Const(cls, cls.__qualname__), name))
        else:
            s.guards.add(src.GetAttr(src.Const(cls, cls.__qualname__), name), facts.identity(value))
        return s.from_python(value)

    def setattr(self, s: Session, name: str, value: Value) -> None:
        """``cls.name = value`` for plain data; later reads of this capture see it through ``Session.class_written``."""
        cls = self.pin(s)
        if s.class_lookup(type(cls), "__setattr__")[1] is not type.__setattr__ or lookup(type(cls), name)[0]:
            raise Unsupported(f"attribute {name!r} of class {cls.__name__} is set", kind="class-attribute")
        if name.startswith("__") or not value.is_data:
            raise Unsupported(f"attribute {name!r} of class {cls.__name__} is set to {value.describe()}",
                              kind="class-attribute")
        if s.lookups.is_data_descriptor(s.class_lookup(cls, name)[1]):
            raise Unsupported(f"descriptor {name!r} of class {cls.__name__} is replaced", kind="class-attribute")
        s.set_entry(s.effects.class_written, (cls, name), value)
        s.effect(type.__setattr__, [self, Constant(name), value])

    def builtin_method(self, s: Session, raw: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if raw is type.__call__:
            return s.calls.instantiate(self, args, kwargs)
        return super().builtin_method(s, raw, args, kwargs)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cls = self.pin(s)
        handler = tables.calls.get(cls)
        if handler is not None:
            s.calls.guard_kinds(args, kwargs, cls)
            return s.calls.by_table(cls, lambda: handler(s, args, kwargs), args, kwargs)
        meta_call = s.function_of_class(type(cls), "__call__")
        if meta_call is not None:
            return meta_call.call(s, [self, *args], kwargs)
        return s.calls.instantiate(self, args, kwargs)

    def getitem(self, s: Session, key: Value) -> Value:
        if isinstance(key, Value) and key.is_const():
            return s.fold(lambda k: self.obj[k], [key], {})
        made_in_c = type(vars(self.obj).get("__class_getitem__")) is types.ClassMethodDescriptorType
        if made_in_c or self.obj.__module__ == "collections.abc" and hasattr(self.obj, "__class_getitem__"):
            return tables.methods[type, "__class_getitem__"](s, self, [key], {})
        return super().getitem(s, key)

    def iter(self, s: Session) -> Value:
        return s.fold(list, [self], {}).iter(s)

    def contains(self, s: Session, item: Value) -> bool:
        return s.fold(operator.contains, [self, item], {}).truth(s)

    def attribute_names(self, s: Session) -> Value:
        cls = self.pin(s)
        if cls.__flags__ & IMMUTABLE_TYPE:
            return s.fold(dir, [self], {})
        if id(cls) in s.heap.templates:
            return super().attribute_names(s)
        ask = functools.partial(names_of, cls)
        names = ask()
        s.guards.add(src.Returned(src.Const(ask, "dir")), facts.Equals(names))
        return s.from_python(list(names))

    def emit(self, e: Emitter) -> None:
        made = e.session.heap.templates.get(id(self.obj))
        if made is None:
            e.load_known(self, self.obj)
        else:
            made.emit(e)

    def describe(self) -> str:
        return f"class {self.obj.__module__}.{self.obj.__qualname__}"


@on_descriptor(types.ClassMethodDescriptorType)
def builtin_of_type(s: Session, value: Value, raw: types.ClassMethodDescriptorType, name: str, cls: type) -> Value:
    return BuiltinValue(raw.__get__(None, value.pytype(s)))


@on_class_descriptor(types.ClassMethodDescriptorType)
def builtin_of_class(s: Session, value: Value, raw: types.ClassMethodDescriptorType, name: str, cls: type) -> Value:
    return BuiltinValue(raw.__get__(None, value.obj))


@on_class_descriptor(types.MethodDescriptorType, types.WrapperDescriptorType)
def builtin_itself(s: Session, value: Value, raw: object, name: str, cls: type) -> Value:
    return BuiltinValue(raw)


class BuiltinValue(Value):
    """A function implemented in C, or a slot wrapper: looked up in the tables when called."""

    is_code = True

    def __init__(self, fn: object, source: Source | None = None) -> None:
        self.fn, self.source = fn, source

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(type(self.fn)))
        return type(self.fn)

    def pin(self, s: Session) -> object:
        if self.source is not None:
            s.guards.pin(self.source, self.fn)
        return self.fn

    def is_const(self) -> bool:
        return True

    def const(self, s: Session) -> object:
        return self.pin(s)

    def hash_key(self, s: Session) -> object:
        return self.pin(s)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        """Each reading of ``torch.Tensor.shape.__get__`` gives another object, and all are equal."""
        if op.equality is None or type(other) is not BuiltinValue or self.identity() == other.identity():
            return None
        return Constant((self.pin(s) == other.pin(s)) == op.equality)

    def reads_caller(self, count: int | None) -> bool:
        return self.fn in _FRAME_READERS and (count is None or count < (1 if self.fn in (locals, vars, dir) else 2))

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.fn))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return s.calls.call_builtin(self.pin(s), args, kwargs)

    def getattr(self, s: Session, name: str) -> Value:
        try:
            return s.wrap(getattr(self.pin(s), name), src.GetAttr(src.Const(self.fn, owned=self.source is None), name))
        except AttributeError as error:
            raise Raised(s.exception(error)) from None

    def emit(self, e: Emitter) -> None:
        root = src.Const(self.fn, owned=self.source is None)
        if root.reference is None:
            e.load_known(self, self.fn)
        else:
            self.pin(e.session)
            e.load_source(root)

    def describe(self) -> str:
        name = getattr(self.fn, "__qualname__", None) or getattr(self.fn, "__name__", repr(self.fn))
        module = getattr(self.fn, "__module__", None)
        return f"builtin {module + '.' if module else ''}{name}"


class PartialValue(ObjectValue):
    """``functools.partial``."""

    def __init__(self, fn: Value, args: list[Value], kwargs: dict[str, Value], obj=None, source=None) -> None:
        super().__init__(functools.partial, obj, source)
        self.fn, self.args, self.kwargs = fn, args, kwargs

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.pytype(s)
        return self.fn.call(s, [*self.args, *args], {**self.kwargs, **kwargs})

    def getattr(self, s: Session, name: str) -> Value:
        if name == "func":
            return self.fn
        if name == "args":
            return s.tuple_of(self.args)
        if name == "keywords":
            return s.dict_of(self.kwargs)
        return super().getattr(s, name)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            e.call_const(functools.partial, [self.fn, *self.args], self.kwargs)


class PyModuleValue(Value):
    """A Python module: its attributes are its globals."""

    is_code = True

    def __init__(self, module: object, source: Source | None = None) -> None:
        self.module, self.source = module, source

    def pytype(self, s: Session) -> type:
        return type(self.module)

    def pin(self, s: Session) -> object:
        if self.source is not None:
            s.guards.pin(self.source, self.module)
        return self.module

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.module))

    def hash_key(self, s: Session) -> object:
        return self.pin(s)

    def getattr(self, s: Session, name: str) -> Value:
        module = self.pin(s)
        s.guards.add(src.Const(module, module.__name__), facts.TypeIs(type(module)))
        raw = self.property(s, name)
        if raw is not None and name not in ("__dict__", "__class__"):
            known = tables.module_attributes.get(type(raw))
            if known is not None:
                with s.speculate(kinds=("c-call",)):  # else it is asked at each call
                    return known(s, self, raw, name)
            return s.wrap(getattr(module, name), src.GetAttr(src.Const(module, module.__name__), name))
        found = s.lookups.load_global(module.__dict__, name)
        if found is not None:
            return found
        if name == "__dict__":
            return s.lookups.globals_value(module.__dict__)
        try:
            value = getattr(module, name)
        except AttributeError as error:
            raise Raised(s.exception(error)) from None
        return s.wrap(value, src.GetAttr(src.Const(module, module.__name__), name))

    def property(self, s: Session, name: str):
        """The data descriptor that a class of modules has under a name, or None."""
        cls = type(self.module)
        raw = None if cls is types.ModuleType else s.class_lookup(cls, name)[1]
        return raw if raw is not None and s.lookups.is_data_descriptor(raw) else None

    def setattr(self, s: Session, name: str, value: Value) -> None:
        module = self.pin(s)
        raw = self.property(s, name)
        if raw is None:
            s.lookups.store_global(module.__dict__, name, value)
            return
        setter = s.function_of_class(type(raw), "__set__")
        if setter is None:
            raise Unsupported(f"{name!r} of {self.describe()} is set", kind="attribute")
        setter.call(s, [s.wrap_class_attr(type(module), name), self, value], {})

    def const(self, s: Session) -> object:
        return self.pin(s)

    def emit(self, e: Emitter) -> None:
        e.load_known(self, self.module)

    def describe(self) -> str:
        return f"module {self.module.__name__}"


class SuperValue(Value):
    """``super(cls, owner)``; attribute lookup starts after ``cls`` in the MRO of the owner's type."""

    def __init__(self, cls: type, owner: Value) -> None:
        self.cls, self.owner = cls, owner

    def pytype(self, s: Session) -> type:
        return super

    def getattr(self, s: Session, name: str) -> Value:
        owner = self.owner
        as_class = owner.as_class is not None and issubclass(owner.as_class, self.cls)
        start, through = (owner.as_class, through_class) if as_class else (owner.pytype(s), through_object)
        mro = start.__mro__
        s.inherits(start, self.cls)
        for c in mro[mro.index(self.cls) + 1:]:
            raw = s.class_lookup(c, name)[1]  # of one that lacks the name: what one of its own bases has
            if name in c.__dict__:
                return through(s, owner, raw, name, c)
        if name == "__class__":
            return s.wrap_class(super)
        raise Raised(s.exception(AttributeError(f"'super' object has no attribute '{name}'", name=name)))

    def call_special(self, s: Session, name: str, args: list[Value]) -> Value:
        return self.getattr(s, name).call(s, args, {})

    def describe(self) -> str:
        return f"super({self.cls.__name__})"
