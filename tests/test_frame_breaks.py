"""Breaks: the order of effects, exactly once, and where capture goes on."""

import contextlib
import sys

import pytest
import torch
from frame_harness import Cases, compiled

import jit
from jit.frame import executor
from breaking import print  # noqa: A004

ONES = torch.ones(3)
cases = Cases()


@cases(fullgraph=False)
def in_a_loop(x):
    for i in range(12):
        x = x + i
        print("step", i)
    return x


@cases(fullgraph=False)
def in_try_with_handler(x):
    log = []
    try:
        print("inside")
        y = x + 1
        raise ValueError("v")
    except ValueError as e:
        log.append(str(e))
        print("handler", e)
        y = x * 3
    finally:
        print("finally")
        log.append("end")
    return y, log


@cases(fullgraph=False)
def the_breaking_step_raises(x):
    y = x * 2
    try:
        int("x" + str(print("before")))
    except ValueError as e:
        return y + 1, str(e)
    return y


@cases(fullgraph=False)
def in_with(x):
    class Scope:
        def __enter__(self):
            print("enter")
            return 3

        def __exit__(self, kind, value, tb):
            print("exit", kind, value)
            return kind is ZeroDivisionError

    with Scope() as k:
        x = x + k
        print("body")
        1 / 0
    return x * 2


@cases(fullgraph=False)
def in_contextmanager(x):
    @contextlib.contextmanager
    def scope(k):
        print("in")
        try:
            yield k + 1
        except KeyError as e:
            print("caught", e)
        finally:
            print("out")

    with scope(1) as k:
        x = x * k
        print("body")
        {}["missing"]
    return x + 1


@cases(fullgraph=False)
def in_callees(x):
    def inner(v):
        v = v + 1
        print("inner")
        return v * 2

    def outer(v):
        w = inner(v) + inner(v * 2)
        print("outer")
        return w

    return outer(x) - 1


@cases(fullgraph=False)
def callee_raises_after_a_break(x):
    def inner(v):
        print("inner")
        raise KeyError("k")

    try:
        y = inner(x)
    except KeyError as e:
        y = x - 1
        print("handled", e)
    return y


@cases(fullgraph=False)
def cells_across_a_break(x):
    n = 1

    def bump(k):
        nonlocal n
        n += k
        return n

    bump(2)
    print(n)
    y = x * bump(3)
    fs = [lambda v, k=k: v + k + n for k in range(3)]
    print("again", n)
    return [f(y) for f in fs], bump(0)


@cases(fullgraph=False)
def aliases_across_a_break(x):
    a = [x, 1]
    b = {"a": a, "x": x}
    print("break")
    a.append(b["x"] + 1)
    b["a"].append(2)
    return a, b, b["a"] is a


@cases(fullgraph=False)
def generators_across_a_break(x):
    def gen():
        k = yield x
        print("between", k)
        yield x * 2

    g = gen()
    a = next(g)
    print("now")
    b = g.send(7)
    return a, b, list(g)


@cases(fullgraph=False)
def iterators_across_a_break(x):
    it = zip(enumerate([1, 2, 3], 5), map(lambda v: v * 2, [4, 5, 6]))
    a = next(it)
    print("now")
    return a, list(it), x + 1


@cases(fullgraph=False)
def branch_on_data(x):
    total = x.sum()
    if total > 3:
        y = x + 1
    else:
        y = x - 1
    while y.sum() < 40:
        y = y * 2
    return y


@cases(fullgraph=False)
def in_a_comprehension(x):
    def g(v, i):
        print("item", i)
        return v + i

    return [g(x, i) for i in range(3)], {i: g(x, i) for i in range(2)}, {print(i) for i in range(2)}


@cases([1, 2], fullgraph=False)
def arguments_changed_before_and_after(items):
    items.append(3)
    print(items)
    items.append(4)
    del items[0]
    return len(items)


@cases.made(fullgraph=False)
def attributes_changed_around_a_break():
    class State:
        pass

    s = State()
    s.n, s.log = 0, []

    def f(x):
        s.n += 1
        s.log.append(s.n)
        print(s.n, s.log)
        s.n += 1
        s.log.append(s.n)
        return x * 2, list(s.log)

    return f


@cases.made(fullgraph=False)
def in_a_method_with_super():
    class A:
        def go(self, x):
            print("A")
            return x + 1

    class B(A):
        def go(self, x):
            y = super().go(x)
            print("B")
            return super().go(y) * 2

    b = B()
    return lambda x: b.go(x)


test_breaks = cases.test()


def test_two_graphs_for_one_break_in_a_callee():
    def inner(x):
        x = x + 1
        jit.graph_break("here")
        return x * 2

    def middle(x):
        return inner(x) - 1

    found = jit.explain(lambda x: middle(x) * 3, backend="eager")(torch.ones(2))
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    assert "here" in found.break_reasons[0].why and found.break_reasons[0].function.endswith("inner")


def test_a_loop_of_breaks_needs_no_stack():
    def f(x, n):
        i = 0
        while i < n:
            x = x + 1
            jit.graph_break()
            i += 1
        return x

    c = jit.compile(f, backend="eager")
    assert torch.equal(c(torch.zeros(2), 3000), torch.full((2,), 3000.0))


def test_tracebacks_name_each_function_once():
    import traceback

    def f(x):
        y = x + 1  # noqa: F841
        print("break")
        raise ValueError("at the end")

    c = jit.compile(f, backend="eager")
    with pytest.raises(ValueError, match="at the end") as caught:
        c(torch.ones(2))
    assert [r.name for r in traceback.extract_tb(caught.tb) if r.name == "f"] == ["f"]


def test_disable():
    seen = []

    @jit.disable
    def eager_only(x):
        seen.append(jit.is_compiling())
        return x + 1

    def f(x):
        return jit.is_compiling(), eager_only(x * 2) * 3, jit.is_compiling()

    c = jit.compile(f, backend="eager")
    out = c(torch.ones(2))
    assert torch.equal(out[1], torch.full((2,), 9.0)) and out[0] is True and out[2] is True and seen == [False]
    with pytest.raises(jit.Unsupported, match="disabled"):
        jit.compile(f, backend="eager", fullgraph=True)(torch.ones(2))


def test_fullgraph_says_where_and_why():
    def f(x):
        y = x + 1
        print("here")
        return y

    with pytest.raises(jit.Unsupported) as caught:
        compiled(f, fullgraph=True)(ONES)
    line = f.__code__.co_firstlineno + 2
    assert (f"test_frame_breaks.py:{line}" in str(caught.value) and "print" in str(caught.value)
            and "hint" in str(caught.value))


def test_markers():
    seen = []

    def f(x):
        seen.append(jit.is_compiling())
        jit.graph_break("why")
        seen.append(jit.is_compiling())
        return x + 1

    f(ONES)
    compiled(f)(ONES)
    assert seen == [False, False, True, True]
    found = jit.explain(lambda x: (f(x), x * 2), backend="eager")(ONES)
    assert found.graph_break_count == 1 and "why" in str(found.break_reasons[0])


@pytest.mark.parametrize("steps", [10, 37, 200])
def test_more_instructions_than_a_capture_takes(steps, monkeypatch):
    def f(x, n):
        for k in range(n):
            x = x + k
        return x * n

    monkeypatch.setattr(executor, "MAX_STEPS", steps)
    jit.reset()
    compiled = jit.compile(f)
    for n in (3, 40):
        x = torch.ones(3)
        assert torch.equal(compiled(x, n), f(x, n)) and torch.equal(compiled(x, n), f(x, n))


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings are of Python 3.14")
def test_template_strings():
    space = {}
    exec('def f(x, n, log):\n  k = t"a{n}b{n!r:>4}"\n  log.append(t"{x * 2} {n}")\n  y = x * len(k.strings)\n'
         '  return y, k.strings, k.values, [(i.value, i.expression, i.conversion, i.format_spec)'
         ' for i in k.interpolations]\n', space)
    f = space["f"]
    compiled = jit.compile(f)
    for n in (2, 2, "text", 5):
        log, wanted, x = [], [], torch.ones(3)
        got, want = compiled(x, n, log), f(x, n, wanted)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
        assert torch.equal(log[0].values[0], wanted[0].values[0]) and log[0].values[1] == n
    broken = jit.explain(f)(torch.ones(3), 2, []).break_reasons
    assert broken and all("TEMPLATE" in str(why) or "INTERPOLATION" in str(why) for why in broken)


DEBUGGED = """
import io, pdb, sys
import torch, jit

def inner(y):
    z = y * 3
    START()
    return z + 1

def program(x):
    y = x + 1
    return inner(y) * 2

for _ in range(2):
    sys.stdin = io.StringIO("p z\\nup\\np y\\nc\\n")
    assert torch.equal(jit.compile(program)(torch.ones(2)), torch.full((2,), 14.0))
sys.stdin = io.StringIO("c\\n")
told = jit.explain(program)(torch.ones(2)).break_reasons[0]
assert told.whole_frame and told.kind == "debugger"
"""


@pytest.mark.parametrize("start", ["breakpoint", "pdb.set_trace"])
def test_a_debugger_finds_the_variables_of_the_function(start, python):  # pytest has a pdb.set_trace of its own
    told = python(DEBUGGED.replace("START", start)).stdout
    assert told.count("tensor([6., 6.])") == told.count("tensor([2., 2.])") == 2, told
