"""Facts that a capture relies on, each changed between two calls: the compiled program has to see the change."""

import builtins
import collections
import math
import types
import warnings

import pytest
import torch
from frame_harness import check, compiled, observe, same, sequence

import jit

ONES = torch.ones(3)


def program(text, **namespace):
    """The function ``f`` that a text defines, in a module of its own."""
    module = types.ModuleType("guarded")
    module.__dict__.update(namespace, torch=torch, collections=collections, math=math)
    exec(text, module.__dict__)
    return module


def changed(text, *changes, args=(ONES,), **namespace):
    """Compile ``f`` of the text; after each change (Python text run in the module) eager and compiled have to agree."""
    jit.reset()
    a, b = program(text, **namespace), program(text, **namespace)
    compiled = jit.compile(b.f, backend="eager")
    for change in ("", *changes, *reversed(changes)):
        for module in (a, b):
            exec(change, module.__dict__)
        for _ in range(2):
            want, got = observe(a.f, args), observe(compiled, args)
            assert want[1] == got[1], f"after {change!r}: {want[1]} in eager, {got[1]} compiled"
            same(want[0], got[0], f"after {change!r}")


CHANGES = {
    "global": ("k = 2\ndef f(x): return x * k", "k = 3", "k = 2.0", "k = True", "k = torch.full((3,), 4.0)"),
    "global appears": ("def f(x):\n  try: return x * later\n  except NameError as e: return str(e)", "later = 3",
                       "globals().pop('later', 0)"),
    "builtin shadowed": ("def f(x): return x * len([1, 2])", "len = lambda v: 7", "globals().pop('len', None)"),
    "builtin replaced": ("import builtins\ndef f(x): return x * abs(-2)", "abs = lambda v: 5"),
    "function replaced": ("def g(x): return x + 1\ndef f(x): return g(x)", "def g(x): return x - 1"),
    "code replaced": ("def g(x): return x + 1\ndef h(x): return x - 5\ndef f(x): return g(x)",
                      "g.__code__ = h.__code__"),
    "defaults": ("def g(x, k=2, *, m=3): return x * k + m\ndef f(x): return g(x)", "g.__defaults__ = (5,)",
                 "g.__kwdefaults__ = {'m': 9}", "g.__kwdefaults__['m'] = 1"),
    "own defaults": ("def f(x, k=2): return x * k", "f.__defaults__ = (5,)"),
    "function attribute": ("def f(x): return x * f.k\nf.k = 2", "f.k = 5", "f.k = 'a'; f.k = 4"),
    "closure": ("def make():\n  k = 2\n  def f(x): return x * k\n"
                "  def put(v):\n    nonlocal k\n    k = v\n  return f, put\nf, put = make()", "put(3)",
                "put(torch.ones(3) * 4)"),
    "class attribute": ("class A: k = 2\na = A()\ndef f(x): return x * a.k", "A.k = 3", "a.k = 4",
                        "a.__dict__.pop('k', None)"),
    "method": ("class A:\n  def go(self, x): return x + 1\na = A()\ndef f(x): return a.go(x)",
               "A.go = lambda self, x: x - 1", "a.go = lambda x: x * 9", "a.__dict__.pop('go', 0)"),
    "base class": ("class B: k = 1\nclass A(B): pass\na = A()\ndef f(x): return x * a.k", "B.k = 5", "A.k = 7",
                   "A.k = 8"),
    "getattr": ("class A:\n  def __getattr__(self, n): return 3\na = A()\ndef f(x): return x * a.k", "A.k = 5",
                "a.k = 6"),
    "property": ("class A:\n  n = 2\n  @property\n  def k(self): return self.n\na = A()\ndef f(x): return x * a.k",
                 "A.k = property(lambda s: 5)", "a.n = 4"),
    "special method": ("class A:\n  def __add__(self, o): return o * 2\na = A()\ndef f(x): return a + x",
                       "A.__add__ = lambda s, o: o * 3"),
    "truth": ("class A: pass\na = A()\ndef f(x): return x + 1 if a else x", "A.__len__ = lambda s: 0",
              "A.__bool__ = lambda s: True"),
    "class of": ("class A: k = 1\nclass B: k = 2\na = A()\ndef f(x): return x * a.k", "a.__class__ = B"),
    "isinstance": ("class A: pass\nclass B(A): pass\na = A()\ndef f(x): return x * isinstance(a, B)", "a = B()",
                   "a = A()"),
    "list": ("v = [1, 2]\ndef f(x): return x * sum(v), len(v)", "v[0] = 5", "v.append(1)", "v[:] = []", "v = [3]"),
    "dict": ("d = {'a': 1, 'b': 2}\ndef f(x): return [x * w for w in d.values()], list(d)", "d['a'] = 4",
             "d['a'] = d.pop('a', 7)", "d['c'] = 1", "d.clear()"),
    "dict get": ("d = {'a': 1}\ndef f(x): return x * d.get('b', 3), 'b' in d", "d['b'] = 5", "del d['b']",
                 "d['b'] = None"),
    "set": ("s = {1, 2}\ndef f(x): return x * len(s), 3 in s", "s.add(3)", "s.discard(1)", "s.clear()"),
    "frozenset": ("s = frozenset({1})\ndef f(x): return x * (2 in s)", "s = frozenset({2})"),
    "deque": ("d = collections.deque([1, 2])\ndef f(x): return x * d[0], len(d)", "d.rotate(1)", "d.append(4)"),
    "tuple": ("t = (1, (2, 3))\ndef f(x): return x * t[1][0]", "t = (1, (5, 3))", "t = (1, (5.0, 3))"),
    "namedtuple": ("P = collections.namedtuple('P', 'a b')\np = P(1, 2)\ndef f(x): return x * p.a", "p = P(3, 2)"),
    "none": ("k = None\ndef f(x): return x if k is None else x * 2", "k = 0", "k = 5", "k = None"),
    "identity": ("a = []\nb = []\ndef f(x): return x * (a is b)", "b = a", "b = []"),
    "module": ("import math\ndef f(x): return x * math.floor(2.5)",
               "m = math; math = __import__('types').SimpleNamespace(floor=lambda v: 9)", "math = m"),
    "float kinds": ("k = 0.0\ndef f(x): return math.copysign(1.0, k)", "k = -0.0", "k = float('nan')", "k = 0"),
    "tensor global": ("w = torch.ones(3)\ndef f(x): return x * w", "w = torch.full((3,), 2.0)", "w.mul_(3)",
                      "w = torch.ones(3, dtype=torch.float64)", "w = 5"),
    "slots": ("class A:\n  __slots__ = ('k',)\na = A()\na.k = 1\ndef f(x): return x * a.k", "a.k = 2", "a.k = 2.5"),
    "enum member": ("import enum\nclass E(enum.Enum):\n  A = 1\n  B = 2\ne = E.A\ndef f(x): return x * e.value",
                    "e = E.B"),
    "partial": ("import functools\ng = functools.partial(lambda x, k: x * k, k=2)\ndef f(x): return g(x)",
                "g = functools.partial(lambda x, k: x + k, k=3)"),
    "nested object": ("class A: pass\na = A(); a.b = A(); a.b.k = 2\ndef f(x): return x * a.b.k", "a.b.k = 3",
                      "a.b = A(); a.b.k = 4"),
    "instance dict": ("class A: pass\na = A(); a.p = 1\ndef f(x): return x, sorted(vars(a)), hasattr(a, 'q')",
                      "a.q = 2", "a.__dict__.pop('q', 0)", "a.r = 1"),
    "match args": ("class P:\n  __match_args__ = ('a', 'b')\n  def __init__(s): s.a, s.b = 1, 2\n"
                   "p = P()\ndef f(x):\n  match p:\n    case P(1, k): return x * k",
                   "P.__match_args__ = ('b', 'a'); p.b = 1; p.a = 5"),
    "mro": ("class A:\n  def k(s): return 1\nclass B:\n  def k(s): return 2\nclass C(A): pass\n"
            "c = C()\ndef f(x): return x * c.k()", "C.__bases__ = (B,)"),
    "super": ("class A:\n  def k(s): return 1\nclass C(A):\n  def k(s): return super().k() + 1\nc = C()\n"
              "def f(x): return x * c.k()", "A.k = lambda s: 5"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed(name):
    text, *changes = CHANGES[name]
    changed(text, *changes)


def f_kinds(x, k):
    return type(k).__name__, k, x * 2


@pytest.mark.parametrize("values",
                         [(1, True, 1.0, "1", None, 2, 0, False, 0.0, -0.0), ((1,), (True,), (1.0,), [1], [True]),
                          ({"a": 1}, {"a": True}, {"b": 1}, {}), (torch.float32, "torch.float32", torch.float64),
                          (slice(1), slice(1.0), range(3), range(0, 3, 1), range(2))])
def test_kinds_of_arguments(values):
    sequence(lambda: f_kinds, [(ONES, v) for v in values * 2])


def test_lists_and_dicts_that_are_only_added_to():
    log, table = [], {}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.history = []

        def forward(self, x, name):
            self.history.append(x.sum())
            log.append(name)
            log.extend([1, name])
            table[name] = x
            table["last"] = name
            return x + 1, table["last"], table[name] is x

    model = Model()
    compiled = jit.compile(model, backend="eager", fullgraph=True)
    before = jit.compile_count()
    for i in range(10):
        x = torch.full((2,), float(i))
        assert compiled(x, "a")[1:] == ("a", True)
        table[f"other{i}"] = i
    assert (len(model.history) == 10 and model.history[3] == 6 and log == ["a", 1, "a"] * 10
            and torch.equal(table["a"], x))
    assert jit.compile_count() - before == 1


def test_what_was_added_is_seen():
    def make():
        log, table = [1, 2], {"a": 1}

        def f(x):
            log.append(x)
            table["b"] = x
            table["a"] = 2
            log.extend((4, 5))
            total = sum(v for v in log if isinstance(v, int))
            table["c"] = len(table)
            log.append(total)
            del table["a"]
            print("a break")
            log.pop()
            return x + total, list(log), dict(table), log[2] is x

        return f

    check(make, lambda: (torch.ones(2),), calls=4, fullgraph=False)


def test_used_kinds_of_arguments():
    def f(x, k):
        return x + k, isinstance(k, int), isinstance(k, bool), k == 1, str(k), [10, 20][bool(k)]

    sequence(lambda: f, [(ONES, v) for v in (1, True, 1.0, 2, False, 0, 0.5, -0.0, 0.0) * 2])


def test_aliased_then_distinct_arguments():
    def f(x, a, b):
        a.append(x)
        return len(a), len(b), a is b

    compiled = jit.compile(f, backend="eager")
    for shared in (True, False, True, False):
        first, second = [], []
        assert compiled(ONES, first, first if shared else second)[1:] == ((1, True) if shared else (0, False))


def test_aliased_objects_and_dicts():
    class A:
        pass

    def f(x, a, b):
        a.k = 1
        b.k = 2
        return a.k * x

    compiled = jit.compile(f, backend="eager")
    for shared in (False, True, False, True):
        a, b = A(), A()
        assert torch.equal(compiled(ONES, a, a if shared else b), ONES * (2 if shared else 1))

    def g(d, e):
        d["k"] = 1
        e["k"] = 2
        return d["k"]

    compiled = jit.compile(g, backend="eager")
    for shared in (False, True, False, True):
        d, e = {}, {}
        assert compiled(d, d if shared else e) == (2 if shared else 1)


def test_aliased_tensors():
    def f(a, b):
        a.add_(1)
        return b * 2

    compiled = jit.compile(f, backend="eager")
    for shared in (False, True, False, True):
        a, b = torch.ones(3), torch.ones(3)
        assert torch.equal(compiled(a, a if shared else b), ONES * (4 if shared else 2))


def test_functions_made_anew_do_not_recompile():
    def f(x, g):
        return g(x) + 1

    compiled = jit.compile(f, backend="eager")
    for k in range(20):
        assert torch.equal(compiled(ONES, lambda v: v * 2), ONES * 3)
    assert len(compiled.entries) == 1


def test_equal_closures_with_other_contents():
    def make(k):
        return lambda v: v * k

    compiled = jit.compile(lambda x, g: g(x), backend="eager")
    for k in (2, 3, 2, 5.0):
        assert torch.equal(compiled(ONES, make(k)), ONES * k)


def test_an_unused_argument_is_not_guarded():
    compiled = jit.compile(lambda x, unused: (x + 1, unused), backend="eager")
    for value in (1, "a", None, [1], object(), 2.5, torch.ones(2)):
        assert compiled(ONES, value)[1] is value
    assert len(compiled.entries) == 1


def test_a_constant_that_is_only_passed_on_is_not_guarded():
    class Box:
        pass

    def f(x, k, box):
        box.k = k
        return [k, x * 2]

    compiled = jit.compile(f, backend="eager")
    for k in (1, 5, 17, 3.5, "s"):
        box = Box()
        assert compiled(ONES, k, box)[0] == k and box.k == k
    assert len(compiled.entries) <= 5


def test_arguments_of_builtins_change_kind():
    def f(x, v, key):
        return (sorted([3, -4, 1], key=key), max([1, -5], key=key), callable(key), torch.is_tensor(v),
                isinstance(v, (list, torch.Tensor)), len([v]), list(filter(key, [0, 1, -2])), x + 1)

    def g(x, k, items):
        return (x.sum(k), items == [1], {"a": 1}.get("b", k), [1, 2, 3].pop(0 if k is None else k),
                list(zip(items, items)), sum([1], start=k or 0))

    sequence(lambda: f, [(ONES, v, key) for v in (1, [1], ONES) for key in (None, abs)] * 2)
    sequence(lambda: g, [(ONES, k, items) for k in (None, 0, -1) for items in ([1], (1,), "a")] * 2)

    def h(x, fn):
        return fn(x), getattr(fn, "__name__", "none")

    sequence(lambda: h, [(ONES, fn) for fn in (torch.sin, abs, f_plain, torch.nn.ReLU(), torch.cos)] * 2)


def f_plain(x):
    return x * 7


class Plain:
    pass


def test_attributes_and_items_that_are_only_passed_on():
    def f(x, a, d):
        return getattr(a, "k", "no"), d.get("k", "none"), "k" in d, x + 1

    with_k = Plain()
    with_k.k = 3
    sequence(lambda: f, [(ONES, a, d) for a in (with_k, Plain()) for d in ({"k": 1}, {})] * 2)
    sequence(lambda: f, [(ONES, a, d) for a in (Plain(), with_k) for d in ({}, {"k": 1})] * 2)


def test_equality_identity_and_truth_of_anything():
    o = Plain()

    def f(x, a, b):
        return a == b, a != b, a in [b], a is b, [a] == [b], bool(a), not b, a or 5, x + 1

    compiled = jit.compile(f, backend="eager")
    values = [o, Plain(), 1, 1.0, True, None, "a", (1,), [1], {}, set()]
    for a in values:
        for b in (a, o, 1, None):
            assert str(compiled(ONES, a, b)) == str(f(ONES, a, b)), (a, b)


def test_global_state_of_torch():
    def f(x):
        return x * 2, torch.is_grad_enabled(), torch.get_default_dtype(), torch.ones(1).dtype

    compiled = jit.compile(f, backend="eager")
    assert compiled(ONES)[1:] == (True, torch.float32, torch.float32)
    with torch.no_grad():
        assert compiled(ONES)[1:] == (False, torch.float32, torch.float32)
    torch.set_default_dtype(torch.float64)
    assert compiled(ONES)[1:] == (True, torch.float64, torch.float64)


def test_builtins_module():
    def f(x):
        return x * abs(-2)

    compiled = jit.compile(f, backend="eager")
    assert torch.equal(compiled(ONES), ONES * 2)
    kept = builtins.abs
    try:
        builtins.abs = lambda v: 9
        assert torch.equal(compiled(ONES), ONES * 9)
    finally:
        builtins.abs = kept
    assert torch.equal(compiled(ONES), ONES * 2)


def test_dual_tensors_run_in_eager():
    from torch.autograd import forward_ad

    f = jit.compile(lambda x: x.sin() * 2)
    x = torch.randn(3)
    f(x)
    for _ in range(2):
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones(3)))).tangent
        torch.testing.assert_close(got, 2 * x.cos())
    assert torch.equal(f(x), x.sin() * 2)


def test_what_was_only_looked_up_may_be_gone_later():
    def f(d, o):
        try:
            d["a"]
        except KeyError:
            return "no"
        return "b" in d, hasattr(o, "n"), "b" in vars(o)

    with_n, without = Plain(), Plain()
    with_n.n = with_n.b = 1
    sequence(lambda: f, [({"a": 1, "b": 2}, with_n), ({"a": 1}, with_n), ({}, with_n), ({"a": 1, "b": 2}, without),
                         ({"a": 5, "b": 2}, with_n)])


def test_cache_limit_says_what_changed():
    c = compiled(lambda x, k: x + k.number)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k in range(12):
            assert torch.equal(c(ONES, type("Kind", (), {"number": k})()), ONES + k)
    text = [str(w.message) for w in said if "runs in eager from now on" in str(w.message)]
    assert len(text) == 1 and "expected" in text[0] and "test_frame_guards.py" in text[0]


@pytest.mark.parametrize("objects", [
    (int, float, str), (len, abs), (math, warnings), (range(2), range(3)), (torch.sin, torch.cos), ("a", "b"),
    (torch.int8, torch.int16), (None, 3), (list[int], list[str]), ([].append, [1].append), (slice(1), slice(2)),
], ids=lambda objects: type(objects[0]).__name__)
def test_what_is_only_passed_on_is_what_was_given(objects):
    """Objects that code could hold are not taken to be those of the first call."""
    def run(x, given, found):
        found.append((given, 1))
        return x + 1, given

    compiled = jit.compile(run, fullgraph=True)
    for given in (*objects, objects[0]):
        found = []
        result = compiled(torch.ones(2), given, found)
        assert found == [(given, 1)] and result[1] == given and type(result[1]) is type(given)


def test_the_class_of_an_exception_behind_a_break():
    def run(functions):
        found = []
        for fn in functions:
            try:
                fn()
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    def fails(error):
        def fn():
            jit.graph_break()
            raise error
        return fn

    compiled = jit.compile(run)
    errors = [TypeError("a"), TypeError("b"), RuntimeError("c"), ValueError("d"), TypeError("e"), KeyError("f")]
    for call in range(3):
        functions = [fails(e) for e in errors[call:]]
        assert compiled(functions) == run(functions)
