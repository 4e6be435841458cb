"""Random small programs: statements over tensors, numbers, lists and dicts, with loops, handlers, closures, generators
and breaks."""

import textwrap

import torch
from frame_harness import observe, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jit

NUMBERS = ["n", "k", "len(v)", "2", "-1", "v[0]", "d['a']", "sum(v)", "(n if k else 3)", "next(iter(v))"]
TENSORS = ["x", "y", "x * 2", "y + n", "x - y", "d.get('t', x)", "x * k"]
number, tensor = st.sampled_from(NUMBERS), st.sampled_from(TENSORS)
condition = st.sampled_from(["n > 2", "k", "len(v) % 2", "'t' in d", "n == k", "v and v[-1] > 1", "not v", "n in v",
                             "isinstance(k, bool)"])


@st.composite
def simple(draw):
    kind = draw(st.integers(0, 21))
    a, b, t = draw(number), draw(number), draw(tensor)
    return [f"n = {a} + {b}", f"k = {a} * 2 - {b}", f"y = {t}", f"x = {t} + {a}", f"v.append({a})", f"v[-1] = {a}",
            f"d['a'] = {b}", f"d['t'] = {t}", "v.pop()", "del d['a']", f"v.extend([{a}, {b}])", f"n, k = k, {a}",
            "v.reverse()", f"y += {a}", "w = v", "v = v[1:] + [n]", f"x.add_({a})", f"log.append(({a}, {b}))",
            "print(n, k, v)", f"v.insert(0, {b})", f"n = bump({a})", f"v = list(gen({a}))"][kind]


@st.composite
def block(draw, depth):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 9)) if depth else 0
        if kind < 5:
            lines.append(draw(simple()))
            continue
        body = textwrap.indent(draw(block(depth - 1)), "    ")
        other = textwrap.indent(draw(block(depth - 1)), "    ")
        if kind == 5:
            lines.append(f"if {draw(condition)}:\n{body}\nelse:\n{other}")
        elif kind == 6:
            jump = draw(st.sampled_from(["pass", "if n > 3: break", "if i == 1: continue", "if k: return x, 'early'"]))
            lines.append(f"for i in range({draw(st.integers(0, 3))}):\n    {jump}\n{body}\nelse:\n{other}")
        elif kind == 7:
            handler = draw(st.sampled_from(["except (KeyError, IndexError) as e:\n    log.append(repr(e))",
                                            "except Exception as e:\n    log.append(type(e).__name__)\n    n = 0"]))
            lines.append(f"try:\n{body}\n{handler}\nfinally:\n{other}")
        elif kind == 8:
            lines.append(f"with Scope(log) as n:\n{body}")
        else:
            lines.append(f"for q in [{draw(number)}, {draw(number)}]:\n{body}")
    return "\n".join(lines)


HEAD = """
class Scope:
    def __init__(self, log): self.log = log
    def __enter__(self):
        self.log.append("in")
        return len(self.log)
    def __exit__(self, kind, value, tb):
        self.log.append(kind and kind.__name__)
        return kind is KeyError

def f(x, y, n, k, v, d):
    log, total = [], 0
    def bump(a):
        nonlocal total
        total += a
        return total
    def gen(a):
        yield a
        for e in v[:2]:
            yield e + a
"""


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(block(2), st.lists(st.tuples(st.integers(0, 4), st.booleans() | st.integers(0, 2),
                                    st.lists(st.integers(0, 3), max_size=3)), min_size=2, max_size=3))
def test_random_programs(body, calls):
    text = HEAD + textwrap.indent(body, "    ") + "\n    return x, y, n, k, v, d, log, total\n"
    eager, captured = {}, {}
    exec(compile(text, "<eager>", "exec"), eager)
    exec(compile(text, "<captured>", "exec"), captured)
    jit.reset()
    c = jit.compile(captured["f"], backend="eager")
    with jit.config.patch(strict=True):
        for n, k, v in calls:
            def arguments():
                return torch.arange(3.0), torch.ones(3), n, k, list(v), {"a": 1}

            want, got = observe(eager["f"], arguments()), observe(c, arguments())
            assert want[1] == got[1], f"{text}\nraised {want[1]} in eager, {got[1]} compiled"
            assert want[2] == got[2], f"{text}\nprinted {want[2]!r} in eager, {got[2]!r} compiled"
            try:
                same((want[0], want[3]), (got[0], got[3]))
            except AssertionError as e:
                raise AssertionError(f"{text}\n{e}") from None
