"""What containers share, and sequences: lists, tuples, deques, plain or subclassed. Reads are lazy, changes go to the
effect log."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Unsupported
from ...runtime import facts
from .. import messages
from .. import source as src
from ..assumptions import Reconsider
from ..protocols import iterate, rich_compare, same_or_equal
from .base import Raised, Value, is_made_by_program, type_name
from .c_methods import METHODS, arity, refuse_arguments
from .constant import Constant, is_leaf, repeat_count
from .iterators import SequenceIterator
from .objects import HashedAs, ObjectValue
from .text import TensorText

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ..emit import Emitter
    from ..given import Given
    from ..operators import Binary, Comparison
    from ..session import Session
    from ..source import Source


# What stands around the texts of elements.
SHOWN = {list: "[]", tuple: "()", dict: "{}", set: "{}", torch.Size: ("torch.Size([", "])")}


def text_in(s: Session, around: Sequence[str], elements: Sequence[Value], single: bool = False) -> Value:
    """The texts of elements between two others; ``single``: a single one has a comma behind it."""
    between = [part for text in elements for part in (Constant(", "), text)][1:]
    return TensorText.join(s, [Constant(around[0]), *between, *[Constant(",")] * (single and len(elements) == 1),
                               Constant(around[1])])


class ContainerValue(ObjectValue):
    """Shared by all containers: dispatch of C methods through ``METHODS``, effects on real ones.

    Attributes:
        watched: by whom each reading of a made list or dict is noted.
    """

    builtin: type = object
    is_data = True
    watched: tuple[Given, ...] = ()
    shared = False  # whether it stands for one that a cached function gives to whoever calls it

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
            return super().iter(s)
        return self.plain_iter(s)

    def length(self, s: Session) -> IntExpr:
        if self.by_class(s, "__len__"):
            return super().length(s)
        return self.plain_length(s)

    def backwards(self, s: Session) -> Value:
        if self.by_class(s, "__reversed__"):
            return super().backwards(s)
        if self.cls is not self.builtin and not self.has_special(s, "__reversed__") and (
                not self.is_sequence or any(self.by_class(s, name) for name in ("__getitem__", "__len__"))):
            return super().backwards(s)
        return self.plain_backwards(s)

    def plain_backwards(self, s: Session) -> Value:
        return super().backwards(s)

    def text(self, s: Session, method: str) -> Value:
        if self.cls is not self.builtin:
            for name in (method, "__repr__"):
                if self.user_special(s, name):
                    return super().text(s, name)
        return self.plain_text(s) if self.cls in SHOWN else Value.text(self, s, method)

    def plain_text(self, s: Session) -> Value:
        """The text of one of a builtin class."""
        shown = [v.text(s, "__repr__") for v in self.items_list(s)]
        return text_in(s, SHOWN[self.cls], shown, single=self.cls is tuple)

    def attribute_names(self, s: Session) -> Value:
        return s.from_python(dir(self.builtin)) if self.cls is self.builtin else super().attribute_names(s)

    def truth(self, s: Session) -> bool:
        if self.cls is not self.builtin:
            return super().truth(s)
        if not self.is_untouched:
            return bool(self.plain_length(s) != 0)
        self.pytype(s)
        found = bool(self.obj)
        s.guards.add(self.source, facts.Truth(found))
        return found

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
        if method is None:
            return None
        return self.ask(s, method, other) if self.by_class(s, method) else self.plain_number(s, op, a, b)

    def inplace(self, s: Session, op: Binary, other: Value) -> Value | None:
        """Classes made by a class statement have ``+=`` of a sequence as a number's too (``update_one_slot`` in
        CPython's ``Objects/typeobject.c``), so that the right operand is not asked."""
        if self.by_class(s, op.inplace) or op.symbol == "+" and is_made_by_program(self.cls):
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

    def not_shared(self) -> None:
        """It is changed, or made for the program to keep: then it has to be the one that all callers are given."""
        if self.shared:
            raise Reconsider("following")

    def changed(self, s: Session, fn: object, args: list[Value]) -> None:
        """Log a change, made by calling the C function ``fn`` on the real object."""
        self.not_shared()
        if self.obj is not None:
            s.heap.touch(self)
            s.effect(fn, [self, *args])

    def plain_getitem(self, s: Session, key: Value):
        raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object is not subscriptable")))

    def plain_setitem(self, s: Session, key: Value, value):
        raise Raised(s.exception(TypeError(f"'{type_name(self.cls)}' object does not support item assignment")))


class SequenceValue(ContainerValue):
    """Lists, tuples and deques. ``elements`` is filled from the real object at first use."""

    is_sequence = True

    def __init__(self, elements: list[Value] | None = None, cls=None, obj: object = None,
                 source: Source | None = None) -> None:
        super().__init__(cls or self.builtin, obj, source)
        self._held = None if elements is None else list(elements)
        self.tail: tuple = ()  # appended before the elements were needed

    @property
    def _elements(self) -> list[Value] | None:
        for given in self.watched:
            given.reads(self, "elements", None, self._held)
        return self._held

    @_elements.setter
    def _elements(self, elements: list[Value] | None) -> None:
        self._held = elements

    def count(self) -> int:
        """The number of elements of a made one."""
        assert self._held is not None
        for given in self.watched:
            given.reads(self, "length", None, len(self._held))
        return len(self._held)

    def pick(self, index: int, source: Source | None) -> Value:
        """One element of a made one. ``source``: of the number that is its index."""
        assert self._held is not None
        for given in self.watched:
            given.reads(self, "element", index, self._held[index], source)
        return self._held[index]

    def extend(self, s: Session, values: list[Value]) -> None:
        """Append to the elements; those of a real list that are not known yet need not be for that."""
        if self._held is None:
            self.pytype(s)
            s.set_field(self, "tail", (*self.tail, *values))
        else:
            for given in self.watched:
                given.appends(self, values)
            s.set_field(self, "_held", self._held + list(values))

    def load(self, s: Session) -> list[Value]:
        """Wrap the real elements; their number becomes a guard."""
        if self._held is None and self.tail:
            tail, self.tail = self.tail, ()
            try:
                elements = self.load(s)
            finally:
                self._held, self.tail = None, tail
            s.set_elements(self, [*elements, *tail])
        if self._held is None:
            self.pytype(s)
            elements = src.raw_elements(self.obj)
            if self.source is not None:
                s.varying.expect(self.source, len(elements), self.builtin)
                s.guards.add(self.source, facts.Length(len(elements)))
            subscript = src.raw_subscript(self.obj)
            self._held = [s.wrap(v, src.Item(self.source, i, subscript) if self.source is not None else None)
                          for i, v in enumerate(elements)]
        return self.elements

    @property
    def elements(self) -> list[Value]:
        found = self._elements
        if found is None:
            raise Unsupported("a container is used before it is loaded", kind="internal")
        return found

    @property
    def is_untouched(self) -> bool:
        return self._held is None and not self.tail and self.source is not None

    def plain_length(self, s: Session) -> IntExpr:
        if self._held is None and self.source is not None and self.cls is self.builtin is not bytearray:
            self.pytype(s)
            return self.real_length(s) + len(self.tail)
        return self.count() if self.watched else len(self.load(s))

    def single(self, s: Session, index: int) -> Value | None:
        """The element at an index of a real container that is read for nothing else, or None: its length is no fact
        then."""
        if (self._held is not None or self.source is None or self.cls is not self.builtin
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

    def plain_backwards(self, s: Session) -> Value:
        return SequenceIterator(self, len(self.load(s)) - 1, -1)

    def holds_tensor(self) -> bool:
        if self._elements is None:
            return any(isinstance(v, torch.Tensor) for v in self.obj) or any(v.is_tensor for v in self.tail)
        return any(v.is_tensor for v in self._elements)

    def items_list(self, s: Session) -> list[Value]:
        if self.cls is self.builtin:
            return list(self.load(s))
        return super().items_list(s)

    def chunks(self, s: Session) -> Iterator:
        return iter([self.items_list(s)]) if self.cls is self.builtin else super().chunks(s)

    def position(self, s: Session, key: Value, index: int) -> int:
        n = len(self.load(s))
        if not -1 << 63 <= index < 1 << 63:
            raise Raised(s.exception(IndexError(
                f"cannot fit '{type_name(key.pytype(s))}' into an index-sized integer")))
        if not -n <= index < n:
            raise Raised(s.exception(IndexError(f"{self.builtin.__name__} index out of range")))
        return index % n

    def plain_getitem(self, s: Session, key: Value) -> Value:
        if key.is_slice:
            return self.like(self.load(s)[key.as_slice(s)])
        self.check_index(s, key)
        if self.watched and self._held is not None:
            is_number = key.is_leaf and type(key.value) is int  # type: ignore[attr-defined]
            with s.guards.asked_as(self) if is_number else contextlib.nullcontext():
                index = key.index(s)
            if -len(self._held) <= index < len(self._held):
                return self.pick(index, key.source if is_number else None)
        else:
            index = key.index(s)
        found = self.single(s, index)
        return found if found is not None else self.load(s)[self.position(s, key, index)]

    def check_index(self, s: Session, key: Value) -> None:
        if not key.has_index(s):
            raise Raised(s.exception(TypeError(f"{self.builtin.__name__} indices must be integers or slices, not "
                                               f"{type_name(key.pytype(s))}")))

    def like(self, elements: list[Value]) -> Value:
        return type(self)(elements)

    def concat(self, s: Session, op: Binary, other: Value) -> Value | None:
        if self.builtin is not other.builtin:
            name = self.builtin.__name__
            raise Raised(s.exception(TypeError(
                f'can only concatenate {name} (not "{type_name(other.pytype(s))}") to {name}')))
        return self.like(self.load(s) + other.load(s))

    def repeat(self, s: Session, op: Binary, times: Value) -> Value | None:
        return self.like(self.load(s) * repeat_count(s, times))

    def plain_compare(self, s: Session, op, other: Value) -> bool | None:
        if self.builtin is not other.builtin:
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


def all_leaves(obj: tuple) -> bool:
    return all(is_leaf(v) or (type(v) is tuple and all_leaves(v)) for v in obj)


class ListValue(SequenceValue):
    builtin = list

    def plain_setitem(self, s: Session, key: Value, value: Value) -> None:
        elements = self.load(s)
        if key.is_slice:
            new, step = list(elements), key.parts[2]
            extended = not (step.is_leaf and step.const(s) in (None, 1))
            it = iterate(s, value, messages.NO_SLICE[extended])
            values = value.items_list(s) if value.builtin else it.items_list(s)
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

    def nested(self, s: Session) -> list[Value]:
        return self.items_list(s)

    def with_nested(self, values: list[Value]) -> Value:
        return type(self)(values)

    def probed(self, s: Session) -> list:
        return [v.probed(s) for v in self.items_list(s)]

    def extend_by(self, s: Session, iterable: Value) -> None:
        """``list.extend``, which appends as it goes: what the iterator does to the list meanwhile comes in between."""
        for values in iterable.listed_chunks(s):
            self.extend(s, values)
            self.changed(s, list.extend, [TupleValue(values)])

    def delitem(self, s: Session, key: Value) -> None:
        new = list(self.load(s))
        if not key.is_slice:
            self.check_index(s, key)
        index = key.as_slice(s) if key.is_slice else key.index(s)
        try:
            del new[index]
        except IndexError as error:
            raise Raised(s.exception(error)) from None
        s.set_elements(self, new)
        self.changed(s, list.__delitem__, [key if key.is_slice else Constant(index)])

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        elif self.cls is list:
            e.build_list(self)
        else:
            e.build_object(self, list.__new__, [e.class_value(self.cls)], fill=(list.extend, self.elements))

    def steps(self) -> tuple[str, list[tuple]] | None:
        return ("build_list", [(list.append, [v]) for v in self.elements]) if self.cls is list else None


class TupleValue(SequenceValue):
    """Tuples, namedtuples, ``torch.Size`` and other tuple subclasses."""

    builtin = tuple

    def several(self, s: Session) -> list[Value]:
        return self.items_list(s)

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

    def nested(self, s: Session) -> list[Value]:
        return self.items_list(s)

    def with_nested(self, values: list[Value]) -> Value:
        return type(self)(values)

    def probed(self, s: Session) -> tuple:
        return tuple(v.probed(s) for v in self.items_list(s))

    def identity(self) -> tuple:
        if self.cls is tuple and self._elements is not None and not self._elements:
            return ("const", ())
        return super().identity()

    def lower(self, s: Session) -> Any:
        items = [v.lower(s) for v in self.items_list(s)]
        return torch.Size(items) if self.cls is torch.Size and all(type(i) is int for i in items) else tuple(items)

    def hashed(self, s: Session) -> Value:
        if self.user_special(s, "__hash__"):
            return super().hashed(s)
        return Constant(hash(tuple(HashedAs(v.hashed(s).const(s)) for v in self.load(s))))

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

    def pytype(self, s: Session) -> type:
        if self.obj is not None and self.source is not None:  # what is done to one depends on how many it takes
            most = self.maxlen
            s.guards.add(src.GetAttr(self.source, "maxlen"), facts.identity(None) if most is None else
                         facts.Equals(most))
        return super().pytype(s)

    def getset(self, s: Session, raw: object, name: str) -> Value:
        if name != "maxlen":
            return super().getset(s, raw, name)
        self.pytype(s)
        return Constant(self.maxlen)

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

    def plain_getitem(self, s: Session, key: Value) -> Value:
        self.check_index(s, key)
        return super().plain_getitem(s, key)

    def check_index(self, s: Session, key: Value) -> None:
        if not key.has_index(s):
            raise Raised(s.exception(TypeError(
                f"sequence index must be integer, not '{type_name(key.pytype(s))}'")))

    def trimmed(self, elements: list[Value], left: bool = False) -> list[Value]:
        if self.maxlen is not None and len(elements) > self.maxlen:
            return elements[: self.maxlen] if left else elements[len(elements) - self.maxlen:]
        return elements

    def plain_setitem(self, s: Session, key: Value, value) -> None:
        self.check_index(s, key)
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
