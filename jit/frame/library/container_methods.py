"""Methods of list, tuple, dict, set, deque and their C subclasses."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Callable

from ...errors import Unsupported
from .. import messages, protocols
from ..operators import BINARY, COMPARE, INPLACE
from ..cpython import ROW
from ..values.base import Raised
from ..values.constant import Constant
from ..values.numbers import integer
from ..values.c_methods import method
from ..values.containers import ListValue, TupleValue
from ..values.mappings import DictValue, InstanceDict
from ..values.sets import DictView, SetValue, copied
from ..values.iterators import DictIterator, SequenceIterator
from ..values.slices import SliceValue
from .builtin_functions import sort_rows
from .classes import fill_dict

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.containers import ContainerValue, DequeValue, SequenceValue
    from ..values.objects import ObjectValue

NONE = Constant(None)


# -- shared special methods
# ------------------------------------------------------------------------------------------------


def _or_not(result):
    """What a method of C gives for the answer of a slot."""
    return Constant(NotImplemented) if result is None else result


def _holds(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    found = v.plain_contains(s, a[0])
    return Constant(protocols.search(s, v.plain_iter(s), a[0]) if found is None else found)


def _asked(v, s: Session, op, other):
    """``v.__op__(other)`` or ``v.__iop__(other)`` of a container's C class."""
    if op.symbol in "+*":
        result = (v.concat if op.symbol == "+" else v.repeat)(s, op, other)
    else:
        result = v.plain_number(s, op, v, other) if op.inplace is None else v.plain_inplace(s, op, other)
    return _or_not(result)


def _slots(cls) -> None:
    """The special methods that a container of C has, by the slots of its values."""
    method(cls, "__len__")(lambda v, s, a, k: integer(v.plain_length(s)))
    method(cls, "__iter__")(lambda v, s, a, k: v.plain_iter(s))
    method(cls, "__contains__")(_holds)
    method(cls, "__getitem__")(lambda v, s, a, k: v.plain_getitem(s, a[0]))
    method(cls, "__init_subclass__")(lambda v, s, a, k: NONE)
    for op in COMPARE.values():
        def compare(v, s: Session, a: list[Value], k: dict[str, Value], op=op) -> Constant:
            result = v.plain_compare(s, op, a[0])
            return Constant(NotImplemented if result is None else result)
        method(cls, op.method)(compare)
    for op in BINARY.values():
        if op.forward in vars(cls):
            method(cls, op.forward)(lambda v, s, a, k, op=op: _asked(v, s, op, a[0]))
        if op.reflected in vars(cls):
            method(cls, op.reflected)(lambda v, s, a, k, op=op: _or_not(
                v.repeat(s, op, a[0]) if op.symbol == "*" else a[0].number(s, op, a[0], v)))
    for op in INPLACE.values():
        if op.inplace in vars(cls):
            method(cls, op.inplace)(lambda v, s, a, k, op=op: _asked(v, s, op, a[0]))


for _cls in (list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict):
    _slots(_cls)


@method(list, "__setitem__")
@method(dict, "__setitem__")
@method(collections.OrderedDict, "__setitem__")
@method(collections.deque, "__setitem__")
def setitem(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.plain_setitem(s, a[0], a[1])
    return NONE


@method(dict, "__delitem__")
@method(collections.OrderedDict, "__delitem__")
def dict_delitem(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.plain_delitem(s, a[0])
    return NONE


@method(list, "__delitem__")
def list_delitem(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.delitem(s, a[0])
    return NONE


# -- list ------------------------------------------------------------------------------------------------------------


def _change(v: ContainerValue, s: Session, new: list[Value], fn: object, args: list[Value]) -> Value:
    s.set_elements(v, new)
    v.changed(s, fn, args)
    return NONE


@method(list, "__init__")
def list_init(v: Value, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return _change(v, s, a[0].items_list(s) if a else [], list.__init__, a)


@method(list, "append")
def list_append(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    v.extend(s, a)
    v.changed(s, list.append, a)
    return NONE


@method(list, "extend")
def list_extend(v: ListValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    v.extend_by(s, a[0])
    return NONE


@method(list, "insert")
@method(collections.deque, "insert")
def list_insert(v, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    new = list(v.load(s))
    if len(new) == getattr(v, "maxlen", None):
        raise Raised(s.exception(IndexError("deque already at its maximum size")))
    new.insert(a[0].index(s), a[1])
    return _change(v, s, new, v.builtin.insert, a)


@method(list, "pop")
def list_pop(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    new = list(v.load(s))
    index = a[0].index(s) if a else -1
    if not new:
        raise Raised(s.exception(IndexError("pop from empty list")))
    if not -len(new) <= index < len(new):
        raise Raised(s.exception(IndexError("pop index out of range")))
    value = new.pop(index)
    _change(v, s, new, list.pop, [Constant(index)])
    return value


def position(s: Session, values: list[Value], item: Value) -> int:
    return next((i for i, x in enumerate(values) if protocols.same_or_equal(s, x, item)), None)


@method(list, "remove")
def list_remove(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    new = list(v.load(s))
    at = position(s, new, a[0])
    if at is None:
        raise Raised(s.exception(ValueError("list.remove(x): x not in list")))
    del new[at]
    return _change(v, s, new, list.__delitem__, [Constant(at)])


@method(collections.deque, "remove")
def deque_remove(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    new = list(v.load(s))
    at = position(s, new, a[0])
    if at is None:
        raise Unsupported("deque.remove() is given a value that is not in the deque", kind="raises")
    del new[at]
    return _change(v, s, new, collections.deque.__delitem__, [Constant(at)])


@method(list, "clear")
def list_clear(v, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    v.load(s)
    return _change(v, s, [], list.clear, [])


@method(list, "reverse")
def list_reverse(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return _change(v, s, v.load(s)[::-1], list.reverse, [])


@method(list, "copy")
@method(list, "__copy__")
def list_copy(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return ListValue(v.load(s))


@method(list, "sort")
def list_sort(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    before, hidden = v.load(s), []
    s.set_elements(v, hidden)  # the list is empty meanwhile
    try:
        new, failed = sort_rows(s, before, k.get("key"), k.get("reverse"))
    except Raised:
        s.set_elements(v, before)
        raise
    if failed is None and v.elements:
        failed = Raised(s.exception(ValueError("list modified during sort")))
    elif v.elements is not hidden and not v.elements:
        raise Unsupported("a list is changed while it is sorted", kind="c-call")
    _change(v, s, new, list.__setitem__, [SliceValue(NONE, NONE, NONE), TupleValue(new)])
    if failed is not None:
        raise failed
    return NONE


@method(list, "index")
@method(tuple, "index")
@method(collections.deque, "index")
def sequence_index(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    values = v.load(s)
    start, stop, _ = slice(*(x.index(s) for x in a[1:])).indices(len(values)) if len(a) == 3 else slice(
        a[1].index(s) if len(a) > 1 else 0, None).indices(len(values))
    at = position(s, values[start:stop], a[0])
    if at is None:
        text = {list: messages.not_in_list(_plain_repr(s, a[0])),
                tuple: "tuple.index(x): x not in tuple"}.get(v.builtin, f"{_plain_repr(s, a[0])} is not in deque")
        raise Raised(s.exception(ValueError(text)))
    return Constant(start + at)


def _plain_repr(s: Session, value):
    return value.text(s, "__repr__").const(s)


@method(list, "count")
@method(tuple, "count")
@method(collections.deque, "count")
def sequence_count(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    return Constant(sum(protocols.same_or_equal(s, x, a[0]) for x in v.load(s)))


@method(tuple, "__init__")
@method(object, "__init__")
def nothing(v, s: Session, a: list[Value], k: dict[str, Value]):
    return NONE


@method(list, "__reversed__")
def list_reversed(v, s: Session, a: list[Value], k: dict[str, Value]) -> SequenceIterator:
    return SequenceIterator(v, len(v.load(s)) - 1, -1)


# -- torch.Size ------------------------------------------------------------------------------------------------------

import torch  # noqa: E402


@method(torch.Size, "numel")
def size_numel(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    total = Constant(1)
    for x in v.load(s):
        total = protocols.binary_op(s, BINARY["*"], total, x)
    return total


# -- deque -----------------------------------------------------------------------------------------------------------


@method(collections.deque, "append")
def deque_append(v: DequeValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    if v.maxlen is None:
        v.extend(s, a)
        v.changed(s, collections.deque.append, a)
        return NONE
    return _change(v, s, v.trimmed(v.load(s) + [a[0]]), collections.deque.append, a)


@method(collections.deque, "appendleft")
def deque_appendleft(v: DequeValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return _change(v, s, v.trimmed([a[0]] + v.load(s), left=True), collections.deque.appendleft, a)


@method(collections.deque, "extend")
def deque_extend(v: DequeValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    for values in a[0].chunks(s):
        if v.maxlen is None:
            v.extend(s, values)
            v.changed(s, collections.deque.extend, [TupleValue(values)])
        else:
            _change(v, s, v.trimmed(v.load(s) + values), collections.deque.extend, [TupleValue(values)])
    return NONE


@method(collections.deque, "extendleft")
def deque_extendleft(v, s: Session, a: list[Value], k: dict[str, Value]):
    for values in a[0].chunks(s):
        _change(v, s, v.trimmed(values[::-1] + v.load(s), left=True), collections.deque.extendleft,
                [TupleValue(values)])
    return NONE


def _deque_pop(at: int, fn: object) -> Callable:
    def pop(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
        new = list(v.load(s))
        if not new:
            raise Raised(s.exception(IndexError("pop from an empty deque")))
        value = new.pop(at)
        _change(v, s, new, fn, [])
        return value

    return pop


method(collections.deque, "pop")(_deque_pop(-1, collections.deque.pop))
method(collections.deque, "popleft")(_deque_pop(0, collections.deque.popleft))


@method(collections.deque, "rotate")
def deque_rotate(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    new = collections.deque(v.load(s))
    new.rotate(a[0].index(s) if a else 1)
    return _change(v, s, list(new), collections.deque.rotate, a)


@method(collections.deque, "clear")
def deque_clear(v, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return _change(v, s, [], collections.deque.clear, [])


@method(collections.deque, "copy")
def deque_copy(v: SequenceValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return v.like(v.load(s))


@method(collections.deque, "reverse")
def deque_reverse(v, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return _change(v, s, v.load(s)[::-1], collections.deque.reverse, [])


# -- dict ------------------------------------------------------------------------------------------------------------


for _what in ("keys", "values", "items"):
    method(dict, _what)(lambda v, s, a, k, what=_what: DictView(v, what))
    method(collections.OrderedDict, _what)(lambda v, s, a, k, what=_what: DictView(v, what))
    _view = type(getattr({}, _what)())
    method(_view, "__len__")(lambda v, s, a, k: integer(v.length(s)))
    method(_view, "__iter__")(lambda v, s, a, k: v.iter(s))
    if hasattr(_view, "__contains__"):
        method(_view, "__contains__")(lambda v, s, a, k: Constant(protocols.contains(s, v, a[0])))


@method(dict, "get")
def dict_get(v: ContainerValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    if v.plain_contains(s, a[0]):
        return v.plain_getitem(s, a[0])
    return a[1] if len(a) > 1 else NONE


def _set_entries(v: ContainerValue, s: Session, entries: dict[str, tuple[Value, ...]], fn: object,
                 args: list[Value]) -> None:
    v.replace(s, entries)
    v.changed(s, fn, args)


def _bulk(v: Value | InstanceDict, s: Session, pairs: list[tuple[Value, ...]]) -> None:
    for key, value in pairs:
        if isinstance(v, InstanceDict):
            v.plain_setitem(s, key, value)
            continue
        h = messages.dict_key(s, key, v)
        entries = dict(v.load(s))
        entries[h] = (entries[h][0] if h in entries else key, value)
        _set_entries(v, s, entries, v.raw("__setitem__"), [key, value])


@method(dict, "update")
@method(collections.OrderedDict, "update")
def dict_update(v: ObjectValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    pairs = fill_dict(s, v.cls, a, k)
    if v.cls is not dict and v.user_special(s, "__setitem__") and v.cls.__mro__[1] is not dict:
        for key, value in pairs:
            v.setitem(s, key, value)
    else:
        _bulk(v, s, pairs)
    return NONE


@method(dict, "__init__")
@method(collections.OrderedDict, "__init__")
@method(collections.defaultdict, "__init__")
def dict_init(v: ObjectValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    if issubclass(v.cls, collections.defaultdict):
        s.set_field(v, "factory", a[0] if a else NONE)
        a = a[1:]
    if issubclass(v.cls, collections.OrderedDict):
        return dict_update(v, s, a, k)
    _bulk(v, s, fill_dict(s, v.cls, a, k))
    return NONE


@method(collections.defaultdict, "__missing__")
def default_missing(v: DictValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    v.load(s)
    if v.factory is None or v.factory.is_leaf:
        raise Raised(s.exception(KeyError, [a[0]]))
    value = v.factory.call(s, [], {})
    v.setitem(s, a[0], value)
    return value


@method(dict, "setdefault")
@method(collections.OrderedDict, "setdefault")
def dict_setdefault(v: ContainerValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    if v.plain_contains(s, a[0]):
        return v.plain_getitem(s, a[0])
    value = a[1] if len(a) > 1 else NONE
    v.setitem(s, a[0], value)
    return value


@method(dict, "pop")
@method(collections.OrderedDict, "pop")
def dict_pop(v: DictValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    if not a[0].is_leaf and not v.load(s) and len(a) > 1:
        return a[1]  # nothing is looked up, so that it need not be hashable
    if v.plain_contains(s, a[0]):
        value = v.plain_getitem(s, a[0])
        v.plain_delitem(s, a[0])
        return value
    default = a[1] if len(a) > 1 else k.get("default")
    if default is None:
        raise Raised(s.exception(KeyError, [a[0]]))
    return default


@method(dict, "popitem")
@method(collections.OrderedDict, "popitem")
def dict_popitem(v: DictValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    entries = v.load(s)
    if not entries:
        raise Raised(s.exception(KeyError("dictionary is empty" if issubclass(v.cls, collections.OrderedDict)
                                          else "popitem(): dictionary is empty")))
    last = (k.get("last") or (a[0] if a else Constant(True))).truth(s)
    key, value = list(entries.values())[-1 if last else 0]
    v.plain_delitem(s, key)
    return TupleValue([key, value])


@method(dict, "clear")
@method(collections.OrderedDict, "clear")
def dict_clear(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.load(s)
    _set_entries(v, s, {}, v.raw("clear"), [])
    return NONE


@method(dict, "copy")
@method(collections.OrderedDict, "copy")
@method(collections.defaultdict, "copy")
def dict_copy(v: DictValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return DictValue(dict(v.load(s)), v.cls, factory=v.factory)


@method(collections.OrderedDict, "move_to_end")
def move_to_end(v: DictValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    last = (k.get("last") or (a[1] if len(a) > 1 else Constant(True))).truth(s)
    entries = dict(v.load(s))
    h = a[0].hash_key(s)
    if h not in entries:
        raise Raised(s.exception(KeyError, [a[0]]))
    entry = entries.pop(h)
    entries = {**entries, h: entry} if last else {h: entry, **entries}
    _set_entries(v, s, entries, collections.OrderedDict.move_to_end, [a[0], Constant(last)])
    return NONE


@method(dict, "__reversed__")
def dict_reversed(v, s: Session, a: list[Value], k: dict[str, Value]) -> DictIterator:
    v.load(s)
    return DictIterator(v, "keys", backwards=True)


# -- set -------------------------------------------------------------------------------------------------------------


@method(set, "__init__")
def set_init(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.update(s, SetValue.of(s, a[0].items_list(s)).entries if a else {}, set.__init__, a)
    return NONE


@method(set, "add")
def set_add(v: SetValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    v.add(s, a[0])
    return NONE


def _set_remove(strict: bool) -> Callable:
    def remove(v: SetValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
        entries = dict(v.load(s))
        if entries.pop(v.wanted(s, a[0]), None) is None:
            if strict:
                raise Raised(s.exception(KeyError, [a[0]]))
            return NONE
        v.update(s, entries, set.discard, a)
        return NONE

    return remove


method(set, "remove")(_set_remove(True))
method(set, "discard")(_set_remove(False))


@method(set, "clear")
def set_clear(v, s: Session, a: list[Value], k: dict[str, Value]):
    v.load(s)
    v.update(s, {}, set.clear, [])
    return NONE


@method(set, "copy")
@method(frozenset, "copy")
def set_copy(v: SetValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
    return SetValue.made_by(s, dict(v.load(s)), v.cls, copied, v)


@method(set, "pop")
def set_pop(v, s: Session, a: list[Value], k: dict[str, Value]):
    entries = dict(v.load(s))
    if not entries:
        raise Raised(s.exception(KeyError("pop from an empty set")))
    first = v.order(s)[0]
    value = entries.pop(first)
    v.update(s, entries, set.discard, [value])
    return value


def _common(s: Session, v, iterable) -> SetValue:
    """The elements of an iterable that are in a set. As in CPython, what comes after the last of them is not looked
    at."""
    own, entries, it = v.load(s), {}, iterable.iter(s)
    while (element := it.next(s)) is not None:
        h = messages.set_element(s, element, v)
        if h in own:
            entries.setdefault(h, element)
            if len(entries) == len(own):
                break
    return SetValue(entries)


def _all_in(s: Session, v, iterable, inside: bool) -> bool:
    """Whether all elements are in a set, or all outside of it; the first one that is not ends it."""
    own, it = v.load(s), iterable.iter(s)
    while (element := it.next(s)) is not None:
        if (messages.set_element(s, element, v) in own) != inside:
            return False
    return True


def _as_far_as_it_goes(s: Session, v, iterable, symbol) -> SetValue:
    """The elements for ``update`` or ``difference_update``: those before one that raises have their effect."""
    entries, it = {}, iterable.iter(s)
    try:
        while (element := it.next(s)) is not None:
            entries.setdefault(messages.set_element(s, element, is_new=True), element)
    except Raised:
        protocols.binary_op(s, INPLACE[symbol], v, SetValue(entries))
        raise
    return SetValue(entries)


def _set_operation(symbol: str, update: bool) -> Callable:
    def operation(v: SetValue, s: Session, a: list[Value], k: dict[str, Value]) -> Value:
        result = v
        for other in a:
            left = result if not update else v
            if type(other) is SetValue:
                right = other
            elif symbol == "&" and other.builtin not in (set, frozenset):
                right = _common(s, left, other)
            elif symbol in "|-" and update:
                right = _as_far_as_it_goes(s, v, other, symbol)
            else:
                right = SetValue.of(s, other.items_list(s))
            right.of_a_sequence = right is not other
            result = protocols.binary_op(s, (INPLACE if update else BINARY)[symbol], left, right)
        if not a and not update:
            return set_copy(v, s, a, k)
        return NONE if update else result

    return operation


for _name, _symbol in (("union", "|"), ("intersection", "&"), ("difference", "-"), ("symmetric_difference", "^")):
    for _cls in (set, frozenset):
        method(_cls, _name)(_set_operation(_symbol, False))
for _name, _symbol in (("update", "|"), ("intersection_update", "&"), ("difference_update", "-"),
                       ("symmetric_difference_update", "^")):
    method(set, _name)(_set_operation(_symbol, True))


@method(set, "isdisjoint")
@method(frozenset, "isdisjoint")
def set_isdisjoint(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    return Constant(_all_in(s, v, a[0], False))


@method(set, "issuperset")
@method(frozenset, "issuperset")
def set_issuperset(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    return Constant(_all_in(s, v, a[0], True))


@method(set, "issubset")
@method(frozenset, "issubset")
def set_issubset(v, s: Session, a: list[Value], k: dict[str, Value]) -> Constant:
    if a[0].builtin not in (set, frozenset) and ROW.subset_looks_up:
        return Constant(len(_common(s, v, a[0]).entries) == len(v.load(s)))
    return Constant(set(v.load(s)) <= set(SetValue.of(s, a[0].items_list(s)).entries))
