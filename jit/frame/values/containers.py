"""Lists, tuples, dicts and sets, plain or subclassed, with their methods. Reads are lazy, changes go to the effect
log."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import source as src
from ..operators import COMPARE
from ..protocols import contains, rich_compare, same_or_equal
from .base import HEAP_TYPE, Raised, Value, type_name
from .c_methods import METHODS, arity, refuse_arguments
from .constant import Constant, is_leaf, repeat_count
from .numbers import DimValue
from .iterators import DictIterator, SequenceIterator, SetIterator
from .objects import DELETED, ObjectValue
from .slices import SliceValue

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..operators import Binary, Comparison
    from ..session import Session
    from ..source import Source
    from .objects import SymbolicKey


class ContainerValue(ObjectValue):
    """Shared by all containers: dispatch of C methods through ``METHODS``, effects on real ones."""

    builtin: type = object
    is_data = True

    def builtin_method(self, s: Session, raw: object, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = METHODS.get((raw.__objclass__, raw.__name__))
        if fn is not None:
            least, most = arity(raw)
            if (kwargs and (most is not None or raw.__objclass__ in (set, frozenset))
                or len(args) < least or most is not None and len(args) > most):
                refuse_arguments(s, raw, len(args), kwargs)
            return s.calls.by_table(raw, lambda: fn(self, s, list(args), dict(kwargs)), [self, *args], kwargs)
        return super().builtin_method(s, raw, args, kwargs)

    def getitem(self, s: Session, key: Value) -> Value:
        if self.by_class(s, "__getitem__"):
            return self.call_special(s, "__getitem__", [key])
        return self.plain_getitem(s, key)

    def setitem(self, s: Session, key: Value, value: Value) -> None:
        if self.by_class(s, "__setitem__"):
            self.call_special(s, "__setitem__", [key, value])
        else:
            self.plain_setitem(s, key, value)

    def iter(self, s: Session) -> Value:
        if self.by_class(s, "__iter__"):
            return self.call_special(s, "__iter__", [])
        return self.plain_iter(s)

    def length(self, s: Session) -> IntExpr:
        if self.by_class(s, "__len__"):
            return super().length(s)
        return self.plain_length(s)

    def truth(self, s: Session) -> bool:
        if self.cls is not self.builtin:
            return super().truth(s) if self.user_special(s, "__bool__") else bool(self.length(s) != 0)
        if not self.is_untouched:
            return bool(self.plain_length(s) != 0)
        self.pytype(s)
        s.guards.add(self.source, facts.Truth(bool(self.obj)))
        return bool(self.obj)

    @property
    def is_untouched(self) -> bool:
        """Whether this is a container from outside of which nothing has been read as a whole, nor changed."""
        return False

    def real_length(self, s: Session) -> IntExpr:
        """The length of an untouched real container as an int or a Dim: no fact on its contents."""
        return s.varying.length_at(self.source, self.builtin.__len__(self.obj))

    def contains(self, s: Session, item: Value) -> bool:
        if self.by_class(s, "__contains__"):
            return super().contains(s, item)
        return self.plain_contains(s, item)

    def plain_contains(self, s: Session, item: Value) -> bool | None:
        return None

    def by_class(self, s: Session, method: str) -> bool:
        return self.cls is not self.builtin and self.user_special(s, method)

    def number(self, s: Session, op: Binary, a: Value, b: Value) -> Value | None:
        method, other = self.asked(s, op, a, b)
        if method is not None and self.by_class(s, method):
            return self.ask(s, method, other)
        return self.plain_number(s, op, a, b)

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        """Classes made by a class statement have ``+=`` of a sequence as a number's too (``update_one_slot`` in
        CPython's ``Objects/typeobject.c``), so that the right operand is not asked."""
        if self.by_class(s, op.inplace) or op.symbol == "+" and self.cls.__flags__ & HEAP_TYPE:
            return self.ask(s, op.inplace, other)
        return self.plain_inplace(s, op, other)

    def compare(self, s: Session, op: Comparison, other: Value) -> Value | None:
        if self.by_class(s, op.method):
            return self.ask(s, op.method, other)
        result = self.plain_compare(s, op, other)
        return None if result is None else Constant(result)

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        """The number slot of the builtin class."""
        return None

    def plain_inplace(self, s: Session, op, other: Value) -> Value | None:
        return None

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        """The comparison of the builtin class."""
        return None

    def changed(self, s: Session, fn: object, args: list[Value]) -> None:
        """Log a change, made by calling the C function ``fn`` on the real object."""
        if self.obj is not None:
            s.heap.touch(self)
            s.effect(fn, [self, *args])

    def plain_getitem(self, s: Session, key: Value):
        raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object is not subscriptable")))

    def plain_setitem(self, s: Session, key: Value, value):
        raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object does not support item assignment")))


class SequenceValue(ContainerValue):
    """Lists, tuples and deques. ``elements`` is filled from the real object at first use."""

    def __init__(self, elements: list[Value] | None = None, cls=None, obj: object = None,
                 source: Source | None = None) -> None:
        super().__init__(cls or self.builtin, obj, source)
        self._elements = None if elements is None else list(elements)
        self.tail: tuple = ()  # appended before the elements were needed

    def extend(self, s: Session, values: list[Value]) -> None:
        """Append to the elements; those of a real list that are not known yet need not be for that."""
        if self._elements is None:
            self.pytype(s)
            s.set_field(self, "tail", (*self.tail, *values))
        else:
            s.set_elements(self, self._elements + list(values))

    def load(self, s: Session) -> list[Value]:
        """Wrap the real elements; their number becomes a guard."""
        if self._elements is None and self.tail:
            tail, self.tail = self.tail, ()
            try:
                elements = self.load(s)
            finally:
                self._elements, self.tail = None, tail
            s.set_elements(self, [*elements, *tail])
        if self._elements is None:
            self.pytype(s)
            if self.source is not None:
                n = self.builtin.__len__(self.obj)
                s.varying.expect(self.source, n, self.builtin)
                s.guards.add(self.source, facts.Length(n))
            subscript = src.raw_subscript(self.obj)
            self._elements = [s.wrap(v, src.Item(self.source, i, subscript) if self.source is not None else None)
                              for i, v in enumerate(src.raw_elements(self.obj))]
        return self._elements

    @property
    def elements(self) -> list[Value]:
        if self._elements is None:
            raise Unsupported("a container is used before it is loaded", kind="internal")
        return self._elements

    @property
    def is_untouched(self) -> bool:
        return self._elements is None and not self.tail and self.source is not None

    def plain_length(self, s: Session) -> IntExpr:
        if self._elements is None and self.source is not None and self.cls is self.builtin is not bytearray:
            self.pytype(s)
            return self.real_length(s) + len(self.tail)
        return len(self.load(s))

    def single(self, s: Session, index: int) -> Value | None:
        """The element at an index of a real container that is read for nothing else, or None: its length is no fact
        then."""
        if (self._elements is not None or self.source is None or self.cls is not self.builtin
            or self.builtin is bytearray):
            return None
        if index < 0:
            if -index <= len(self.tail):
                return self.tail[index]
            index += len(self.tail)
        n = self.builtin.__len__(self.obj)
        if not -n <= index < n:
            return None
        self.pytype(s)
        source = src.Item(self.source, index, src.raw_subscript(self.obj))
        s.guards.add_presence(source)
        return s.wrap(self.builtin.__getitem__(self.obj, index), source)

    def plain_iter(self, s: Session) -> Value:
        self.load(s)
        return SequenceIterator(self)

    def items_list(self, s: Session) -> list[Value]:
        if self.cls is self.builtin:
            return list(self.load(s))
        return super().items_list(s)

    def chunks(self, s: Session) -> Iterator:
        return iter([self.items_list(s)]) if self.cls is self.builtin else super().chunks(s)

    def position(self, s: Session, key: Value) -> int:
        index = key.index(s)
        n = len(self.load(s))
        if not -n <= index < n:
            raise Raised(s.exception(IndexError(f"{self.builtin.__name__} index out of range")))
        return index % n

    def plain_getitem(self, s: Session, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return self.like(self.load(s)[key.as_slice(s)])
        self.check_index(s, key)
        found = self.single(s, key.index(s))
        return found if found is not None else self.load(s)[self.position(s, key)]

    def check_index(self, s: Session, key: Value) -> None:
        if not key.has_index(s):
            raise Raised(s.exception(TypeError(f"{self.builtin.__name__} indices must be integers or slices, not "
                                               f"{type_name(key.pytype(s))}")))

    def like(self, elements: list[Value]) -> Value:
        return type(self)(elements)

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if self.builtin is not getattr(other, "builtin", None):
            name = self.builtin.__name__
            raise Raised(s.exception(TypeError(
                f'can only concatenate {name} (not "{type_name(other.pytype(s))}") to {name}')))
        return self.like(self.load(s) + other.load(s))

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        return self.like(self.load(s) * repeat_count(s, times))

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        if self.builtin is not getattr(other, "builtin", None):
            return None
        x, y = self.load(s), other.load(s)
        if op.equality is not None:
            same = len(x) == len(y) and all(same_or_equal(s, p, q) for p, q in zip(x, y))
            return same == op.equality
        for p, q in zip(x, y):
            if not same_or_equal(s, p, q):
                return rich_compare(s, op, p, q).truth(s)
        return op.fn(len(x), len(y))

    def is_const(self) -> bool:
        if self.cls not in (tuple, torch.Size):
            return False
        if self._elements is None:
            return all_leaves(self.obj)
        return all(v.is_const() for v in self._elements)

    def const(self, s: Session) -> tuple[int, ...] | tuple[object, ...]:
        if self.cls not in (tuple, torch.Size):
            return super().const(s)
        return self.cls(v.const(s) for v in self.load(s))


def all_leaves(obj: tuple[int | str | tuple[int, ...], ...]) -> bool:
    return all(is_leaf(v) or (type(v) is tuple and all_leaves(v)) for v in obj)


class ListValue(SequenceValue):
    builtin = list

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        elements = self.load(s)
        if isinstance(key, SliceValue):
            new = list(elements)
            try:
                it = value.iter(s)
            except Raised as raised:
                if not s.is_exception(raised.value, TypeError):
                    raise
                extended = not (isinstance(key.parts[2], Constant) and key.parts[2].const(s) in (None, 1))
                raise Raised(s.exception(TypeError("must assign iterable to extended slice" if extended
                                                   else "can only assign an iterable"))) from None
            values = value.items_list(s) if isinstance(value, ContainerValue) else it.items_list(s)
            try:
                new[key.as_slice(s)] = values
            except ValueError as error:
                raise Raised(s.exception(error)) from None
            s.set_elements(self, new)
            self.changed(s, list.__setitem__, [key, ListValue(values)])
            return
        self.check_index(s, key)
        index = key.index(s)
        if not -len(elements) <= index < len(elements):
            raise Raised(s.exception(IndexError("list assignment index out of range")))
        new = list(elements)
        new[index] = value
        s.set_elements(self, new)
        self.changed(s, list.__setitem__, [Constant(index), value])

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if op.inplace is None:
            return super().concat(s, op, other)
        self.extend_by(s, other)
        return self

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        if op.inplace is None:
            return super().repeat(s, op, times)
        s.set_elements(self, self.load(s) * repeat_count(s, times))
        self.changed(s, list.__imul__, [times])
        return self

    def lower(self, s: Session) -> Any:
        return [v.lower(s) for v in self.items_list(s)]

    def extend_by(self, s: Session, iterable: Value) -> None:
        """``list.extend``, which appends as it goes: what the iterator does to the list meanwhile comes in between."""
        for values in iterable.chunks(s):
            self.extend(s, values)
            self.changed(s, list.extend, [TupleValue(values)])

    def delitem(self, s: Session, key: Value) -> None:
        new = list(self.load(s))
        if not isinstance(key, SliceValue):
            self.check_index(s, key)
        index = key.as_slice(s) if isinstance(key, SliceValue) else key.index(s)
        try:
            del new[index]
        except IndexError as error:
            raise Raised(s.exception(error)) from None
        s.set_elements(self, new)
        self.changed(s, list.__delitem__, [key if isinstance(key, SliceValue) else Constant(index)])

    def hash_key(self, s: Session) -> SymbolicKey:
        raise Raised(s.exception(TypeError(f"unhashable type: '{type_name(self.cls)}'")))

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.cls is list:
            e.build_list(self)
        else:
            e.build_object(self, list.__new__, [e.class_value(self.cls)], fill=(list.extend, self.elements))


class TupleValue(SequenceValue):
    """Tuples, namedtuples, ``torch.Size`` and other tuple subclasses."""

    builtin = tuple

    def like(self, elements: list[Value]) -> Value:
        return TupleValue(elements, torch.Size if self.cls is torch.Size else tuple)

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        """A ``torch.Size`` and a tuple, on either side, are a ``torch.Size``, which holds nothing but integers."""
        if op.symbol != "+" or torch.Size not in (a.pytype(s), b.pytype(s)) or type(a) is not type(b):
            return None
        elements = a.load(s) + b.load(s)
        if all(v.exact_int() is not None for v in elements):
            return TupleValue(elements, torch.Size)
        if a.is_const() and b.is_const():
            return s.fold(op.fn, [a, b], {})
        raise Unsupported("a torch.Size and a tuple of other things than integers", kind="operator")

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if self.cls is not torch.Size:
            return super().concat(s, op, other)
        result = self.plain_number(s, op, self, other)
        return s.fold(op.fn, [self, other], {}) if result is None else result

    def identity(self) -> tuple:
        if self.cls is tuple and self._elements is not None and not self._elements:
            return ("const", ())
        return super().identity()

    def lower(self, s: Session) -> Any:
        items = [v.lower(s) for v in self.items_list(s)]
        return torch.Size(items) if self.cls is torch.Size and all(type(i) is int for i in items) else tuple(items)

    def hash_key(self, s: Session) -> tuple[int | str | None, int | torch.dtype | None]:
        if self.cls not in (tuple, torch.Size) and self.user_special(s, "__hash__"):
            raise Unsupported(f"a {self.cls.__name__} with its own __hash__ as a key", kind="unhashable")
        return tuple(v.hash_key(s) for v in self.load(s))

    def slot(self, s: Session, raw: object, name: str) -> Value:
        """A named field of a structure sequence such as ``torch.return_types.max``."""
        return self.load(s)[raw.__get__(self.cls(range(self.cls.n_sequence_fields)))]

    def emit(self, e: Emitter) -> None:
        if self.obj is not None and self.source is not None:
            e.load_source_or_const(self)
        elif self.cls is tuple:
            e.build_tuple(self.load(e.session))
        elif self.cls is torch.Size or hasattr(self.cls, "n_sequence_fields"):
            e.call_const(self.cls, [TupleValue(self.load(e.session))])
        else:
            e.build_object(self, tuple.__new__, [e.class_value(self.cls), TupleValue(self.load(e.session))])


class DequeValue(SequenceValue):
    """``collections.deque``; ``maxlen`` is a constant or None."""

    builtin = collections.deque

    def __init__(self, elements: list[Value] | None = None, cls=None, obj: collections.deque[int] | None = None,
                 source: Source | None = None, maxlen: int | None = None) -> None:
        super().__init__(elements, cls, obj, source)
        self.maxlen = obj.maxlen if obj is not None else maxlen

    def like(self, elements: list[Value]) -> Value:
        return DequeValue(elements, maxlen=self.maxlen)

    def getset(self, s: Session, raw: object, name: str) -> Value:
        return Constant(self.maxlen) if name == "maxlen" else super().getset(s, raw, name)

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if op.inplace is not None:
            self.call_method(s, "extend", [other])
            return self
        result = super().concat(s, op, other)
        return result.like(self.trimmed(result.elements))

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        elements = self.trimmed(self.load(s) * repeat_count(s, times))
        if op.inplace is None:
            return self.like(elements)
        s.set_elements(self, elements)
        self.changed(s, collections.deque.__imul__, [times])
        return self

    def trimmed(self, elements: list[Value], left: bool = False) -> list[Value]:
        if self.maxlen is not None and len(elements) > self.maxlen:
            return elements[: self.maxlen] if left else elements[len(elements) - self.maxlen:]
        return elements

    def plain_setitem(self, s: Session, key: Value, value) -> None:
        new = list(self.load(s))
        index = key.index(s)
        if not -len(new) <= index < len(new):
            raise Raised(s.exception(IndexError("deque index out of range")))
        new[index] = value
        s.set_elements(self, new)
        self.changed(s, collections.deque.__setitem__, [Constant(index), value])

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            e.build_object(self, self.cls, [TupleValue([]), Constant(self.maxlen)],
                           fill=(collections.deque.extend, self.elements))


class DictValue(ContainerValue):
    """Dicts and their subclasses. ``entries`` maps a key's hashable stand-in to (key value, value)."""

    builtin = dict
    is_mapping = True

    def __init__(self, entries: dict[object, tuple[Value, ...]] | None = None, cls=None, obj: object = None,
                 source: Source | None = None, factory: Value | None = None) -> None:
        super().__init__(cls or dict, obj, source)
        self._entries = entries
        self.factory = factory
        self.keys_guarded = False
        self.written: dict = {}  # entries written before the others were needed
        self.unsettled: tuple = ()  # (key, value) written behind those, under integers that are no constants yet

    @property
    def entries(self) -> dict[str | int, tuple[Value, ...]]:
        if self._entries is None:
            raise Unsupported("a dict is used before it is loaded", kind="internal")
        return self._entries

    def load(self, s: Session) -> dict:
        """All entries, guarded by the exact keys in order."""
        self.settle(s)
        if self._entries is None and self.written:
            written, self.written = self.written, {}
            try:
                entries = dict(self.load(s))
            finally:
                self._entries, self.written = None, written
            for h, (key, value) in written.items():
                entries[h] = (entries[h][0] if h in entries else key, value)
            s.set_field(self, "_entries", entries)
        if self._entries is None or not self.keys_guarded:
            self.pytype(s)
            if self.source is not None:
                keys = tuple(src.raw_elements(self.obj))
                s.varying.expect(self.source, len(keys), dict)
                s.guards.add(self.source, facts.DictKeys(keys))
            self.keys_guarded = True
        if self._entries is None:
            entries = {}
            for k in src.raw_elements(self.obj):
                try:
                    held = dict.__getitem__(self.obj, k)
                except KeyError:
                    raise Unsupported("a dict with a key whose hash has changed since",
                                      kind="opaque-container") from None
                key = s.wrap_key(k)
                entries[key.hash_key(s)] = (key, s.wrap(held, self.item_source(k)))
            self._entries = entries
            if self.obj is not None and isinstance(self.obj, collections.defaultdict) and self.factory is None:
                self.factory = s.wrap(self.obj.default_factory,
                                      src.GetAttr(self.source, "default_factory") if self.source is not None else None)
        return self._entries

    @property
    def is_untouched(self) -> bool:
        return self._entries is None and not self.written and not self.unsettled and self.source is not None

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
        h = key.hash_key(s)
        s.set_field(self, "written", {**self.written, h: (self.written[h][0] if h in self.written else key, value)})

    def item_source(self, key: int | str | type | tuple[str, torch.dtype]) -> Source | None:
        if self.source is None:
            return None
        return src.Item(self.source, key, src.raw_subscript(self.obj))

    def key_of(self, entry: tuple[Value, ...]) -> object:
        key = entry[0]
        return key.value if isinstance(key, Constant) else next((k for k, v in self.entries.items() if v[0] is key),
                                                                None)

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
        return (self._entries is None and self.obj is not None and isinstance(key, (str, int))
                and not isinstance(self.obj, collections.defaultdict))

    def plain_iter(self, s: Session) -> Value:
        self.load(s)
        return DictIterator(self, "keys")

    def plain_getitem(self, s: Session, key: Value) -> Value:
        if key.is_const() and not isinstance(key, TupleValue):
            found = self.get_constant(s, key.hash_key(s))
            if found is not None:
                return found
            entry = None
        else:
            entry = self.load(s).get(key.hash_key(s))
        if entry is not None:
            return entry[1]
        if issubclass(self.cls, dict) and self.cls is not dict and self.has_special(s, "__missing__"):
            return self.call_special(s, "__missing__", [key])
        raise Raised(s.exception(KeyError, [key]))

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        symbolic = isinstance(key, DimValue)
        if (symbolic or self.unsettled) and self.cls is dict and self.reads_single_keys(0) and (symbolic
            or isinstance(key, Constant)):
            self.pytype(s)
            s.set_field(self, "unsettled", (*self.unsettled, (key, value)))
            self.changed(s, dict.__setitem__, [key, value])
            return
        h = key.hash_key(s)
        if s.effects.globals_written and (id(self.obj), h) in s.effects.globals_written:
            s.set_entry(s.effects.globals_written, (id(self.obj), h), value)
        if self.reads_single_keys(h):
            self.pytype(s)
            self.write(s, key, value)
        else:
            entries = dict(self.load(s))
            entries[h] = (entries[h][0] if h in entries else key, value)
            s.set_field(self, "_entries", entries)
        self.changed(s, self.raw("__setitem__"), [key, value])

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        if op.symbol != "|" or self is not a or not a.is_mapping or not b.is_mapping:
            return None
        if a.cls is not dict or b.cls is not dict:
            raise Unsupported(f"{a.cls.__name__} | {b.cls.__name__}", kind="operator")
        entries = dict(a.load(s))
        for k, (key, value) in b.load(s).items():
            entries[k] = (entries[k][0] if k in entries else key, value)
        return DictValue(entries)

    def plain_inplace(self, s: Session, op, other: Value) -> Value | None:
        if op.symbol != "|":
            return None
        if self.cls is not dict and not other.is_mapping:
            raise Unsupported(f"{self.cls.__name__} |= {other.describe()}", kind="operator")
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
        h = key.hash_key(s)
        entries = dict(self.load(s))
        if h not in entries:
            raise Raised(s.exception(KeyError, [key]))
        del entries[h]
        s.set_field(self, "_entries", entries)
        self.changed(s, self.raw("__delitem__"), [key])

    def plain_contains(self, s: Session, item: Value) -> bool:
        h = item.hash_key(s)
        if isinstance(h, (str, int)):
            return self.get_constant(s, h) is not None
        return h in self.load(s)

    def hash_key(self, s: Session) -> SymbolicKey:
        raise Raised(s.exception(TypeError(f"unhashable type: '{type_name(self.cls)}'")))

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


def dict_of_pairs(s: Session, pairs) -> DictValue:
    """A new dict from pairs of values; a later pair of a key keeps the first key."""
    entries = {}
    for key, value in pairs:
        h = key.hash_key(s)
        entries[h] = (entries[h][0] if h in entries else key, value)
    return DictValue(entries)


def mapping_items(s: Session, mapping) -> list:
    """(key, value) pairs of a mapping value."""
    if isinstance(mapping, DictValue):
        return [(k, v) for k, v in mapping.load(s).values()]
    try:
        keys = mapping.call_method(s, "keys").items_list(s)
    except Raised as raised:
        if s.is_exception(raised.value, AttributeError):
            raise Raised(s.exception(TypeError(f"'{type_name(mapping.pytype(s))}' object is not a mapping"))) from None
        raise
    return [(k, mapping.getitem(s, k)) for k in keys]


class DictView(Value):
    """``dict.keys()``, ``values()`` or ``items()``."""

    entries_view = True

    def __init__(self, mapping: Value, what: str) -> None:
        self.mapping, self.what = mapping, what

    def pytype(self, s: Session) -> type:
        return {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}[self.what]

    def iter(self, s: Session) -> Value:
        self.mapping.load(s)
        return DictIterator(self.mapping, self.what)

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
            pair = item.load(s) if isinstance(item, TupleValue) else ()
            found = self.mapping.load(s).get(pair[0].hash_key(s)) if len(pair) == 2 else None
            return found is not None and same_or_equal(s, found[1], pair[1])
        return None

    def getattr(self, s: Session, name: str) -> Value:
        if name == "mapping":
            return self.mapping
        return super().getattr(s, name)

    def emit(self, e: Emitter) -> None:
        e.load(self.mapping)
        e.cmd("load_attr", self.what)
        e.cmd("call_on_stack", 0)


def _fill_ordered(target: dict, entries: dict[str, int | list[int] | dict[str, list]]) -> None:
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
        self._entries = {n: (Constant(n), self.owner.instance_attr(s, n)) for n in self.owner.dict_names(s)}
        return self._entries

    @property
    def entries(self) -> dict[str, tuple[Value, ...]]:
        return self._entries

    def get_constant(self, s: Session, key: object) -> Value | None:
        return self.owner.instance_attr(s, key) if isinstance(key, str) else None

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        name = key.const(s)
        s.set_entry(self.owner.attrs, name, value)
        if self.owner.obj is not None:
            s.effect(dict.__setitem__, [self, key, value])

    def plain_delitem(self, s: Session, key: Value) -> None:
        name = key.const(s)
        if self.owner.instance_attr(s, name) is None:
            raise Raised(s.exception(KeyError, [key]))
        s.set_entry(self.owner.attrs, name, DELETED)
        if self.owner.obj is not None:
            s.effect(dict.__delitem__, [self, key])

    def emit(self, e: Emitter) -> None:
        e.load(self.owner)
        e.load_attr("__dict__")


class SetValue(ContainerValue):
    """Sets and frozensets: ``entries`` maps the hashable stand-in to the element."""

    builtin = set
    is_set = True

    def __init__(self, entries: dict | None = None, cls=None, obj: object = None, source: Source | None = None) -> None:
        super().__init__(cls or set, obj, source)
        self.builtin = frozenset if issubclass(self.cls, frozenset) else set
        self._entries = entries
        self.added: dict = {}  # added before the elements were needed

    @classmethod
    def of(cls, s: Session, values: list[Value], kind: type = set) -> Value:
        entries: dict = {}
        for v in values:
            entries.setdefault(v.hash_key(s), v)
        return cls(entries, kind)

    @property
    def entries(self) -> dict[object, Value]:
        return self._entries

    @property
    def is_untouched(self) -> bool:
        return self._entries is None and not self.added and self.source is not None

    def add(self, s: Session, element: Value) -> None:
        """Add an element; those of a real set need not be known for that."""
        key = element.hash_key(s)
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
            if not all(isinstance(k, (str, int, float, bytes, type(None), type, types.FunctionType, torch.dtype))
                       for k in elements):
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
        entries = self.load(s)
        if self.obj is None:
            return list(set(entries))
        real = src.raw_elements(self.obj)
        shadow = real
        if any(k not in entries for k in real) or len(entries) != len(real):
            shadow = set(real)
            shadow.intersection_update(list(entries))
            shadow.update(entries)
        return [k for k in shadow if k in entries] if len(shadow) == len(entries) else list(entries)

    def plain_contains(self, s: Session, item: Value) -> bool:
        key = self.wanted(s, item)
        return self._entries is None and key in self.added or key in self.load(s)

    @staticmethod
    def wanted(s: Session, item: Value) -> object:
        """What stands for a value that is looked for: for a set, a frozenset of its elements."""
        return frozenset(item.load(s)) if isinstance(item, SetValue) else item.hash_key(s)

    def plain_number(self, s: Session, op, a: Value, b: Value) -> Value | None:
        if self is not a or type(b) is not SetValue or op.symbol not in "&|-^":
            return None
        return SetValue(self.combined(s, op, b), self.cls if self.cls in (set, frozenset) else self.builtin)

    def plain_inplace(self, s: Session, op, other: Value) -> Value | None:
        if op.symbol not in "&|-^" or self.builtin is not set or not isinstance(other, SetValue):
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
        s.set_field(self, "_entries", entries)
        self.changed(s, fn, args)

    def hash_key(self, s: Session) -> frozenset:
        if self.cls is frozenset:
            return frozenset(self.load(s))
        raise Raised(s.exception(TypeError(f"unhashable type: '{type_name(self.cls)}'")))

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.cls in (set, frozenset):
            e.build_object(self, self.cls, [TupleValue(list(self._entries.values()))])
        else:
            raise Unsupported(f"rebuilding a new {self.cls.__name__}", kind="rebuild")
