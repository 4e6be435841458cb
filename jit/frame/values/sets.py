"""Sets and frozensets, and the views of dicts, which are sets in part."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...errors import Unsupported
from ...runtime import facts
from .. import messages
from .. import source as src
from ..operators import COMPARE
from ..protocols import contains, same_or_equal
from .base import Value
from .c_methods import METHODS, arity
from .constant import Constant
from .iterators import DictIterator, SetIterator

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..operators import Binary, Comparison
    from ..session import Session
    from ..source import Source
from .containers import ContainerValue, TupleValue, all_leaves
from .objects import BuiltinMethod


# Elements that may be known by identity.
_KNOWN = (str, int, float, bytes, type(None), type, torch.dtype, types.FunctionType, types.BuiltinFunctionType,
          types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, torch_private.OpOverload,
          torch_private.OpOverloadPacket)


def copied(table: set | frozenset) -> set | frozenset:
    return table.copy()


def by_method(name: str, table: set | frozenset, keys: list) -> set | frozenset:
    """A new set that a method gives which was given a sequence."""
    return getattr(table, name)(keys)


# Methods in C that change a set, given a key, a set or a list of keys.
_CHANGES = frozenset((set.add, set.discard, set.clear, set.update, set.intersection_update, set.difference_update,
                      set.symmetric_difference_update, set.__ior__, set.__iand__, set.__isub__, set.__ixor__))
# What comes of a sequence is in another order than what comes of a set with the same elements.
_OF_SEQUENCES = {set.__ior__: set.update, set.__iand__: set.intersection_update, set.__isub__: set.difference_update,
                 set.__ixor__: set.symmetric_difference_update}
_METHODS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


class SetValue(ContainerValue):
    """Sets and frozensets: ``entries`` maps the hashable stand-in to the element."""

    builtin = set
    is_set = True

    def __init__(self, entries: dict | None = None, cls=None, obj: object = None, source: Source | None = None) -> None:
        super().__init__(cls or set, obj, source)
        self.builtin = frozenset if issubclass(self.cls, frozenset) else set
        self._entries = entries
        self.added: dict = {}  # added before the elements were needed
        # (history before, one step or a list of them), see ``replayed``; None: one element after the other was added
        self.history: tuple | None = None
        self.of_a_sequence = False  # whether it only stands for a sequence whose elements are added

    @classmethod
    def of(cls, s: Session, values: list[Value], kind: type = set) -> Value:
        entries: dict = {}
        for v in values:
            entries.setdefault(messages.set_element(s, v, is_new=True), v)
        return cls(entries, kind)

    @classmethod
    def made_by(cls, s: Session, entries: dict, kind: type, fn: Callable, *operands: SetValue) -> SetValue:
        """A new set with these entries, which CPython makes by ``fn`` of other sets."""
        made = cls(entries, kind)
        made.history = None, (fn, *[v.table(s) for v in operands])
        return made

    def table(self, s: Session) -> set | frozenset:
        """A set of the keys that CPython has made in the same way: in which order elements come depends on how it came
        about. It stays as it is."""
        entries = self.load(s)
        if self.obj is not None and self.history is None:
            real = src.raw_elements(self.obj)
            if len(real) == len(entries) and all(k in entries for k in real):
                return self.obj.copy()  # the program may change it later
            made = set(real)
            made.intersection_update(list(entries))
            made.update(entries)
            return made
        found = replayed(self.steps())
        return found if len(found) == len(entries) and all(k in entries for k in found) else set(entries)

    def steps(self) -> list:
        """How a set came about: a display adds one element after the other, as most others have come about too."""
        if self.history is None:
            keys = self._entries if self.obj is None else src.raw_elements(self.obj)
            return [(frozenset, list(keys))] if self.builtin is frozenset else [(set.add, k) for k in keys]
        found, at = [], self.history
        while at is not None:
            before, step = at
            found.append(step) if type(step) is tuple else found.extend(reversed(step))
            at = before
        return found[::-1]

    def changed_by(self, s: Session, fn: object, args: list[Value]) -> tuple:
        """The history with a further step, a method in C that was given this."""
        before = self.history if self.history is not None else (None, self.steps())
        if fn not in _CHANGES:
            return before
        operand = args[0] if args else None
        if fn is set.update:
            step = fn, [messages.set_element(s, v, self) for v in operand.items_list(s)]
        elif fn in (set.add, set.discard, set.clear):
            step = fn, *[self.wanted(s, v) for v in args]
        elif type(operand) is not SetValue:
            step = fn, operand.const(s)
        elif operand.of_a_sequence:
            step = _OF_SEQUENCES[fn], list(operand.load(s))
        else:
            step = fn, operand.table(s)
        return before, step

    @property
    def entries(self) -> dict[object, Value]:
        return self._entries

    @property
    def is_untouched(self) -> bool:
        return self._entries is None and not self.added and self.source is not None

    def add(self, s: Session, element: Value) -> None:
        """Add an element; those of a real set need not be known for that."""
        key = messages.set_element(s, element, self)
        if self._entries is None and self.cls is set:
            self.pytype(s)
            s.set_field(self, "added", {**self.added, key: self.added.get(key, element)})
            self.changed(s, set.add, [element])
        else:
            self.update(s, {**self.load(s), key: self.entries.get(key, element)}, set.add, [element])

    def load(self, s: Session) -> dict[object, Value]:
        if self._entries is None and self.added:
            added, self.added = self.added, {}
            try:
                entries = self.load(s)
            finally:
                self._entries, self.added = None, added
            s.set_field(self, "_entries", {**entries, **{k: v for k, v in added.items() if k not in entries}})
        if self._entries is None:
            self.pytype(s)
            elements = src.raw_elements(self.obj)
            if not all(isinstance(k, _KNOWN) for k in elements):
                if not all(isinstance(k, tuple) and all_leaves(k) for k in elements):
                    raise Unsupported("a set from outside with elements that are not constants",
                                      kind="opaque-container")
            if self.source is not None:
                s.varying.expect(self.source, len(elements), self.builtin)
                s.guards.add(self.source, facts.Elements(tuple(elements)))
            values = [s.wrap_key(k) for k in elements]
            self._entries = {v.hash_key(s): v for v in values}
        return self._entries

    def is_const(self) -> bool:
        return self.cls is frozenset and (all_leaves(self.obj) if self._entries is None
                                          else all(v.is_const() for v in self._entries.values()))

    def const(self, s: Session) -> Any:
        if self.cls is not frozenset:
            return super().const(s)
        return frozenset(v.const(s) for v in self.load(s).values())

    def plain_length(self, s: Session) -> int:
        if self.is_untouched and self.cls is self.builtin:
            self.pytype(s)
            return self.real_length(s)
        return len(self.load(s))

    def plain_iter(self, s: Session) -> Value:
        entries = self.load(s)
        return SetIterator(self, [entries[k] for k in self.order(s)])

    def order(self, s: Session) -> list:
        """The keys in the order in which a real set iterates after the same changes."""
        for element in self.load(s).values():
            if element.stands_for_itself:
                element.hash_key(s)  # where it comes depends on which object it is
        return list(self.table(s))

    def plain_text(self, s: Session) -> Value:
        return super().plain_text(s) if self.load(s) else Constant("set()")

    def plain_contains(self, s: Session, item: Value) -> bool:
        key = self.wanted(s, item)
        return self._entries is None and key in self.added or key in self.load(s)

    def wanted(self, s: Session, item: Value) -> object:
        """What stands for a value that is looked for: for a set, a frozenset of its elements."""
        return frozenset(item.load(s)) if item.builtin in (set, frozenset) else messages.set_element(s, item, self)

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        if type(a) is not SetValue or type(b) is not SetValue or op.symbol not in "&|-^":
            return None
        if self is not a and not a.by_class(s, op.forward):  # else a method of that class has not answered
            return None
        kind = a.cls if a.cls in (set, frozenset) else a.builtin
        made = SetValue.made_by(s, a.combined(s, op, b), kind, op.fn, a, b)
        if b.of_a_sequence:
            made.history = None, (by_method, _METHODS[op.symbol], a.table(s), list(b.load(s)))
        return made

    def plain_inplace(self, s: Session, op, other: Value) -> Value | None:
        if op.symbol not in "&|-^" or self.builtin is not set or other.builtin not in (set, frozenset):
            return None
        self.update(s, self.combined(s, op, other), getattr(set, op.inplace), [other])
        return self

    def combined(self, s: Session, op, other: Value) -> dict:
        """The entries of ``self op other``; where both have an element, which one CPython keeps."""
        x, y = self.load(s), other.load(s)
        keys = {"&": [k for k in x if k in y], "|": [*x, *(k for k in y if k not in x)],
                "-": [k for k in x if k not in y],
                "^": [*(k for k in x if k not in y), *(k for k in y if k not in x)]}[op.symbol]
        if op.symbol == "&" and len(y) <= len(x):  # CPython goes through the smaller one
            x, y = y, x
        return {k: x.get(k, y.get(k)) for k in keys}

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        return op.fn(set(self.load(s)), set(other.load(s))) if type(other) is SetValue else None

    def update(self, s: Session, entries: dict[object, Value], fn: object, args: list[Value]) -> None:
        if self.cls is set:
            s.set_field(self, "history", self.changed_by(s, fn, args))
        s.set_field(self, "_entries", entries)
        self.changed(s, fn, args)

    def hash_key(self, s: Session) -> frozenset:
        if self.cls is frozenset:
            return frozenset(self.load(s))
        return super().hash_key(s)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.cls in (set, frozenset) and self.history is not None and _are_plain(self.steps()):
            e.build_object(self, replayed, [Constant(tuple(self.steps()))])
        elif self.cls in (set, frozenset):
            keys = self._entries if self.history is None else self.order(e.session)
            e.build_object(self, self.cls, [TupleValue([self._entries[k] for k in keys])])
        else:
            raise Unsupported(f"a {self.cls.__name__} that is made here would have to be made again after the graph",
                              kind="rebuild")


def replayed(steps: Sequence) -> set | frozenset:
    """A new set that came about by these steps: (method in C that changes a set, what it is given) or (function that
    gives a new one, its operands)."""
    found: set | frozenset = set()
    for fn, *args in steps:
        changed = fn(found, *args) if fn in _CHANGES else fn(*args)
        found = found if changed is None else changed
    return found


def _are_plain(steps: Sequence) -> bool:
    """Whether all keys are the elements themselves."""
    return all(type(k) in _PLAIN for _, *args in steps for a in args
               for k in (a if isinstance(a, (set, frozenset, list)) else (a,)))


_PLAIN = (str, int, bool, bytes, float, type(None))


class DictView(Value):
    """``dict.keys()``, ``values()`` or ``items()``."""

    def __init__(self, mapping: Value, what: str) -> None:
        self.mapping, self.what = mapping, what

    def pytype(self, s: Session) -> type:
        return {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}[self.what]

    def iter(self, s: Session) -> Value:
        self.mapping.load(s)
        return DictIterator(self.mapping, self.what)

    def backwards(self, s: Session) -> Value:
        return s.iterate(self.items_list(s)[::-1])

    def length(self, s: Session) -> IntExpr:
        return self.mapping.plain_length(s)

    def truth(self, s: Session) -> bool:
        return self.mapping.truth(s)

    @property
    def is_set(self) -> bool:
        return self.what != "values"

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        """Of keys and of items: as sets."""
        if op.symbol not in "&|-^" or self.what == "values":
            return None
        sides = [v if type(v) is SetValue else SetValue.of(s, v.items_list(s)) for v in (a, b)]
        return SetValue(sides[0].combined(s, op, sides[1]))

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        """By lengths, then by whether the elements of the smaller one are in the other; no value is hashed."""
        if not (self.is_set and other.is_set):
            return None
        small, large = (other, self) if op.symbol in (">", ">=") else (self, other)
        fn = COMPARE["=="].fn if op.symbol == "!=" else op.fn
        found = bool(fn(self.length(s), other.length(s))) and all(
            contains(s, large, element) for element in small.items_list(s))
        return Constant(found != (op.symbol == "!="))

    def contains(self, s: Session, item: Value) -> bool | None:
        if self.what == "keys":
            return self.mapping.plain_contains(s, item)
        if self.what == "items":
            pair = item.load(s) if item.builtin is tuple else ()
            found = self.mapping.load(s).get(messages.dict_key(s, pair[0], self.mapping)) if len(pair) == 2 else None
            return found is not None and same_or_equal(s, found[1], pair[1])
        return None

    def getattr(self, s: Session, name: str) -> Value:
        if name == "mapping":
            return self.mapping
        cls = self.pytype(s)
        return BuiltinMethod(self, vars(cls)[name]) if (cls, name) in METHODS else super().getattr(s, name)

    def builtin_method(self, s: Session, raw: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = METHODS.get((raw.__objclass__, raw.__name__))
        if fn is None or kwargs or len(args) != arity(raw)[0]:
            raise Unsupported(f"method {raw.__qualname__} of {self.describe()}", kind="attribute")
        return fn(self, s, args, kwargs)

    def emit(self, e: Emitter) -> None:
        e.load(self.mapping)
        e.cmd("load_attr", self.what)
        e.cmd("call", 0)
