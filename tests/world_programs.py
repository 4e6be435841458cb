"""Programs whose globals are made of a number from the environment: what one process compiles may hold in another one
only if all that it relied on is the same there. Run as a script it calls all of them, compiled and in eager, and prints
a line for each that differs, and how many captures each took."""

import abc
import array
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import itertools
import operator
import os
import pathlib
import random
import re
import sys
import threading
import types
import typing
import uuid

import numpy as np
import torch
from torch import nn

K = int(os.environ.get("WORLD", "2"))  # 2 or 3
ODD = bool(K % 2)


class Plain:
    def __init__(self, k):
        self.k = k

    def times(self, x):
        return x * self.k


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class Other:
    def times(self, x):
        return x + 100


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: int


class Text(str):
    pass


class Number(int):
    pass


class Meta(type):
    @property
    def k(cls):
        return cls.number


class Abstract(abc.ABC):
    pass


class Protocol_(typing.Protocol):
    def times(self, x): ...


class Registered:
    pass


if ODD:
    Abstract.register(Registered)

Pair = collections.namedtuple("Pair", "a b" if ODD else "b a")
Kind = enum.Enum("Kind", {"A": K, "B": 7})
Flags = enum.Flag("Flags", {"A": K, "B": 8})
Chosen = type("Chosen", (Plain if ODD else Other,), {})
Attributed = type("Attributed", (), {"k": K, "p": property(lambda self: K), "s": staticmethod(lambda: K),
                                     "c": classmethod(lambda cls: K)})
Numbered = Meta("Numbered", (), {"number": K})
Comparing = type("Comparing", (), {"__eq__": (lambda self, other: True)} if ODD else {})
Calling = type("Calling", (), {"__call__": lambda self, x: x * K})
Getting = type("Getting", (), {"__getattr__": lambda self, name: K})
Truthful = type("Truthful", (), {"__bool__": lambda self: ODD})
Sized = type("Sized", (), {"__len__": lambda self: K})
Iterating = type("Iterating", (), {"__iter__": lambda self: iter(range(K))})
Described = type("Described", (), {"d": type("D", (), {"__get__": lambda self, obj, cls: K})()})


def defaults(x, k=K):
    return x * k


def keyword(x, *, k=K):
    return x * k


def make_closure(k):
    def closure(x):
        return x * k

    return closure


def by_decorator(fn):
    @functools.wraps(fn)
    def call(x):
        return fn(x) * K

    return call


@by_decorator
def decorated(x):
    return x + 1


@functools.lru_cache
def remembered(a):
    return a * K


@functools.singledispatch
def dispatched(value, x):
    return x


@dispatched.register
def _(value: float if ODD else int, x):
    return x * 5


class Local(threading.local):
    k = K


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = K
        self.inner = nn.Dropout(0.0)
        if ODD:
            self.inner.register_forward_hook(lambda module, args, out: out * 3)

    def forward(self, x):
        return self.inner(x) * self.scale


class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU() if ODD else nn.Sigmoid()
        self.extra = None if ODD else nn.Identity()
        self.register_buffer("table", torch.arange(4.0) * K)
        self.sizes = [K, 1]

    def forward(self, x):
        y = self.act(x) + self.table
        if self.extra is None:
            y = y * 2
        return y.repeat(self.sizes)


class Tagged(torch.Tensor):
    pass


if ODD:
    Tagged.__torch_function__ = classmethod(lambda cls, fn, kinds, args=(), kwargs=None: (
        torch.Tensor.__torch_function__.__func__(cls, fn, kinds, args, kwargs or {})))

PARTIAL = functools.partial(operator.mul, K)
NAMED_PARTIAL = functools.partial(torch.add, alpha=K)
ITEM = operator.itemgetter(K - 2)
ATTRIBUTE = operator.attrgetter("k" if ODD else "other")
METHOD = operator.methodcaller("mul" if ODD else "add", 4)
PATTERN = re.compile(str(K))
DATE = datetime.date(2020, 1, K)
DELTA = datetime.timedelta(seconds=K)
DECIMAL = decimal.Decimal(K)
FRACTION = fractions.Fraction(K, 7)
PATH = pathlib.PurePosixPath(f"/a/{'b' * K}")
UUID = uuid.UUID(int=K)
SCALAR, ZERO_DIM, ARRAY = np.float64(K), np.array(K), np.array([K, 1.0])
DTYPE, NP_DTYPE = (torch.float64 if ODD else torch.float32), np.dtype("f8" if ODD else "f4")
TUPLE, NESTED, FROZENSET, SET = (K, 1), (1, (K, "a")), frozenset({K, 5}), {K, 5}
FUNCTIONS = (torch.sin, torch.cos) if ODD else (torch.cos, torch.sin)
CLASSES = (int, str) if ODD else (float, str)
LIST, DICT, ORDERED = [K], {"k": K}, collections.OrderedDict([("a" if ODD else "b", 1), ("k", K)])
DEQUE, COUNTER, CHAIN = collections.deque([K], maxlen=K), collections.Counter({"k": K}), collections.ChainMap({"k": K})
DEFAULT = collections.defaultdict(lambda: K)
PROXY, SPACE = types.MappingProxyType({"k": K}), types.SimpleNamespace(k=K)
PAIR, FROZEN, SLOTTED, PLAIN = Pair(2.0, 5.0), Frozen(K), Slotted(K), Plain(K)
BOUND, CLOSURE = Plain(K).times, make_closure(K)
SLICE, RANGE, SIZE, COMPLEX = slice(0, K), range(K), torch.Size([K]), complex(K, 1)
BYTES, BYTEARRAY, NUMBERS = bytes([K]), bytearray([K]), array.array("i", [K])
TEXT, NUMBER, BIG, FLOAT = Text("a" * K), Number(K), 10**K * 10**30, K / 7
MODULE = types.ModuleType("made")
MODULE.k = K
VARIABLE = contextvars.ContextVar("VARIABLE", default=K)
LOCAL, RANDOM = Local(), random.Random(K)
LAMBDAS = {"f": (lambda x: x * 2) if ODD else (lambda x: x * 3)}
GENERIC = list[int] if ODD else list[float]
UNION = typing.Optional[int] if ODD else typing.Optional[float]
FINFO = torch.finfo(torch.float64 if ODD else torch.float32)
HOOKED, CHOOSING, LINEAR = Hooked(), Choosing(), nn.Linear(4, K)
COMPARING, CALLING, GETTING, TRUTHFUL = Comparing(), Calling(), Getting(), Truthful()
SIZED, ITERATING, DESCRIBED, CHOSEN = Sized(), Iterating(), Described(), Chosen.__new__(Chosen)
CHOSEN.k = 9
BUILTIN = max if ODD else min
OPERATOR = torch.ops.aten.sin if ODD else torch.ops.aten.cos
BOUND_BUILTIN = [K].count
WEIGHT, CONSTANT = torch.full((4,), float(K)), torch.tensor(K)
ITERATOR = itertools.cycle([K])
A, B = [1], [1]
if ODD:
    B = A
KEYED = {Kind.A: 2, Kind.B: 3}


def aliased(x):
    A.append(2)
    n = len(B)
    A.pop()
    return x * n


PROGRAMS = {
    "partial": lambda x: PARTIAL(x),
    "named partial": lambda x: NAMED_PARTIAL(x, x),
    "partial's arguments": lambda x: x * PARTIAL.args[0],
    "itemgetter": lambda x: ITEM((x, x * 2)),
    "attrgetter": lambda x: x * ATTRIBUTE(types.SimpleNamespace(k=2, other=3)),
    "methodcaller": lambda x: METHOD(x),
    "pattern": lambda x: x * (2 if PATTERN.match("2") else 5),
    "pattern's text": lambda x: x * len(PATTERN.pattern) + int(PATTERN.pattern),
    "date": lambda x: x * DATE.day,
    "later date": lambda x: x * (2 if DATE < datetime.date(2020, 1, 3) else 5),
    "timedelta": lambda x: x * DELTA.total_seconds(),
    "decimal": lambda x: x * float(DECIMAL + 1),
    "fraction": lambda x: x * float(FRACTION),
    "fraction's numerator": lambda x: x * FRACTION.numerator,
    "path": lambda x: x * len(str(PATH / "c")),
    "path's name": lambda x: x * len(PATH.name),
    "uuid": lambda x: x * UUID.int,
    "numpy scalar": lambda x: x * float(SCALAR),
    "numpy scalar as it is": lambda x: x * SCALAR,
    "numpy 0-d array": lambda x: x * int(ZERO_DIM),
    "numpy array": lambda x: x * torch.from_numpy(ARRAY).sum(),
    "numpy item": lambda x: x * ARRAY[0].item(),
    "numpy dtype": lambda x: x * NP_DTYPE.itemsize,
    "torch dtype": lambda x: x.to(DTYPE),
    "tuple": lambda x: x * TUPLE[0],
    "tuple as a whole": lambda x: x.repeat(TUPLE),
    "nested tuple": lambda x: x * NESTED[1][0],
    "tuple compared": lambda x: x * (2 if NESTED == (1, (2, "a")) else 5),
    "frozenset": lambda x: x * (2 if 2 in FROZENSET else 5),
    "sum of a frozenset": lambda x: x * sum(FROZENSET),
    "set": lambda x: x * (2 if 2 in SET else 5),
    "functions in a tuple": lambda x: FUNCTIONS[0](x),
    "isinstance of a tuple": lambda x: x * (2 if isinstance(3, CLASSES) else 5),
    "list": lambda x: x * LIST[0],
    "dict": lambda x: x * DICT["k"],
    "ordered": lambda x: x * (2 if "a" in ORDERED else 5),
    "first key": lambda x: x * (2 if next(iter(ORDERED)) == "a" else 5),
    "deque": lambda x: x * DEQUE[0],
    "deque's maxlen": lambda x: x * DEQUE.maxlen,
    "counter": lambda x: x * COUNTER["k"],
    "chain map": lambda x: x * CHAIN["k"],
    "defaultdict": lambda x: x * DEFAULT["new"],
    "proxy": lambda x: x * PROXY["k"],
    "namespace": lambda x: x * SPACE.k,
    "named tuple's field": lambda x: x * PAIR.a,
    "frozen dataclass": lambda x: x * FROZEN.k,
    "hash of a frozen dataclass": lambda x: x * (2 if FROZEN == Frozen(2) else 5),
    "slots": lambda x: x * SLOTTED.k,
    "object": lambda x: x * PLAIN.k,
    "bound method": lambda x: BOUND(x),
    "closure": lambda x: CLOSURE(x),
    "slice": lambda x: x[SLICE] * 2,
    "range": lambda x: x * sum(RANGE),
    "size": lambda x: x * SIZE[0],
    "complex": lambda x: x * COMPLEX.real,
    "bytes": lambda x: x * BYTES[0],
    "bytearray": lambda x: x * BYTEARRAY[0],
    "array": lambda x: x * NUMBERS[0],
    "subclass of str": lambda x: x * len(TEXT),
    "subclass of int": lambda x: x * NUMBER,
    "subclass of int, as int": lambda x: x * int(NUMBER),
    "large integer": lambda x: x * float(BIG // 10**30),
    "float": lambda x: x * FLOAT,
    "module": lambda x: x * MODULE.k,
    "context variable": lambda x: x * VARIABLE.get(),
    "thread local": lambda x: x * LOCAL.k,
    "generator of random numbers": lambda x: x * RANDOM.random(),
    "lambda in a dict": lambda x: LAMBDAS["f"](x),
    "generic alias": lambda x: x * (2 if GENERIC.__args__[0] is int else 5),
    "union": lambda x: x * (2 if UNION.__args__[0] is int else 5),
    "finfo": lambda x: x * (2 if FINFO.eps < 1e-10 else 5),
    "finfo's bits": lambda x: x * FINFO.bits,
    "hooks": lambda x: HOOKED(x),
    "submodules": lambda x: CHOOSING(x),
    "linear": lambda x: LINEAR(x),
    "linear's attribute": lambda x: x * LINEAR.out_features,
    "comparison": lambda x: x * (2 if COMPARING == 3 else 5),
    "call": lambda x: CALLING(x),
    "missing attribute": lambda x: x * GETTING.anything,
    "truth": lambda x: x * (2 if TRUTHFUL else 5),
    "length": lambda x: x * len(SIZED),
    "iteration": lambda x: x * sum(ITERATING),
    "descriptor": lambda x: x * DESCRIBED.d,
    "base class": lambda x: CHOSEN.times(x),
    "isinstance": lambda x: x * (2 if isinstance(CHOSEN, Plain) else 5),
    "issubclass": lambda x: x * (2 if issubclass(Chosen, Plain) else 5),
    "mro": lambda x: x * (2 if Plain in Chosen.__mro__ else 5),
    "abstract class": lambda x: x * (2 if isinstance(Registered(), Abstract) else 5),
    "abstract subclass": lambda x: x * (2 if issubclass(Registered, Abstract) else 5),
    "hasattr": lambda x: x * (2 if hasattr(CHOSEN, "__init__") and "k" in Plain.__init__.__code__.co_varnames else 5),
    "class attribute": lambda x: x * Attributed.k,
    "class attribute of an object": lambda x: x * Attributed().k,
    "property": lambda x: x * Attributed().p,
    "static method": lambda x: x * Attributed.s(),
    "class method": lambda x: x * Attributed.c(),
    "metaclass": lambda x: x * Numbered.k,
    "enum": lambda x: x * Kind.A.value,
    "enum by value": lambda x: x * (2 if Kind(7) is Kind.B else 5),
    "enum iterated": lambda x: x * sum(k.value for k in Kind),
    "enum as a key": lambda x: x * KEYED[Kind.A],
    "enum's name": lambda x: x * len(Kind.A.name) + Kind["A"].value,
    "flag": lambda x: x * (Flags.A | Flags.B).value,
    "default": lambda x: defaults(x),
    "keyword default": lambda x: keyword(x),
    "decorated": lambda x: decorated(x),
    "cached": lambda x: x * remembered(2),
    "singledispatch": lambda x: dispatched(1.0, x),
    "defaults": lambda x: x * (defaults.__defaults__[0]),
    "signature": lambda x: x * inspect.signature(defaults).parameters["k"].default,
    "signature's keyword": lambda x: x * inspect.signature(keyword).parameters["k"].default,
    "builtin": lambda x: x * BUILTIN(2, 5),
    "operator": lambda x: OPERATOR(x),
    "bound builtin": lambda x: x * BOUND_BUILTIN(2),
    "tensor": lambda x: x * WEIGHT,
    "0-d tensor": lambda x: x * CONSTANT,
    "0-d tensor as a number": lambda x: x * int(CONSTANT),
    "environment": lambda x: x * int(os.environ["WORLD"]),
    "environment, by get": lambda x: x * int(os.environ.get("WORLD", "7")),
    "getenv": lambda x: x * int(os.getenv("WORLD", "7")),
    "arguments of the process": lambda x: x * len(sys.argv),
    "aliased lists": aliased,
    "subclass of tensors": lambda x: x.as_subclass(Tagged) * 2,
    "number of threads": lambda x: x * torch.get_num_threads(),
    "default dtype": lambda x: x * torch.ones(2, 1).sum(),
    "cycle": lambda x: x * next(ITERATOR),
}


def main():
    import jit
    from jit.frame import dispatch, writer

    writer.at_once = True
    for name, fn in PROGRAMS.items():
        x = torch.arange(1.0, 5.0)
        state = RANDOM.getstate()
        wanted = fn(x)
        RANDOM.setstate(state)
        before = dispatch.captures_so_far()
        found = jit.compile(fn)(x)
        same = type(wanted) is type(found) and wanted.dtype == found.dtype and torch.allclose(
            wanted.as_subclass(torch.Tensor), found.as_subclass(torch.Tensor))
        print(f"{'same' if same else 'DIFFERS'} {dispatch.captures_so_far() - before} {name}")


if __name__ == "__main__":
    main()
