"""Classes: construction, descriptors, special methods, inheritance, dataclasses, enums, exceptions and ``with``."""

import abc
import contextlib
import dataclasses
import enum
import functools
import sys

import torch
from frame_harness import Cases

cases = Cases()


class Base:
    made = 0

    def __init__(self, k):
        self.k = k

    def scale(self, v):
        return v * self.k

    def __repr__(self):
        return f"{type(self).__name__}({self.k})"


class Child(Base):
    def __init__(self, k, extra=1):
        super().__init__(k)
        self.extra = extra

    def scale(self, v):
        return super().scale(v) + self.extra

    @property
    def double(self):
        return self.k * 2

    @double.setter
    def double(self, v):
        self.k = v // 2

    @double.deleter
    def double(self):
        del self.extra

    @staticmethod
    def helper(v):
        return v - 1

    @classmethod
    def build(cls, *a):
        return cls(*a)


@cases()
def construction(x):
    c = Child.build(3, 4)
    c.double = 20
    before = (c.scale(x), c.double, Child.helper(x), c.helper(x), isinstance(c, Base), type(c) is Child, repr(c),
              str(c), f"{c}")
    del c.double
    return (before, hasattr(c, "extra"), getattr(c, "zzz", None), c, vars(c), Child.__mro__[1] is Base,
            issubclass(Child, Base), c.__class__.__name__)


@cases.made()
def class_counters():
    class Counter:
        made = 0

        def __init__(self):
            type(self).made += 1
            Counter.last = type(self).made

    def f(x):
        Counter()
        Counter()
        return x * Counter.made, Counter.last

    return f


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@cases()
def slots(x):
    s = Slotted(x)
    said = []
    for step in (lambda: s.b, lambda: setattr(s, "c", 1)):
        try:
            step()
        except AttributeError as e:
            said.append(str(e))
    s.b = 2
    del s.a
    return said, s.b, hasattr(s, "a")


class Typed:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, "unset")

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Lazy:
    def __init__(self, fn):
        self.fn = fn

    def __get__(self, obj, owner):
        value = obj.__dict__[self.fn.__name__] = self.fn(obj)
        return value


class Described:
    t = Typed()

    @Lazy
    def lazy(self):
        return [1]

    @functools.cached_property
    def cached(self):
        return object()

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


@cases()
def descriptors(x):
    d = Described()
    first = d.t
    d.t = x
    second = d.t
    del d.t
    return (first, second, d.t, d.lazy is d.lazy, d.cached is d.cached, d.dyn_abc, Described.t.name,
            getattr(d, "nope", 1), sorted(vars(d)))


class Vector:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, o):
        return Vector(*[a + b for a, b in zip(self.v, o.v)]) if isinstance(o, Vector) else NotImplemented

    def __radd__(self, o):
        return ("radd", o)

    def __iadd__(self, o):
        self.v.append(o)
        return self

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.v, o.v))

    def __eq__(self, o):
        return isinstance(o, Vector) and self.v == o.v

    def __hash__(self):
        return hash(tuple(self.v))

    def __lt__(self, o):
        return self.v < o.v

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, value):
        self.v[i] = value

    def __len__(self):
        return len(self.v)

    def __contains__(self, k):
        return k in self.v

    def __bool__(self):
        return bool(self.v)

    def __call__(self, k=1):
        return [a * k for a in self.v]

    def __neg__(self):
        return Vector(*[-a for a in self.v])

    def __int__(self):
        return 7

    def __index__(self):
        return 1

    def __format__(self, spec):
        return f"<{spec}>"

    def __reversed__(self):
        return iter([9])

    def __enter__(self):
        self.v.append("in")
        return self

    def __exit__(self, kind, value, tb):
        self.v.append(kind and kind.__name__)
        return kind is KeyError


@cases()
def special_methods(x):
    a, b = Vector(1, 2), Vector(3, 4)
    c = (a + b, 5 + a, a @ b, a == Vector(1, 2), a != b, a < b, sorted([b, a])[0] is a, a[0], len(a), 2 in a,
         bool(Vector()), a(2), (-a).v, int(a), [10, 20][a], f"{a:q}")
    try:
        a + 1
    except TypeError as e:
        said = str(e)
    a += 8
    a[0] = x
    d = {Vector(1): "one", Vector(2): "two"}
    with b as inside:
        {}["k"]
    return (c, said, a.v, d[Vector(1)], Vector(3) in d, list(reversed(a)), list(a), b.v, inside is b,
            hash(Vector(1)) == hash((1,)))


@dataclasses.dataclass
class Data:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: str = dataclasses.field(default="z", compare=False)

    def __post_init__(self):
        self.b.append(self.a)


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 2.0


@cases()
def data_classes(x):
    d = Data(1)
    e = dataclasses.replace(d, a=5)
    said = None
    try:
        Frozen(1).a = 2
    except dataclasses.FrozenInstanceError as error:
        said = str(error)
    return (d, e, d == Data(1), repr(d), dataclasses.asdict(d), dataclasses.astuple(Frozen(1)),
            [f.name for f in dataclasses.fields(d)], Frozen(1) < Frozen(2), hash(Frozen(1)) == hash(Frozen(1)), said,
            dataclasses.is_dataclass(d), x * d.a, {Frozen(1): 2}[Frozen(1)])


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def low(self):
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Bits(enum.Flag):
    A = 1
    B = 2


@cases()
def enums(x):
    return (Color.RED, Color.RED.value, Color["BLUE"], Color(2), Color.RED.low, [c.name for c in Color],
            Color.RED is Color.RED, Level.HIGH > Level.LOW, x * Level.HIGH, Bits.A | Bits.B,
            Bits.A in (Bits.A | Bits.B), {Color.RED: 1}[Color.RED], len(Color), isinstance(Color.RED, Color),
            str(Color.RED), repr(Level.LOW), Color.RED in Color)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self):
        ...

    def twice(self):
        return self.area() * 2


class Square(Shape):
    def area(self):
        return 4


@cases()
def abstract_classes(x):
    try:
        Shape()
    except TypeError as e:
        said = str(e)
    return said, Square().twice(), isinstance(Square(), Shape), x


@functools.total_ordering
class Ordered:
    def __init__(self, k):
        self.k = k

    def __eq__(self, o):
        return self.k == o.k

    def __lt__(self, o):
        return self.k < o.k


@cases()
def total_ordering(x):
    return Ordered(1) <= Ordered(1), Ordered(2) > Ordered(1), max(Ordered(1), Ordered(3)).k, x


class MyList(list):
    def append(self, v):
        super().append(v * 2)


class MyDict(dict):
    def __missing__(self, k):
        return k + "!"


class MyError(ValueError):
    def __init__(self, code, text="t"):
        super().__init__(text)
        self.code = code

    def __str__(self):
        return f"{self.code}: {self.args[0]}"


@cases()
def subclasses_of_builtins(x):
    v = MyList([1])
    v.append(2)
    d = MyDict(a=1)
    return v, type(v).__name__, d["zz"], d, len(v), v == [1, 4], isinstance(d, dict), x


# -- exceptions --------------------------------------------------------------------------------------------------------


@cases()
def handlers(x):
    log = []

    def go(k):
        try:
            log.append("try")
            if k == 0:
                raise MyError(3)
            if k == 1:
                return "returned"
            if k == 2:
                [][1]
            if k == 3:
                raise KeyError("a") from ValueError("cause")
        except MyError as e:
            log.append((str(e), e.code, e.args))
        except (IndexError, KeyError) as e:
            log.append((type(e).__name__, str(e), type(e.__cause__).__name__, e.__suppress_context__))
        else:
            log.append("else")
        finally:
            log.append("finally")
        return "end"

    return [go(k) for k in range(5)], log, x


@cases()
def nested_exceptions(x):
    out = []
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise ValueError("second") from e
    except ValueError as e:
        out.append((str(e), str(e.__cause__), e.__context__ is e.__cause__))
    try:
        try:
            int("q")
        except ValueError:
            {}["k"]
    except KeyError as e:
        out.append((str(e), str(e.__context__), e.__cause__))
    try:
        try:
            raise TypeError("first")
        except TypeError:
            raise
    except TypeError as e:
        out.append((str(e), e.__traceback__ is None, sys.exc_info()[0].__name__))
    out.append(sys.exc_info())

    def leaves():
        for i in range(3):
            try:
                if i == 1:
                    continue
                if i == 2:
                    break
            finally:
                out.append(i)
        return out

    return leaves(), x


@cases()
def errors_of_operations(x):
    said = []
    steps = [lambda: 1 + "a", lambda: [1][5], lambda: {}["k"], lambda: None.foo, lambda: int("x"), lambda: (1, 2)[9],
             lambda: len(5), lambda: 5(), lambda: [1, 2] + (3,), lambda: "a" < 1, lambda: iter(5),
             lambda: next(iter([])), lambda: {[]: 1}, lambda: [].pop(), lambda: [1].remove(2), lambda: "abc".index("z"),
             lambda: float("q"), lambda: Base(), lambda: Base(1).nope, lambda: max([]), lambda: dict([1]),
             lambda: "%d" % "a", lambda: {1, 2}.remove(5), lambda: range(1, 2, 0), lambda: [3, "a"].sort(),
             lambda: -"a", lambda: (1).__add__("a"), lambda: [*5], lambda: f"{1:q}", lambda: "a".join([1]),
             lambda: [1].index(4), lambda: (lambda a: a)(), lambda: undefined_name,  # noqa: F821
             lambda: setattr(5, "a", 1), lambda: type.nope, lambda: hash([]), lambda: isinstance(1, 5), lambda: 1 @ 2,
             lambda: 3 % 0, lambda: 1 // 0.0, lambda: "a" in 5, lambda: [1, 2, 3].index(1, 2),
             lambda: (1, 2, 3).index(7), lambda: chr(-1), lambda: ord("ab"), lambda: sum(["a"]),
             lambda: zip([1], [1, 2], strict=True).__next__() and list(zip([1], [1, 2], strict=True))]
    for k, step in enumerate(steps):
        try:
            said.append((k, step()))
        except Exception as e:
            said.append((k, type(e).__name__, str(e)))
    try:
        a, b = [1]
    except ValueError as e:
        said.append(str(e))
    try:
        a, b = 1, 2, 3
    except ValueError as e:
        said.append(str(e))
    try:
        a, *b, c = [1]  # noqa: F841
    except ValueError as e:
        said.append(str(e))
    try:
        a, b = 5
    except TypeError as e:
        said.append(str(e))
    return said, x


# -- with --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def scope(log, swallow=()):
    log.append("in")
    try:
        yield len(log)
    except swallow as e:
        log.append("swallowed " + str(e))
    finally:
        log.append("out")


@cases()
def context_managers(x):
    log = []
    with scope(log) as n, scope(log):
        x = x * n
    with scope(log, KeyError):
        raise KeyError("k")
    try:
        with scope(log):
            raise ValueError("through")
    except ValueError as e:
        log.append(str(e))
    with contextlib.suppress(ZeroDivisionError):
        1 / 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(scope(log))
        stack.callback(log.append, "callback")
    with contextlib.nullcontext(5) as five:
        log.append(five)

    @contextlib.contextmanager
    def twice():
        yield 1
        yield 2

    try:
        with twice():
            pass
    except RuntimeError as e:
        log.append(str(e))

    @scope(log)
    def decorated():
        log.append("body")

    decorated()
    for i in range(3):
        with scope(log):
            if i == 1:
                break
    return x, log


@cases(torch.arange(4.0))
def grad_modes(x):
    with torch.no_grad():
        a = torch.is_grad_enabled()
        with torch.enable_grad():
            b = torch.is_grad_enabled()
        with torch.set_grad_enabled(True):
            c = torch.is_grad_enabled()
    return a, b, c, torch.is_grad_enabled(), x + 1


test_classes = cases.test()
