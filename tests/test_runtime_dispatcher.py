"""Dispatchers: argument binding as CPython does it, every way a function can be called or held, entries, misses,
threads."""

import asyncio
import copy
import functools
import gc
import inspect
import itertools
import pickle
import threading
import weakref

import pytest
import torch

from jit.runtime import guards as G
from jit.runtime import native

Dispatcher = native().Dispatcher


def tracing(fn):
    """A dispatcher whose misses answer with the locals it was given."""
    return Dispatcher(fn, lambda d, locals: lambda *again: ("target", again) if again == locals else "differ")


# Each returns what its parameters are bound to, in the order of its code's variables.
SIGNATURES = [
    lambda: tuple(locals().values()),
    lambda a: tuple(locals().values()),
    lambda a, b=2: tuple(locals().values()),
    lambda a, b=2, *args: tuple(locals().values()),
    lambda a=1, *, k, j=5: tuple(locals().values()),
    lambda a, /, b, *, c=3: tuple(locals().values()),
    lambda a, /, **kw: tuple(locals().values()),
    lambda *args, **kw: tuple(locals().values()),
    lambda a, b=2, *args, c, d=4, **kw: tuple(locals().values()),
    lambda a=1, b=2, /, c=3, *, d=4: tuple(locals().values()),
]
NAMES = ("a", "b", "c", "d", "k", "j", "z")


@pytest.mark.parametrize("index", range(len(SIGNATURES)))
def test_binding_is_cpythons(index):
    fn = SIGNATURES[index]
    d = tracing(fn)
    for count in range(5):
        for size in range(4):
            for names in itertools.combinations(NAMES, size):
                args, kwargs = tuple(range(10, 10 + count)), {n: n.upper() for n in names}
                try:
                    want = fn(*args, **kwargs)
                except TypeError as theirs:
                    with pytest.raises(TypeError) as mine:
                        d(*args, **kwargs)
                    assert str(mine.value) == str(theirs)
                    assert d.bind(*args, **kwargs) is None
                    continue
                assert d(*args, **kwargs) == ("target", want)
                assert d.bind(*args, **kwargs) == want


def test_names_that_are_not_interned():
    d = tracing(lambda alpha, beta=1: 0)
    assert d(**{"".join(["al", "pha"]): 3}) == ("target", (3, 1))


def test_defaults_are_read_anew():
    def f(a, b=1, *, c=2):
        return a, b, c

    d = tracing(f)
    assert d(0) == ("target", (0, 1, 2))
    d.__defaults__ = (7,)
    f.__kwdefaults__["c"] = 8
    assert d(0) == ("target", (0, 7, 8))
    f.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional"):
        d(0)
    f.__kwdefaults__ = None
    with pytest.raises(TypeError, match="missing"):
        d(0, 1)


def test_replaced_code_drops_entries():
    def f(a):
        return "one"

    def g(a, b):
        return "two"

    d = Dispatcher(f, lambda d, locals: None)
    d.add_entry(None, lambda a: "compiled")
    assert d(1) == "compiled"
    d.__code__ = g.__code__
    assert d(1, 2) == "two" and d.entries == ()


def test_many_arguments():
    names = [f"p{i}" for i in range(40)]
    scope = {}
    exec(f"def f({', '.join(names)}, *args, **kw): pass", scope)
    d = tracing(scope["f"])
    assert d(*range(50), z=1) == ("target", (*range(40), tuple(range(40, 50)), {"z": 1}))


class Base:
    def __init__(self):
        self.base = 1

    def method(self, x):
        return "original", self, x

    def other(self):
        return "other"

    @property
    def prop(self):
        return "original property"


def test_as_method():
    class C(Base):
        method = Dispatcher(Base.method)
        method.add_entry(None, lambda self, x: ("target", self, x))

        @classmethod
        def on_class(cls, x):
            return cls, x

        @staticmethod
        def on_nothing(x):
            return x

    c = C()
    assert c.method(3) == ("target", c, 3) and C.method(c, 4) == ("target", c, 4)
    bound = c.method
    assert bound(5) == ("target", c, 5) and bound.__self__ is c and bound.__func__ is C.__dict__["method"]
    assert c.method(x=6) == ("target", c, 6)
    assert functools.partial(c.method, 7)() == ("target", c, 7)
    assert list(map(c.method, [8])) == [("target", c, 8)]

    seen = Dispatcher(lambda cls, x: 0)
    seen.add_entry(None, lambda cls, x: ("seen", cls, x))
    C.a = classmethod(seen)
    alone = Dispatcher(lambda x: 0)
    alone.add_entry(None, lambda x: ("alone", x))
    C.b = staticmethod(alone)
    C.c = property(Dispatcher(lambda self: 0, lambda d, locals: lambda self: "through property"))
    assert C.a(1) == ("seen", C, 1) and c.a(1) == ("seen", C, 1)
    assert C.b(1) == ("alone", 1) and c.b(1) == ("alone", 1)
    assert c.c == "through property"
    c.instance = alone  # in an instance it is not bound
    assert c.instance(2) == ("alone", 2)


def test_call_and_init():
    class C:
        pass

    call = Dispatcher(lambda self, x: 0, lambda d, locals: lambda self, x: ("called", x))
    made = Dispatcher(lambda self, x: 0, lambda d, locals: lambda self, x: setattr(self, "x", x))
    C.__call__, C.__init__ = call, made
    assert C(3).x == 3 and C(3)(4) == ("called", 4)


def test_bound_self():
    base = Base()
    d = Dispatcher(Base.method, None, base)
    d.add_entry(None, lambda self, x: ("target", self, x))
    assert d(3) == ("target", base, 3) and d(x=4) == ("target", base, 4)
    assert list(map(d, [1])) == [("target", base, 1)]
    assert d.__self__ is base and d.bind(9) == (base, 9)
    assert list(inspect.signature(d).parameters) == ["x"]

    class Holder:
        held = d

    assert Holder().held(5) == ("target", base, 5)  # not bound again
    assert isinstance(d, Dispatcher)
    with pytest.raises(TypeError, match="method"):
        d()
    assert copy.copy(d)(1)[0] == "original"


def documented(x: int, y: float = 2.0, *, z=3) -> str:
    """Words."""
    return "original"


documented.note = "kept"
documented = Dispatcher(documented)


def test_looks_like_the_function():
    d = documented
    assert (d.__name__, d.__qualname__, d.__doc__, d.__module__) == ("documented", "documented", "Words.", __name__)
    assert d.__annotations__ == {"x": int, "y": float, "return": str}
    assert d.__defaults__ == (2.0,) and d.__kwdefaults__ == {"z": 3} and d.__code__ is d.__wrapped__.__code__
    assert d.__globals__ is globals() and d.__closure__ is None
    assert str(inspect.signature(d)) == "(x: int, y: float = 2.0, *, z=3) -> str"
    assert inspect.unwrap(d) is d.__wrapped__ and inspect.isroutine(d) and callable(d)
    assert d.note == "kept" and d.__dict__ is d.__wrapped__.__dict__
    d.more = 1
    assert d.__wrapped__.more == 1
    del d.more
    assert "documented" in repr(d) and inspect.getsource(d.__wrapped__).startswith("def documented")
    assert inspect.getdoc(d) == "Words."
    d.__doc__ = "Other."
    assert d.__doc__ == "Other."
    with pytest.raises(AttributeError):
        d.nothing
    wrapped = functools.wraps(d)(lambda *a: d(*a))
    assert wrapped.__name__ == "documented" and wrapped.note == "kept"
    assert weakref.ref(d)() is d and hash(d) == hash(d) and d == d and d != d.__wrapped__


def test_pickle_and_copy():
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert copy.copy(documented) is documented and copy.deepcopy([documented])[0] is documented
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(Dispatcher(lambda: 0))


def test_collected_with_cycles():
    def f():
        return f  # noqa: F821

    d = Dispatcher(f)
    d.add_entry(None, lambda: d)  # noqa: F821
    f.me = d
    assert gc.is_tracked(d)
    seen = weakref.ref(d)
    del d, f
    gc.collect()
    assert seen() is None


def test_entries_misses_and_counters():
    seen = []

    def on_miss(d, locals):
        seen.append(locals)
        if isinstance(locals[0], torch.Tensor):
            x = locals[0]
            p = G.program([(-1, "local", 0)], [(0, "tensor", G.TensorSpec.of(x))])
            return d.add_entry(p, lambda x: ("compiled", tuple(x.shape))).target
        return None

    d = Dispatcher(lambda x: ("original", x), on_miss)
    assert d(3) == ("original", 3)
    for n in (2, 3, 4):
        assert d(torch.zeros(n)) == ("compiled", (n,))
    assert len(seen) == 4 and d.misses == 4 and d.hits == 0 and len(d.entries) == 3
    for n in (4, 2, 3, 2, 4):
        assert d(torch.zeros(n)) == ("compiled", (n,))
    assert d.hits == 5 and len(seen) == 4 and [e.hits for e in d.entries] == [2, 1, 2]
    entry = d.entries[1]
    entry.note = "mine"
    assert entry.note == "mine" and entry.guards.check((torch.zeros(3),)) and entry.plan is None
    d.remove_entry(entry)
    assert len(d.entries) == 2
    d.clear()
    assert d.entries == () and d(5) == ("original", 5)
    with pytest.raises(TypeError):
        d.add_entry(3, len)
    with pytest.raises(TypeError):
        d.add_entry(None, 3)
    with pytest.raises(TypeError):
        Dispatcher(len)


def test_errors_pass_through():
    def bad(d, locals):
        raise KeyError("miss")

    d = Dispatcher(lambda x: 0, bad)
    with pytest.raises(KeyError):
        d(1)

    def target(x):
        raise ZeroDivisionError

    d.add_entry(None, target)
    with pytest.raises(ZeroDivisionError):
        d(1)


def test_capturing_runs_the_original():
    n = native()
    d = Dispatcher(lambda x: ("original", x), lambda *a: pytest.fail("missed"))
    d.add_entry(None, lambda x: ("compiled", x))
    assert n.set_capturing(True) is False
    try:
        assert d(1) == ("original", 1) and n.is_capturing()
        other = []
        t = threading.Thread(target=lambda: other.append(d(2)))
        t.start()
        t.join()
        assert other == [("compiled", 2)]
    finally:
        assert n.set_capturing(False) is True
    assert d(1) == ("compiled", 1)


def test_recursion():
    def fib(n):
        return n if n < 2 else d(n - 1) + d(n - 2)

    d = Dispatcher(fib, lambda d, locals: d.add_entry(G.program([(-1, "local", 0)], [(0, "type_is", int)]), fib).target)
    assert d(15) == 610 and d.misses == 1
    with pytest.raises(RecursionError):
        forever = Dispatcher(lambda: forever())
        forever.add_entry(None, lambda: forever())
        forever()


def test_tail_calls():
    TailCall = native().TailCall

    def down(n):
        return TailCall(d, n - 1) if n else TailCall(lambda *a: a, "end", n)

    d = Dispatcher(lambda n: "original")
    d.add_entry(None, down)
    assert d(100_000) == ("end", 0)
    bound = Dispatcher(lambda self, n: 0, None, "me")
    bound.add_entry(None, lambda self, n: TailCall(d, 3))
    assert bound(1) == ("end", 0)

    def fails():
        raise ZeroDivisionError

    d.clear()
    d.add_entry(None, lambda n: TailCall(fails))
    with pytest.raises(ZeroDivisionError):
        d(1)
    with pytest.raises(TypeError):
        TailCall()


def test_entries_may_change_while_a_target_runs():
    def target(x):
        d.clear()
        gc.collect()
        return "done", x

    d = Dispatcher(lambda x: "original")
    d.add_entry(None, target)
    assert d([1]) == ("done", [1]) and d(2) == "original"


def test_coroutines_and_generators():
    async def co(x):
        return x

    d = Dispatcher(lambda x: 0)
    d.add_entry(None, co)
    assert asyncio.run(d(3)) == 3

    def gen(x):
        yield x

    d.clear()
    d.add_entry(None, gen)
    assert list(d(4)) == [4]


def test_arguments_are_released():
    class Thing:
        pass

    d = Dispatcher(lambda x, *args, **kw: 0, lambda d, locals: None)
    d.add_entry(None, lambda *locals: None)
    thing = Thing()
    seen = weakref.ref(thing)
    d(thing, thing, k=thing)
    d.clear()
    d(thing, thing, k=thing)
    with pytest.raises(TypeError):
        d(thing, x=thing)
    del thing
    gc.collect()
    assert seen() is None


def test_threads():
    errors = []
    shapes = [torch.zeros(n) for n in range(1, 7)]

    def on_miss(d, locals):
        p = G.program([(-1, "local", 0)], [(0, "tensor", G.TensorSpec.of(locals[0]))])
        n = locals[0].numel()
        d.add_entry(p, lambda x: n)
        return lambda x: n

    d = Dispatcher(lambda x: x.numel(), on_miss)

    def work(seed):
        for i in range(3000):
            x = shapes[(i * 7 + seed) % len(shapes)]
            if d(x) != x.numel():
                errors.append(x)
            if i % 500 == seed:
                d.clear()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors
