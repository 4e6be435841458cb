"""C functions of the standard library as the Python that they stand for, which is inlined like any other Python.

Each is what the documentation of the C function says, or its pure Python form in the library reference.
"""

from __future__ import annotations

import bisect
import collections
import copyreg
import functools
import heapq
import itertools
import operator
from typing import TYPE_CHECKING, Callable

from ...errors import Unsupported
from ..signatures import takes
from ..tables import on_call, on_method
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue
from ..values.mappings import DictValue
from ..values.sets import SetValue
from ..values.objects import ObjectValue, has_plain_layout

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def stands_for(*c_functions: Callable) -> Callable:
    """Register a Python function that is inlined where one of the C functions is called."""

    def decorate(fn: Callable) -> Callable:
        def call(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if not takes(fn, args, kwargs):  # a C function refuses in words of its own
                raise Unsupported(f"{fn.__name__}() is called with the wrong arguments", kind="argument-error")
            if c_functions[0].__module__ in ("_heapq", "_bisect") and not (
                    args and (args[0].builtin is list if c_functions[0].__module__ == "_heapq"
                              else args[0].is_sequence)):
                raise Unsupported(f"{fn.__name__}() of something that is not a list", kind="argument-error")
            return s.inline(s.wrap_raw(fn), args, kwargs)

        on_call(*c_functions)(call)
        return fn

    return decorate


@stands_for(collections._count_elements)
def count_elements(mapping, iterable) -> None:
    get = mapping.get
    for element in iterable:
        mapping[element] = get(element, 0) + 1


def _less(a: list[Value], b) -> bool:
    return a < b


def _greater(a: list[Value], b) -> bool:
    return b < a


def _sift_down(heap, start, position, before=_less) -> None:
    item = heap[position]
    while position > start:
        above = (position - 1) >> 1
        parent = heap[above]
        if not before(item, parent):
            break
        heap[position] = parent
        position = above
    heap[position] = item


def _sift_up(heap, position, before=_less) -> None:
    end, start, item = len(heap), position, heap[position]
    child = 2 * position + 1
    while child < end:
        right = child + 1
        if right < end and not before(heap[child], heap[right]):
            child = right
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _sift_down(heap, start, position, before)


@stands_for(heapq.heapify)
def heapify(heap, /) -> None:
    for i in reversed(range(len(heap) // 2)):
        _sift_up(heap, i)


@stands_for(heapq._heapify_max)
def heapify_max(heap, /) -> None:
    for i in reversed(range(len(heap) // 2)):
        _sift_up(heap, i, _greater)


@stands_for(heapq.heappush)
def heappush(heap, item, /) -> None:
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


def _pop(heap, before):
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    _sift_up(heap, 0, before)
    return first


@stands_for(heapq.heappop)
def heappop(heap, /):
    return _pop(heap, _less)


@stands_for(heapq._heappop_max)
def heappop_max(heap, /):
    return _pop(heap, _greater)


def _replace(heap, item, before):
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    _sift_up(heap, 0, before)
    return first


@stands_for(heapq.heapreplace)
def heapreplace(heap, item, /):
    return _replace(heap, item, _less)


@stands_for(heapq._heapreplace_max)
def heapreplace_max(heap, item, /):
    return _replace(heap, item, _greater)


@stands_for(heapq.heappushpop)
def heappushpop(heap, item, /):
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


class _Compared:
    """What ``functools.cmp_to_key`` makes of a value."""

    __slots__ = ("compare", "obj")
    __hash__ = None

    def __init__(self, compare, obj) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __eq__(self, other: object) -> bool:
        return self.compare(self.obj, other.obj) == 0

    def __le__(self, other) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other) -> bool:
        return self.compare(self.obj, other.obj) >= 0


@stands_for(functools.cmp_to_key)
def cmp_to_key(mycmp):
    return functools.partial(_Compared, mycmp)


@stands_for(bisect.bisect_left)
def bisect_left(a: list[Value], x, lo: int = 0, hi=None, *, key=None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@stands_for(bisect.bisect_right)
def bisect_right(a: list[Value], x, lo: int = 0, hi=None, *, key=None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


@stands_for(bisect.insort_left)
def insort_left(a: list[Value], x, lo: int = 0, hi=None, *, key=None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


@stands_for(bisect.insort_right)
def insort_right(a: list[Value], x, lo: int = 0, hi=None, *, key=None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def steps_of(c_iterator: type) -> Callable:
    """Register a Python function that gives a generator to stand for an iterator of ``itertools``."""

    def decorate(fn: Callable) -> Callable:
        def call(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if not takes(fn, args, kwargs):
                raise Unsupported(f"{fn.__name__}() is called with the wrong arguments", kind="argument-error")
            generator = s.inline(s.wrap_raw(fn), args, kwargs)
            generator.py, generator.made_by = c_iterator, (c_iterator, args, kwargs)
            return generator

        on_call(c_iterator)(call)
        return fn

    return decorate


def _accumulated(it, func, initial):
    total = initial
    if initial is None:
        for total in it:
            break
        else:
            return
    yield total
    for element in it:
        total = total + element if func is None else func(total, element)
        yield total


@steps_of(itertools.accumulate)
def accumulate(iterable, func=None, *, initial=None):
    return _accumulated(iter(iterable), func, initial)


def _pairs(it):
    for before in it:
        break
    else:
        return
    for element in it:
        yield before, element
        before = element


@steps_of(itertools.pairwise)
def pairwise(iterable, /):
    return _pairs(iter(iterable))


def _compressed(rows):
    for element, selected in rows:
        if selected:
            yield element


@steps_of(itertools.compress)
def compress(data, selectors):
    return _compressed(zip(data, selectors))


@stands_for(operator.countOf)
def count_of(a: list[Value], b, /):
    count = 0
    for element in a:
        if element is b or element == b:
            count += 1
    return count


@stands_for(operator.indexOf)
def index_of(a: list[Value], b, /):
    for index, element in enumerate(a):
        if element is b or element == b:
            return index
    raise ValueError("sequence.index(x): x not in sequence")


def _reduced(obj) -> tuple:
    cls = type(obj)
    arguments = obj.__getnewargs__() if hasattr(cls, "__getnewargs__") else ()
    return copyreg.__newobj__, (cls, *arguments), obj.__getstate__(), None, None


def _reduced_list(obj) -> tuple:
    return copyreg.__newobj__, (type(obj),), obj.__getstate__(), iter(obj), None


def _reduced_dict(obj) -> tuple:
    return copyreg.__newobj__, (type(obj),), obj.__getstate__(), None, iter(obj.items())


def _reduced_set(obj) -> tuple:
    return type(obj), (list(obj),), obj.__getstate__()


def _reduced_by_class(obj):
    return obj.__reduce__()


_REDUCED = {ObjectValue: _reduced, ListValue: _reduced_list, DictValue: _reduced_dict, SetValue: _reduced_set}


@on_method((object, "__reduce_ex__"))
def reduce_ex(s: Session, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """How copies and pickles of an object are made, for protocol 2 and later: its class, its instance dictionary as the
    state, its elements."""
    cls = value.pytype(s)
    fn = _REDUCED.get(type(value))
    if value.user_special(s, "__reduce__"):
        fn = _reduced_by_class
    elif s.class_lookup(cls, "__reduce__")[1] not in (object.__reduce__, set.__reduce__,
                                                      frozenset.__reduce__, collections.OrderedDict.__reduce__):
        fn = None
    elif fn is _reduced and not has_plain_layout(cls):
        fn = None
    if (fn is None or issubclass(cls, BaseException) or hasattr(cls, "__getnewargs_ex__")
        or not args or args[0].const(s) < 2):
        raise Unsupported(f"the reduced form of {value.describe()}", kind="c-call")
    return s.inline(s.wrap_raw(fn), [value], {})


@on_method((object, "__getstate__"))
def getstate(s: Session, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The instance dictionary, None if it is empty; with the values in slots, where there are any, as a pair."""
    state = value.getattr(s, "__dict__") if value.has_own_dict() else None
    if state is None or not state.truth(s):
        state = Constant(None)
    slots = {}
    for name in copyreg._slotnames(value.pytype(s)):
        try:
            slots[name] = (Constant(name), value.getattr(s, name))
        except Raised as raised:
            if not s.is_exception(raised.value, AttributeError):
                raise
    return TupleValue([state, DictValue(slots)]) if slots else state
