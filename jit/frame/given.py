"""What a call is given: its arguments, and what it reads of the objects and lists among them that were made while
capturing.

What a made object, list or dict holds is not a part of what the arguments look like: an object may lead to all that the
program has made. Instead each reading is noted while the call is followed (``Given.watch``), and whatever a reading
gives counts as given too. Another call is given the same where its arguments look alike and the same readings give
what looks alike (``Given.matches``). What the call has written there before is its own, and is not noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from ..graph import stretch
from .values.base import Value, is_made_by_program
from .values.constant import Constant
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue
from .values.numbers import DimValue, FloatValue
from .values.objects import ObjectValue, has_plain_layout
from .values.overlays import DELETED, Overlay
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from ..graph.handles import TensorHandle
    from .session import Session
    from .source import Source

_Holder = Overlay | ListValue | DictValue
_MISSING = {id(None): "nothing", id(DELETED): "deleted"}


class Reading(NamedTuple):
    """One thing that was read of a made object or list.

    Attributes:
        place: of the object or list among what is given.
        kind: "attribute", "names", "element", "elements", "length", "entry" or "entries".
        key: an attribute's name; an element's index; what stands for an entry's key.
        source: of the number or text that an index or key is; None where it has none.
        look: of what was there.
    """

    place: int
    kind: str
    key: Any
    source: Source | None
    look: object


class Given:
    """See above.

    Attributes:
        looks: what the arguments look like.
        values: all that is given, each once, in the order in which it was met.
        tensors: those that were traced and are nothing but what their handles say.
        readings: in order.
        known: whether everything that was read is known.
        appended: what the call has appended to lists that it was given: (the place of the list, the value).
        put: likewise into dicts: (the place of the dict, the key, its source, the value).
    """

    def __init__(self, s: Session, findable: dict[int, object]) -> None:
        self._s = s
        self.looks: tuple = ()
        self.values: list[Value] = []
        self.tensors: list[TensorHandle] = []
        self.readings: list[Reading] = []
        # These are changed by the journal, which takes a step back with what it has written.
        self.appended: tuple[tuple[int, Value], ...] = ()
        self.put: tuple[tuple[int, Value, Source | None, Value], ...] = ()
        self._written: frozenset[tuple] = frozenset()
        self.known = True
        self._findable = findable  # what a call may come to by other ways too
        self._places: dict[int, int] = {}
        self._holders: dict[int, int] = {}  # what holds an object's attributes or a list's elements -> its place
        self._watched: list[_Holder] | None = None
        self._seen: set[tuple] = set()  # what was read

    def arguments(self, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Look at those behind the first one. False where they are more than is known here."""
        looks = [self.look(v) for v in (*args[1:], *kwargs.values())]
        self.looks = (*looks, tuple(kwargs))
        return None not in looks

    def anew(self) -> Given:
        """The same arguments, of which nothing was read."""
        new = Given(self._s, self._findable)
        new.looks, new.values, new.tensors = self.looks, list(self.values), list(self.tensors)
        new._places, new._holders = dict(self._places), dict(self._holders)
        return new

    @property
    def holds_made(self) -> bool:
        """Whether there is a made object or list among what is given."""
        return bool(self._holders)

    def at(self, value: Value) -> int | None:
        """The place of a value among what is given; None where it is not."""
        return self._places.get(id(value))

    def holder_at(self, holder: object) -> int | None:
        """The place of what a dictionary of attributes or a list belongs to; None where it is not given."""
        return self._holders.get(id(holder))

    # -- what things look like ----------------------------------------------------------------------------------------

    def look(self, v: Value) -> tuple | None:
        """What has to be the same of a value for the same to be done; None where that is not known."""
        if v.source is not None or type(v) in (DimValue, FloatValue) or id(v) in self._findable:
            self._place(v)
            return ("known", id(v))  # the same one for both
        if type(v) is TensorValue:
            return self._look_of_tensor(v)
        if type(v) is TupleValue and id(v) in self._places:
            return ("again", self._places[id(v)])
        at = self._place(v)
        if type(v) is Constant:
            kind = type(v.value)
            same = repr(v.value) if kind is float else v.value if kind in (int, str) else id(v.value)
            return ("constant", at, id(kind), same)
        if type(v) is TupleValue and v.obj is None and v.cls is tuple and v._elements is not None:
            return self._several(v, at, v._elements)
        if type(v) is ListValue and v.obj is None and v.cls is list and v._held is not None and not v.tail:
            return self._holder(v, v, at)
        if type(v) is ObjectValue and v.obj is None and is_plain_class(self._s, v.cls):
            return self._holder(v, v.attrs, at)
        if (type(v) is DictValue and v.obj is None and v.cls is dict and v._table is not None and not v.written
            and not v.unsettled):
            return self._holder(v, v, at)
        return None

    def _place(self, v: Value) -> int:
        """Which of the values it is: the first one is 0."""
        at = self._places.setdefault(id(v), len(self.values))
        if at == len(self.values):
            self.values.append(v)
        return at

    def _look_of_tensor(self, v: TensorValue) -> tuple | None:
        at = self._place(v)
        if not is_plain(self._s, v) or v._handle is None:
            return ("known", id(v))
        if not stretch.is_plain(v._handle):
            return ("known", id(v)) if v._handle.base.input is not None else None
        bases = [h.base for h in self.tensors]
        first = bases.index(v._handle.base) if v._handle.base in bases else len(bases)
        self.tensors.append(v._handle)
        return ("tensor", at, first, stretch.outline(v._handle))

    def _several(self, v: Value, at: int, elements: list[Value]) -> tuple | None:
        looks = [self.look(e) for e in elements]
        return None if None in looks else (type(v), at, *looks)

    def _holder(self, v: Value, holder: _Holder, at: int) -> tuple | None:
        if id(holder) not in self._holders:
            self._holders[id(holder)] = at
            if self._watched is not None:
                self._watch(holder)
        return ("made", at, type(v), id(v.cls))  # type: ignore[attr-defined]

    # -- while the call is followed -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """From here on all that is read is noted."""
        self._watched = []
        for v in list(self.values):
            if (holder := v.attrs if type(v) is ObjectValue and v.obj is None else v) and id(holder) in self._holders:
                self._watch(holder)  # type: ignore[arg-type]

    def _watch(self, holder: _Holder) -> None:
        assert self._watched is not None
        self._watched.append(holder)
        holder.watched = (*holder.watched, self)

    def unwatch(self) -> None:
        """Nothing is noted any more."""
        for holder in self._watched or ():
            holder.watched = tuple(g for g in holder.watched if g is not self)
        self._watched = None

    def reads(self, holder: _Holder, kind: str, key: object, found: object,
              source: Source | None = None) -> None:
        """Something is read. ``found``: what is there, as ``look_at`` takes it. ``source``: of an index."""
        at = self._holders[id(holder)]
        if (at,) in self._written and kind != "attribute":
            self.known = False  # it is partly what was given, and partly what the call has made of it
            return
        if (at, kind, key, source) in self._seen or (at, key) in self._written:
            return
        self._seen.add((at, kind, key, source))
        look = self.look_at(kind, found)
        self.known &= look is not None
        self.readings.append(Reading(at, kind, key, source, look))

    def writes(self, holder: _Holder, key: str | None) -> None:
        """An attribute, or a list in whole, is written."""
        self._writes(holder, key)
        self.known &= type(holder) is Overlay

    def _writes(self, holder: _Holder, key: str | None = None) -> int:
        at = self._holders[id(holder)]
        self._s.set_field(self, "_written", self._written | {(at, key), (at,)})
        return at

    def appends(self, holder: ListValue, values: list[Value]) -> None:
        at = self._writes(holder)
        self._s.set_field(self, "appended", (*self.appended, *[(at, value) for value in values]))

    def puts(self, holder: DictValue, key: Value, source: Source | None, value: Value) -> None:
        at = self._writes(holder)
        self._s.set_field(self, "put", (*self.put, (at, key, source, value)))

    def look_at(self, kind: str, found: Any) -> object:
        """What has to be the same of what was read."""
        if kind in ("elements", "entries"):
            looks = [self.look(v) for row in found for v in (row if kind == "entries" else (row,))]
            return None if None in looks else tuple(looks)
        if isinstance(found, Value):
            return self.look(found)
        return _MISSING.get(id(found), found)

    # -- another call -------------------------------------------------------------------------------------------------

    def matches(self, first: Given, pick: Callable[[Any, Any], Value | None]) -> bool:
        """Whether what another call has read there gives the same here. ``pick``: of a list or dict that is given here,
        and what was read there of the one in its place, the element or entry."""
        for reading in first.readings:
            v: Any = self.values[reading.place]
            read = _READ.get(reading.kind)
            if self.look_at(reading.kind, read(v, reading.key) if read else pick(v, reading)) != reading.look:
                return False
        return True


_READ: dict[str, Callable[[Any, Any], object]] = {
    "attribute": lambda v, name: v.attrs.get(name),
    "names": lambda v, _: v.attrs.outline(),
    "elements": lambda v, _: v._elements,
    "entries": lambda v, _: v.entries.values(),
    "length": lambda v, _: v.count(),
}


def is_plain(s: Session, v: TensorValue) -> bool:
    """Whether a tensor was made while capturing, and is nothing but what its handle says."""
    return (v.obj is None and v.cls is torch.Tensor and not v.elsewhere and v.grad is None
            and not any(identity == v.identity() for identity, _ in s.effects.tensor_attributes))


def is_made_inside(s: Session, cls: type) -> bool:
    """Whether a class, or one that it is derived from, was made while capturing: its methods may read what changes."""
    return any(id(c) in s.heap.templates for c in cls.__mro__)


def is_plain_class(s: Session, cls: type) -> bool:
    """Whether objects of a class are nothing but their attributes, and the class was there before."""
    return (is_made_by_program(cls) and has_plain_layout(cls) and not issubclass(cls, BaseException)
            and not is_made_inside(s, cls))
