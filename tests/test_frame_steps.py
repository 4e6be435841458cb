"""Generator and coroutine functions as compiled functions: what the program sees of them is what it sees in eager, and
the work between yields is captured."""

import asyncio
import collections.abc
import contextlib
import contextvars
import gc
import inspect
import io
import sys
import traceback
import types
import weakref

import pytest
import torch
from frame_harness import same

import jit
from jit.frame import steps
from jit.runtime import native
from breaking import print  # noqa: A004

pytestmark = [pytest.mark.skipif(not native().KNOWS_GENERATORS, reason="needs CPython's internal headers"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:coroutine 'leaf' was never awaited")]
ONES = torch.ones(3)


def seen_by(run, compiled):
    """(what ``run(compiler)`` gives, what it prints)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = run(compiled)
    return result, out.getvalue()


def compare(run, calls=2):
    """``run(compiler)`` compiles what it likes with ``compiler`` and gives a result."""
    jit.reset()
    want = seen_by(run, lambda fn: fn)
    known = {}

    def compiler(fn):
        if fn.__code__ not in known:
            known[fn.__code__] = jit.compile(fn, backend="eager")
        return known[fn.__code__] if not fn.__closure__ else jit.compile(fn, backend="eager")

    for _ in range(calls):
        same(want, seen_by(run, compiler))


# -- generators --------------------------------------------------------------------------------------------------------


def counting(x):
    for i in range(4):
        y = torch.relu(x * i - 1)
        got = yield y
        if got is not None:
            x = x + got
    return x.sum()


def printing(x):
    total = 0
    for i in range(3):
        y = x * i
        print("before", i)
        total = total + y
        got = yield total
        print("got", got)
        total = total * 2
        print("after", total.tolist())
    return total


def branching(x):
    while True:
        if x.sum() > 20:
            return "large"
        elif x.sum() > 5:
            x = x + 2
        else:
            x = x * 2
        yield x


def guarded(x):
    try:
        yield x
        print("between")
        try:
            yield x * 2
        except ValueError as e:
            print("caught", e, sys.exc_info()[1] is e)
            yield x * 3
            print("still handling", sys.exc_info()[1] is e)
            raise KeyError("from the handler")
    finally:
        print("finally", x.sum().item())


def ignoring(x):
    while True:
        try:
            x = x + 1
            yield x
        except GeneratorExit:
            print("not now")
            yield x * 0
            return


def delegating(x):
    result = yield from counting(x)
    print("result", result)
    yield result
    yield from (x * i for i in range(2))
    with contextlib.suppress(KeyError):
        yield from guarded(x)


def stateful(x):
    seen, box = [], {"n": 0}

    def add(v):
        nonlocal x
        x = x + 1
        seen.append(v)
        box["n"] += 1
        return len(seen)

    while len(seen) < 3:
        yield add(x * 2), seen, box
        print(end="")
    yield x
    x.marked = len(seen)
    yield x.marked


def unbound(x):
    yield x
    if x is None:
        never = 1
    print("next")
    yield never


def with_blocks(x):
    with torch.no_grad():
        y = x * 2
        yield y, torch.is_grad_enabled()
        print(torch.is_grad_enabled())
        yield y + 1
    yield torch.is_grad_enabled()


def raising(x):
    yield x
    raise StopIteration("inside")


def nothing(x):
    return x * 2
    yield


SCRIPTS = {
    "to_the_end": ["next"] * 12,
    "sends": ["next", ("send", 1.0), ("send", 2.0), "next", ("send", None), "next"],
    "a_value_at_the_start": [("send", 1), "next", "next"],
    "thrown_late": ["next", "next", ("throw", ValueError("v")), "next", "next"],
    "thrown_at_once": [("throw", ValueError("v")), "next"],
    "thrown_after_one": ["next", ("throw", KeyError("k")), "next"],
    "closed": ["next", "next", "close", "next", "close"],
    "closed_at_once": ["close", "next"],
    "exit_thrown": ["next", ("throw", GeneratorExit()), "next"],
}


def drive(fn, script):
    it, out = fn(torch.ones(3)), []
    assert type(it) is types.GeneratorType and it.__name__ == fn.__name__ and it.__qualname__ == fn.__qualname__
    for step in script:
        name, *arguments = (step,) if isinstance(step, str) else step
        try:
            out.append(next(it) if name == "next" else getattr(it, name)(*arguments))
        except Exception as error:
            out.append((type(error).__name__, str(error), repr(error.__cause__), repr(getattr(error, "value", None))))
        except GeneratorExit:
            out.append("exit")
        out.append((inspect.getgeneratorstate(it), it.gi_running, sys.exc_info()[0]))
    del it
    return out


GENERATORS = (counting, printing, branching, guarded, ignoring, delegating, stateful, unbound, with_blocks, raising,
              nothing)


@pytest.mark.parametrize("fn", GENERATORS, ids=lambda f: f.__name__)
def test_generators(fn):
    for script in SCRIPTS.values():
        compare(lambda compiler: drive(compiler(fn), script))


def test_loops_comprehensions_and_captured_callers():
    def caller(x):
        return [v + 1 for v in inner(x)], sum(inner(x))

    def run(compiler):
        nonlocal inner
        inner = compiler(counting)
        first, second = compiler(counting), compiler(printing)
        return ([v for v in first(ONES)], {i: v for i, v in enumerate(second(ONES))},
                list(zip(first(ONES), second(ONES))), compiler(caller)(ONES))

    inner = None
    compare(run)


def test_what_is_between_yields_is_captured():
    def fn(x):
        y = torch.sin(x) * 2
        yield y
        z = torch.cos(y) + x
        print(end="")
        z = torch.exp(z) - 1
        yield z

    c = jit.compile(fn, backend="eager")
    before = jit.compile_count()
    for _ in range(3):
        same(list(fn(ONES)), list(c(ONES)))
    assert jit.compile_count() - before == 3
    with pytest.raises(jit.Unsupported, match="print"):
        list(jit.compile(fn, backend="eager", fullgraph=True)(ONES))
    assert len(list(jit.compile(counting, backend="eager", fullgraph=True)(ONES))) == 4


def test_explained():
    with contextlib.redirect_stdout(io.StringIO()):
        first, second = jit.explain(printing)(ONES), jit.explain(chained)(ONES)
    assert first.graph_count == 6 and {r.kind for r in first.break_reasons} == {"disabled"}
    assert second.graph_count >= 2


def test_infinite_generators_settle():
    def naturals(x):
        n = 0
        while True:
            yield x + n
            n += 1

    c = jit.compile(naturals, backend="eager")
    before = jit.compile_count()
    want, got = naturals(ONES), c(ONES)
    for _ in range(40):
        same(next(want), next(got))
    assert jit.compile_count() - before < 6


def test_methods_arguments_and_attributes():
    class Loader:
        def __init__(self, data):
            self.data = data

        @jit.compile(backend="eager")
        def batches(self, size=2, *, scale=1.0):
            """Pieces."""
            for i in range(0, len(self.data), size):
                yield self.data[i: i + size] * scale

        @staticmethod
        @jit.compile(backend="eager")
        def ones(n):
            yield torch.ones(n)

    loader = Loader(torch.arange(5.0))
    assert [b.tolist() for b in loader.batches()] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in loader.batches(3, scale=2.0)] == [[0, 2, 4], [6, 8]]
    assert Loader.batches.__doc__ == "Pieces." and next(Loader.ones(2)).shape == (2,)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        loader.batches(sise=1)
    again = jit.compile(jit.compile(counting), backend="eager")
    assert again.__wrapped__ is counting and len(list(again(ONES))) == 4


def test_nothing_is_kept_and_errors_name_the_users_lines():
    def fails(x):
        yield x + 1
        y = x * 2  # noqa: F841
        print(end="")
        raise RuntimeError("here")

    c = jit.compile(fails, backend="eager")
    for _ in range(3):
        x = torch.ones(2)
        it = c(x)
        out = weakref.ref(next(it))
        gc.collect()
        assert out() is None
        with pytest.raises(RuntimeError, match="here") as caught:
            next(it)
        rows = [(f.filename, f.lineno) for f in traceback.extract_tb(caught.tb)]
        assert rows[-1] == (__file__, fails.__code__.co_firstlineno + 4)
        assert len([r for r in rows if r[0] == __file__]) == 2
        ref = weakref.ref(x)
        del x, it, caught
        gc.collect()
        assert ref() is None


def test_asynchronous_generators_run_in_eager():
    @jit.compile(backend="eager")
    async def values(x):
        for i in range(2):
            yield x * i

    async def collect():
        return [v async for v in values(ONES)]

    same(asyncio.run(collect()), [ONES * 0, ONES])


# -- coroutines --------------------------------------------------------------------------------------------------------


class Manager:
    def __init__(self, log):
        self.log = log

    async def __aenter__(self):
        self.log.append("enter")
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error):
        self.log.append(repr(error[1]))
        await asyncio.sleep(0)
        return error[0] is KeyError


class Countdown:
    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.n:
            raise StopAsyncIteration
        self.n -= 1
        await asyncio.sleep(0)
        return self.n


class Waits:
    def __init__(self, value):
        self.value = value

    def __await__(self):
        got = yield
        return self.value, got


@types.coroutine
def old_style(x):
    yield
    return x + 1


async def leaf(x):
    y = torch.sin(x)
    await asyncio.sleep(0)
    return y * 2


async def chained(x):
    y = await leaf(x) + await leaf(x + 1)
    print("between")
    return y + await old_style(y), await Waits(3)


async def gathered(x):
    a, b = await asyncio.gather(leaf(x), leaf(x * 2))
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 5)
    return (a + b) * await future


async def managed(x):
    log = []
    async with Manager(log) as m:
        y = await leaf(x)
        m.log.append("body")
        raise KeyError("suppressed")
    async with Manager(log):
        print("second")
    total = 0
    async for i in Countdown(3):
        total = total + y * i
    else:
        log.append("else")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(Manager(log))
    return total, log


async def failing(x):
    try:
        await leaf(x)
        try:
            raise ValueError("inner")
        finally:
            await asyncio.sleep(0)
            print("finally")
    except ValueError as e:
        await asyncio.sleep(0)
        raise KeyError("outer") from e


async def cancelled(x):
    try:
        y = x + 1
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        print("cancelled", y.sum().item())
        await asyncio.sleep(0)
        raise


async def timed_out(x):
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.001)
    except asyncio.TimeoutError:
        return x * 2


async def collecting(x):
    async def values():
        for i in range(3):
            yield x * i
            await asyncio.sleep(0)

    return [v + 1 async for v in values()], [await leaf(x) for _ in range(2)]


async def wrong(x):
    try:
        await x
    except TypeError as e:
        return str(e)


variable = contextvars.ContextVar("variable", default=0)


async def with_context(x):
    variable.set(variable.get() + 1)
    await asyncio.sleep(0)
    return x + variable.get()


async def stop_inside(x):
    raise StopIteration("no")


COROUTINES = (leaf, chained, gathered, managed, failing, timed_out, collecting, wrong, with_context, stop_inside)


def outcome(coroutine):
    try:
        return asyncio.run(coroutine)
    except Exception as error:
        return type(error).__name__, str(error), repr(error.__cause__)


@pytest.mark.parametrize("fn", COROUTINES, ids=lambda f: f.__name__)
def test_coroutines(fn):
    compare(lambda compiler: outcome(compiler(fn)(torch.ones(3))))


def test_tasks_and_cancellation():
    def run(compiler):
        async def main():
            task = asyncio.create_task(compiler(cancelled)(ONES))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            first = await asyncio.gather(task, return_exceptions=True)
            many = await asyncio.gather(*(compiler(leaf)(ONES * i) for i in range(5)))
            return [type(e).__name__ for e in first], many

        return asyncio.run(main())

    compare(run)


def test_coroutines_are_what_they_are_called():
    c = jit.compile(leaf, backend="eager")
    made = c(ONES)
    assert inspect.iscoroutine(made) and isinstance(made, collections.abc.Coroutine) and made.__name__ == "leaf"
    assert asyncio.iscoroutinefunction(c)
    made.close()

    async def caller(x):
        return await c(x) + 1

    same(asyncio.run(caller(ONES)), asyncio.run(jit.compile(caller, backend="eager")(ONES)))
    before = jit.compile_count()
    same(asyncio.run(c(ONES)), asyncio.run(c(ONES)))
    assert jit.compile_count() - before <= 2


def test_going_on_natively():
    n = native()

    def fn(a):
        b = a + 1
        yield b
        return a

    code = fn.__code__
    offset = next(o for o, _, line in code.co_lines() if line == code.co_firstlineno + 2)
    it = fn(0)
    n.set_generator_state(it, offset - 2, None, (7, 9), True)
    assert n.go_on(it) == 9
    with pytest.raises(StopIteration) as stop:
        it.send(None)
    assert stop.value.value == 7
    for wrong, error in ((it, ValueError), (3, TypeError)):
        with pytest.raises(error):
            n.go_on(wrong)
    assert n.frame_hook_status() in ("ready", "not built")
    assert steps.original(jit.compile(counting)) is counting


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
