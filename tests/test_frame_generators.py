"""Generators that come into a captured frame half-way, or leave it: they are followed, and stand afterwards where eager
leaves them."""

import collections
import contextlib
import gc
import inspect
import io
import itertools
import sys
import weakref

import pytest
import torch
from frame_harness import Cases, Noisy, observe, same, sequence

import jit
from jit.runtime import native
from breaking import print  # noqa: A004

cases = Cases()
broken = {"fullgraph": False}


@contextlib.contextmanager
def scope(log, *caught):
    log.append("in")
    try:
        yield log
    except caught as error:
        log.append((type(error).__name__, str(error)))
    finally:
        log.append("out")


# -- programs with breaks while a generator is suspended ---------------------------------------------------------------


@cases(**broken)
def a_pipeline_goes_on_after_a_break(x):
    def source():
        for i in range(4):
            yield x + i

    def doubled(it):
        for v in it:
            yield v * 2

    def odd(it):
        for i, v in enumerate(it):
            if i % 2:
                yield v

    rest = odd(doubled(source()))
    first = next(rest)
    print("break")
    return first, list(rest)


@cases(**broken)
def send_throw_and_close(x):
    log = []

    def accumulate():
        total = x
        try:
            while True:
                try:
                    total = total + (yield total)
                except KeyError as e:
                    log.append(e.args)
                    total = total * 0
        finally:
            log.append("closed")

    it = accumulate()
    out = [next(it)]
    print("one")
    out += [it.send(2), it.throw(KeyError("k"))]
    print("two")
    out.append(it.send(5))
    it.close()
    print("three")
    try:
        next(it)
    except StopIteration as e:
        log.append(e.value)
    return out, log


@cases(**broken)
def delegation(x):
    def inner():
        first = yield x
        second = yield x * first
        return first + second

    def outer():
        yield (yield from inner())
        return "done"

    it = outer()
    out = [next(it)]
    print("one")
    out.append(it.send(3))
    print("two")
    out.append(it.send(4))
    print("three")
    try:
        it.send(None)
    except StopIteration as e:
        out.append(e.value)
    return out


@cases(**broken)
def cells_are_shared_with_the_generator(x):
    n = 0

    def count():
        nonlocal n
        for _ in range(3):
            n += 1
            yield x * n

    it = count()
    first = next(it)
    n += 10
    print("one")
    second = next(it)
    n += 100
    return first, second, n, list(it), n


@cases(**broken)
def context_managers_that_suppress(x):
    log = []
    with scope(log, ValueError), scope(log, KeyError):
        y = x * 2
        print("inside")
        raise ValueError("v")
    print("between")
    with scope(log, KeyError):
        with scope(log, TypeError) as got:
            print("again")
            got.append(x.sum())
            {}["a"]
    return y, log


@cases(**broken)
def leaving_context_managers_in_a_loop(x):
    log = []
    for i in range(3):
        with scope(log):
            print(i)
            if i == 1:
                return x * i, log


@cases(**broken)
def an_exception_is_replaced(x):
    @contextlib.contextmanager
    def replacing():
        try:
            yield
        except ValueError as e:
            raise KeyError("new") from e

    try:
        with replacing():
            print("break")
            raise ValueError("old")
    except KeyError as e:
        return x + 1, repr(e), repr(e.__cause__), repr(e.__context__)


@cases(**broken)
def exit_stacks_and_closing(x):
    log = []

    def values():
        try:
            yield x
            yield x * 2
        finally:
            log.append("closed")

    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(scope(log)) for _ in range(2)]
        print("one")
        stack.callback(log.append, "callback")
        it = stack.enter_context(contextlib.closing(values()))
        first = next(it)
        print("two")
    return first, log, logs


@cases(**broken)
def teed_and_chained(x):
    a, b = itertools.tee(x * i for i in range(4))
    both = itertools.chain(a, (v + 1 for v in b))
    first = next(both)
    print("break")
    return first, list(both)


@cases(**broken)
def it_has_itself_among_its_variables(x):
    box = []

    def values():
        try:
            next(box[0])
        except ValueError as e:
            yield str(e)
        yield x

    box.append(values())
    first = next(box[0])
    print("break")
    return first, next(box[0]), len(box)


@cases(**broken)
def its_variables_by_name(x):
    def values(a):
        b = a * 2
        yield b
        yield sorted(locals())

    it = values(x)
    first = next(it)
    print("break")
    return first, next(it)


@cases(**broken)
def every_kind_of_parameter(x):
    def values(a, /, *rest, k=2, **kw):
        yield a * k
        yield rest
        yield kw

    it = values(x, 1, 2, k=3, z=4)
    first, fresh = next(it), values(x, k=x)
    print("break")
    return first, list(it), list(fresh)


# -- programs that are captured whole ----------------------------------------------------------------------------------


@cases()
def exceptions_thrown_into_delegation(x):
    log = []

    def inner():
        try:
            yield x
        except ValueError as e:
            log.append(("inner", e.args))
            yield x * 5
        finally:
            log.append("left")
        return 7

    def outer():
        try:
            log.append((yield from inner()))
        except KeyError as e:
            log.append(("outer", e.args))
        yield x * 9

    def over_a_list():
        yield from [x, x + 1]

    a = outer()
    out = [next(a), a.throw(ValueError("v")), next(a)]
    b = outer()
    out += [next(b), b.throw(KeyError("k"))]
    c, d = outer(), over_a_list()
    out += [next(c), next(d)]
    c.close()
    try:
        d.throw(TypeError("t"))
    except TypeError as e:
        log.append(e.args)
    return out, log


@cases()
def results_come_once(x):
    def values():
        yield x
        return x * 3

    it, out = values(), []
    next(it)
    for _ in range(2):
        try:
            next(it)
        except StopIteration as e:
            out.append(e.value)
    return out


@cases()
def stop_iteration_inside(x):
    def values():
        yield x
        raise StopIteration("inner")

    it = values()
    first = next(it)
    try:
        next(it)
    except RuntimeError as e:
        return first, str(e), repr(e.__cause__), repr(e.__context__)


@cases()
def reraised_after_a_yield_in_a_handler(x):
    log = []

    def values():
        try:
            raise KeyError("a")
        except KeyError:
            yield x
            try:
                raise
            except KeyError as e:
                log.append(e.args)
            yield x + 1

    return list(values()), log


@cases()
def what_it_says_of_itself(x):
    def inner():
        yield x

    def values():
        yield it.gi_running, it.gi_suspended
        yield from inner()

    it = values()
    states = [it.gi_running, it.gi_suspended, it.__name__, it.gi_code.co_name, it.gi_yieldfrom is None, next(it),
              it.gi_suspended, next(it)]
    return states, it.gi_yieldfrom.gi_code.co_name, list(it), it.gi_frame is None, it.gi_suspended


test_programs = cases.test()


@pytest.mark.parametrize("nested", (1, 2))
def test_a_break_in_a_with_block_is_one_break(nested):
    def one(x, log):
        with scope(log) as n:
            y = x * 2
            print(len(n))
            y = y + len(n)
        return y * 3, list(log)

    def two(x, log):
        with scope(log), scope(log) as n:
            y = x * 2
            print(len(n))
            y = y + len(n)
        return y * 3, list(log)

    with contextlib.redirect_stdout(io.StringIO()):
        explained = jit.explain({1: one, 2: two}[nested])(torch.ones(3), [])
    assert explained.graph_count == 2 and len(explained.break_reasons) == 1


# -- real generators as arguments --------------------------------------------------------------------------------------


def doubling(x):
    for _ in range(5):
        x = x * 2
        given = yield x
        if given is not None:
            x = x + given
    return x.sum()


def recording(x):
    seen = []

    def add(value):
        seen.append(value)
        return len(seen)

    while len(seen) < 4:
        given = yield add(x * len(seen)), seen
        if given is not None:
            seen.append(given)
    return tuple(seen)


def handling(x):
    try:
        raise KeyError("first")
    except KeyError as e:
        yield x, sys.exc_info()[1] is e
        try:
            yield x / 0 if x is None else {}[1]
        except KeyError as inner:
            yield x * 2, inner.__context__ is e, sys.exc_info()[1] is inner
        yield sys.exc_info()[1] is e
        try:
            raise
        except KeyError as again:
            yield again is e
    yield sys.exc_info()[1]


def delegating(x):
    result = yield from doubling(x)
    yield result
    yield from [x, x * 2]


def guarded(x, log):
    try:
        yield x
        yield x * 2
    except KeyError as e:
        log.append(e.args)
        yield x * 3
    finally:
        log.append("left")


def state(it):
    # On 3.15 a tuple is delegated to without an iterator; one that was put in its place shows here, and nowhere else.
    delegate = type(it.gi_yieldfrom).__name__.removesuffix("_iterator")
    return inspect.getgeneratorstate(it), it.gi_frame and it.gi_frame.f_lineno, delegate


def drive(make, steps, wrap):
    """Does ``steps``, (function, arguments after the generator), on a generator; gives all that can be seen of it
    meanwhile."""
    functions, out = {}, []
    it = make(torch.arange(3.0), out) if make is guarded else make(torch.arange(3.0))
    for fn, *arguments in steps:
        if fn not in functions:
            functions[fn] = wrap(fn)
        try:
            out.append(functions[fn](it, *arguments))
        except Exception as error:
            out.append((type(error).__name__, error.args))
        out.append(state(it))
    return out, list(it)


def step(it):
    return next(it)


def send(it, value):
    return it.send(value) + 1


def twice(it):
    return next(it) + next(it)


def total(it):
    result = 0
    for v in it:
        result = result + v
        if v.sum() is None:
            break
    return result


def first_of_loop(it):
    for v in it:
        return v * 10


def throw(it):
    return it.throw(KeyError("thrown"))


def close(it):
    it.close()
    return 1


def pairs(it):
    return dict(zip(range(2), it))


DRIVES = {
    "steps": (doubling, [(step,), (step,), (send, 1.0), (step,), (step,), (step,), (step,)]),
    "sends": (doubling, [(send, None), (send, 2.0), (send, 3.0), (send, None)]),
    "two_at_a_time": (doubling, [(twice,), (twice,), (twice,)]),
    "to_the_end": (doubling, [(step,), (total,), (total,), (step,)]),
    "a_loop_that_is_left": (doubling, [(first_of_loop,), (first_of_loop,), (total,)]),
    "zipped": (doubling, [(pairs,), (step,)]),
    "its_own_list": (recording, [(step,), (step,), (step,), (step,), (step,)]),
    "delegation": (delegating, [(step,), (send, 1.0), (step,), (step,), (step,), (step,), (step,), (step,), (step,)]),
    "inside_handlers": (handling, [(step,), (step,), (step,), (step,), (step,), (step,)]),
    "thrown_and_handled": (guarded, [(step,), (throw,), (step,), (step,)]),
    "thrown_and_not_handled": (doubling, [(step,), (throw,), (step,)]),
    "thrown_at_the_start": (guarded, [(throw,), (step,)]),
    "closed": (guarded, [(step,), (close,), (step,)]),
    "closed_at_the_start": (guarded, [(close,), (close,), (step,)]),
}


@pytest.mark.skipif(not native().KNOWS_GENERATORS, reason="needs CPython's internal headers")
@pytest.mark.parametrize("name", DRIVES)
def test_real_generators(name):
    make, steps = DRIVES[name]
    want = drive(make, steps, lambda fn: fn)
    jit.reset()
    functions = {fn: jit.compile(fn, backend="eager", fullgraph=True) for fn, *_ in steps}
    for _ in range(2):
        same(want, drive(make, steps, functions.__getitem__))


def test_a_real_generator_in_an_attribute_is_guarded():
    class Holder:
        pass

    def f(h, x):
        return next(h.it) + x

    c, eager, compiled = jit.compile(f, backend="eager", fullgraph=True), Holder(), Holder()
    for make in (doubling, doubling, delegating):
        eager.it, compiled.it = make(torch.ones(2)), make(torch.ones(2))
        for _ in range(3):
            same(f(eager, 1.0), c(compiled, 1.0))
            assert state(eager.it) == state(compiled.it)
    assert len(c.entries) < 8


def test_unsupported_steps_advance_the_real_generator():
    def printing(x):
        for i in range(3):
            print("at", i)
            yield x + i

    def f(it):
        return next(it) * 2

    c = jit.compile(f, backend="eager")
    a, b = printing(torch.ones(2)), printing(torch.ones(2))
    for _ in range(4):
        want, got = observe(f, (a,)), observe(c, (b,))
        same(want[0], got[0])
        assert want[1:3] == got[1:3] and state(a) == state(b)


def test_what_a_generator_lets_go_of():
    log = []

    def values(held, x):
        ref = weakref.ref(held)
        yield held.name
        held = None
        yield x
        yield ref

    def f(it):
        return next(it)

    logs = []
    for fn in (f, jit.compile(f, backend="eager")):
        log.clear()
        it = values(Noisy("held", log), torch.ones(2))
        for _ in range(3):
            log.append(type(fn(it)).__name__)
        del it
        gc.collect()
        logs.append(list(log))
    assert logs[0] == logs[1] == ["str", "held", "Tensor", "ReferenceType"]


def test_generators_that_leave_keep_their_code():
    def f(x):
        def values():
            held = it, x
            yield x
            yield held[1] * 2

        it = values()
        next(it)
        return it, [it]

    it, box = jit.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert box[0] is it and it.__qualname__.endswith("f.<locals>.values") and it.gi_code.co_name == "values"
    assert it.gi_frame.f_lineno == f.__code__.co_firstlineno + 3
    ref = weakref.ref(it)
    assert torch.equal(next(it), torch.ones(2) * 2)
    del it, box
    gc.collect()
    assert ref() is None


# -- the native functions ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not native().KNOWS_GENERATORS, reason="needs CPython's internal headers")
def test_reading_and_writing_states():
    n = native()

    def values(a, b):
        for i in range(a):
            got = yield a, i, b
            b = b if got is None else got

    it, other = values(3, "b"), values(None, None)
    code, namespace, start, handled, *slots = n.generator_state(it)
    assert (code is values.__code__ and namespace is globals() and handled is None
            and slots == [3, "b", n.EMPTY_SLOT, n.EMPTY_SLOT])
    next(it)
    _, _, position, _, *slots = n.generator_state(it)
    n.set_generator_state(other, position, None, tuple(slots), True)
    assert other.send("c") == (3, 1, "c") and list(it) == [(3, 2, "b")] and n.generator_state(it) is None
    n.set_generator_state(other, start, None, (1, 2, n.EMPTY_SLOT, n.EMPTY_SLOT), False)
    assert inspect.getgeneratorstate(other) == "GEN_CREATED" and list(other) == [(1, 0, 2)]

    def running():
        with pytest.raises(ValueError):
            n.generator_state(me)
        yield 1

    me = running()
    next(me)
    for wrong in ((it, position, None, tuple(slots), True), (me, 10 ** 6, None, (n.EMPTY_SLOT,), True),
                  (me, start, None, (), True), (me, start, None, (1,) * 50, True)):
        with pytest.raises(ValueError):
            n.set_generator_state(*wrong)
    for wrong in (1, iter([])):
        with pytest.raises(TypeError):
            n.generator_state(wrong)
    held = object()
    count = sys.getrefcount(held)
    third = values(1, held)
    n.set_generator_state(third, start, None, n.generator_state(third)[4:], False)
    assert sys.getrefcount(held) == count + 1
    third.close()
    del third
    assert sys.getrefcount(held) == count


def test_a_generator_that_a_helper_lets_go_of_runs_on_before_its_caller():
    def make():
        left = []

        def pairs(n):
            try:
                yield from range(n)
            finally:
                left.append(n)

        def first(it):
            for i in it:
                jit.graph_break()
                return i

        def f(x, v):
            first(pairs(3))
            v.extend(left)
            it = pairs(4)
            first(it)
            v.extend(left)
            return x + 1

        return f

    sequence(make, [(torch.ones(2), []), (torch.ones(2), [])])


def test_a_loop_that_is_left_early_closes_its_generator():
    def make():
        left = []

        def pairs(n):
            try:
                yield from range(n)
            finally:
                left.append(n)

        def last(n, v):
            for i in pairs(n):
                jit.graph_break()
                if i:
                    break
            v.extend(left)
            return i

        def f(x, v):
            for _ in pairs(1):
                jit.graph_break()
                break
            v.extend(left)
            try:
                for _ in pairs(2):
                    jit.graph_break()
                    raise ValueError
            except ValueError:
                v.extend(left)
            return x + last(3, v)

        return f

    sequence(make, [(torch.ones(2), []), (torch.ones(2), [])])


def test_a_loop_that_runs_to_its_end_is_resumed():
    left = []

    def pairs(n):
        try:
            yield from range(n)
        finally:
            left.append(n)

    def f(x):
        for i in pairs(3):
            jit.graph_break()
            x = x + i
        return x

    jit.reset()
    assert torch.equal(jit.compile(f, backend="eager")(torch.ones(2)), torch.ones(2) + 3) and left == [3]
    assert not any(b.whole_frame for b in jit.explain(f)(torch.ones(2)).break_reasons)


@pytest.mark.parametrize("items", [[1, 2, 3, 4], (1, 2, 3, 4), "1234", b"1234", range(1, 5), {1: 0, 2: 0, 3: 0, 4: 0},
                                   bytearray(b"1234"), memoryview(b"1234"), frozenset({1, 2, 3, 4}),
                                   collections.deque([1, 2, 3, 4])], ids=lambda v: type(v).__name__)
def test_a_real_generator_in_the_middle_of_a_loop(items):
    def numbers():
        for item in items:
            for again in items:
                if again == item:
                    yield int(item)

    def f(x, it):
        return x * next(it)

    compiled = jit.compile(f)
    for _ in range(2):
        mine, theirs = numbers(), numbers()
        next(mine), next(theirs)
        assert torch.equal(compiled(torch.ones(2), mine), f(torch.ones(2), theirs))
        assert list(mine) == list(theirs)
