"""Classes made inside captured functions, by class statements and by ``type()``."""

import abc
import contextlib

import torch
from frame_harness import Cases, check

cases = Cases()


@cases()
def methods_and_attributes(x):
    class Local:
        k = 3
        doubled = k * 2

        def go(self, v):
            return v * self.k + self.doubled

    made = type("Made", (Local,), {"k": 5})
    return (Local().go(x), made().go(x), made.__name__, Local.__qualname__, Local.k, issubclass(made, Local),
            isinstance(made(), Local))


@cases()
def closures_and_super(x):
    y = x + 1

    class Base:
        def __init__(self, k):
            self.k = k

        def go(self, v):
            return v * self.k + y

    class Derived(Base):
        def __init__(self, k):
            super().__init__(k + 1)

        def go(self, v):
            return super().go(v) + Derived.extra

        extra = 7

    d = Derived(2)
    return d.go(x), d.k, type(d) is Derived, Derived.__mro__[1] is Base


@cases()
def descriptors(x):
    class Local:
        def __init__(self, v):
            self._v = v

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, new):
            self._v = new * 2

        @staticmethod
        def plus(a, b):
            return a + b

        @classmethod
        def make(cls, v):
            return cls(v)

        def __add__(self, other):
            return Local(self.v + other.v)

        def __getattr__(self, name):
            return name

        def __repr__(self):
            return "Local!"

    a = Local.make(x)
    a.v = x + 1
    return (a + Local(x)).v, Local.plus(1, 2), a.plus(3, 4), a.anything, repr(a), f"{a}"


@cases()
def body_with_flow(x):
    class Local:
        names = [n for n in ("a", "b")]
        for i in range(3):
            total = i
        if total > 1:
            big: bool = True
        del i
        try:
            missing
        except NameError as e:
            text = str(e)

    return x, Local.names, Local.total, Local.big, hasattr(Local, "i"), Local.text


@cases()
def decorated(x):
    def mark(cls):
        cls.marked = True
        return cls

    @mark
    class Local:
        pass

    return x, Local.marked, Local().marked


@cases()
def abstract(x):
    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self):
            ...

    class Done(Base):
        def go(self):
            return 5

    try:
        Base()
    except TypeError as e:
        text = str(e)
    return x * Done().go(), text


@cases()
def context_manager(x):
    log = []

    class Scope(contextlib.ContextDecorator):
        def __enter__(self):
            log.append("in")
            return self

        def __exit__(self, *exc):
            log.append("out")
            return True

    with Scope():
        x = x + 1
        raise ValueError

    @Scope()
    def f(v):
        return v * 2

    return f(x), log


@cases()
def exception_class(x):
    class Mine(ValueError):
        def __init__(self, n):
            super().__init__(n)
            self.n = n

    try:
        raise Mine(4)
    except ValueError as e:
        x = x + e.n
    return x


@cases()
def slots(x):
    class Local:
        __slots__ = ("a", "b")

    v = Local()
    v.a = x
    try:
        v.c = 1
    except AttributeError as e:
        text = str(e)
    return v.a, text, hasattr(v, "b")


test_class_statements = cases.test()


def test_classes_that_leave_the_region():
    def f(x):
        y = x * 2

        class Local:
            shared = []

            def go(self):
                return y, Local, __class__

            @property
            def twice(self):
                return self.k * 2

        made = Local()
        made.k = x
        return Local, made

    import jit

    compiled = jit.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    (first, one), (second, two) = compiled(x), compiled(x + 1)
    assert first is not second and first.shared is not second.shared and type(one) is first and type(two) is second
    assert (two.go()[1] is second and two.go()[2] is second and torch.equal(two.go()[0], (x + 1) * 2)
            and torch.equal(two.twice, (x + 1) * 2))
    assert first.__name__ == "Local" and first.__qualname__ == f(x)[0].__qualname__ and first.__module__ == __name__


def test_what_is_left_to_eager():
    class Registered:
        seen = []

        def __init_subclass__(cls, **options):
            Registered.seen.append((cls.__name__, options))

    class Meta(type):
        def __new__(meta, name, bases, namespace):
            return super().__new__(meta, name.upper(), bases, namespace)

    def f(x):
        x = x + 1

        class Sub(Registered, flag=1):
            pass

        class Upper(metaclass=Meta):
            k = 3

        return x * Upper.k, Upper.__name__, Sub.__name__

    check(lambda: f, lambda: (torch.ones(2),), fullgraph=False)
    assert Registered.seen == [("Sub", {"flag": 1})] * 4


def test_a_class_across_a_break():
    def f(x):
        class Local:
            def __init__(self, v):
                self.v = v

            def go(self):
                return self.v * 2

        a = Local(x)
        print("here")
        b = Local(x + 1)
        return a.go() + b.go()

    check(lambda: f, lambda: (torch.ones(2),), calls=3, fullgraph=False)
