"""Integer expressions: every normal form must evaluate as Python's integers do."""

import pickle

import pytest
from hypothesis import given, settings, strategies as st

from jit.graph import dims
from jit.graph.dim_text import render
from jit.graph.dims import Max, Min, Sym, bounds, coefficient, evaluate, nonnegative, structurally_equal, subst
from jit.graph.shape_env import ShapeEnv

NAMES = ("a", "b", "c")
OPS = ("+", "-", "*", "//", "%", "max", "min")


def tree():
    leaf = st.one_of(st.integers(-9, 20), st.sampled_from(NAMES))
    return st.recursive(leaf, lambda t: st.tuples(st.sampled_from(OPS), t, t), max_leaves=9)


def build(t, env):
    if isinstance(t, str):
        return env[t]
    if isinstance(t, int):
        return t
    op, a, b = t
    a, b = build(a, env), build(b, env)
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op in ("//", "%"):
        # a positive divisor: constants are shifted, expressions kept only when provably positive
        b = b if nonnegative(b - 1) else (b % 7 + 2 if isinstance(b, int) else 5)
        return a // b if op == "//" else a % b
    return Max(a, b) if op == "max" else Min(a, b)


def reference(t, env, syms):
    if isinstance(t, str):
        return env[t]
    if isinstance(t, int):
        return t
    op, a, b = t
    bs = build(b, syms)
    a, b = reference(a, env, syms), reference(b, env, syms)
    if op in ("//", "%"):
        b = b if nonnegative(bs - 1) else (b % 7 + 2 if isinstance(bs, int) else 5)
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
            "max": lambda: max(a, b), "min": lambda: min(a, b)}[op]()


@settings(max_examples=400, deadline=None)
@given(tree(), st.lists(st.integers(0, 12), min_size=3, max_size=3),
       st.lists(st.integers(0, 15), min_size=3, max_size=3))
def test_evaluates_as_python(t, his, raw):
    syms = {n: Sym(n, lo=0, hi=h) for n, h in zip(NAMES, his)}
    values = {n: v % (h + 1) for n, v, h in zip(NAMES, raw, his)}
    e = build(t, syms)
    want = reference(t, values, syms)
    assert evaluate(e, values) == want
    lo, hi = bounds(e)
    assert (lo is None or lo <= want) and (hi is None or want <= hi)
    if nonnegative(e):
        assert want >= 0
    assert eval(render(e, "py"), {}, values) == want
    assert subst(e, values) == want
    again = build(t, syms)
    assert structurally_equal(e, again) and hash(e) == hash(again)
    if isinstance(e, dims.Dim):
        back = pickle.loads(pickle.dumps(e))
        assert structurally_equal(back, e)
    for k in (2, 3, 8):
        if dims.divisible(e, k):
            assert want % k == 0


@settings(max_examples=200, deadline=None)
@given(tree(), st.integers(2, 6), st.integers(2, 6), st.integers(0, 40))
def test_symbolic_bounds(t, s, r, raw):
    """Loop symbols whose upper bound is itself a symbol."""
    size, other = Sym("s", lo=1), Sym("r", lo=2)
    syms = {"a": Sym("a", lo=0, hi=size - 1), "b": Sym("b", lo=0, hi=size * other - 1), "c": other}
    values = {"a": raw % s, "b": raw % (s * r), "c": r, "s": s, "r": r}
    e = build(t, syms)
    assert evaluate(e, values) == reference(t, values, syms)


def test_index_simplifications():
    i, j, k = Sym("i", lo=0, hi=7), Sym("j", lo=0, hi=3), Sym("k", lo=0, hi=100)
    assert structurally_equal((i * 4 + j) // 4, i)
    assert structurally_equal((i * 4 + j) % 4, j)
    assert (j + 4) // 8 == 0
    assert structurally_equal((k // 4) * 4 + k % 4, k)
    assert structurally_equal((k // 4) // 5, k // 20)
    assert structurally_equal((k % 20) % 4, k % 4)
    assert structurally_equal((k % 20) // 4, (k // 4) % 5)
    assert structurally_equal((i * 8 + j * 4) // 8, i + j // 2)
    s, r = Sym("s", lo=2), Sym("r", lo=2)
    x, y = Sym("x", lo=0, hi=s - 1), Sym("y", lo=0, hi=r - 1)
    assert structurally_equal((x * r + y) // r, x)
    assert structurally_equal((x * r + y) % r, y)
    assert x // s == 0 and structurally_equal(x % s, x)
    assert structurally_equal((s * r) // r, s)
    assert nonnegative(s * r - 1 - (x * r + y))
    assert (coefficient(x * r + y * 3 + 1, "x") is not None
            and structurally_equal(coefficient(x * r + y * 3 + 1, "x"), r))
    assert coefficient(k // 2, "k") is None and coefficient(k * k, "k") is None and coefficient(i, "k") == 0


def test_render_c():
    i, n = Sym("i", lo=0, hi=9), Sym("n", lo=None)
    assert render((i * 3 + 1) // 4 % 2, "c") == "(((i*3 + 1) / 4) % 2)"
    assert render(i * 2 - 1, "c", {"i": "idx"}) == "idx*2 - 1"
    assert "?" in render(n // 3, "c")


def test_guards_and_rollback():
    env = ShapeEnv()
    assert env.symbol(1, "one") == 1 and env.symbol(0, "zero") == 0
    s, t = env.symbol(8, "x.size0"), env.symbol(8, "y.size0")
    assert s != 1 and s > 0 and s == s and s * 2 != 3 and env.guards == []
    assert s == t
    assert t == s
    assert len(env.guards) == 1 and env.guards[0].kind == "==0"
    cp = env.journal.checkpoint()
    assert s < 100
    assert not s > 9
    u = env.symbol(5, "z")
    assert (s == u) is False
    assert env.specialize(u) == 5
    assert all(p.holds({"s0": 8, "s1": 8, "s2": 5}) for p in env.guards)
    assert not all(p.holds({"s0": 200, "s1": 8, "s2": 5}) for p in env.guards)
    env.journal.rollback(cp)
    assert len(env.guards) == 1 and list(env.origins) == ["s0", "s1"]
    assert env.origins["s0"] == "x.size0"
    with pytest.raises(dims.Undecidable):
        Sym("p") == Sym("q")
