"""Functions with a memory: what a cache holds is one object, calls are counted as in eager, and what a call does
happens as often as in eager."""

import functools
import pickle

import pytest
import torch
from frame_harness import Cases, observe, said, same

import jit

cases = Cases()
VECTOR = torch.arange(3.0)
PROGRAMS = {
    "list": "@cache(None)\ndef g(): return []\ndef f(x):\n  g().append(1)\n  return x + len(g())",
    "tensor": "@cache(None)\n"
              "def g(n): return torch.zeros(n)\ndef f(x):\n  b = g(3)\n  b.add_(1)\n  return x + b, g(2) is g(2), g(3)",
    "tensor read": "@cache()\ndef g(n): return torch.arange(float(n))\ndef f(x): return x * g(3), g(3)",
    "identity": "@cache(None)\ndef g(k): return [k]\ndef f(x): return x, g(1) is g(1), g(1) is g(2), g(1)",
    "number": "@cache()\ndef g(k): return k * 2\ndef f(x): return x * g(3) * g(3)",
    "typed": "@cache(8, typed=True)\n"
             "def g(k): return [k]\ndef f(x): return x, g(1) is g(1.0), g(1)[0], g(1.0)[0], g(True)",
    "not typed": "@cache(8)\ndef g(k): return [k]\ndef f(x): return x, g(1) is g(1.0), g(1)[0], g(1.0)[0], g(True)",
    "named arguments": "@cache(8)\ndef g(k, j=2): return [k, j]\n"
                       "def f(x): return x, g(1, j=2) is g(1, 2), g(k=1), g(j=3, k=1), g(k=1, j=3)",
    "evicted": "@cache(2)\ndef g(k): return [k]\ndef f(x):\n"
               "  a = g(1)\n  b = g(2)\n  a = g(1)\n  c = g(3)\n  return x, g(2) is b, g(1) is a",
    "bound of one": "@cache(1)\ndef g(k): return [k]\ndef f(x): return x, g(1) is g(1), g(2) is g(1)",
    "no bound": "@cache(0)\ndef g(k): return [k]\ndef f(x): return x, g(1) is g(1)",
    "recursion": "@cache(None)\ndef g(n): return n if n < 2 else g(n - 1) + g(n - 2)\ndef f(x): return x * g(40)",
    "cleared inside": "@cache(None)\n"
                      "def g(): return []\ndef f(x):\n  g().append(1)\n  g.cache_clear()\n  return x + len(g())",
    "counted inside": "@cache(None)\ndef g(k): return k\ndef f(x):\n"
                      "  g(1)\n  i = g.cache_info()\n  g(1)\n  return x * i.hits, g.cache_info()",
    "not hashable": "@cache(None)\n"
                    "def g(k): return k\ndef f(x):\n  try: return g([1])\n  except TypeError as e: return str(e)",
    "not hashable inside": "@cache(None)\ndef g(k): return k\ndef f(x):\n"
                           "  try: return g((1, {}))\n  except TypeError as e: return str(e)",
    "raises": "@cache(None)\ndef g(k): raise ValueError(k)\n"
              "def f(x):\n  try: return g(1)\n  except ValueError as e: return x, str(e)",
    "side effects": "L = []\n@cache(None)\n"
                    "def g(k):\n  L.append(k)\n  return k\ndef f(x):\n  y = x * g(2)\n  return y, g(2), list(L)",
    "print": "@cache(None)\ndef g(k):\n  print('made', k)\n  return k\ndef f(x): return x * g(2) * g(3)",
    "write": "B = torch.zeros(3)\n@cache(None)\ndef g(k):\n  B.add_(k)\n  return k\ndef f(x): return x * g(2) + B",
    "random": "@cache(None)\ndef g(k): return torch.rand(k)\ndef f(x): return x * g(3), g(3)",
    "reads a global": "K = 2\n@cache(None)\ndef g(): return K\ndef f(x):\n  global K\n  K = K + 1\n  return x * g(), K",
    "reads what is pending": "L = [1]\n"
                             "@cache(None)\ndef g(): return len(L)\ndef f(x):\n  L.append(2)\n  return x * g()",
    "made after a write": "L = []\n@cache(None)\ndef g(k): return [k]\ndef f(x):\n"
                          "  L.append(2)\n  v = g(3)\n  v.append(1)\n  return x * len(v), len(L)",
    "tensor as argument": "W = torch.ones(3)\n@cache(None)\ndef g(t): return t * 2\n"
                          "def f(x): return g(W) + g(W), g(W) is g(W), len(str(g.cache_info()))",
    "new tensor as argument": "@cache(4)\ndef g(t): return t * 2\ndef f(x): return g(x + 1)",
    "object as argument": "class A: k = 2\na = A()\n@cache(None)\n"
                          "def g(o): return [o.k]\ndef f(x):\n  g(a).append(1)\n  return x * len(g(a))",
    "object with a hash": "class A:\n  def __init__(s, k): s.k = k\n  def __hash__(s): return 1\n  def "
                          "__eq__(s, o): return s.k == o.k\na, b = A(1), A(1)\n@cache(None)\ndef g(o): return [o.k]\n"
                          "def f(x): return x, g(a) is g(b)",
    "class as argument": "@cache(None)\ndef g(c): return [c.__name__]\ndef f(x): return x, g(int) is g(int), g(float)",
    "method": "class A:\n  k = 2\n  @cache(None)\n  def g(self, n): return [self.k, n]\na = A()\n"
              "def f(x):\n  a.g(3).append(1)\n  return x * len(a.g(3)), A.g.cache_info()",
    "static method": "class A:\n  @staticmethod\n  @cache(None)\n  def g(n): return [n]\na = A()\n"
                     "def f(x):\n  a.g(3).append(1)\n  return x * len(A.g(3))",
    "of a module": "class M(torch.nn.Module):\n  @cache(None)\n  def table(self, n): return torch.ones(n)\n"
                   "  def forward(self, x):\n    self.table(3).add_(1)\n    return x * self.table(3)\n"
                   "m = M()\ndef f(x): return m(x)",
    "no_grad": "@cache(None)\ndef g(n): return W * n\nW = torch.ones(3, requires_grad=True)\n"
               "def f(x):\n  with torch.no_grad():\n    v = g(2)\n  return (x * v).requires_grad, g(2).requires_grad",
    "cached_property": "class A:\n  @functools.cached_property\n  def v(self):\n    print('made')\n"
                       "    return [1]\na = A()\ndef f(x):\n  a.v.append(2)\n  return x * len(a.v), a.v is a.v",
    "size": "@cache(None)\ndef g(n): return torch.ones(n)\ndef f(x): return x * g(x.shape[0])",
    "dtype and device": "@cache()\ndef g(d, v): return [d, v]\n"
                        "def f(x): return x, g(x.dtype, x.device) is g(x.dtype, x.device), len(g(torch.float32, 'a'))",
}
BETWEEN = {
    "list": ["g.cache_clear()", "g().clear()"], "tensor": ["g.cache_clear()", "g(3).zero_()"],
    "tensor read": ["g.cache_clear()", "g(3).mul_(2)", "for k in range(200): g(k)"], "number": ["g.cache_clear()"],
    "reads a global": ["g.cache_clear()", "K = 10"], "evicted": ["g(7)", "g(1); g(2)"],
    "method": ["a = A()", "A.g.cache_clear()", "A.k = 5"], "recursion": ["g.cache_clear()"],
    "object as argument": ["A.k = 7; g.cache_clear()", "a = A()"],
    "cached_property": ["a = A()", "a.__dict__.pop('v', 0)", "a.v = [5, 6, 7]"], "random": ["g.cache_clear()"],
    "of a module": ["m = M()", "M.table.cache_clear()"], "side effects": ["g.cache_clear()", "L.clear()"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    """Results, identities, printed text and the counters of the cache, over calls between which the cache changes."""
    jit.reset()
    spaces = [dict(torch=torch, functools=functools, cache=functools.lru_cache) for _ in range(2)]
    for space in spaces:
        exec(PROGRAMS[name], space)
    programs = spaces[0]["f"], jit.compile(spaces[1]["f"])
    calls = ["", "", "", *(c for change in BETWEEN.get(name, ()) for c in (change, "", ""))]
    for step, change in enumerate(calls):
        results = []
        for fn, space in zip(programs, spaces, strict=True):
            torch.manual_seed(step)
            exec(change, space)
            results.append((observe(fn, (torch.ones(3),)), space["g"].cache_info() if "g" in space else None))
        (want, counted), (got, counts) = results
        assert want[1:3] == got[1:3], f"call {step} after {change!r}: {want[1:3]} in eager, {got[1:3]} compiled"
        same(want[0], got[0], f"call {step} after {change!r}")
        assert counted == counts, f"call {step} after {change!r}"


@pytest.mark.parametrize("value", ["3", "'t'", "None", "True", "2.5", "(1, (2, 'a'))", "torch.float32",
                                   "frozenset((1,))", "int", "[1]", "torch.ones(3)"])
def test_entries_are_read_in_one_graph(value):
    """An entry of the cache is no break, whether it was there before the first call or is made by it; later calls
    compile nothing."""
    jit.reset()
    for first in (False, True):
        space = dict(torch=torch, functools=functools)
        exec(f"@functools.cache\ndef g(k): return {value}\ndef f(x): return x + 1, g(2), g(2) is g(2)", space)
        if first:
            space["g"](2)
        compiled, start = jit.compile(space["f"], fullgraph=True), jit.compile_count()
        for _ in range(3):
            assert compiled(torch.ones(2))[1] is space["g"](2)
        assert jit.compile_count() == start + 1
        assert space["g"].cache_info().misses == 1 and space["g"].cache_info().hits == 3 * 4 - 1 + first


CALLS = []


@cases(VECTOR, fullgraph=False)
def a_cached_function_with_effects(x):
    @functools.cache
    def f(n):
        CALLS.append(n)
        return n

    made = [f(1), f(1), f(2)], len(CALLS)
    CALLS.clear()
    return made


@functools.lru_cache
def cached(*values):
    return len(values)


@cases([1], VECTOR, fullgraph=False)
def caches_refuse_what_they_cannot_look_up(v, x):
    return (said(lambda: cached(v)), said(lambda: cached((1, [v]))), said(lambda: cached({})),
            said(lambda: cached(1, (2, "a"))), x)


test_cached_functions = cases.test()


def test_a_cache_by_pickled_keywords():
    def remembered(fn):
        def call(x, cache, **kwargs):
            key = pickle.dumps(kwargs)
            if key not in cache:
                cache[key] = fn(x, **kwargs)
            return cache[key], key
        return call

    scaled = remembered(lambda x, up=False: x * 2 if up else x + 1)

    def f(x, k):
        cache = {}
        first, second, again = scaled(x, cache), scaled(x, cache, up=True), scaled(x, cache)
        return first[0] + second[0] + again[0], first[1], second[1], pickle.dumps({"a": k}), pickle.dumps({k: "a"})

    compiled, x = jit.compile(f, fullgraph=True), torch.ones(3)
    for k in (1, 2, "b", None, 1.5, True, "b"):
        ours, theirs = compiled(x, k), f(x, k)
        assert torch.equal(ours[0], theirs[0]) and ours[1:] == theirs[1:]
    text = "twice"
    with pytest.raises(jit.Unsupported, match="pickle"):
        jit.compile(lambda x: (x, pickle.dumps({text: text})), fullgraph=True)(x)
