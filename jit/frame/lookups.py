"""Names that are looked up: attributes along the bases of a class, and globals. What is found, or that nothing is,
becomes a fact where it is; what the program has assigned itself comes first."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING

import torch

from ..errors import Unsupported
from ..graph.journal import ABSENT
from ..runtime import facts
from . import source as src
from .values.base import IMMUTABLE_TYPE, Value, lookup
from .values.constant import Constant
from .values.functions import MethodValue

if TYPE_CHECKING:
    from .session import Session

_mro_of = type.__dict__["__mro__"].__get__  # whatever a metaclass makes of the name


class Lookups:
    """Of one capture."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self._relied_on: dict[tuple[int, str], tuple] = {}  # (class, name) -> what was found and is guarded
        self._namespaces: dict[int, src.Const] = {}
        self._globals: dict[tuple[int, str], src.Item] = {}

    def close(self) -> None:
        for held in (self._relied_on, self._namespaces, self._globals):
            held.clear()

    # -- classes ------------------------------------------------------------------------------------------------------

    def wrap_class_attr(self, cls, name: str) -> Value:
        """The unbound attribute ``name`` along the MRO of ``cls``, guarded by ``class_lookup``."""
        raw = self.class_lookup(cls, name)[1]
        return self._function(raw) or self.s.wrap(raw, src.ClassAttr(src.Const(cls, cls.__qualname__), name))

    def function_of_class(self, cls, name: str) -> Value | None:
        """As ``wrap_class_attr`` where that is a function in Python; None for all else."""
        return self._function(self.class_lookup(cls, name)[1])

    def _function(self, raw: object) -> Value | None:
        return self.s.wrap_raw(raw) if isinstance(raw, types.FunctionType) else None

    def class_lookup(self, cls, name: str):
        """(found, raw, owner) along the MRO; what is found, or its absence, becomes a guard on the class."""
        result = lookup(cls, name)
        if cls.__flags__ & IMMUTABLE_TYPE or id(cls) in self.s.heap.templates:
            return result
        place = id(cls), name
        known = self._relied_on.get(place)
        if known is None or known[0] != result[0] or known[1] is not result[1]:
            source = src.Const(cls, cls.__qualname__)
            if result[0]:
                at, raw = src.ClassAttr(source, name), result[1]
                changes = ((type(raw) in (int, float) or isinstance(raw, torch.Tensor))
                           and self.s.varying.is_replaced(at, raw))
                self.s.guards.add(at, facts.TypeIs(type(raw)) if changes else facts.identity(raw))
            else:
                self.s.guards.add(source, facts.ClassLacks(name))
            self._relied_on[place] = result
        return result

    def inherits(self, cls, target) -> bool:
        """Whether ``target`` is among the bases of a class, which are guarded."""
        mro = _mro_of(cls)
        if not cls.__flags__ & IMMUTABLE_TYPE and id(cls) not in self.s.heap.templates:
            self.s.guards.add(src.Mro(src.Const(cls, cls.__qualname__)), facts.identity(mro))
        return target in mro

    def is_data_descriptor(self, raw) -> bool:
        """Whether what a class has under a name goes before the instance's own; what its type lacks is guarded."""
        return any([self.class_lookup(type(raw), "__set__")[0], self.class_lookup(type(raw), "__delete__")[0]])

    def written_on_class(self, cls, name: str):
        """What the captured code has assigned to ``name`` on the class that a lookup on ``cls`` finds it on, or
        None."""
        for c in cls.__mro__:
            value = self.s.effects.class_written.get((c, name))
            if value is not None or name in c.__dict__:
                return value
        return None

    def bound_method(self, fn, owner) -> MethodValue:
        return MethodValue(fn, owner)

    def bind_static(self, raw, cls):
        """A classmethod or staticmethod that a lookup on ``cls`` has found."""
        fn = self.s.wrap_raw(raw.__func__)
        return fn if isinstance(raw, staticmethod) else self.bound_method(fn, self.s.wrap_class(cls))

    # -- globals ------------------------------------------------------------------------------------------------------

    def load_global(self, namespace: dict, name: str):
        """The global ``name`` in a module's dictionary, or None."""
        written = self.s.effects.globals_written.get((id(namespace), name))
        if written is not None:
            return written if written is not ABSENT else None
        holder = self.s.heap.by_object.get(id(namespace))
        if holder is not None and holder.builtin is dict and holder in self.s.heap.touched:
            return holder.get_constant(self.s, name)
        root = self._namespaces.get(id(namespace))
        if root is None:
            root = self._namespaces[id(namespace)] = src.Const(namespace, namespace.get("__name__", "globals"))
        if name in namespace:
            source = self._globals.get((id(namespace), name))
            if source is None:
                source = self._globals[id(namespace), name] = src.Item(root, name)
            self.s.guards.add_presence(source)
            return self.pinned(self.s.wrap(namespace[name], source))
        self.s.guards.add(root, facts.DictLacks(name))
        return None

    def load_name(self, namespace, name: str):
        """A global or builtin, or None."""
        value = self.load_global(namespace, name)
        if value is None:
            scope = namespace.get("__builtins__", builtins)
            scope = scope.__dict__ if isinstance(scope, types.ModuleType) else scope
            value = self.load_global(scope, name)
        return value

    def pinned(self, value):
        """Guard at once what globals hold as code: functions, classes and modules."""
        if value.is_code:
            value.pin(self.s)
        return value

    def store_global(self, namespace, name: str, value) -> None:
        self.s.set_entry(self.s.effects.globals_written, (id(namespace), name), value)
        self.s.effects.add(dict.__setitem__, [self.globals_value(namespace), Constant(name), value])

    def delete_global(self, namespace, name: str) -> None:
        self.s.set_entry(self.s.effects.globals_written, (id(namespace), name), ABSENT)
        self.s.effects.add(dict.__delitem__, [self.globals_value(namespace), Constant(name)])

    def globals_value(self, namespace):
        return self.s.wrap(namespace, src.Const(namespace, namespace.get("__name__", "globals")))

    def plain_namespace(self, value) -> dict:
        """The real dict behind a value that is used as a function's globals."""
        if value.builtin is dict and value.obj is not None:
            if value.source is not None:
                self.s.guards.add(value.source, facts.identity(value.obj))
            return value.obj
        raise Unsupported("the globals of a function are a dictionary that is made here", kind="rebuild")
