"""Each kind of fact that an entry can rely on: a program that relies on it, changes of the fact between calls, and
eager's results after each.

That no kind of record is without its change is held by ``test_every_kind_is_changed``: the kinds are read off the
runtime's own tables.
"""

import contextlib
import random
import types

import pytest
import torch
from frame_harness import changes_in_order
from guard_harness import of_arguments

import jit
from jit import config
from jit.runtime import guards as G
from jit.runtime import native

X4 = lambda: torch.arange(12.0).view(3, 4)  # noqa: E731


class Mutation:
    """``kinds``: of checks and accessors that the capture of ``f`` has to record; ``changes``: Python text, run in the
    program's module."""

    def __init__(self, kinds, text, *changes, argument=lambda: torch.ones(3)):
        self.kinds, self.text, self.changes, self.argument = set(kinds.split()), text, changes, argument


CACHED = ("import functools\n@functools.lru_cache({})\n"
          "def g(k): return [k]\ndef f(x):\n  v = g(3)\n  v.append(1)\n  return x * len(v), g.cache_info()[:2]\n")
PROGRAMS = {
    # checks
    "type_is": Mutation("type_is item", "k = 2\ndef f(x): return x if type(k) is int else x * 2", "k = 2.0", "k = True",
                        "k = 3"),
    "is": Mutation("is item const", "def g(x): return x + 1\ndef f(x): return g(x)", "g = lambda x: x - 1",
                   "def g(x): return x * 5"),
    "at": Mutation("at item", "a, b = {'k': 1}, {'k': 1}\ndef f(x):\n  a['k'] = 5\n  return x * b['k']", "b = a",
                   "a = {'k': 1}", "a, b = {'k': 2}, {'k': 3}", "a = b"),
    "a tensor": Mutation("at tensor", "w = torch.ones(3)\ndef f(x): return x * w", "w = torch.full((3,), 2.0)",
                         "w = torch.ones(3)", "v = w; w = torch.zeros(3)"),
    "is_not": Mutation("is_not", "d = dict(a=[1])\ndef f(x): return x, d['a']", "d['a'] = [2]", "d.clear()",
                       "d['a'] = 5"),
    "eq": Mutation("eq", "k = 2\ndef f(x): return x * k", "k = 3", "k = -0.0", "k = 0.0", "k = float('nan')", "k = 'a'",
                   "k = True"),
    "len": Mutation("len", "v = [1, 2]\ndef f(x): return x * len(v)", "v = [*v, 1]", "v = []", "v = (1, 2)",
                    "v = [1]; v += (2, 3)"),
    "dict_keys": Mutation("dict_keys", "d = dict(a=1, b=2)\ndef f(x): return x, list(d)", "d['c'] = 1",
                          "d['a'] = d.pop('a', 7)", "d.clear()"),
    "dict_lacks": Mutation("dict_lacks", "def f(x): return x * len([1, 2])", "len = lambda v: 7",
                           "globals().pop('len', 0)"),
    "no_dict_attr": Mutation("no_dict_attr", "class A: k = 2\na = A()\ndef f(x): return x * a.k", "a.k = 5",
                             "a.__dict__.clear()", "a.j = 1"),
    "class_lacks": Mutation("class_lacks class_attr", "class A: pass\na = A(); a.k = 2\ndef f(x): return x * a.k",
                            "A.k = property(lambda s: 7)", "A.k = 3", "'k' in A.__dict__ and delattr(A, 'k')"),
    "elements": Mutation("elements", "s = {1, 2}\ndef f(x): return x * sum(s)", "s = {*s, 5}; s.discard(1)",
                         "s = frozenset((4,))", "s = {True, 2}; s.add(7)"),
    "same": Mutation("same local",
                     "def f(x, a=None, b=None):\n  a.append(1)\n  return x * len(b)\nv = []\nf.__defaults__ = (v, v)",
                     "f.__defaults__ = ([], [])", "f.__defaults__ = (v, v)"),
    "distinct": Mutation("distinct local",
                         "def f(x, a=None, b=None):\n  a.append(1)\n  return x * len(b)\nf.__defaults__ = ([], [])",
                         "v = []; f.__defaults__ = (v, v)", "f.__defaults__ = ([], [])"),
    "subclass": Mutation("subclass", "import abc\nclass B(abc.ABC): pass\n"
                                     "class A: pass\na = A()\ndef f(x): return x * 2 if isinstance(a, B) else x",
                         "class C: pass\nB.register(C)", "B.register(A)", "class A: pass\na = A()"),
    "instance": Mutation("instance", "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n  k: int\n"
                                     "class A: pass\na = A()\ndef f(x): return x * 2 if isinstance(a, P) else x",
                         "a.k = 1", "a.__dict__.clear()", "A.k = 1"),
    "truth": Mutation("truth", "v = 'ab'\ndef f(x): return x * 2 if v else x", "v = ''", "v = 'c'", "v = ()"),
    # of tensors
    "tensor class": Mutation("tensor", "def f(x): return x * 2 if type(x) is torch.nn.Parameter else x + 1",
                             "X = torch.nn.Parameter(X)", "X = torch.ones(3)"),
    "tensor dtype": Mutation("tensor", "def f(x): return x * 2", "X = X.double()", "X = X.int()", "X = X.bfloat16()",
                             "X = X > 0"),
    "tensor sizes": Mutation("tensor", "def f(x): return (x * 2).sum(0)", "X = X[:2]", "X = X[:, :1]", "X = X[0]",
                             "X = X[:0]", argument=X4),
    "tensor strides": Mutation("tensor", "def f(x): return x * 2, (x + 1).sum(1)", "X = torch.ones(4, 3).t()",
                               "X = torch.ones(3, 8)[:, ::2]", "X = torch.ones(3, 1).expand(3, 4)", argument=X4),
    "tensor requires_grad": Mutation("tensor", "def f(x): return (x * 2).requires_grad", "X.requires_grad_()",
                                     "X = X.clone()"),
    "tensor keys": Mutation("tensor", "def f(x): return x * 2", "X = X * 1j", "X = (X * 1j).conj()",
                            "X = (X * 1j).conj().imag", argument=lambda: torch.ones(3, dtype=torch.complex64)),
    "tensor memory": Mutation("tensor", "w = torch.ones(3)\ndef f(x): return x * w", "w.data = torch.full((3,), 4.0)",
                              "w.mul_(2)", "w.data = torch.ones(3, dtype=torch.float64)",
                              "w.data = torch.arange(6.0)[::2]"),
    "apart": Mutation("apart", "def f(x, y=None):\n  x.add_(1)\n  return y * 2\nf.__defaults__ = (torch.ones(3),)",
                      "f.__defaults__ = (X,)", "b = torch.ones(5); X = b[:3]; f.__defaults__ = (b[1:4],)",
                      "f.__defaults__ = (torch.ones(3),)"),
    "shares and room": Mutation("shares room", "B = torch.arange(9.0)\ndef f(x, y=None):\n  x.add_(1)\n  return y * 2\n"
                                               "X = B[:3]; f.__defaults__ = (B[1:4],)",
                                "B = torch.arange(9.0); X = B[:3]; f.__defaults__ = (B[1:4],)",
                                "B = torch.arange(9.0); X = B[1:4]; f.__defaults__ = (B[:3],)",
                                "B = torch.arange(9.0); X = B[:3]; f.__defaults__ = (B[:3],)",
                                "X = torch.ones(3); f.__defaults__ = (torch.ones(3),)",
                                "B = torch.arange(9.0); X = B[:3]; f.__defaults__ = (B[2:5],)"),
    "tensor without memory": Mutation("no_memory", "def f(x):\n  y = torch.ones(3)\n  return torch.exp(y, out=x)",
                          "X = torch.ones(3)[:0]", "X = torch.empty(0)", argument=lambda: torch.empty(0)),
    "writable": Mutation("writable", "def f(x, y=None):\n  with torch.no_grad(): y.add_(1)\n"
                                     "  y.mul_(x)\n  return y * 2\n"
                                     "l = torch.ones(3, requires_grad=True); f.__defaults__ = (l * 1,)",
                         "l = torch.ones(3, requires_grad=True); f.__defaults__ = (l,)",
                         "l = torch.ones(6, requires_grad=True); f.__defaults__ = (l[:3],)",
                         "l = torch.ones(6, requires_grad=True) * 1; f.__defaults__ = (l.chunk(2)[0],)",
                         "l = torch.ones(6, requires_grad=True) * 1; f.__defaults__ = (l[3:],)",
                         "l = torch.ones(3, requires_grad=True); f.__defaults__ = (l * 1,)"),
    "dims": Mutation("dims", "def f(x): return x.sum(0) * (2 if x.shape[0] > 3 else 5)",
                     *(f"X = torch.ones({n}, 2)" for n in (2, 3, 4, 5, 1, 0, 9))),
    "dims of strides": Mutation("dims", "def f(x): return x * 2",
                                *(f"X = torch.arange({4 * n}.0).view({n}, 4){v}" for n in (3, 5, 6)
                                  for v in ("", ".t().contiguous().t()", "[:, 1:3]"))),
    # of the process
    "numbers": Mutation("numbers", "k = 0.5\ndef f(x): return x if k > 0.25 else x * 2", "k = 0.75", "k = 0.125",
                        "k = float('nan')", "k = -3.0", "k = 5", "k = 0.25"),
    "grad mode": Mutation("global_state",
                          "w = torch.ones(3, requires_grad=True)\ndef f(x): return (x * w).requires_grad",
                          "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    "default dtype": Mutation("global_state", "def f(x): return torch.ones(3) + x.int()",
                              "torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)",
                              argument=lambda: torch.ones(3, dtype=torch.float32)),
    "autocast": Mutation("global_state", "def f(x): return x @ x.t()", "torch.set_autocast_enabled('cpu', True)",
                         "torch.set_autocast_enabled('cpu', False)",
                         "torch.set_autocast_dtype('cpu', torch.float16)", argument=X4),
    "default device": Mutation("global_state", "def f(x): return torch.ones(3).device.type",
                               "torch.set_default_device('meta')", "torch.set_default_device(None)",
                               argument=lambda: torch.ones(3, device="cpu")),
    "deterministic": Mutation("global_state", "def f(x): return x * torch.are_deterministic_algorithms_enabled()",
                              "torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)"),
    # accessors
    "dict_attr": Mutation("dict_attr", "class A: pass\na = A(); a.b = A(); a.b.k = 2\ndef f(x): return x * a.b.k",
                          "a.b.k = 3", "a.b = A(); a.b.k = 4", "a.__dict__['b'].__dict__['k'] = 9"),
    "getattr": Mutation("getattr", "class A: __slots__ = ('k',)\na = A(); a.k = 2\ndef f(x): return x * a.k", "a.k = 3",
                        "a.k = 2.5"),
    "class_attr": Mutation("class_attr", "class A: k = 2\ndef f(x): return x * A.k", "A.k = 3", "A.k = 2.5",
                           "A = type('A', (A,), {'k': 9})"),
    "dict": Mutation("dict", "class A: pass\na = A(); a.k = 1\ndef f(x): return x, sorted(vars(a))", "a.j = 2",
                     "a.__dict__ = {'z': 1}"),
    "item": Mutation("item", "v = [1, (2, 3), dict(k=4)]\ndef f(x): return x * v[1][0] * v[2]['k']", "v[1] = (5, 3)",
                     "v[2]['k'] = 6", "v = [0, (1, 1), dict(k=1)]"),
    "cell": Mutation("cell closure", "def make():\n  k = 2\n  def g(x): return x * k\n  return g\ng = make()\n"
                                     "def f(x): return g(x)", "g.__closure__[0].cell_contents = 3", "g = make()"),
    "closure": Mutation("closure local", "def make(k): return lambda x: x * k\ndef f(x, g=None): return g(x)\n"
                                         "f.__defaults__ = (make(2),)", "f.__defaults__ = (make(3),)",
                        "f.__defaults__ = (lambda x: x,)"),
    "function": Mutation("function", "def g(x, k=2, *, m=3): return x * k + m\ndef h(x, k=2, *, m=3): return x - k\n"
                                     "def f(x): return g(x)", "g.__defaults__ = (5,)", "g.__kwdefaults__ = {'m': 9}",
                         "g.__code__ = h.__code__", "g.__kwdefaults__['m'] = 1"),
    "grad": Mutation("grad",
                     "w = torch.ones(3, requires_grad=True)\nw.grad = torch.ones(3)\ndef f(x): return x * w.grad",
                     "w.grad = torch.full((3,), 2.0)", "w.grad.mul_(3)", "w.grad = torch.ones(3)"),
    "iterator_state": Mutation("iterator_state",
                               "v = iter([1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 20)\ndef f(x): return x * next(v)",
                               "next(v)", "v = iter([5] * 200)"),
    "generator_state": Mutation("generator_state",
                                "def g():\n  for k in range(200): yield k\nv = g()\ndef f(x): return x * next(v)",
                                "next(v)", "v = g()"),
    "length": Mutation("length", "v = []\ndef f(x):\n  v.append(1)\n  return x * len(v)", "v.pop()", "v = [1, 2]"),
    "returned": Mutation("returned", "class A: pass\ndef f(x): return x, 'k' in dir(A)", "A.k = 1", "A.j = 2",
                         "A = type('A', (), {})"),
    "context_value": Mutation("context_value", "import contextvars\nc = contextvars.ContextVar('c', default=1)\n"
                                               "def f(x): return x * c.get()", "c.set(2)", "c.set(3)"),
    "fresh": Mutation("fresh_dict_attr fresh_item", "class A: pass\na = A(); a.w = torch.ones(3)\n"
                                                    "d = dict(w=torch.ones(3))\ndef f(x): return x * a.w + d['w']",
                      "a.w = torch.full((3,), 2.0); d['w'] = a.w + 1", "a.w = torch.full((3,), 3.0)",
                      "d['w'] = torch.zeros(3)", "a.w = torch.ones(3, dtype=torch.float64)"),
    "fresh cell": Mutation("fresh_cell", "def make(w):\n  def g(x): return x * w\n  return g\ng = make(torch.ones(3))\n"
                                         "def f(x): return g(x)", "g.__closure__[0].cell_contents = torch.zeros(3)",
                           "g.__closure__[0].cell_contents = X + 1", "g.__closure__[0].cell_contents = 5"),
    "mro": Mutation("mro", "class A: pass\nclass B: pass\n"
                           "class C(A): pass\nc = C()\ndef f(x): return x * 2 if isinstance(c, B) else x",
                    "C.__bases__ = (B,)", "C.__bases__ = (A,)", "C.__bases__ = (A, B)"),
    "array_memory": Mutation("array_memory", "import numpy as np\na = np.ones(3)\n"
                                             "def f(x): return x * torch.from_numpy(a)", "a = np.ones(3, dtype='f4')",
                             "a[:] = 3", "a = np.ones((3, 1))", "a = np.arange(6.0)[::2]", "a = np.float64(3)"),
    "cache_link": Mutation("cache_link", CACHED.format(2), "g.cache_clear()", "g(4), g(5)", "g(3)[:] = []"),
    "cache": Mutation("item", CACHED.format("None"), "g.cache_clear()", "g(4), g(5)", "g(3)[:] = []"),
    "weak": Mutation("weak", "import weakref\nw = torch.ones(3)\n"
                             "r = weakref.ref(w)\ndef f(x):\n  v = r()\n  return x if v is None else x * v",
                     "w.mul_(2)", "w = torch.ones(3); r = weakref.ref(w)"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, monkeypatch):
    """The capture records what the table says, and no change between calls is missed, on the kernels of the default
    backend."""
    mutation, seen, program = PROGRAMS[name], set(), G.program

    def noted(accessors, checks, *rest):
        seen.update(kind for _, kind, *_ in (*accessors, *checks))
        return program(accessors, checks, *rest)

    monkeypatch.setattr(G, "program", noted)
    try:
        with config.patch(cache_limit=64):
            changes_in_order(mutation.text, mutation.changes, steps=8, backend="jit", argument=mutation.argument)
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert mutation.kinds <= seen, f"not recorded: {mutation.kinds - seen}; recorded: {sorted(seen)}"


# Facts of the process or of several arguments, and those that the call itself changes.
READ_ON_EACH_CALL = {"grad mode", "default dtype", "autocast", "default device", "deterministic", "dims",
                     "dims of strides", "numbers", "generator_state", "iterator_state", "returned"}


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - READ_ON_EACH_CALL))
def test_facts_about_arguments(name):
    """What is reached from an argument that comes again is watched; whatever changes, that says what a program says
    that reads all of it."""
    mutation, module = PROGRAMS[name], types.ModuleType("guarded")
    module.__dict__.update(torch=torch, X=mutation.argument())
    exec(mutation.text, module.__dict__)
    original = module.f
    compiled = jit.compile(original)
    twins, watched = [], 0
    random_ = random.Random(0)
    changes = [*mutation.changes, *(random_.choice(mutation.changes) for _ in range(8))]
    with config.patch(cache_limit=64):
        for change in ["", *changes]:
            module.f = original
            with contextlib.suppress(IndexError):
                exec(change, module.__dict__)
            for twin, locals_ in twins:
                fresh = native().GuardProgram(twin.accessors, twin.checks)
                assert [twin.check(locals_) for _ in range(2)] == [fresh.check(locals_)] * 2, change
            with contextlib.suppress(Exception):
                compiled(module.X)
            for entry in compiled.entries:
                locals_ = compiled.bind(module.X)
                if entry.guards is not None and entry.guards.check(locals_):
                    twins.append(of_arguments(entry.guards, module, locals_))
            for twin, locals_ in twins:
                for _ in range(4):
                    twin.check(locals_)
                watched = max(watched, twin.stats["arguments"])
    assert watched or "local" in mutation.kinds or name.startswith("tensor ")


class Plain:
    pass


def _type_attr():
    o, other = Plain(), type("Other", (), {"k": 2})
    Plain.k = 1
    yield [(-1, "local", 0), (0, "type_attr", "k")], [(1, "eq", 1)], (o,)
    Plain.k = 2
    yield False
    Plain.k = 1
    yield True
    o.__class__ = other
    yield False


def _type():
    o, other = Plain(), type("Other", (), {})
    yield [(-1, "const", o), (0, "type", None)], [(1, "is", Plain)], ()
    o.__class__ = other
    yield False


def _type_lacks():
    cls = type("Late", (), {})
    yield [(-1, "const", cls())], [(0, "type_lacks", "late")], ()
    cls.late = 1
    yield False
    del cls.late
    yield True


def _no_alias():
    base = torch.zeros(6)
    a, b = base[:3], base[3:]
    yield [(-1, "const", a), (-1, "const", b)], [(0, "no_alias", 1)], ()
    b.set_(base[2:])
    yield False


def _wrapped():
    holder = [jit.compile(lambda x: x)]
    yield [(-1, "const", holder), (0, "item", 0), (1, "wrapped", None)], [(2, "is", holder[0].__wrapped__)], ()
    holder[0] = jit.compile(lambda x: x)
    yield False
    holder[0] = 5
    yield False


RECORDS = {"type_attr": _type_attr, "type": _type, "type_lacks": _type_lacks, "no_alias": _no_alias,
           "wrapped": _wrapped}


@pytest.mark.parametrize("kind", RECORDS)
def test_record(kind):
    """Kinds that no capture records at present: the program of guards itself. The first yield gives it, the others what
    it has to say now."""
    steps = RECORDS[kind]()
    accessors, checks, locals_ = next(steps)
    made = native().GuardProgram(tuple(accessors), tuple(checks))
    assert made.check(locals_) and made.check(locals_)
    for wanted in steps:
        assert made.check(locals_) is wanted and made.check(locals_) is wanted


def test_every_kind_is_changed():
    kinds = {kind for kinds in native().guard_kinds() for kind in kinds}
    covered = set().union(*(m.kinds for m in PROGRAMS.values())) | set(RECORDS)
    slots = {"fresh_dict_attr", "fresh_item", "fresh_cell"}
    assert slots <= covered, "slots that are read on every call"
    covered -= slots
    assert kinds and kinds == covered, (
        f"without a change: {sorted(kinds - covered)}; unknown: {sorted(covered - kinds)}")
    fields = {name.partition(" ")[2] for name in PROGRAMS if name.startswith("tensor ")}
    assert fields >= {"class", "dtype", "sizes", "strides", "requires_grad", "keys"}
