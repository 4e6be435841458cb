"""Generators, descriptors, operators, dataclasses, named tuples, enums, abstract classes, patterns and context managers
in captured programs."""

import abc
import collections
import contextlib
import dataclasses
import enum
import numbers
import typing

import torch
from frame_harness import Cases

cases = Cases()


@cases()
def gen_send(x):
    def g():
        t = (yield x)
        while True:
            t = (yield (t * 2))
            if t is None:
                return 5
    it = g()
    a = next(it)
    b = it.send(x + 1)
    it.send(x)
    try:
        it.send(None)
    except StopIteration as e:
        v = e.value
    return (a, b, v)


@cases()
def objects_that_name_another_class(x):
    class Named:
        pass

    class ByProperty:
        @property
        def __class__(self):
            return Named

    class ByGetter:
        def __getattribute__(self, name):
            return Named if name == "__class__" else object.__getattribute__(self, name)

    class Number:
        __class__ = 5

    a, b, c = ByProperty(), ByGetter(), Number()
    return (x, isinstance(a, Named), isinstance(b, Named), isinstance(c, Named), isinstance(a, (int, ByProperty)),
            isinstance(b, int), type(a) is ByProperty, a.__class__ is Named)


@cases()
def what_is_no_container(x):
    class Plain:
        pass

    class Refusing:
        __contains__ = None

    class Failing:
        def __iter__(self):
            raise TypeError("own words")

    class Other:
        def __iter__(self):
            raise ValueError("own words")

    texts = []
    for thing in (Plain(), Refusing(), Failing(), Other(), Plain, 5, None):
        try:
            texts.append(3 in thing)
        except (TypeError, ValueError) as error:
            texts.append((type(error).__name__, str(error)))
    return x, texts


@cases()
def gen_throw_close(x):
    log = []
    def g():
        try:
            while True:
                try:
                    yield x
                except ValueError as e:
                    log.append(str(e))
                    yield (x + 1)
        finally:
            log.append('closed')
    it = g()
    next(it)
    r = it.throw(ValueError('v'))
    it.close()
    try:
        next(it)
    except StopIteration:
        log.append('stop')
    return (r, log)


@cases()
def gen_yield_from(x):
    def inner():
        r = (yield x)
        return r
    def outer():
        v = (yield from inner())
        yield v
        yield from [x + 1, x + 2]
        yield from (i for i in range(2))
    it = outer()
    next(it)
    return (it.send(x * 3), list(it))


@cases()
def genexp_nested(x):
    return (sum((a * b for a in (x, x + 1) for b in range(3) if b)), max((i * i for i in range(4)), default=0),
            dict(((k, x * k) for k in range(2))))


@cases()
def gen_in_comp(x):
    def f():
        for i in range(5):
            yield (i, x * i)
    return ({k: v for k, v in f() if k % 2}, [v for _, v in f()][1:3], any((k > 3 for k, _ in f())),
            sorted((k for k, _ in f()), reverse=True))


@cases()
def gen_return_gi(x):
    g = (i for i in range(3))
    next(g)
    return list(zip(g, [x, x + 1]))


class D:
    def __set_name__(self, o, n):
        self.n = '_' + n

    def __get__(self, o, t=None):
        if o is None:
            return self
        return getattr(o, self.n, 7)

    def __set__(self, o, v):
        setattr(o, self.n, v * 2)

    def __delete__(self, o):
        delattr(o, self.n)


class HasD:
    d = D()

    def __getattr__(self, n):
        if n.startswith('dyn_'):
            return n[4:]
        raise AttributeError(n)


@cases()
def descriptors(x):
    h = HasD()
    a = h.d
    h.d = x
    b = h.d
    del h.d
    return (a, b, h.d, h.dyn_foo, hasattr(h, 'nope'), getattr(h, 'nope', 3), isinstance(HasD.d, D))


class Slots:
    __slots__ = ('a', 'b', '__dict__')

    def __init__(self, a):
        self.a = a


class Slots2(Slots):
    __slots__ = ('c',)


@cases()
def slots(x):
    s = Slots(x)
    s2 = Slots2(x + 1)
    s2.c = 1
    s.z = 5
    try:
        s.b
    except AttributeError as e:
        m = str(e)
    return (s.a, s2.a, s2.c, m, s.z, s.__dict__)


class Vec:
    def __init__(s, v):
        s.v = v

    def __add__(s, o):
        return Vec(s.v + (o.v if isinstance(o, Vec) else o))
    __radd__ = __add__

    def __mul__(s, o):
        return Vec(s.v * o)

    def __matmul__(s, o):
        return (s.v * o.v).sum()

    def __neg__(s):
        return Vec(-s.v)

    def __getitem__(s, i):
        return s.v[i]

    def __len__(s):
        return len(s.v)

    def __iter__(s):
        return iter(s.v.unbind())

    def __contains__(s, i):
        return i == 3

    def __call__(s, k):
        return s.v * k

    def __eq__(s, o):
        return isinstance(o, Vec) and s is o

    def __hash__(s):
        return 5

    def __lt__(s, o):
        return True

    def __bool__(s):
        return False

    def __enter__(s):
        return s

    def __exit__(s, *a):
        return False

    def __iadd__(s, o):
        s.v = s.v + o
        return s

    def __divmod__(s, o):
        return (s, o)

    def __pow__(s, o, m=None):
        return Vec(s.v ** o)

    def __index__(s):
        return 2

    def __round__(s, n=None):
        return n

    def __format__(s, spec):
        return 'vec' + spec

    def __repr__(s):
        return 'Vec!'

    def __int__(s):
        return 9

    def __float__(s):
        return 1.5

    def __abs__(s):
        return Vec(s.v.abs())

    def __reversed__(s):
        return iter([1, 2])

    def __rsub__(s, o):
        return Vec(o - s.v)


@cases()
def operators_(x):
    v = Vec(x)
    w = v
    w += 1
    return ((v + v).v, (1 + v).v, (v * 2).v, v @ v, (-v).v, v[1], len(v), list(v), 3 in v, v(3), v == w, {v: 1}[w],
            v < w, bool(v), divmod(v, 3)[1], pow(v, 2).v, [1, 2, 3][v], round(v, 2), f'{v:ab}', repr(v), str(v), int(v),
            float(v), abs(v).v, list(reversed(v)), x - v if False else 0, (5 - v).v, range(5)[v])


@dataclasses.dataclass
class DC:
    a: torch.Tensor
    b: int = 3
    c: list = dataclasses.field(default_factory=list)
    d: int = dataclasses.field(init=False, default=9)
    e: dataclasses.InitVar[int] = 4

    def __post_init__(self, e):
        self.f = self.b + e


@dataclasses.dataclass(frozen=True, order=True)
class FDC:
    a: int
    b: int = 2


@dataclasses.dataclass(slots=True)
class SDC:
    a: object
    b: int = 1


@dataclasses.dataclass(kw_only=True)
class KDC(DC):
    z: int = 1


@cases()
def dataclass_(x):
    d = DC(x, e=5)
    d.c.append(1)
    g = FDC(1)
    h = dataclasses.replace(g, b=7)
    s = SDC(x)
    s.b = 4
    try:
        g.a = 3
    except dataclasses.FrozenInstanceError as e:
        m = str(e)
    return (d.a * d.f, d.c, d.d, h.b, g < h, g == FDC(1), hash(g) == hash(FDC(1)), s.a + s.b, m, sorted([h, g])[0].b, g,
            [f.name for f in dataclasses.fields(d)])


@cases()
def dataclass_tools(x):
    g = FDC(1)
    return (dataclasses.asdict(g), dataclasses.astuple(g), repr(g), dataclasses.is_dataclass(g),
            dataclasses.asdict(DC(x, e=1))['a'])


class NT(typing.NamedTuple):
    a: object
    b: int = 2

    def both(self):
        return self.a * self.b


NT2 = collections.namedtuple('NT2', 'p q', defaults=[4])


@cases()
def namedtuple_(x):
    n = NT(x)
    m = n._replace(b=5)
    p, q = NT2(1)
    return (n.both(), m, m._asdict(), p, q, n._fields, NT2._make([x, 2]).p, n[0], n == n, len(n), NT2(1, 2) + (3,),
            repr(NT2(1, 2)))


class Color(enum.Enum):
    R = 1
    G = 2

    @property
    def nice(self):
        return self.name.lower()

    @classmethod
    def default(cls):
        return cls.R


class Fl(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = A | B


class IE(enum.IntEnum):
    ONE = 1
    TWO = 2


class SE(str, enum.Enum):
    a = 'A'


@cases()
def enums(x):
    return (x * Color.G.value, Color.R.nice, Color.default() is Color.R, Color(2).name, Color['R'].value, list(Color),
            Fl.A | Fl.B == Fl.C, bool(Fl.A & Fl.B), x * IE.TWO, IE.ONE + 1, SE.a == 'A', SE.a.lower(),
            {Color.R: 1}[Color.R], Color.R in Color, len(Color), isinstance(Color.R, Color), [c.name for c in Color],
            Fl.A in Fl.C, Color.R == 1, str(Color.R), f'{IE.ONE}', 1)


class Base(abc.ABC):
    @abc.abstractmethod
    def f(self, x):
        ...

    @property
    @abc.abstractmethod
    def k(self):
        ...

    def g(self, x):
        return self.f(x) * self.k


class Impl(Base):
    def f(self, x):
        return x + 1

    @property
    def k(self):
        return 3


@typing.runtime_checkable
class Proto(typing.Protocol):
    def f(self, x):
        ...


T = typing.TypeVar('T')


class Box(typing.Generic[T]):
    def __init__(self, v: T):
        self.v = v


@cases()
def abcs(x):
    i = Impl()
    b = Box(x)
    return (i.g(x), isinstance(i, Base), isinstance(i, Proto), b.v, issubclass(Impl, Base), typing.cast(int, x),
            isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping),
            isinstance(3, numbers.Number), isinstance(x, collections.abc.Iterable), callable(i.f))


@cases()
def matching(x):
    out = []
    for v in (1, 'a', [1, 2, 3], (4,), {'k': 1, 'z': 2}, FDC(1, 2), None, True, 3.5, Color.R, [], {'t': x}, b'q', -1,
              NT2(1, 2)):
        match v:
            case True:
                out.append('true')
            case None:
                out.append('none')
            case 1 | 2:
                out.append('int12')
            case int() as n if n < 0:
                out.append(('neg', n))
            case str(s):
                out.append(s)
            case [a, *rest] if isinstance(v, list):
                out.append((a, rest))
            case [a]:
                out.append(a)
            case {'k': k, **r}:
                out.append((k, r))
            case FDC(a=1, b=q):
                out.append(q)
            case float():
                out.append('float')
            case Color.R:
                out.append('red')
            case []:
                out.append('empty')
            case {'t': torch.Tensor() as t}:
                out.append(t + 1)
            case bytes():
                out.append('b')
            case NT2(p, q):
                out.append((p, q))
            case _:
                out.append('other')
    return out


@cases()
def contexts(x):
    log = []
    class C:
        pass
    @contextlib.contextmanager
    def cm(n):
        log.append(('in', n))
        try:
            yield n
        except KeyError:
            log.append('swallow')
        finally:
            log.append(('out', n))
    with contextlib.ExitStack() as st:
        a = st.enter_context(cm(1))
        st.callback(log.append, 'cb')
        st.push(lambda *a: log.append(a[0]))
        x = x * a
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    with contextlib.nullcontext(5) as n:
        x = x + n
    with cm(2), cm(3) as k:
        x = x * k
    with cm(4):
        raise KeyError
    with (contextlib.closing(type('Q', (), {'close': lambda self: log.append('closed')})())
          if False else contextlib.nullcontext()):
        pass
    return (x, log)


@cases()
def exits(x):
    log = []
    st = contextlib.ExitStack()
    with st:
        st.callback(log.append, 1)
        st2 = st.pop_all()
    log.append('after')
    st2.close()
    class Deco(contextlib.ContextDecorator):
        def __enter__(self):
            log.append('e')
            return self

        def __exit__(self, *a):
            log.append('x')
    @Deco()
    def h(v):
        return v + 1
    return (h(x), log)


test_protocols = cases.test()
