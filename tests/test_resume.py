"""Stopping at every instruction that runs, and going on in a resume function, gives what the original gives.

``sys.settrace`` with ``f_trace_opcodes`` visits the instructions; ctypes reads the frame's slots, so that the stack's
real NULLs and the really bound locals are known, and the decoder's stack depths are checked against the interpreter's.
"""

import contextlib
import ctypes
import sys
import traceback
import types

import pytest
from code_harness import make_prefix

from jit import errors
from jit.frame.assemble import function_from
from jit.frame.cpython import VERSION
from jit.frame.decode import decode
from jit.frame.resume import make_resume

# --- what the interpreter's frame holds ----------------------------------------------------------------------------

_FRAME_POINTER, _STACKTOP, _LOCALSPLUS = 24, 64, 72 if VERSION < (3, 14) else 80


def is_null(word):
    """Whether a slot that holds this word, or None for 0, counts as NULL: from 3.14 on that is a tag without a pointer.
    A number of the interpreter's own (its last bits are set) stands for NULL where it is the position of a loop."""
    return word is None if VERSION < (3, 14) else word == 1 or word & 3 == 3


def slots_of(frame, count):
    """The first ``count`` slots (variables, then the stack): True where one is NULL."""
    interpreter_frame = ctypes.c_void_p.from_address(id(frame) + _FRAME_POINTER).value
    return [is_null(ctypes.c_void_p.from_address(interpreter_frame + _LOCALSPLUS + 8 * i).value)
            for i in range(count)]


def stack_top_of(frame):
    interpreter_frame = ctypes.c_void_p.from_address(id(frame) + _FRAME_POINTER).value
    return ctypes.c_int.from_address(interpreter_frame + _STACKTOP).value


def visits(function, args):
    """{instruction index: (NULLs among the variables, NULLs on the stack)} at the first visit of each."""
    code, decoded, found = function.__code__, decode(function.__code__), {}
    variables = len(decoded.names)

    def trace(frame, event, arg):
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            index = decoded.index_at(frame.f_lasti)
            # The first original instruction of the canonical one: PRECALL, on 3.11, already changes the stack.
            if index not in found and index >= decoded.body:
                depth = decoded.stack_depth(index)
                if VERSION == (3, 11) and decoded.instructions[index].op != "END_SEND":
                    assert stack_top_of(frame) - variables == depth, (code.co_name, index)
                nulls = slots_of(frame, variables + depth)
                for slot in decoded.position_slots(index):  # a number, and no position of a loop
                    nulls[variables + slot] = False
                found[index] = nulls[:variables], nulls[variables:]
        return trace

    kept = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 looks for it when the trace function is set
    sys.settrace(trace)
    try:
        with contextlib.suppress(Exception):
            function(*args)
    finally:
        sys.settrace(kept)
    return found


# --- running in two pieces ------------------------------------------------------------------------------------------


def outcome(call):
    """(result or exception) of a call, comparable."""
    try:
        return "returned", call()
    except Exception as error:
        return "raised", type(error), str(error), [str(e) for e in chain(error)]


def chain(error):
    out = []
    while error.__context__ is not None:
        error = error.__context__
        out.append(error)
    return out


def in_two_pieces(function, args, index, nulls):
    code, decoded = function.__code__, decode(function.__code__)
    variable_nulls, stack_nulls = nulls
    cells = code.co_cellvars + code.co_freevars
    bound = [n for n, null in zip(decoded.names, variable_nulls) if not null and n not in cells]
    live = [n for n in bound if n in decoded.live_locals(index)]
    resume = make_resume(code, index, live, len(stack_nulls), stack_nulls)
    wanted = [name for kind, name in resume.params if kind == "local"]
    prefix = function_from(make_prefix(code, index, wanted, stack_nulls), function.__globals__, None,
                           function.__closure__, function.__defaults__, function.__kwdefaults__)
    values, held, stack = prefix(*args)
    stack = iter(stack)
    values = iter(values)
    by_name = dict(zip(cells, held))
    assert resume.freevars == cells
    given = [next(values) if kind == "local" else by_name[what].cell_contents if kind == "cell" else next(stack)
             for kind, what in resume.params]
    return function_from(resume.code, function.__globals__, None, held)(*given)


def check(function, make_args=lambda: ()):
    expected_args = make_args()
    expected = outcome(lambda: function(*expected_args))
    found = visits(function, make_args())
    assert len(found) > 3
    cells = function.__code__.co_cellvars
    names = decode(function.__code__).names
    for index, nulls in found.items():
        if any(null and n in cells for n, null in zip(names, nulls[0])):
            continue  # between LOAD_FAST_AND_CLEAR and MAKE_CELL there is no cell to pass
        args = make_args()
        got = outcome(lambda: in_two_pieces(function, args, index, nulls))
        assert got == expected, (function.__name__, index, decode(function.__code__).instructions[index])
        assert args == expected_args, (function.__name__, index)
        assert sys.exc_info() == (None, None, None)
    return len(found)


# --- the functions ---------------------------------------------------------------------------------------------------

GLOBAL = 3


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self.log

    def __exit__(self, kind, error, trace):
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def arithmetic(log, a, b=2):
    c = a + b * GLOBAL
    c -= a ** 2 // b
    log.append(c)
    return c if a < b < c else -c


def loops(log, n):
    total = 0
    for i in range(n):
        for j, k in enumerate((i, i + 1)):
            if (i + j) % 3 == 0:
                continue
            if i * j > 8:
                break
            total += i * j * k
            log.append(total)
        else:
            log.append("else")
    while total > 3:
        total //= 2
        if total == 5:
            break
    return total


def handlers(log, n):
    out = []
    for i in range(n):
        try:
            if i == 1:
                raise ValueError("one")
            if i == 2:
                [][i]
            if i == 3:
                {}["three"]
            out.append(i)
        except ValueError as error:
            out.append(str(error))
        except (IndexError, TypeError):
            log.append("index")
            continue
        except KeyError as error:
            try:
                raise RuntimeError("inner") from error
            except RuntimeError as inner:
                out.append((str(inner), repr(inner.__cause__)))
        else:
            out.append("no error")
        finally:
            log.append(("finally", i))
    return out


def finally_returns(log, x):
    try:
        try:
            return x / 0
        finally:
            log.append("cleanup")
    except ZeroDivisionError:
        log.append("caught")
        return "handled"
    finally:
        log.append("last")


def raises_in_handler(log):
    try:
        log.append(1)
        raise KeyError("first")
    except KeyError:
        log.append(2)
        raise ValueError("second")
    finally:
        log.append(3)


def reraises(log):
    try:
        log.append(1)
        raise KeyError("first")
    except Exception:
        log.append(2)
        raise


def with_blocks(log, make):
    with make(log) as a, make(log, True):
        a.append("body")
        raise ValueError("swallowed")
    with make(log):
        log.append("after")
        for i in range(3):
            with make(log, True):
                if i == 1:
                    continue
                log.append(i)
                if i == 2:
                    return "out", i


def with_raises(log, make):
    with make(log):
        raise ValueError("goes out")


def closures(log, n):
    total = 0
    saved = n

    def add(i):
        nonlocal total
        total += i * saved
        return total

    for i in range(3):
        log.append(add(i))
    saved += 1
    functions = [lambda: i, lambda k=n: k + total]
    n = saved + functions[0]() + functions[1]()
    return n, add(2), total


def comprehensions(log, n):
    x = 7
    squares = [i * i for i in range(n) if i % 2]
    table = {i: [j for j in range(i)] for i in squares}
    kinds = {type(v).__name__ for v in table.values()}
    captured = [lambda: x for x in range(3)]
    nested = [(i, j) for i in range(2) for j in range(i + 1)]
    gen = sum(i for i in squares)
    return squares, table, kinds, [f() for f in captured], nested, gen, x


def walrus(log, items):
    while (item := items.pop()) > 2:
        log.append(item)
    if any((last := v) == 1 for v in items):
        return last, item
    return item


def matching(log, cases, Point):
    out = []
    for case in cases:
        match case:
            case [1, *rest]:
                out.append(("list", rest))
            case {"a": a, **others}:
                out.append((a, others))
            case Point(x, y=2):
                out.append(("point", x))
            case str() as text if len(text) > 1:
                out.append(text)
            case 1 | 2:
                out.append("small")
            case _:
                out.append(None)
    return out


def star_calls(log, *args, key=1, **others):
    def show(*a, **k):
        log.append((a, sorted(k.items())))
        return a, k

    a, *b = args
    show(*args, a, *b, key=key, **others)
    show(a, k=2)
    return [*b, a, *args], {**others, "key": key}, show(*b)[0]


def texts(log, a, b):
    c = f"{a!r:>{b}} and {b:04d} {a!s}"
    log.append(c)
    return c.upper().replace("A", str(b)), a[1:], a[:1], f"{a}{b}"


def boolean(log, a, b):
    c = a and b or log
    d = not a or (b if b is not None else a)
    return c, d, a is None, b in (1, 2), a if b is None else b


def deletes(log, a):
    b = a
    del a
    try:
        return a  # noqa: F821
    except UnboundLocalError:
        log.append("unbound")
    if b:
        c = 1
        del c
    try:
        c
    except UnboundLocalError as error:
        return str(error)


def unpacking(log, pairs):
    out = {}
    for (a, (b, *c)), d in pairs:
        out[a] = out.get(a, 0), b, c, d
        out[a, b], log[0:0] = d, [a]
    x, y, z = z, x, y = 1, 2, 3
    return out, x, y, z


def asserts(log, x):
    assert x, "true"
    log.append(1)
    assert not x, f"message {x}"


def imports(log):
    import os.path as path
    from math import floor, pi

    log.append(floor(pi))
    return path.join("a", "b")


def classes(log, n):
    class A:
        value = n

        def get(self):
            return self.value + n

    return A().get()


def groups(log):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        out.append(len(group.exceptions))
    except* KeyError:
        out.append("key")
    return out


def keeps_locals(log, a):
    b = a + 1
    log.append(b)
    return sorted(k for k in locals() if not k.startswith("."))


def endless(log, n):
    while True:
        n -= 1
        try:
            if n < 0:
                break
        finally:
            log.append(n)
    return n


def calls_that_raise(log, values, make):
    out = []
    for value in values:
        try:
            int(value)
            out.append(int(value, base=10))
            out.append(log.index(value))
        except ValueError as error:
            out.append(str(error))
        except TypeError:
            with make(log, True):
                len(value)
        finally:
            try:
                log.append(len(value))
            except TypeError:
                log.append("no length")
    return out


def counts(log, n):
    it = iter(range(n))
    pairs = {k: next(it) for k in "ab"}
    swapped = {v: k for k, v in pairs.items()}
    log.extend(x for x in swapped)
    i: int = 0
    while i < n and not log[-1] > n:
        i += 1
        if i == 2:
            log[0] += i
            log[-1] **= 2
    else:
        del log[0]
    return [*log, *swapped.values()], {**pairs, "i": i}, f"{i}", i if i else ~i, -i


CASES = [
    (calls_that_raise, lambda: ([], ["1", "x", 3.5, None], Manager)), (counts, lambda: ([], 4)),
    (arithmetic, lambda: ([], 1)), (arithmetic, lambda: ([], 5, 3)), (loops, lambda: ([], 6)),
    (handlers, lambda: ([], 5)), (finally_returns, lambda: ([], 1)), (raises_in_handler, lambda: ([],)),
    (reraises, lambda: ([],)), (with_blocks, lambda: ([], Manager)), (with_raises, lambda: ([], Manager)),
    (closures, lambda: ([], 4)), (comprehensions, lambda: ([], 6)), (walrus, lambda: ([], [1, 2, 5, 6])),
    (matching, lambda: ([], [[1, 2, 3], {"a": 1, "b": 2}, Point(5, 2), "word", "w", 2, 9.5], Point)),
    (star_calls, lambda: ([], 1, 2, 3)), (texts, lambda: ([], "abc", 7)), (boolean, lambda: ([], 0, 1)),
    (boolean, lambda: ([], 2, None)), (deletes, lambda: ([], 1)),
    (unpacking, lambda: ([], [(("k", "abc"), 1), (("k", [1]), 2)])), (asserts, lambda: ([], 5)),
    (imports, lambda: ([],)), (classes, lambda: ([], 3)), (groups, lambda: ([],)), (keeps_locals, lambda: ([], 1)),
    (endless, lambda: ([], 3)),
]


@pytest.mark.parametrize("function, make_args", CASES, ids=[f"{f.__name__}{i}" for i, (f, _) in enumerate(CASES)])
def test_every_instruction(function, make_args):
    if function is matching:
        # One case list for all runs: Point has no __eq__.
        cases = make_args()[1]
        check(function, lambda: ([], list(cases), Point))
    else:
        check(function, make_args)


def test_most_instructions_are_visited():
    visited = sum(len(visits(f, make())) for f, make in CASES)
    assert visited > 1100


def test_zero_argument_super():
    class Base:
        def name(self, log, x):
            log.append(x)
            return "base", x

    class Derived(Base):
        def name(self, log, x):
            x += 1
            return super().name(log, x), __class__ is Derived

        def bare(self, log, x):
            x += 1
            parent = super()
            return parent.name(log, x)

        def in_cell(self, log, x):
            x += 1
            parent = super()
            return parent.name(log, (lambda: self.kind + x)())

        kind = 5

    me = Derived()
    for method in (Derived.name, Derived.bare, Derived.in_cell):
        check(method, lambda: (me, [], 1))


def prefix_state(function, args, index, nulls):
    code, decoded = function.__code__, decode(function.__code__)
    cells = code.co_cellvars + code.co_freevars
    bound = [n for n, null in zip(decoded.names, nulls[0]) if not null and n not in cells]
    live = [n for n in bound if n in decoded.live_locals(index)]
    resume = make_resume(code, index, live, len(nulls[1]), nulls[1])
    prefix = function_from(make_prefix(code, index, live, nulls[1]), function.__globals__, None, function.__closure__)
    values, held, stack = prefix(*args)
    return resume, held, [*values, *stack]


def test_resume_of_a_resume():
    def f(log, n):
        total = 0
        for i in range(n):
            try:
                with Manager(log, True):
                    total += i
                    log.append(lambda: total)
                    if i == 2:
                        raise ValueError(i)
            finally:
                total += 10
        return total

    expected = f([], 4)
    found = visits(f, ([], 4))
    indices = sorted(found)
    for index in indices[::7]:
        resume, held, values = prefix_state(f, ([], 4), index, found[index])
        resumed = function_from(resume.code, f.__globals__, None, held)
        inner = visits(resumed, values)
        for second in sorted(inner)[::9]:
            resume, held, values = prefix_state(f, ([], 4), index, found[index])
            resumed = function_from(resume.code, f.__globals__, None, held)
            assert in_two_pieces(resumed, values, second, inner[second]) == expected


def test_tracebacks_show_the_original():
    def f(log, x):
        y = x + 1
        log.append(y)
        return y / 0

    index = next(i for i, instr in enumerate(decode(f.__code__).instructions) if instr.op == "STORE_FAST")
    resume, held, values = prefix_state(f, ([], 1), index, visits(f, ([], 1))[index])
    with pytest.raises(ZeroDivisionError) as caught:
        function_from(resume.code, f.__globals__, None, held)(*values)
    entry = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert entry.name == "f" and entry.filename == __file__
    assert entry.lineno == f.__code__.co_firstlineno + 3
    assert entry.line == "return y / 0"


def test_stack_parameters_are_not_kept_alive():
    import weakref

    class Thing:
        pass

    dead = []

    def f(make, log):
        for item in make():
            weakref.finalize(item, log.append, "gone")
            del item
            log.append("next")
        return log

    def make():
        yield Thing()

    found = visits(f, (make, dead))
    code = f.__code__
    index = next(i for i, instr in enumerate(decode(code).instructions) if instr.op == "STORE_FAST")
    resume, held, values = prefix_state(f, (make, []), index, found[index])
    log = values[[p[1] for p in resume.params].index("log")]
    assert len(values) == 3
    # Not *values: the tuple of a starred call would hold the item itself.
    function_from(resume.code, f.__globals__, None, held)(values.pop(0), values.pop(0), values.pop(0))
    assert log == ["gone", "next"]


def test_what_cannot_be_resumed():
    def generator():
        yield 1

    def f(x):
        return x

    with pytest.raises(errors.Unsupported):
        make_resume(generator.__code__, 5, [])
    with pytest.raises(errors.Unsupported):
        make_resume(f.__code__, 0, [])
    with pytest.raises(errors.Unsupported):
        make_resume(compile("x = 1", "m", "exec"), 1, [])
    with pytest.raises(ValueError):
        make_resume(f.__code__, decode(f.__code__).body, ["x"], 3)


def test_a_local_that_was_left_out_is_unbound():
    def f(x):
        y = x
        return y

    decoded = decode(f.__code__)
    index = next(i for i, instr in enumerate(decoded.instructions) if instr.op == "LOAD_FAST" and instr.arg == "y")
    resumed = types.FunctionType(make_resume(f.__code__, index, []).code, {})
    with pytest.raises(UnboundLocalError):
        resumed()
