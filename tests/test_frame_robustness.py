"""Threads, recursion, coroutines, tracing, limits and what escapes: the state around captured code stays what it is in eager."""

import asyncio
import gc
import io
import pdb
import sys
import threading
import warnings
import weakref

import pytest
import torch
from frame_harness import observe, same

import jit
from jit.frame import dispatch
from jit.frame.executor import Frame
from jit.runtime import native

ONES = torch.ones(3)


def compiled(fn, **options):
    return jit.compile(fn, backend="eager", **options)


def test_many_threads_call_one_function():
    def f(x, k):
        y = x * k
        if k % 3 == 0:
            jit.graph_break()
        return y + len(str(k))

    c = compiled(f)
    wrong = []

    def work(base):
        for k in range(30):
            value = (base + k) % 6
            if not torch.equal(c(ONES, value), f(ONES, value)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_compiled_calls_itself_and_others():
    @jit.compile(backend="eager")
    def fact(x, n):
        return x if n == 0 else fact(x, n - 1) * n

    @jit.compile(backend="eager")
    def other(x):
        return fact(x, 4) + inner(x)

    @jit.compile(backend="eager")
    def inner(x):
        print("in eager")
        return x * 2

    assert torch.equal(other(ONES), ONES * 26)
    assert torch.equal(other(ONES), ONES * 26)


def test_runaway_recursion():
    def f(x):
        return f(x) + 1

    with pytest.raises(RecursionError):
        compiled(f)(ONES)

    def g(x, n):
        return x if n == 0 else g(x, n - 1) + 1

    assert torch.equal(compiled(g)(ONES, 300), ONES + 300)


def test_generator_and_coroutine_functions():
    @jit.compile(backend="eager")
    def gen(x):
        got = yield x * 2
        yield x + got

    g = gen(ONES)
    assert torch.equal(next(g), ONES * 2) and torch.equal(g.send(4), ONES + 4) and list(g) == []

    @jit.compile(backend="eager")
    async def co(x):
        await asyncio.sleep(0)
        return x * 3

    assert torch.equal(asyncio.run(co(ONES)), ONES * 3)

    @jit.compile(backend="eager")
    async def agen(x):
        yield x

    async def collect():
        return [v async for v in agen(ONES)]

    assert torch.equal(asyncio.run(collect())[0], ONES)


def test_generators_leave_in_the_middle():
    def make(x):
        def gen():
            try:
                got = yield x
                yield got * 2
            finally:
                seen.append("closed")

        seen = []
        g, h = gen(), (v * i for i, v in enumerate([x, x]))
        first = next(g)
        return first, g, h, seen

    for fn in (make, compiled(make, fullgraph=True)):
        first, g, h, seen = fn(ONES)
        assert torch.equal(first, ONES) and torch.equal(g.send(ONES), ONES * 2)
        g.close()
        assert seen == ["closed"] and len(list(h)) == 2


def test_settrace_stays_and_sees_user_lines():
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name == "traced":
            lines.append((event, frame.f_lineno))
        return tracer

    def traced(x):
        y = x + 1
        return y * 2

    c = compiled(traced)
    kept = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert torch.equal(c(ONES), ONES * 4)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(kept)
    assert torch.equal(c(ONES), ONES * 4)


class Recorder:
    """A tracer as coverage tools have them: the lines of this file, and calls back into compiled code."""

    def __init__(self, inner):
        self.lines, self.inner, self.inside = [], inner, False

    def __call__(self, frame, event, arg):
        if event == "line" and frame.f_code.co_filename == __file__ and not self.inside:
            self.lines.append(frame.f_lineno)
            self.inside = True
            self.inner(ONES)
            self.inside = False
        return self


def everything(x, held):
    with torch.no_grad():
        y = x * 2
        print(end="")
        held.append(y)
    for v in (t + 1 for t in held):
        print(end="")
        y = y + v
    try:
        print(end="")
        held[7]
    except IndexError as e:
        return y, str(e), [v for v in steps_of(y)]


@jit.compile(backend="eager")
def steps_of(x):
    yield x
    print(end="")
    yield x * 2


@pytest.mark.parametrize("tool", ("settrace", "setprofile", "monitoring"))
def test_under_tools_that_watch(tool):
    """Compiled before the tool starts, while it is active, and after it has gone."""
    for first in (0, 1):
        c, recorder = compiled(everything), Recorder(compiled(lambda x: x * 3))
        for active in (False, True, False)[first:]:
            kept = getattr(sys, tool.replace("set", "get"))() if tool != "monitoring" else None
            if not active:
                got = c(ONES, [])
            elif tool == "monitoring":
                if sys.version_info < (3, 12):
                    continue
                sys.monitoring.use_tool_id(3, "test")
                sys.monitoring.register_callback(3, sys.monitoring.events.LINE, lambda code, line: recorder.lines.append(line))
                sys.monitoring.set_events(3, sys.monitoring.events.LINE)
                try:
                    got = c(ONES, [])
                finally:
                    sys.monitoring.set_events(3, 0)
                    sys.monitoring.free_tool_id(3)
            else:
                getattr(sys, tool)(recorder)
                try:
                    got = c(ONES, [])
                    assert getattr(sys, tool.replace("set", "get"))() is recorder
                finally:
                    getattr(sys, tool)(kept)
            same(everything.__wrapped__(ONES, []) if hasattr(everything, "__wrapped__") else everything(ONES, []), got)


def test_under_a_debugger():
    out = io.StringIO()
    for commands in ("c", "n\nn\nn\nn\nn\np y\nc", "s\ns\ns\ns\ns\ns\nr\nc", "b steps_of\nc\nc\nc\nc\nc"):
        c = compiled(everything)
        kept = sys.gettrace()
        debugger = pdb.Pdb(stdin=io.StringIO(commands + "\nc\n" * 9), stdout=out, nosigint=True, readrc=False)
        try:
            got = debugger.runcall(c, ONES, [])
        finally:
            debugger.set_quit()
            sys.settrace(kept)
        same(everything(ONES, []), got)
        same(everything(ONES, []), c(ONES, []))


def test_threads_step_generators_of_one_function():
    @jit.compile(backend="eager")
    def series(x, k):
        for i in range(4):
            if k % 2:
                jit.graph_break()
            x = x * 2 + k
            yield x

    wrong, started = [], threading.Barrier(4)

    def work(base):
        started.wait()
        for k in range(10):
            got = list(series(ONES, base + k))
            want = list(series.__wrapped__(ONES, base + k))
            if not all(map(torch.equal, got, want)):
                wrong.append(base + k)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_many_threads_compile_at_once():
    functions = [compiled(lambda x, k=k: torch.sin(x) * k + len(str(k))) for k in range(4)]
    results, started = [], threading.Barrier(8)

    def work():
        started.wait()
        results.append([float(fn(ONES).sum()) for fn in functions])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8 and all(r == results[0] for r in results) and all(len(fn.entries) == 1 for fn in functions)


def test_exceptions_leave_no_state():
    def f(x, k):
        with torch.no_grad():
            y = x * 2
            if k == 1:
                raise ValueError("inside no_grad")
            if k == 2:
                print("break")
                raise KeyError("after a break")
            return y + {0: 1}[k]

    c = compiled(f)
    for k in (0, 1, 2, 3, 0):
        want, got = observe(f, (ONES, k)), observe(c, (ONES, k))
        assert want[1:3] == got[1:3] and torch.is_grad_enabled()
        same(want[0], got[0])
    assert sys.exc_info() == (None, None, None)


def test_the_handled_exception_of_the_caller():
    def f(x):
        y = x + 1
        print("break")
        try:
            raise KeyError("inner")
        except KeyError as e:
            return y, repr(e.__context__), repr(sys.exc_info()[1])

    c = compiled(f)
    for fn in (f, c, c):
        try:
            raise ValueError("outer")
        except ValueError:
            got = fn(ONES)[1:]
        assert got[1] == "KeyError('inner')"


def test_cache_limit_says_what_changed():
    c = compiled(lambda x, k: x + k.number)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k in range(12):
            assert torch.equal(c(ONES, type("Kind", (), {"number": k})()), ONES + k)
    text = [str(w.message) for w in said if "runs in eager from now on" in str(w.message)]
    assert len(text) == 1 and "expected" in text[0] and "test_frame_robustness.py" in text[0]


def test_keyboard_interrupt_while_capturing(monkeypatch):
    """Interrupted at any point of the capture, nothing is left of it: the next call compiles."""
    def f(x, held):
        with torch.no_grad():
            held.append(x + 1)
            y = torch.sin(x) * 2
        print(end="")
        return y + len(held)

    push, count = Frame.push, [0]

    def interrupted(frame, value):
        count[0] -= 1
        if count[0] == 0:
            raise KeyboardInterrupt
        push(frame, value)

    for at in (1, 3, 7, 12, 20, 30):
        c = compiled(f)
        monkeypatch.setattr(Frame, "push", interrupted)
        count[0], held = at, []
        try:
            c(ONES, held)
        except KeyboardInterrupt:
            assert len(held) < 2
        monkeypatch.setattr(Frame, "push", push)
        assert not native().is_capturing() and torch.is_grad_enabled() and native().frame_hook_status() in ("ready", "not built")
        for _ in range(2):
            same(f(ONES, []), c(ONES, []))
        assert len(c.entries) == 1 and c.entries[0].hits >= 1


def test_keyboard_interrupt_in_the_backend():
    calls = []

    def backend(graph, examples):
        calls.append(graph)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return lambda *tensors: (tensors[0] * 2,)

    c = jit.compile(lambda x: x * 2, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        c(ONES)
    assert not native().is_capturing()
    assert torch.equal(c(ONES), ONES * 2) and torch.equal(c(ONES), ONES * 2) and len(calls) == 2 and len(c.entries) == 1


def test_compiled_functions_are_called_while_compiling():
    """A backend that runs compiled functions, the one that is being compiled among them."""
    def backend(graph, examples):
        assert torch.equal(other(ONES), ONES * 3) and torch.equal(c(ONES), ONES * 2)
        return lambda *tensors: (tensors[0] * 2,)

    other = compiled(lambda x: x * 3)
    c = jit.compile(lambda x: x * 2, backend=backend)
    for _ in range(2):
        assert torch.equal(c(ONES), ONES * 2)
    assert len(c.entries) == 1 and torch.equal(other(ONES), ONES * 3)


def test_finalizers_and_hooks_call_compiled_functions():
    seen = []
    inner = compiled(lambda x: x * 5)

    class Calls:
        def __del__(self):
            seen.append(inner(ONES))

    def f(x, k):
        held = Calls()
        y = x + k
        del held
        print(end="")
        return inner(y) + y

    c = compiled(f)
    for k in (1, 2):
        same(f(ONES, k), c(ONES, k))
    gc.collect()
    assert len(seen) == 4 and all(torch.equal(v, ONES * 5) for v in seen)


def test_fullgraph_says_where_and_why():
    def f(x):
        y = x + 1
        print("here")
        return y

    with pytest.raises(jit.Unsupported) as caught:
        compiled(f, fullgraph=True)(ONES)
    line = f.__code__.co_firstlineno + 2
    assert f"test_frame_robustness.py:{line}" in str(caught.value) and "print" in str(caught.value) and "hint" in str(caught.value)


def test_reset_forgets():
    c = compiled(lambda x: x + 1)
    c(ONES)
    assert len(c.entries) == 1
    jit.reset()
    assert len(c.entries) == 0
    assert torch.equal(c(ONES), ONES + 1) and len(c.entries) == 1


def test_arguments_and_results_are_let_go():
    class Held:
        pass

    def f(x, h):
        y = x * 2
        jit.graph_break()
        return y + 1

    c = compiled(f)
    for _ in range(3):
        x, h = torch.ones(3), Held()
        refs = weakref.ref(x), weakref.ref(h)
        out = weakref.ref(c(x, h))
        del x, h
        gc.collect()
        assert refs[0]() is None and refs[1]() is None and out() is None


def test_a_torch_without_the_names_that_are_used(monkeypatch):
    """Frames of our code are hidden from PyTorch's compiler by private names; without them all else works."""
    hook = torch._C._dynamo.eval_frame
    for name in ("_FrameExecStrategy", "set_code_exec_strategy"):
        if hasattr(hook, name):
            with monkeypatch.context() as patch:
                patch.delattr(hook, name)
                assert dispatch.torch_skip() is None
    monkeypatch.setattr(dispatch, "_skip_in_torch", None)

    def f(x):
        y = x + 1
        print(end="")
        return y * 2

    assert torch.equal(compiled(f)(ONES), ONES * 4)


def test_variables_that_let_go_of_objects_with_finalizers():
    log = []

    class Noisy:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(self.name)

    def f(x, held):
        held = Noisy(held.name + " made")
        y = x * 2
        del held
        log.append("after")
        return y

    def in_a_generator(x, held):
        yield x
        held = None
        log.append("let go")
        yield x + 1

    orders = []
    for fn, generator in ((f, in_a_generator), (compiled(f), compiled(in_a_generator))) * 2:
        log.clear()
        same(fn(ONES, Noisy("given")), ONES * 2)
        assert sorted(log) == ["after", "given", "given made"]
        log.clear()
        held = Noisy("held")
        it = generator(ONES, held)
        del held
        for _ in it:
            pass
        orders.append(list(log))
    assert orders == [["held", "let go"]] * 4


def test_groups_of_exceptions():
    def f(x):
        log = []
        try:
            raise ExceptionGroup("g", [ValueError("v"), TypeError("t"), KeyError("k")])
        except* ValueError as e:
            log.append(e.exceptions)
            x = x * 2
        except* (TypeError, KeyError) as e:
            log.append(e.message)
            x = x * 3
        try:
            try:
                raise ExceptionGroup("outer", [ValueError("v"), ExceptionGroup("inner", [OSError("o"), ValueError("w")])])
            except* ValueError:
                x = x + 1
        except ExceptionGroup as rest:
            log.append(repr(rest))
        try:
            raise ValueError("plain")
        except* ValueError as e:
            log.append(repr(e))
        for wrong in (lambda: ExceptionGroup("x", []), lambda: ExceptionGroup("x", [1]), lambda: ExceptionGroup(1, [KeyError()])):
            try:
                wrong()
            except (ValueError, TypeError) as e:
                log.append(str(e))
        return x, [repr(v) for v in log], type(BaseExceptionGroup("b", [KeyError()])).__name__

    c = compiled(f)
    for _ in range(2):
        same(f(ONES), c(ONES))


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


def test_methods_classmethods_and_modules():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            self.calls = 0

        def forward(self, x, *, k=1):
            self.calls += 1
            return x * self.w * k

        @jit.compile(backend="eager")
        def other(self, x):
            return self.forward(x) + self.calls

        @classmethod
        @jit.compile(backend="eager")
        def build(cls, x):
            return cls.__name__, x + 1

    m = M()
    c = compiled(m)
    assert torch.equal(c(ONES, k=3), ONES * 3) and m.calls == 1 and c.calls == 1
    assert torch.equal(m.other(ONES), ONES * 3) and isinstance(c, M) and list(c.state_dict()) == ["w"]
    assert M.build(ONES)[0] == "M"
    m.w = torch.nn.Parameter(torch.full((3,), 5.0), requires_grad=False)
    assert torch.equal(c(ONES), ONES * 5)


def test_bad_calls_raise_as_in_eager():
    def f(a, b=1, *, c):
        return a

    for args, kwargs in (((), {}), ((1,), {}), ((1, 2, 3), {"c": 1}), ((1,), {"c": 1, "z": 2}), ((1,), {"a": 2, "c": 3})):
        texts = []
        for fn in (f, compiled(f)):
            with pytest.raises(TypeError) as caught:
                fn(*args, **kwargs)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]


def test_attributes_that_a_c_class_looks_up_itself():
    local = threading.local()

    def of_thread(x):
        return x * getattr(local, "k", 9), hasattr(local, "k")

    def set_in_thread(x):
        local.k = x + 1
        return local.k * 2

    class Held:
        k = 3

    held = Held()
    proxy = weakref.proxy(held)

    def of_proxy(x):
        proxy.n = 5
        return x * proxy.k + proxy.n, isinstance(proxy, Held)

    def elsewhere(fn):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(observe(fn, (ONES,))))
        thread.start()
        thread.join()
        return seen

    def calls(fn):
        out = []
        for k in (2, 3):
            local.k = Held.k = k
            out += [observe(fn, (ONES,)), elsewhere(fn)]
        return out

    for fn in (of_thread, set_in_thread, of_proxy):
        same(calls(fn), calls(compiled(fn)))


def test_what_a_weak_reference_leads_to_is_not_kept():
    class Held:
        k = 3

    held = Held()
    reference = weakref.ref(held)

    def f(x):
        target = reference()
        return x if target is None else x * target.k

    c = compiled(f)
    gc.disable()
    try:
        assert torch.equal(c(ONES), ONES * 3) and torch.equal(c(ONES), ONES * 3)
        del held
        assert reference() is None and torch.equal(c(ONES), ONES)
    finally:
        gc.enable()


def test_threads_add_to_one_list():
    seen = []

    def f(x):
        seen.append(1)
        if x.sum() > 100:
            return x
        seen.append(len(seen))
        return x * 2

    c, wrong = compiled(f), []

    def work():
        for _ in range(30):
            if not torch.equal(c(ONES), ONES * 2):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(seen) == 300
