"""The frame evaluation hook: Python functions that a break reaches through C code run compiled, and nothing else
notices."""

import bisect
import functools
import gc
import re
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref

import pytest
import torch
from frame_harness import check_lets_go, compiled, observe, same

import jit
from jit import config
from jit.frame.dispatch import captures_so_far
from jit.runtime import native

ONES = torch.ones(3)

pytestmark = pytest.mark.skipif(native().frame_hook_status() == "not built",
                                reason="the hook needs CPython's internal headers")


def served(c) -> int:
    """Frames that the hook has had compiled functions run for ``c``."""
    return sum(e.region.served for e in c.entries if e.region is not None)


def call_by_c(fn, value):
    """``fn(value)`` is called by C code; gives a list of its results."""
    results = []
    re.sub("x", lambda match: results.append(fn(value)) or "", "x")
    return results


def check(make, *arguments, calls=3, least=1, most=None):
    """The program in eager and compiled, over several calls; at least ``least`` frames are served in all."""
    jit.reset()
    eager, c = make(), compiled(make())
    for call in range(calls):
        want, got = observe(eager, arguments), observe(c, arguments)
        assert want[1:3] == got[1:3], f"call {call}: {want[1:3]} in eager, {got[1:3]} compiled"
        same(want[0], got[0])
    assert served(c) >= least and (most is None or served(c) <= most), served(c)
    assert native().frame_hook_status() == "ready"
    return c


def test_a_served_function_whose_plan_raises():
    """The error comes from its original, which is not served again."""
    def make():
        def put(t):
            t.index_put_((torch.arange(3.0) > 1,), torch.tensor(3.0))
            return t * 2

        def fn(x, y):
            found = []
            for t in (x, y, x):
                try:
                    found += call_by_c(put, t)
                except IndexError as error:
                    found.append(str(error))
            return found, x, y

        return fn

    check(make, torch.ones(3), torch.ones(2, 3), least=0)
    check(make, torch.ones(2, 3), torch.ones(3), least=0)


def test_key_functions():
    def make():
        def key(t):
            y = torch.sin(t) * 2 + t
            return float(y.sum())

        def f(xs):
            first = sorted(xs, key=key)
            at = bisect.bisect_left([first[0]], 0.5, key=key)
            first.sort(key=lambda t: -float((t * 3).sum()))
            return first, at, max(xs, key=key)

        return f

    check(make, [torch.full((3,), float(i % 3)) for i in range(4)], least=5)


def test_closures_made_anew_share_a_dispatcher():
    def f(x, k):
        scale = x * k
        out = []
        re.sub(".", lambda match: out.append(scale + len(match.group())) or "", "abc")
        return out

    c = compiled(f)
    for k in (1.0, 1.0, 1.0):
        same(f(ONES, k), c(ONES, k))
    before = jit.compile_count()
    for _ in range(3):
        same(f(ONES, 1.0), c(ONES, 1.0))
    assert jit.compile_count() == before and served(c) >= 6


def test_arguments_of_every_kind():
    def make():
        def callee(a, /, b=2, *rest, c, d=4, **more):
            return a * b + sum(rest) + c * d + len(more)

        def f(x):
            calls = [functools.partial(callee, x, c=1), functools.partial(callee, x, 3, 4, 5, c=2, d=6, e=7)]
            out = []
            for call in calls:
                out.append(torch.stack(call_by_c(lambda _: call(), None)))
            return out

        return f

    check(make, ONES)


def test_modules_called_from_library_code():
    class Block(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.linear = torch.nn.Linear(3, n)
            self.seen = 0

        def forward(self, x):
            self.seen += 1
            return torch.relu(self.linear(x)) + self.seen

    def make():
        torch.manual_seed(0)
        blocks = [Block(n).requires_grad_(False) for n in (3, 4, 5)]
        for block in blocks:
            block.register_forward_hook(lambda module, args, out: out * 2)

        def f(x):
            return [call_by_c(block, x)[0] for block in blocks]

        return f

    check(make, ONES, least=9)


def test_a_module_can_die():
    def callee(module, x):
        return call_by_c(module, x)

    c = compiled(callee)
    for k in range(config.cache_limit + 2):
        module = torch.nn.Linear(3, 2 + k).requires_grad_(False)
        same(callee(module, ONES), c(module, ONES))
        gone = weakref.ref(module), weakref.ref(module.weight)
        del module
        c.clear()  # this function's own entries are pinned to the module
        gc.collect()
        assert gone[0]() is None and gone[1]() is None, k


def test_descriptors_and_operators():
    class Reader:
        def __init__(self, data):
            self.data = data

        @property
        def total(self):
            print("read")
            return (self.data * 2).sum() + 1

        def __getattr__(self, name):
            return torch.cos(self.data) + len(name)

        def __lt__(self, other):
            return bool((self.data * 3).sum() < (other.data * 3).sum())

    def make():
        def f(x):
            readers = [Reader(x * k) for k in (3, 1, 2)]
            return readers[0].total, getattr(readers[0], "other"), [r.data for r in sorted(readers)]

        return f

    check(make, ONES)


def test_exceptions_keep_the_users_frames():
    def callee(t):
        y = t * 2  # noqa: F841
        raise ValueError("from the callee")

    def f(x):
        return call_by_c(callee, x + 1)

    c = compiled(f)
    for _ in range(3):
        with pytest.raises(ValueError, match="from the callee") as caught:
            c(ONES)
        frames = [(row.name,
                   row.lineno) for row in traceback.extract_tb(caught.value.__traceback__) if row.filename == __file__]
        assert ("callee", callee.__code__.co_firstlineno + 2) in frames and any(name == "f" for name, _ in frames)
        assert sys.exc_info() == (None, None, None)


def test_exception_after_a_break_in_the_callee():
    def make():
        def callee(t):
            y = t * 2
            sys.stdout.write("broke\n")
            if len(t) == 3:
                raise KeyError("late")
            return y

        def f(x):
            try:
                call_by_c(callee, x)
            except KeyError as e:
                return x + 1, repr(e)

        return f

    check(make, ONES)


def test_breaks_in_callees_and_their_callees():
    def make():
        def inner(t):
            return t * 3 + len(call_by_c(lambda v: v + 1, t))

        def callee(t):
            y = t + 1
            print("callee")
            return y * 2 + call_by_c(inner, t)[0]

        def f(x):
            print("start")
            return call_by_c(callee, x * 2)

        return f

    check(make, ONES, least=4)


def test_recursion_through_c():
    def make():
        def f(x, n=20):
            return x + 1 if n == 0 else call_by_c(lambda v: f(v, n - 1), x * 1.5)[0]

        return f

    check(make, ONES)


def test_generators_run_as_they_are():
    def make():
        def gen(t):
            got = yield t * 2
            yield t + got

        async def co(t):
            return t * 5

        def drive(t):
            g = gen(t)
            first = next(g)
            print("between")
            try:
                co(t).send(None)
            except StopIteration as stop:
                last = stop.value
            return first, g.send(first), last

        def f(x):
            return call_by_c(drive, x)

        return f

    check(make, ONES)


def test_functions_without_tensor_work_are_left_alone():
    def f(x, text):
        print(end="")
        return x + 1, re.sub(".", lambda match: str(len(match.group()) + 1), text)

    c = compiled(f)
    for _ in range(4):
        same(f(ONES, "abcdef"), c(ONES, "abcdef"))
    assert served(c) == 0


def test_cache_limit_of_a_callee_is_no_warning():
    numbers = iter(range(100))

    def callee(t):
        return t + float(next(numbers))

    def f(x):
        return call_by_c(callee, x)

    c = compiled(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(20):
            assert torch.equal(c(ONES)[0], ONES + k)


def test_disabled_functions_stay_in_eager():
    seen = []

    def callee(t):
        seen.append(jit.is_compiling())
        return t + 1

    @jit.disable
    def library(t):
        return call_by_c(callee, t)

    def f(x):
        return library(x * 2)

    c = compiled(f)
    for _ in range(3):
        same(f(ONES), c(ONES))
    assert seen == [False] * 6 and served(c) == 0


def test_nothing_is_armed_without_breaks():
    states = []

    def backend(graph, examples):
        def run(*tensors):
            states.append(native().frame_hook_status())
            return tuple(t + 1 for t in tensors)

        return run

    def f(x):
        y = x + 1
        states.append(native().frame_hook_status())
        return y

    assert torch.equal(jit.compile(f, backend=backend)(ONES), ONES + 1)
    assert states == ["ready", "armed"] and native().frame_hook_status() == "ready"


def test_tracing_switches_it_off():
    lines = []

    def callee(t):
        y = t * 2
        return y + 1

    def f(x):
        return call_by_c(callee, x)

    def tracer(frame, event, arg):
        if frame.f_code is callee.__code__:
            lines.append(event)
        return tracer

    c = compiled(f)
    c(ONES), c(ONES)
    before, kept = served(c), sys.gettrace()
    sys.settrace(tracer)
    try:
        same(f(ONES), c(ONES))
    finally:
        sys.settrace(kept)
    assert served(c) == before and lines == ["call", "line", "line", "return"] * 2
    if kept is None:
        c(ONES)
        assert served(c) > before


def test_tracing_switched_on_inside():
    seen = []

    def callee(t):
        return t * 2

    def f(x):
        kept = sys.gettrace()
        sys.settrace(lambda frame, event, arg: seen.append(frame.f_code.co_name))
        try:
            return call_by_c(callee, x)
        finally:
            sys.settrace(kept)

    c = compiled(f)
    for _ in range(2):
        del seen[:]
        same(f(ONES), c(ONES))
        assert seen.count("callee") == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring")
def test_monitoring_switches_it_off():
    def callee(t):
        return t * 2

    def f(x):
        return call_by_c(callee, x)

    c = compiled(f)
    c(ONES), c(ONES)
    before = served(c)
    sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "test")
    try:
        same(f(ONES), c(ONES))
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
    assert served(c) == before


def test_threads():
    def callee(t):
        return torch.sin(t) * 2

    def f(x, k):
        y = x * k
        print(end="")
        return call_by_c(callee, y)

    def plain(n):
        return n if n == 0 else plain(n - 1) + 1

    c, wrong = compiled(f), []

    def work(base):
        for k in range(20):
            value = float((base + k) % 3)
            if not torch.equal(c(ONES, value)[0], f(ONES, value)[0]) or plain(50) != 50:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and native().frame_hook_status() == "ready"


def test_the_option_switches_it_off():
    def f(x):
        return call_by_c(lambda t: t + 1, x)

    with config.patch(frame_hook=False):
        c = compiled(f)
        for _ in range(2):
            same(f(ONES), c(ONES))
        assert all(e.region is None for e in c.entries)


def test_closures_given_as_arguments_break_with_their_own_cells():
    def make(k):
        def g(x):
            y = x + 1
            print(end="")
            return y * k

        return g

    def f(x, g):
        return g(x)

    c = compiled(f)
    for k in (2, 3, 4):
        same(f(ONES, make(k)), c(ONES, make(k)))


def test_frames_and_stacks_are_let_go():
    def deep(t, n):
        return t * 2 if n == 0 else call_by_c(lambda v: deep(v, n - 1), t)[0]

    def f(x, h):
        keep = h
        print(end="")
        return call_by_c(lambda t: (deep(t, 30), keep), x)[0][0]

    check_lets_go(compiled(f), 4)


def test_frames_at_the_edges_of_the_frame_stack():
    """Served frames of several sizes at every depth: some begin a new chunk of the thread's stack of frames."""
    namespace = {"__name__": "sizes"}
    for size in (1, 40, 150):
        names = " = ".join(f"v{i}" for i in range(size))
        exec(f"def f{size}(a, b):\n    {names} = a\n    return {' + '.join(f'v{i}' for i in range(size))} + b",
             namespace)
    callees = {namespace[f"f{size}"]: size for size in (1, 40, 150)}

    def decide(fn, first):
        if fn not in callees:
            return None
        made = native().Dispatcher(fn)
        made.add_entry(None, lambda a, b, size=callees[fn]: (size, a, b))
        return made, False, False

    region = native().Region(decide)

    def nested(n, callee):
        return callee(n, "b") if n == 0 else nested(n - 1, callee)

    outer = native().Dispatcher(nested)
    outer.add_entry(None, nested, region=region)
    for depth in range(150):
        for callee, size in callees.items():
            assert outer(depth, callee) == (size, 0, "b"), (depth, size)
    assert region.served == 450


def test_many_calls_do_not_leak():
    def callee(t, *rest, **more):
        return t + 1

    def f(x):
        print(end="")
        return call_by_c(callee, x)[0]

    c = compiled(f)
    for _ in range(5):
        c(ONES)
    gc.collect()
    before = sys.getrefcount(callee), sys.getrefcount(callee.__code__), sys.getrefcount(ONES)
    for _ in range(200):
        c(ONES)
    gc.collect()
    after = sys.getrefcount(callee), sys.getrefcount(callee.__code__), sys.getrefcount(ONES)
    assert all(abs(a - b) < 5 for a, b in zip(before, after, strict=True)), (before, after)


def test_imports_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "made_for_the_hook.py").write_text("import torch\n"
                                                   "def make(t):\n    return t * 2\nVALUE = make(torch.ones(3))\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def f(x):
        print(end="")
        import made_for_the_hook

        return x + made_for_the_hook.VALUE

    c, found = compiled(f), []
    c.on_miss.settings.on_capture = found.append
    for _ in range(2):
        assert torch.equal(c(ONES), ONES * 3)
    assert not [b for captured in found for b in captured.breaks if b.function == "make"] and served(c) == 0
    sys.modules.pop("made_for_the_hook")


def test_code_shared_by_functions_of_other_modules():
    def body(t):
        return t * FACTOR  # noqa: F821

    one = types.FunctionType(body.__code__, {"FACTOR": 2, "__name__": "one", "__builtins__": __builtins__})
    two = types.FunctionType(body.__code__, {"FACTOR": 3, "__name__": "two", "__builtins__": __builtins__})

    def f(x):
        return call_by_c(one, x), call_by_c(two, x)

    c = compiled(f)
    for _ in range(3):
        same(f(ONES), c(ONES))


def test_reset_forgets_callees():
    def f(x):
        return call_by_c(lambda t: t * 2, x)

    c = compiled(f)
    c(ONES), c(ONES)
    jit.reset()
    for _ in range(2):
        same(f(ONES), c(ONES))


def test_a_dynamo_program_inside_and_outside():
    program = """
import torch, jit, re
from jit.runtime import native
breaking = jit.disable(lambda: None)
def callee(t): return t * 2 + 1
def library(t):
    out = []
    re.sub("x", lambda m: out.append(callee(t)) or "", "x")
    return out[0]
other = torch.compile(lambda t: t * 3, backend="eager")
def f(x):
    y = x + 1
    breaking()
    return library(y) + other(y)
c = jit.compile(f, backend="eager")
x = torch.ones(3)
for _ in range(3):
    assert torch.equal(c(x), torch.full((3,), 11.0)), c(x)
    assert native().frame_hook_status() == "ready", native().frame_hook_status()
assert sum(e.region.served for e in c.entries if e.region) > 0
outer = torch.compile(lambda t: c(t) + 1, backend="eager")
for _ in range(2):
    assert torch.equal(outer(x), torch.full((3,), 12.0))
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "fine" in done.stdout, done.stderr[-2000:]


def test_modules_that_come_and_go_are_compiled_a_few_times():
    """A module made anew for each call is no reason to compile its methods at each call."""
    class Scaled(torch.nn.Module):
        def __init__(self, x):
            super().__init__()
            self.x = x

        def forward(self, match):
            self.found = torch.sin(self.x) * 2
            return ""

    fresh = jit.disable(Scaled)

    def program(x):
        module = fresh(x)
        re.sub("x", module, "x")
        return module.found + 1

    c = jit.compile(program)
    counts = []
    for _ in range(12):
        torch.testing.assert_close(c(ONES), torch.sin(ONES) * 2 + 1)
        gc.collect()
        counts.append(captures_so_far())
    assert counts[-1] == counts[-5] and served(c) > 0


def test_a_callee_whose_graph_raises():
    """What eager raises, raised by the function's own code, and no more than once for a call."""
    ran, breaking = [], jit.disable(lambda: None)

    def callee(t, i):
        ran.append(1)
        return torch.index_select(t, 0, i) + 1

    def library(t, i):
        out = []
        re.sub("x", lambda m: out.append(callee(t, i)) or "", "x")
        return out[0]

    def f(t, i):
        y = t + 1
        breaking()
        return library(y, i)

    for backend in ("jit", "eager"):
        fast = jit.compile(f, backend=backend)
        for i in (0, 2, 5, 1, 7, 9):
            place = torch.tensor([i])
            ran.clear()
            if i < 3:
                same(f(ONES, place), fast(ONES, place))
            else:
                with pytest.raises(IndexError) as want:
                    f(ONES, place)
                with pytest.raises(IndexError) as got:
                    fast(ONES, place)
                assert str(got.value) == str(want.value)
            assert len(ran) == 2, "once each"
