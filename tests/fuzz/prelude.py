"""What every random program has at its head: helpers, classes and generators that its expressions use."""

PRELUDE = """
import bisect, collections, contextlib, copy, dataclasses, enum, functools, heapq, itertools, json, math, operator
import random, re, sys, types, zlib
import numpy as np
import torch
import jit

class Stop(Exception):
    pass

Pair = collections.namedtuple('Pair', 'left right')

@dataclasses.dataclass
class Data:
    n: int
    v: list
    x: object = None

class Slots:
    __slots__ = ('n', 'extra')
    def __init__(self, n, extra):
        self.n, self.extra = n, extra
    def __repr__(self):
        return f'Slots({self.n})'

class Locked:
    def __get__(self, owner, cls):
        return getattr(owner, '_locked', 0)
    def __set__(self, owner, value):
        owner._locked = value + 1

class Scope:
    def __init__(self, log, *quiet):
        self.log, self.quiet = log, quiet
    def __enter__(self):
        self.log.append('in')
        return len(self.log)
    def __exit__(self, kind, value, tb):
        self.log.append(kind and kind.__name__)
        return kind is not None and issubclass(kind, self.quiet)

@contextlib.contextmanager
def managed(log):
    log.append('enter')
    try:
        yield 'managed'
    except KeyError as err:
        log.append(repr(err))
    finally:
        log.append('leave')

@jit.disable
def off(value):
    if isinstance(value, list):
        value.append(7)
    elif isinstance(value, torch.Tensor):
        value.add_(1)
    return value

def adder(k):
    def add(n):
        nonlocal k
        k += 1
        return n + k
    return add

def counted(fn):
    @functools.wraps(fn, assigned=('__name__',))
    def call(*args, **kwargs):
        call.calls += 1
        return fn(*args, **kwargs)
    call.calls = 0
    return call

def pairs(n):
    total = 0
    try:
        for i in range(n % 4):
            got = yield i
            total += i if got is None else got
    except ValueError:
        yield -1
    finally:
        G_v.append(total % 100)
    return total

def echo():
    value = yield 0
    for _ in range(5):
        value = yield value

def keep(n, **kw):
    kw.setdefault('a', n)
    return kw

def spread(first=0, *rest, k=1, **kw):
    return (first, len(rest), k, *kw)

def change(v, n=1, *, k=None):
    v.append(n if k is None else k)
    del v[6:]
    return v

class Vec:
    __slots__ = ('a', 'b')
    def __init__(self, a=0, b=0):
        self.a, self.b = a, b
    def __add__(self, other):
        if isinstance(other, Vec):
            return Vec(self.a + other.a, self.b + other.b)
        return NotImplemented
    def __radd__(self, other):
        return Vec(other + self.a, self.b)
    def __sub__(self, other):
        return Vec(self.a - other, self.b)
    def __rsub__(self, other):
        return Vec(other - self.a, self.b)
    def __mul__(self, k):
        return Vec(self.a * k % 50, self.b)
    __rmul__ = __mul__
    def __imul__(self, k):
        self.a = self.a * k % 50
        return self
    def __neg__(self):
        return Vec(-self.a, -self.b)
    def __abs__(self):
        return abs(self.a) + abs(self.b)
    def __divmod__(self, k):
        return (self.a, k)
    def __matmul__(self, other):
        return self.a * other.a + self.b * other.b
    def __eq__(self, other):
        return isinstance(other, Vec) and (self.a, self.b) == (other.a, other.b)
    def __hash__(self):
        return hash((self.a, self.b))
    def __lt__(self, other):
        return (self.a, self.b) < (other.a, other.b)
    def __iter__(self):
        yield self.a
        yield self.b
    def __len__(self):
        return 2
    def __bool__(self):
        return self.a != 0
    def __contains__(self, n):
        return n == self.a or n == self.b
    def __getitem__(self, i):
        return (self.a, self.b)[i]
    def __index__(self):
        return abs(self.a) % 3
    def __format__(self, spec):
        return f'<{self.a}{spec}>'
    def __repr__(self):
        return f'Vec({self.a}, {self.b})'
    def __enter__(self):
        self.b += 1
        return self
    def __exit__(self, kind, value, tb):
        self.b -= 1
        return kind is ValueError
    @property
    def n(self):
        return self.a
    @n.setter
    def n(self, value):
        self.a = value
    @n.deleter
    def n(self):
        self.a = 0

@dataclasses.dataclass(order=True)
class Point:
    n: int
    m: int = 2
    tags: list = dataclasses.field(default_factory=list, compare=False)
    def __post_init__(self):
        self.tags.append(self.n)
    def moved(self, by=1):
        return dataclasses.replace(self, n=self.n + by, tags=[])
    @property
    def total(self):
        return self.n + self.m

class Base:
    kinds = []
    def __init_subclass__(cls, **kw):
        Base.kinds.append(cls.__name__)
    def __init__(self, n=1, **kw):
        super().__init__(**kw)
        self.n = n
    def __repr__(self):
        return f'{type(self).__name__}{self.what()}'
    def what(self):
        return ['base']
    def __getitem__(self, i):
        return [self.n, *self.what()][i]

class Mixed:
    def __init__(self, extra=2, **kw):
        super().__init__(**kw)
        self.extra = extra
    def what(self):
        return ['mixed', *super().what()]

class Both(Mixed, Base):
    @functools.cached_property
    def once(self):
        G_v.append(self.n)
        return self.n + 1
    def __getattribute__(self, name):
        return 7 if name == 'seven' else super().__getattribute__(name)
    def __setattr__(self, name, value):
        super().__setattr__(name, value + 1 if name == 'up' else value)

class Shade(enum.IntEnum):
    LIGHT = 1
    DARK = 2

def steps(n):
    total = 0
    while total < n % 7:
        got = yield total
        total += 1 if got is None else abs(got) + 1
    return total

def nested(n, v=()):
    got = yield from steps(n)
    yield got
    yield from v
    return n

def guarded(n, v=()):
    got = yield from pairs(n)
    try:
        yield from v
    except GeneratorExit:
        G_v.append(3)
        raise
    return got

def inside(log, n):
    with Scope(log, KeyError):
        for i in range(n % 3):
            try:
                yield i
            except ValueError as err:
                yield str(err)
            else:
                log.append(i)
    return 5

def down(n):
    if n > 0:
        yield n
        yield from down(n - 2)

def finished(log, n):
    for i in range(4):
        try:
            if i == n % 5:
                continue
            if i > n:
                return i
            log.append(i)
        except KeyError:
            return 'key'
        finally:
            log.append('f')
            if n == 2 and i == 3:
                break
    else:
        return 'else'
    return 'end'

def catching(log, fn, *args, **kw):
    try:
        result = fn(*args, **kw)
    except (ValueError, KeyError) as err:
        log.append(repr(err))
        return -1
    except Exception as err:
        raise Stop(str(err)) from err
    else:
        return result
    finally:
        log.append('done')

@functools.lru_cache(maxsize=8)
def cached(n):
    return n + 1

def counter(start=0):
    total = start
    def add(n=1):
        nonlocal total
        total += n
        return total
    def get(_=0):
        return total
    return add, get

def tail(x):
    y = x.reshape(-1)[-2:]
    y += 1
    return y

def out_of(value):
    if isinstance(value, (C, Slots, Data)):
        return value.n
    return value
"""

CLASSES = """
class C:
    made = 0
    def __init__(self, n, v=None, x=None):
        C.made += 1
        self.n, self.v = n, [] if v is None else v
        self.x = torch.ones(3) if x is None else x
    @property
    def size(self):
        return len(self.v) + self.n
    @size.setter
    def size(self, value):
        self.v.append(value)
    @classmethod
    def count(cls, n=0):
        return cls.made + n
    @staticmethod
    def twice(n):
        return n * 2
    locked = Locked()
    def same(self):
        return self
    def items(self):
        return [self.n, *self.v][:5]
    def scaled(self, x):
        return x * self.n + self.x
    def __add__(self, other):
        return type(self)(self.n + out_of(other), self.v)
    def __iadd__(self, other):
        self.n += out_of(other)
        return self
    def __eq__(self, other):
        return isinstance(other, C) and self.n == other.n
    __hash__ = None
    def __lt__(self, other):
        return self.n < out_of(other)
    def __len__(self):
        return len(self.v)
    def __int__(self):
        return self.n
    def __getitem__(self, i):
        return self.v[i]
    def __setitem__(self, i, value):
        self.v[i] = value
    def __call__(self, n=1):
        return self.step(n)
    def __repr__(self):
        return f'{type(self).__name__}({self.n})'
    def __getattr__(self, name):
        if name == 'missing':
            return 5
        raise AttributeError(name)
    def step(self, n):
%s

class D(C):
    def __init__(self, n, v):
        super().__init__(n, v)
        self.late = n
    def items(self):
        return super().items()[::-1]
    def __bool__(self):
        return self.n > 0
"""
