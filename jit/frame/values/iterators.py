"""Iterators: each answers ``next(s)`` with a value, or None once exhausted, and iterates over itself."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
from collections.abc import ItemsView, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable

from ... import turns
from ...errors import NeedsEager, Unsupported
from ...graph.dims import hint
from ...runtime import facts
from .. import source as src
from .base import Raised, Value, type_name
from .constant import Constant

if TYPE_CHECKING:
    import torch
    from ..emit import Emitter
    from ..operators import Unary
    from ..session import Session
    from ..source import Source
    from .mappings import DictValue


class IteratorValue(Value):
    """Base of iterators made while capturing."""

    py = type(iter([]))
    obj = source = None  # a real iterator

    def pytype(self, s: Session) -> type:
        if self.source is not None:
            s.guards.add(self.source, facts.TypeIs(type(self.obj)))
        return self.py

    def iter(self, s: Session) -> Value:
        return self

    def send(self, s: Session, sent: Value) -> tuple[Value | None, Value]:
        return (self.next(s), Constant(None)) if sent.is_nothing(s) else super().send(s, sent)

    def has_method(self, s: Session, name: str) -> bool:
        return False  # neither throw nor close

    def identity(self) -> tuple[str, int]:
        return ("object", id(self.obj)) if self.obj is not None else ("value", id(self))

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__next__":
            return IteratorMethod(self, name)
        if name == "__iter__":
            return IteratorMethod(self, name)
        if not hasattr(self.pytype(s), name):
            raise Raised(s.exception(AttributeError(f"'{type_name(self.py)}' object has no attribute '{name}'")))
        return super().getattr(s, name)

    def getitem(self, s: Session, key: Value) -> Value:
        raise Raised(s.exception(TypeError(f"'{type_name(self.pytype(s))}' object is not subscriptable")))

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Raised(s.exception(TypeError(f"'{type_name(self.pytype(s))}' object is not callable")))

    def unary(self, s: Session, op: Unary) -> Value | None:
        raise Raised(s.exception(TypeError(f"bad operand type for unary {op.symbol}: '{type_name(self.pytype(s))}'")))

    def to_float(self, s: Session) -> Value:
        raise Raised(s.exception(TypeError(
            f"float() argument must be a string or a real number, not '{type_name(self.pytype(s))}'")))

    def hash_key(self, s: Session) -> Any:
        return ("iterator", id(self))

    def emit(self, e: Emitter) -> None:
        if self.obj is not None:
            e.load_source_or_const(self)
        else:
            self.rebuild(e)

    def rebuild(self, e: Emitter) -> None:
        """What is left of the iterator, as an iterator over a list, if it is one over a list, or a tuple."""
        rest = self.rest(e.session)
        e.call_const(iter, [e.session.list_of(rest) if self.py is IteratorValue.py else e.session.tuple_of(rest)])

    def rest(self, s: Session) -> list[Value]:
        raise Unsupported(f"{self.describe()}, partly used, leaves the captured region",
                          kind="iterator-escapes")


class IteratorMethod(Value):
    """``iterator.__next__`` or ``__iter__`` as an object."""

    def __init__(self, it, name: str) -> None:
        self.it, self.name = it, name

    def getattr(self, s: Session, name: str) -> Value:
        if name == "__self__":
            return self.it
        return super().getattr(s, name)

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "__iter__":
            return self.it
        value = self.it.next(s)
        if value is None:
            raise Raised(s.exception(StopIteration()))
        return value


_TYPES = {(cls, forward): type(iter(cls()) if forward else reversed(cls()))
          for cls in (list, tuple, collections.deque) for forward in (True, False)}
_TEE = type(itertools.tee(())[0])


class SequenceIterator(IteratorValue):
    """Over a list or tuple value: it sees later changes of a list, as Python's does."""

    quiet = True

    def __init__(self, elements: Value | list[Value], at: int = 0, step: int = 1, py: type | None = None) -> None:
        self.elements, self.at, self.step = elements, at, step
        self.py = py or _TYPES.get((getattr(elements, "builtin", list), step > 0), IteratorValue.py)

    def _list(self) -> list[Value]:
        return self.elements if isinstance(self.elements, list) else self.elements.elements

    def next(self, s: Session) -> Value | None:
        elements = self._list()
        if self.at is None or not 0 <= self.at < len(elements):
            self.at = s.set_field(self, "at", None)
            return None
        value = elements[self.at]
        s.set_field(self, "at", self.at + self.step)
        return value

    def rest(self, s: Session) -> list[Value]:
        if self.at is None:
            return []
        return self._list()[self.at:] if self.step > 0 else self._list()[self.at::-1]

    def rebuild(self, e: Emitter) -> None:
        if self.py is _TEE:
            e.call_const(_tee_over, [e.session.tuple_of(self.rest(e.session))])
        elif self.at is None or isinstance(self.elements, list):
            super().rebuild(e)
        else:
            e.call_const(_iterator_at, [self.elements, Constant(self.at), Constant(self.step)])


class TeeIterator(IteratorValue):
    """One of the results of ``itertools.tee``. ``shared``: the iterator that they read, and what they have read of it
    so far."""

    quiet = True
    py = _TEE

    def __init__(self, shared: list[Value | list]) -> None:
        self.shared, self.at = shared, 0

    def next(self, s: Session) -> Value | None:
        source, seen = self.shared
        if self.at == len(seen):
            value = source.next(s)
            if value is None:
                return None
            s.set_entry(self.shared, 1, [*seen, value])
        value = self.shared[1][self.at]
        s.set_field(self, "at", self.at + 1)
        return value

    def rebuild(self, e: Emitter) -> None:
        source, seen = self.shared
        e.call_const(_tee_over, [e.session.tuple_of([*seen[self.at:], *source.rest(e.session)])])


def _tee_over(elements):
    return itertools.tee(elements, 1)[0]


def _range_at(start: int, stop: int, step: int, at: int) -> Iterator[int]:
    """An iterator over a range, of which ``at`` numbers were given."""
    made: Any = iter(range(start, stop, step))
    made.__setstate__(at)
    return made


def _iterator_at(sequence: Sequence[int | object], at: int, step: int) -> Iterator:
    """An iterator over a list or tuple that has come to a position."""
    it = iter(sequence) if step > 0 else reversed(sequence)
    if isinstance(sequence, collections.deque):  # whose iterators cannot be told where they are
        collections.deque(itertools.islice(it, at if step > 0 else len(sequence) - 1 - at), 0)
        return it
    missing = at + (step < 0) - (list.__len__(sequence) if isinstance(sequence, list) else at + 1)
    if missing > 0:  # it has become shorter, and an iterator takes no place behind the end
        list.extend(sequence, [None] * missing)
    try:
        it.__setstate__(at)
    finally:
        if missing > 0:
            list.__delitem__(sequence, slice(-missing, None))
    return it


def _advance(iterator: object) -> None:
    """One step of a real iterator, as an effect."""
    next(iterator, None)


_UNORDERED = tuple(type(iter(v)) for v in ({}, {}.values(), {}.items(), set(), collections.OrderedDict()))


class RealIterator(IteratorValue):
    """A real iterator of a builtin type over a list, tuple, range, dict, set or string: its elements and position are
    guarded, and the real one is advanced with it. ``steps`` is False for what another real iterator advances."""

    def __init__(self, obj: object, source: Source, steps: bool = True) -> None:
        self.obj, self.source, self.steps = obj, source, steps
        self.py, self.sequence, self.at = type(obj), None, None

    def load(self, s: Session) -> Value:
        if self.sequence is None:
            self.pytype(s)
            turns.only_in_call("an iterator is read")  # which the call advances
            try:
                state = src.state_of(self.obj)
            except RuntimeError as error:  # the dictionary or set has changed its size
                raise Unsupported(f"an iterator that cannot go on: {error}", kind="iterate") from None
            at = state[1] if len(state) > 1 and state[1] is not None else 0
            # what is left of a range is, from 3.12 on, a range of its own
            position = state[0].start if isinstance(state[0], range) and not at else at
            if len(state) == 1 and isinstance(state[0], list):  # of a dictionary or set: what is left, as a list
                position = -len(state[0])
            if not s.varying.unrolls(self.source, position):
                raise Unsupported("the position of an iterator is different at every call", kind="iterator-position")
            inner = src.IteratorState(self.source) if self.source is not None else None
            if inner is not None:
                s.guards.add(inner, facts.Length(len(state)))
            parts = [s.wrap(v, src.Item(inner, i) if inner is not None else None) for i, v in enumerate(state)]
            for part in parts[1:]:
                part.const(s)
            s.heap.keep(state)
            count = parts[0].length(s)
            if parts[0].source is not None and not isinstance(count, int):
                s.varying.expect(parts[0].source, hint(count), type(state[0]))  # that it ends there is a fact
            self.sequence = parts[0]
            self.at = at
            self.backwards = isinstance(self.obj, type(reversed([])))
        return self.sequence

    def over_changed(self, s: Session) -> bool:
        """Whether the program has changed the dictionary or set that the iterator goes through, which only the iterator
        itself can tell what that means."""
        if not s.heap.touched or not isinstance(self.obj, _UNORDERED):
            return False
        over = next((o for o in gc.get_referents(self.obj) if isinstance(o, (dict, set, frozenset))), None)
        return over is not None and any(value.obj is over for value in s.heap.touched)

    def next(self, s: Session) -> Value | None:
        sequence = self.load(s)
        if self.over_changed(s):
            raise Unsupported("a dictionary or set was changed while an iterator goes through it", kind="iterate")
        count = sequence.length(s)
        inside = self.at is not None and 0 <= self.at < count
        if self.steps:
            s.effect(_advance, [self])
        if not inside:
            s.set_field(self, "at", None)
            return None
        value = sequence.getitem(s, Constant(self.at))
        s.set_field(self, "at", self.at - 1 if self.backwards else self.at + 1)
        return value

    def hash_key(self, s: Session) -> Any:
        s.guards.add(self.source, facts.identity(self.obj))
        return self.obj


class RealIteratorOver(IteratorValue):
    """A real ``zip``, ``map``, ``filter`` or ``enumerate``. What it goes through is looked at when it is first
    advanced: ``take_apart(s, obj, source)`` gives an iterator that does the same."""

    def __init__(self, obj: Iterable, source: Source, take_apart: Callable) -> None:
        self.obj, self.source, self.take_apart = obj, source, take_apart
        self.py, self.inner = type(obj), None

    def next(self, s: Session) -> Value | None:
        if self.inner is None:
            self.pytype(s)
            s.set_field(self, "inner", self.take_apart(s, self.obj, self.source))
        return self.inner.next(s)

    def hash_key(self, s: Session) -> Any:
        s.guards.add(self.source, facts.identity(self.obj))
        return self.obj


class RangeIterator(IteratorValue):
    """Over a range of known bounds."""

    py = type(iter(range(0)))

    quiet = True

    def __init__(self, values: range) -> None:
        self.values, self.at = values, 0

    def next(self, s: Session) -> Value | None:
        if self.at >= len(self.values):
            return None
        value = self.values[self.at]
        s.set_field(self, "at", self.at + 1)
        return Constant(value)

    def rest(self, s: Session) -> list[Value]:
        return [Constant(v) for v in self.values[self.at:]]

    def rebuild(self, e: Emitter) -> None:
        whole = self.values
        e.call_const(_range_at, [Constant(v) for v in (whole.start, whole.stop, whole.step, self.at)])


class SetIterator(SequenceIterator):
    """Over the elements of a set value in its order; a change of size while iterating raises as Python does."""

    def __init__(self, of: Value, elements: list[Value]) -> None:
        super().__init__(elements, py=type(iter(set())))
        self.of, self.size = of, len(elements)

    def changed(self, s: Session) -> bool:
        return self.at is not None and len(self.of.load(s)) != self.size

    def next(self, s: Session) -> Value | None:
        if self.changed(s):
            raise Raised(s.exception(RuntimeError("Set changed size during iteration")))
        return super().next(s)

    def rebuild(self, e: Emitter) -> None:
        if self.changed(e.session):
            e.call_const(_iterator_of_a_changed_set, [])
        elif self.at is not None and self.as_it_was(e.session):
            e.call_const(_advanced, [self.of, Constant(self.at)])
        else:
            super().rebuild(e)

    def as_it_was(self, s: Session) -> bool:
        """Whether a real set gives the same elements in the same order."""
        entries = self.of.load(s)
        return self.of.cls in (set, frozenset) and all(v.is_const() for v in entries.values()) and (
            [entries[k] for k in self.of.order(s)] == self.elements)


def _keys(mapping: DictValue) -> list[Value]:
    """The keys as they were put in: another object after one was taken out and put in again."""
    return [key for key, _ in mapping.entries.values()]


class DictIterator(IteratorValue):
    """Over keys, values or items of a dict value; a change of size while iterating raises as Python does."""

    quiet = True

    def __init__(self, mapping: DictValue, what: str, backwards: bool = False) -> None:
        self.mapping, self.what, self.at, self.size = mapping, what, 0, len(mapping.entries)
        self.order, self.backwards = list(mapping.entries.values()), backwards
        self.seen, self.keys = mapping.entries, _keys(mapping)
        of = getattr(collections.OrderedDict() if issubclass(mapping.cls, collections.OrderedDict) else {}, what)()
        self.py = type(reversed(of) if backwards else iter(of))
        if backwards:
            self.order.reverse()

    def next(self, s: Session) -> Value | None:
        if self.at is None:
            return None
        if len(self.mapping.entries) != self.size:
            raise Raised(s.exception(RuntimeError("dictionary changed size during iteration")))
        if self.mapping.entries is not self.seen:
            if any(p is not q for p, q in zip(_keys(self.mapping), self.keys, strict=True)):
                # What comes then depends on the places in the table.
                raise NeedsEager("a dict of which keys are replaced while it is iterated", kind="iterate")
            s.set_field(self, "seen", self.mapping.entries)
        if self.at >= len(self.order):
            s.set_field(self, "at", None)  # from now on changes do not matter
            return None
        entry = self.order[self.at]
        s.set_field(self, "at", self.at + 1)
        return self.pick(s, entry)

    def pick(self, s: Session, entry: tuple[Value, ...]) -> Value:
        key, value = entry
        if self.what == "keys":
            return key
        if self.what == "values":
            return self.mapping.entries.get(self.mapping.key_of(entry), entry)[1]
        return s.tuple_of([key, self.mapping.entries.get(self.mapping.key_of(entry), entry)[1]])

    def rest(self, s: Session) -> list[Value]:
        return [] if self.at is None else [self.pick(s, e) for e in self.order[self.at:]]

    def rebuild(self, e: Emitter) -> None:
        if self.at is not None and len(self.mapping.entries) != self.size:
            e.call_const(_iterator_of_a_changed_dict, [])
        elif self.at is not None and self.as_it_was():
            e.call_const(_advanced_view, [self.mapping, Constant(self.what),
                                          Constant(self.at), Constant(self.backwards)])
        else:
            super().rebuild(e)

    def as_it_was(self) -> bool:
        """Whether a real dict has the same keys in the same order."""
        keys = [key for key, _ in self.mapping.entries.values()]
        return self.mapping.identity()[0] != "instance-dict" and (keys[::-1] if self.backwards
                                                                  else keys) == [key for key, _ in self.order]


def _advanced(iterable: ItemsView, at: int) -> Iterator:
    """A new iterator after ``at`` steps."""
    iterator = iter(iterable)
    for _ in range(at):
        next(iterator)
    return iterator


def _advanced_view(mapping: dict[str, torch.Tensor], what: str, at: int, backwards: bool) -> Iterator:
    """An iterator over keys, values or items of a dict after ``at`` steps."""
    view = getattr(collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict, what)(mapping)
    return _advanced(reversed(view) if backwards else view, at)


def _iterator_of_a_changed_set():
    """As ``_iterator_of_a_changed_dict``."""
    changed: set = set()
    iterator = iter(changed)
    changed.add(0)
    return iterator


def _iterator_of_a_changed_dict():
    """An iterator whose next step raises that its dictionary has changed its size."""
    changed: dict = {}
    iterator = iter(changed)
    changed[0] = 0
    return iterator


class ZipIterator(IteratorValue):
    """``zip(*iterators, strict=)``."""

    py = zip

    def __init__(self, iterators: list[Value], strict: bool = False) -> None:
        self.iterators, self.strict = iterators, strict

    def next(self, s: Session) -> Value | None:
        out = []
        for i, it in enumerate(self.iterators):
            value = it.next(s)
            if value is None:
                if self.strict:
                    self._check(s, i)
                return None
            out.append(value)
        return s.tuple_of(out) if out else None

    def _check(self, s: Session, i: int) -> None:
        plural = "s 1-" if i > 1 else " "
        if i:
            raise Raised(s.exception(ValueError(f"zip() argument {i + 1} is shorter than argument{plural}{i}")))
        for k, it in enumerate(self.iterators[1:], 1):
            if it.next(s) is not None:
                plural = "s 1-" if k > 1 else " "
                raise Raised(s.exception(ValueError(f"zip() argument {k + 1} is longer than argument{plural}{k}")))

    def rebuild(self, e: Emitter) -> None:
        e.call_const(zip, self.iterators, {"strict": Constant(True)} if self.strict else None)


class EnumerateIterator(IteratorValue):
    py = enumerate

    def __init__(self, it: Value, start: int = 0) -> None:
        self.it, self.count = it, start

    def next(self, s: Session) -> Value | None:
        value = self.it.next(s)
        if value is None:
            return None
        count = self.count
        s.set_field(self, "count", count + 1)
        if self.obj is not None:
            s.effect(_advance, [self])
        return s.tuple_of([Constant(count), value])

    def rebuild(self, e: Emitter) -> None:
        e.call_const(enumerate, [self.it, Constant(self.count)])


def ends_by_exception(step: Callable) -> Callable:
    """``next`` of an iterator that calls functions of the program: one that raises StopIteration ends it, as far as
    anybody can tell."""

    @functools.wraps(step)
    def next(self, s: Session) -> Value | None:
        try:
            return step(self, s)
        except Raised as raised:
            if s.is_exception(raised.value, StopIteration):
                return None
            raise

    return next


class MapIterator(IteratorValue):
    py = map

    def __init__(self, fn: Value, iterators: list[Value]) -> None:
        self.fn, self.iterators = fn, iterators

    @ends_by_exception
    def next(self, s: Session) -> Value | None:
        args = []
        for it in self.iterators:
            value = it.next(s)
            if value is None:
                return None
            args.append(value)
        return self.fn.call(s, args, {})

    def rebuild(self, e: Emitter) -> None:
        e.call_const(map, [self.fn, *self.iterators])


class FilterIterator(IteratorValue):
    """``filter``, ``itertools.filterfalse``, ``takewhile`` and ``dropwhile`` by mode."""

    def __init__(self, fn: Value | None, it: Value, mode: str = "filter") -> None:
        self.py = filter if mode == "filter" else getattr(itertools, mode)
        self.fn, self.it, self.mode, self.open = fn, it, mode, False

    @ends_by_exception
    def next(self, s: Session) -> Value | None:
        while True:
            value = None if self.mode == "done" else self.it.next(s)
            if value is None:
                return None
            if self.mode == "dropwhile" and self.open:
                return value
            keep = (value if self.fn is None else self.fn.call(s, [value], {})).truth(s)
            if self.mode == "takewhile":
                if not keep:
                    s.set_field(self, "mode", "done")
                    return None
                return value
            if self.mode == "dropwhile":
                if not keep:
                    s.set_field(self, "open", True)
                    return value
            elif keep == (self.mode == "filter"):
                return value

    def rebuild(self, e: Emitter) -> None:
        fn = Constant(None) if self.fn is None else self.fn
        if self.mode == "done":
            e.call_const(iter, [e.session.tuple_of([])])
        elif self.mode == "dropwhile" and self.open:
            e.load(self.it)
        else:
            made = filter if self.mode == "filter" else getattr(itertools, self.mode)
            e.call_const(made, [fn, self.it])


class ChainIterator(IteratorValue):
    """``itertools.chain``: ``outer`` yields iterables."""

    import itertools as _it
    py = _it.chain

    def __init__(self, outer: Value) -> None:
        self.outer, self.inner = outer, None

    def next(self, s: Session) -> Value | None:
        while True:
            if self.inner is not None:
                value = self.inner.next(s)
                if value is not None:
                    return value
            following = self.outer.next(s)
            if following is None:
                s.set_field(self, "inner", None)
                return None
            s.set_field(self, "inner", following.iter(s))

    def rebuild(self, e: Emitter) -> None:
        if self.inner is None:
            e.call_const(self.py.from_iterable, [self.outer])
        else:
            e.call_const(_chained, [self.inner, self.outer])


def _chained(first, rest):
    """The rest of one iterator, then those of the others."""

    return itertools.chain(first, itertools.chain.from_iterable(rest))


class FunctionIterator(IteratorValue):
    """An iterator given by a Python function ``step(s) -> value | None`` (count, cycle, repeat, iter(f, sentinel),
    ...)."""

    def __init__(self, step: Callable, py: type = type(iter([]))) -> None:
        self.step, self.py = step, py

    @ends_by_exception
    def next(self, s: Session) -> Value | None:
        return self.step(s)
