"""Dicts, plain or subclassed, and the dictionaries in which objects keep their attributes."""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import messages
from .. import source as src
from ..protocols import same_or_equal
from .base import Raised, Value
from .constant import Constant
from .iterators import DictIterator
from .objects import ObjectValue
from .text import TensorText

if TYPE_CHECKING:
    from ..emit import Emitter
    from ..session import Session
    from ..source import Source
from .containers import SHOWN, ContainerValue, text_in


class Unpacked(dict):
    """The named arguments of a call that gives them by ``**``: functions in C are told of these where there are none,
    too."""


class DictValue(ContainerValue):
    """Dicts and their subclasses. ``entries`` maps a key's hashable stand-in to (key value, value)."""

    builtin = dict
    is_mapping = True

    def __init__(self, entries: dict[object, tuple[Value, ...]] | None = None, cls=None, obj: object = None,
                 source: Source | None = None, factory: Value | None = None) -> None:
        super().__init__(cls or dict, obj, source)
        self._table = entries
        self.factory = factory
        self.keys_guarded = False
        self.written: dict = {}  # entries written before the others were needed
        self.unsettled: tuple = ()  # (key, value) written behind those, under integers that are no constants yet

    @property
    def _entries(self) -> dict[object, tuple[Value, ...]] | None:
        for given in self.watched:
            given.reads(self, "entries", None, (self._table or {}).values())
        return self._table

    @property
    def entries(self) -> dict[object, tuple[Value, ...]]:
        found = self._entries
        if found is None:
            raise Unsupported("a dict is used before it is loaded", kind="internal")
        return found

    def replace(self, s: Session, entries: dict[object, tuple[Value, ...]]) -> None:
        """Have other entries."""
        for given in self.watched:
            given.writes(self, None)
        s.set_field(self, "_table", entries)

    def pick(self, h: object, source: Source | None) -> Value | None:
        """The value at one key of a made one; None where there is none. ``source``: of the key."""
        assert self._table is not None
        entry = self._table.get(h)
        found = None if entry is None else entry[1]
        for given in self.watched:
            given.reads(self, "entry", h, found, source)
        return found

    def picked_by(self, s: Session, key: Value) -> tuple[object, Source | None]:
        """What stands for a key of a made one, and where the key is from, if it is used for nothing but that."""
        plain = key.is_leaf and type(key.value) in (int, str)  # type: ignore[attr-defined]
        with s.guards.asked_as(self) if plain else contextlib.nullcontext():
            return messages.dict_key(s, key, self), key.source if plain else None

    def entry_of(self, s: Session, key: Value) -> Value | None:
        """The value at one key of a made one; None where there is none."""
        h, source = self.picked_by(s, key)
        if key.is_leaf and type(key.value) in (int, str):  # type: ignore[attr-defined]
            return self.pick(h, source)
        entry = self.entries.get(h)  # what stands for an object is its identity: it is among all of them
        return None if entry is None else entry[1]

    def load(self, s: Session) -> dict:
        """All entries, guarded by the exact keys in order."""
        self.settle(s)
        if self._table is None and self.written:
            written, self.written = self.written, {}
            try:
                entries = dict(self.load(s))
            finally:
                self._table, self.written = None, written
            for h, (key, value) in written.items():
                entries[h] = (entries[h][0] if h in entries else key, value)
            s.set_field(self, "_table", entries)
        keys = None
        if self._table is None or not self.keys_guarded:
            self.pytype(s)
            if self.source is not None:
                keys = tuple(src.raw_elements(self.obj))
                s.varying.expect(self.source, len(keys), dict)
                s.guards.add(self.source, facts.DictKeys(keys))
            self.keys_guarded = True
        if self._table is None:
            entries = {}
            for k in src.raw_elements(self.obj) if keys is None else keys:
                try:
                    held = dict.__getitem__(self.obj, k)
                except KeyError:
                    raise Unsupported("a dict with a key whose hash has changed since",
                                      kind="opaque-container") from None
                key = s.wrap_key(k)
                entries[key.hash_key(s)] = (key, s.wrap(held, self.item_source(k)))
            self._table = entries
            if self.obj is not None and isinstance(self.obj, collections.defaultdict) and self.factory is None:
                self.factory = s.wrap(self.obj.default_factory,
                                      src.GetAttr(self.source, "default_factory") if self.source is not None else None)
        return self.entries

    @property
    def is_untouched(self) -> bool:
        return self._table is None and not self.written and not self.unsettled and self.source is not None

    def plain_length(self, s: Session) -> int:
        if self.is_untouched and self.cls is dict:
            self.pytype(s)
            return self.real_length(s)
        return len(self.load(s))

    def settle(self, s: Session) -> None:
        """What was written under symbolic integers becomes known, so that the dict can be read."""
        if self.unsettled:
            rows = self.unsettled
            s.set_field(self, "unsettled", ())
            for key, value in rows:
                self.write(s, key, value)

    def write(self, s: Session, key: Value, value: Value) -> None:
        h = messages.dict_key(s, key, self)
        s.set_field(self, "written", {**self.written, h: (self.written[h][0] if h in self.written else key, value)})

    def item_source(self, key: int | str | type | tuple[str, torch.dtype]) -> Source | None:
        if self.source is None:
            return None
        return src.Item(self.source, key, src.raw_subscript(self.obj))

    def key_of(self, entry: tuple[Value, ...]) -> object:
        key = entry[0]
        return key.value if key.is_leaf else next((k for k, v in self.entries.items() if v[0] is key), None)

    def get_constant(self, s: Session, key: object) -> Value | None:
        """The value at a constant key, or None, reading only that key of a real dict that is untouched so far."""
        self.settle(s)
        if self.reads_single_keys(key):
            self.pytype(s)
            if s.effects.globals_written and (id(self.obj), key) in s.effects.globals_written:
                return s.lookups.load_global(self.obj, key)
            if key in self.written:
                return self.written[key][1]
            if dict.__contains__(self.obj, key):
                s.guards.add_presence(self.item_source(key))
                return s.wrap(dict.__getitem__(self.obj, key), self.item_source(key))
            if self.source is not None:
                s.guards.add(self.source, facts.DictLacks(key))
            return None
        entry = self.load(s).get(key)
        return None if entry is None else entry[1]

    def reads_single_keys(self, key: int | str | type) -> bool:
        """Whether an entry can be read or written without knowing the other keys."""
        return (self._table is None and self.obj is not None and isinstance(key, (str, int))
                and not isinstance(self.obj, collections.defaultdict))

    def plain_backwards(self, s: Session) -> Value:
        return s.iterate([k for k, _ in self.load(s).values()][::-1], type(reversed({})))

    def plain_text(self, s: Session) -> Value:
        pairs = [(k.text(s, "__repr__"), v.text(s, "__repr__")) for k, v in self.load(s).values()]
        return text_in(s, SHOWN[dict], [TensorText.join(s, [k, Constant(": "), v]) for k, v in pairs])

    def plain_iter(self, s: Session) -> Value:
        self.load(s)
        return DictIterator(self, "keys")

    def plain_getitem(self, s: Session, key: Value) -> Value:
        if self.watched:
            found = self.entry_of(s, key)
            if found is not None:
                return found
            entry = None
        elif key.is_const() and key.builtin is not tuple:
            found = self.get_constant(s, messages.dict_key(s, key, self))
            if found is not None:
                return found
            entry = None
        else:
            entry = self.load(s).get(messages.dict_key(s, key, self))
        if entry is not None:
            return entry[1]
        if issubclass(self.cls, dict) and self.cls is not dict and self.has_special(s, "__missing__"):
            return self.call_special(s, "__missing__", [key])
        raise Raised(s.exception(KeyError, [key]))

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        if self.watched:
            h, source = self.picked_by(s, key)
            for given in self.watched:
                given.puts(self, key, source, value)
            table = dict(self._table or ())
            table[h] = (table[h][0] if h in table else key, value)
            s.set_field(self, "_table", table)
            return
        symbolic = key.symbolic is int
        if (symbolic or self.unsettled and key.is_leaf) and self.cls is dict and self.reads_single_keys(0):
            self.pytype(s)
            s.set_field(self, "unsettled", (*self.unsettled, (key, value)))
            self.changed(s, dict.__setitem__, [key, value])
            return
        h = messages.dict_key(s, key, self)
        if s.effects.globals_written and (id(self.obj), h) in s.effects.globals_written:
            s.set_entry(s.effects.globals_written, (id(self.obj), h), value)
        if self.reads_single_keys(h):
            self.pytype(s)
            self.write(s, key, value)
        else:
            entries = dict(self.load(s))
            entries[h] = (entries[h][0] if h in entries else key, value)
            self.replace(s, entries)
        self.changed(s, self.raw("__setitem__"), [key, value])

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        if op.symbol != "|" or not a.is_mapping or not b.is_mapping:
            return None
        if self is not a and not a.by_class(s, op.forward):
            return None
        # Where a method of the left operand's class has not answered, the slot of dict is that of the right one.
        if a.cls is not dict and self is a or b.cls is not dict:
            raise Unsupported(f"a {a.cls.__name__} and a {b.cls.__name__} are joined by |", kind="operator")
        entries = dict(a.load(s))
        for k, (key, value) in b.load(s).items():
            entries[k] = (entries[k][0] if k in entries else key, value)
        return DictValue(entries)

    def plain_inplace(self, s: Session, op, other: Value) -> Value | None:
        if op.symbol != "|":
            return None
        if self.cls is not dict and not other.is_mapping:
            raise Unsupported(f"{other.describe()} is put into a {self.cls.__name__} by |=", kind="operator")
        self.call_method(s, "update", [other])
        return self

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        if op.equality is None or not other.is_mapping:
            return None
        x, y = self.load(s), other.load(s)
        same = x.keys() == y.keys() and all(same_or_equal(s, x[k][1], y[k][1]) for k in x)
        if same and all(issubclass(v.cls, collections.OrderedDict) for v in (self, other)):
            same = list(x) == list(y)
        return same == op.equality

    def lower(self, s: Session) -> Any:
        return {k: v.lower(s) for k, (_, v) in self.load(s).items()}

    def raw(self, name: str) -> object:
        """The C method that changes the real object without running the subclass's own Python."""
        if self.obj is not None and isinstance(self.obj, collections.OrderedDict):
            return getattr(collections.OrderedDict, name)
        return getattr(dict, name)

    def delitem(self, s: Session, key: Value) -> None:
        if self.by_class(s, "__delitem__"):
            self.call_special(s, "__delitem__", [key])
            return
        self.plain_delitem(s, key)

    def plain_delitem(self, s: Session, key: Value) -> None:
        h = messages.dict_key(s, key, self)
        entries = dict(self.load(s))
        if h not in entries:
            raise Raised(s.exception(KeyError, [key]))
        del entries[h]
        self.replace(s, entries)
        self.changed(s, self.raw("__delitem__"), [key])

    def plain_contains(self, s: Session, item: Value) -> bool:
        if self.watched:
            return self.entry_of(s, item) is not None
        h = messages.dict_key(s, item, self)
        if isinstance(h, (str, int)):
            return self.get_constant(s, h) is not None
        return h in self.load(s)

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.cls is dict:
            e.build_dict(self)
        elif issubclass(self.cls, collections.defaultdict):
            e.build_object(self, self.cls, [self.factory or Constant(None)], fill=(dict.update, None))
        else:
            ordered = issubclass(self.cls, collections.OrderedDict)
            e.build_object(self, collections.OrderedDict.__new__ if ordered else dict.__new__,
                           [e.class_value(self.cls)],
                           fill=(_fill_ordered if ordered else dict.update, None))

    def steps(self) -> tuple[str, list[tuple]] | None:
        rows = [(dict.__setitem__, [k, v]) for k, v in self.entries.values()]
        return ("build_dict", rows) if self.cls is dict else None


def dict_of_pairs(s: Session, pairs) -> DictValue:
    """A new dict from pairs of values; a later pair of a key keeps the first key."""
    entries = {}
    for key, value in pairs:
        h = messages.dict_key(s, key, is_new=True)
        entries[h] = (entries[h][0] if h in entries else key, value)
    return DictValue(entries)


def mapping_items(s: Session, mapping) -> list:
    """(key, value) pairs of a mapping value."""
    if mapping.builtin is dict:
        return [(k, v) for k, v in mapping.load(s).values()]
    try:
        keys = mapping.call_method(s, "keys").items_list(s)
    except Raised as raised:
        if s.is_exception(raised.value, AttributeError):
            raise Raised(s.exception(TypeError(messages.not_a_mapping(mapping.pytype(s))))) from None
        raise
    return [(k, mapping.getitem(s, k)) for k in keys]


def _fill_ordered(target: dict, entries: dict) -> None:
    """The entries of a dict into a new OrderedDict, past a subclass's own ``__setitem__``."""
    for key, value in entries.items():
        collections.OrderedDict.__setitem__(target, key, value)


class InstanceDict(DictValue):
    """``obj.__dict__`` as a mapping: reads and writes go to the object's attributes."""

    def __init__(self, owner: ObjectValue) -> None:
        super().__init__(None, dict, None, None)
        self.owner = owner

    def identity(self) -> tuple[str, tuple[str, int]]:
        return ("instance-dict", self.owner.identity())

    def pytype(self, s: Session) -> type:
        return dict

    def load(self, s: Session) -> dict[str, tuple[Value, ...]]:
        self._table = {n: (Constant(n), self.owner.instance_attr(s, n)) for n in self.owner.dict_names(s)}
        return self._table

    @property
    def entries(self) -> dict[str, tuple[Value, ...]]:
        return self._table

    def get_constant(self, s: Session, key: object) -> Value | None:
        return self.owner.instance_attr(s, key) if isinstance(key, str) else None

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        name = key.const(s)
        self.owner.attrs.put(s, name, value)
        if self.owner.obj is not None:
            s.effect(dict.__setitem__, [self, key, value])

    def plain_delitem(self, s: Session, key: Value) -> None:
        name = key.const(s)
        if self.owner.instance_attr(s, name) is None:
            raise Raised(s.exception(KeyError, [key]))
        self.owner.attrs.delete(s, name)
        if self.owner.obj is not None:
            s.effect(dict.__delitem__, [self, key])

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr("__dict__")
