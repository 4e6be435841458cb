"""Every builtin function of every kind of argument: values, types and errors as CPython's protocols give them."""

import collections
import copy
import dataclasses
import decimal
import functools
import itertools
import math
import operator
import os
import types

import numpy as np
import pytest
import torch
from kinds_harness import OPERANDS, Plain, differences


class Number:
    """Has every conversion."""

    def __int__(self):
        return 7

    def __float__(self):
        return 7.5

    def __complex__(self):
        return 7j

    def __index__(self):
        return 3

    def __bool__(self):
        return False

    def __abs__(self):
        return "abs"

    def __round__(self, digits=None):
        return ("round", digits)

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __trunc__(self):
        return "trunc"

    def __divmod__(self, other):
        return "divmod"

    def __pow__(self, other, modulus=None):
        return ("pow", modulus)

    def __hash__(self):
        return 11

    def __eq__(self, other):
        return isinstance(other, Number)

    def __repr__(self):
        return "Number()"

    def __format__(self, spec):
        return f"<{spec}>"

    def __bytes__(self):
        return b"number"

    def __dir__(self):
        return ["b", "a"]

    def __length_hint__(self):
        return 4


class OnlyFloat:
    def __float__(self):
        return 2.5


class OnlyTrunc:
    def __trunc__(self):
        return 4


class OnlyStr:
    def __str__(self):
        return "text of it"


class Sequence:
    """Iterated and reversed by its subscripts."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return index * 10


class Iterable:
    def __iter__(self):
        return iter([3, 1, 2])

    def __reversed__(self):
        return "backwards"

    def __contains__(self, item):
        return item == 3


class Iterator:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at > 3:
            raise StopIteration
        return self.at


class Mapping:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return {"a": 1, "b": 2}[key]


class Callable:
    def __call__(self):
        return 5


class Wrong:
    """Special methods that give what they must not."""

    def __int__(self):
        return "1"

    def __float__(self):
        return 1

    def __complex__(self):
        return 1

    def __index__(self):
        return 1.0

    def __bool__(self):
        return 1

    def __len__(self):
        return -1

    def __hash__(self):
        return "a"

    def __str__(self):
        return 1

    def __repr__(self):
        return 2

    def __format__(self, spec):
        return 3

    def __iter__(self):
        return 4

    def __bytes__(self):
        return "5"

    def __reversed__(self):
        return 6

    def __dir__(self):
        return 7


class LongLength:
    def __len__(self):
        return "a"


class Raising:
    """Special methods that raise."""

    def __int__(self):
        raise KeyError("int")

    __float__ = __bool__ = __len__ = __str__ = __repr__ = __iter__ = __hash__ = __abs__ = __index__ = __int__


class Absent:
    """Special methods that are set to None."""

    __hash__ = __iter__ = __len__ = __reversed__ = __contains__ = __bool__ = __call__ = __int__ = __float__ = None
    __index__ = __round__ = __abs__ = None

    def __getitem__(self, index):
        return [5, 6][index]


class OwnText(str):
    def __str__(self):
        return "its own"


class OwnFloat(float):
    def __float__(self):
        return 9.5


class OwnTuple(tuple):
    def __len__(self):
        return 9

    def __iter__(self):
        return iter("xy")

    def __repr__(self):
        return "own tuple"

    def __hash__(self):
        return 12


class OwnDict(dict):
    def __iter__(self):
        return iter("pq")

    def __str__(self):
        return "own dict"

    def __reversed__(self):
        return iter("qp")

    def __len__(self):
        return 5


class Meta(type):
    def __len__(cls):
        return 6

    def __iter__(cls):
        return iter((1, 2))

    def __repr__(cls):
        return "of a metaclass"

    def __bool__(cls):
        return False


class Made(metaclass=Meta):
    def __len__(self):
        return 1


@dataclasses.dataclass
class Record:
    a: int = 1
    b: str = "two"


Point = collections.namedtuple("Point", "x y")


class Count(torch.nn.Module):
    def __len__(self):
        return 2


def gives():
    yield 2
    yield 1


def function():
    return 4


KINDS = OPERANDS | {
    "zero": lambda: 0, "large": lambda: 1 << 70, "nan": lambda: float("nan"), "infinite": lambda: float("inf"),
    "digits": lambda: " 12 ", "hex digits": lambda: "0x1f", "letter": lambda: "a", "empty text": lambda: "",
    "byte": lambda: b"7", "own text": lambda: OwnText("34"), "own float": lambda: OwnFloat(1.5),
    "list iterator": lambda: iter([3, 1, 2]), "range iterator": lambda: iter(range(3)), "zip": lambda: zip("ab", "cd"),
    "enumerate": lambda: enumerate("ab"), "map": lambda: map(str, [1, 2]), "generator": gives,
    "dict iterator": lambda: iter({"a": 1}), "mixed list": lambda: [1, "a", None],
    "nested": lambda: [[1, (2,)], {3: 4}],
    "unhashable tuple": lambda: ([1],), "pairs": lambda: [("a", 1), ("b", 2)], "wrong pairs": lambda: [(1, 2, 3)],
    "texts": lambda: ["b", "a"], "floats": lambda: [0.1, 0.2, 0.3], "empty list": lambda: [], "empty dict": lambda: {},
    "empty set": set, "default dict": lambda: collections.defaultdict(list, a=[1]),
    "counter": lambda: collections.Counter("aab"), "point": lambda: Point(1, 2), "record": Record,
    "own tuple": lambda: OwnTuple((1, 2)), "own dict": lambda: OwnDict(a=1), "ellipsis": lambda: ...,
    "not implemented": lambda: NotImplemented, "range backwards": lambda: range(9, 2, -3), "number": Number,
    "only float": OnlyFloat, "only trunc": OnlyTrunc, "only str": OnlyStr, "sequence": Sequence, "iterable": Iterable,
    "iterator": Iterator, "mapping": Mapping, "callable": Callable, "wrong": Wrong, "long length": LongLength,
    "raising": Raising, "absent": Absent, "made class": lambda: Made, "of made class": Made,
    "plain class": lambda: Plain, "python function": lambda: function, "method": lambda: Callable().__call__,
    "builtin method": lambda: [1].append, "partial": lambda: functools.partial(function), "module": lambda: math,
    "exception": lambda: ValueError("text", 1), "exception class": lambda: ValueError,
    "namespace": lambda: types.SimpleNamespace(a=1), "decimal": lambda: decimal.Decimal("1.5"),
    "proxy": lambda: types.MappingProxyType({"a": 1}), "memory": lambda: memoryview(b"ab"),
    "numpy float": lambda: np.float32(2.5), "array": lambda: np.arange(3), "getter": lambda: operator.itemgetter(0),
    "layer": lambda: torch.nn.Linear(2, 2), "count": Count, "layers": lambda: torch.nn.ModuleList([Count()]),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)), "float tensor": lambda: torch.tensor(2.5),
    "tensor of one": lambda: torch.tensor([3]), "empty tensor": lambda: torch.ones(0),
    "complex tensor": lambda: torch.tensor(1j), "bool tensor": lambda: torch.tensor(True),
    "matrix": lambda: torch.ones(2, 2), "device": lambda: torch.device("cpu"),
}


def _named(name, fn):
    fn.__name__ = name
    return fn


CONVERSIONS = (bool, int, float, complex, str, repr, ascii, bytes, bytearray, list, tuple, set, frozenset, dict,
               collections.deque, collections.OrderedDict, operator.index, operator.not_, operator.truth)
QUESTIONS = (
    len, callable, type, _named("hash", lambda v: (type(hash(v)), hash(v) == hash(v))), operator.length_hint,
    _named("isinstance", lambda v: [isinstance(v, c) for c in (int, collections.abc.Sized, collections.abc.Iterable,
                                                               collections.abc.Hashable, Plain)]),
    _named("instance of it", lambda v: isinstance(1, v)), _named("subclass", lambda v: issubclass(v, int)),
    _named("subclass of it", lambda v: issubclass(int, v)), _named("vars", lambda v: type(vars(v))),
    _named("dir", lambda v: dir(v)[:4]), _named("id", lambda v: id(v) == id(v)),
    _named("hasattr", lambda v: [hasattr(v, n) for n in ("__len__", "__iter__", "__index__", "a")]),
    _named("getattr", lambda v: getattr(v, "real", "other")), _named("doc", lambda v: type(v.__class__)),
    _named("attribute", lambda v: v.no_such_attribute),
)
NUMBERS = (abs, round, _named("round to one", lambda v: round(v, 1)), _named("digits", lambda v: round(2.55, v)),
           _named("divmod", lambda v: divmod(v, 2)), _named("pow", lambda v: pow(v, 2)),
           _named("modular pow", lambda v: pow(v, 2, 5)), ord, chr, hex, oct, bin, math.floor, math.ceil, math.trunc,
           math.sqrt, math.isnan, math.prod, math.fsum, _named("gcd", lambda v: math.gcd(v, 4)),
           _named("base", lambda v: int("11", v)), _named("of base", lambda v: int(v, 16)), operator.neg, operator.pos,
           operator.inv)
ELEMENTS = (sorted, min, max, sum, any, all, _named("iter", lambda v: list(iter(v))), next,
            _named("next or", lambda v: next(v, "end")), _named("next twice", lambda v: (next(v), next(v))),
            _named("reversed", lambda v: list(reversed(v))), _named("enumerate", lambda v: list(enumerate(v, 1))),
            _named("start", lambda v: list(enumerate("ab", v))), _named("zip", lambda v: list(zip(v, "abcd"))),
            _named("map", lambda v: list(map(str, v))), _named("filter", lambda v: list(filter(None, v))),
            _named("filter by", lambda v: list(filter(v, [0, 1]))), _named("map by", lambda v: list(map(v, [0, 1]))),
            _named("sorted by", lambda v: sorted([2, 1], key=v)),
            _named("reverse", lambda v: sorted([2, 1], reverse=v)),
            _named("largest or", lambda v: max(v, default=0)), _named("least by", lambda v: min([2, 1], key=v)),
            _named("sum from", lambda v: sum([1, 2], v)), _named("call", lambda v: v()), _named("star", lambda v: [*v]),
            _named("stars", lambda v: {**v}), _named("unpack", lambda v: (lambda a, *rest: (a, rest))(*v)),
            _named("range", lambda v: list(range(v))), slice, _named("at", lambda v: v[0]),
            _named("part", lambda v: v[1:]), _named("of list", lambda v: [5, 6, 7, 8][v]),
            _named("extend", lambda v: [0].extend(v)), _named("join", lambda v: ",".join(v)),
            _named("update", lambda v: {"z": 1}.update(v)), _named("contains", lambda v: 3 in v),
            _named("append", lambda v: v.append(1)), _named("set item", lambda v: operator.setitem(v, 0, 1)),
            _named("delete item", lambda v: operator.delitem(v, 0)),
            _named("until", lambda v: list(itertools.islice(iter(v, 4), 5))),
            _named("reduce", lambda v: functools.reduce(operator.add, v)))
TEXT = (format, _named("width", lambda v: format(v, "6")), _named("hex text", lambda v: format(v, "x")),
        _named("f-string", lambda v: f"{v}|{v!r}|{v!s}|{v!a}"), _named("wide", lambda v: f"{v:>9}"),
        _named("percent", lambda v: "%s %r" % (v, v)), _named("percent d", lambda v: "%d" % v),
        _named("percent alone", lambda v: "%s" % v), _named("format method", lambda v: "{} {!r}".format(v, v)),
        _named("specification", lambda v: format(1, v)), _named("decode", lambda v: str(v, "ascii")), copy.copy,
        copy.deepcopy, _named("raise", lambda v: operator.call(_raise, v)), _named("with", lambda v: _enter(v)))


def _raise(value):
    raise value


def _enter(value):
    with value:
        return 1


def outcomes(values, functions):
    found = []
    for value, fn in zip(values, functions):
        try:
            found.append(fn(value))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_builtins(kind):
    """Every fourth function of each kind; ``EVERY=1`` in the environment: all."""
    functions = CONVERSIONS + QUESTIONS + NUMBERS + ELEMENTS + TEXT
    if not os.environ.get("EVERY"):
        functions = functions[list(KINDS).index(kind) % 4::4]
    found = differences(outcomes, functions, lambda: ([KINDS[kind]() for _ in functions],))
    assert not found, "\n".join(found)
