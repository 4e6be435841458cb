"""A break at every instruction: prefix, the instruction in an emitted function, and resume functions give the
original."""

import pytest
from code_harness import make_prefix

from jit import errors
from jit.frame.assemble import Assembler, function_from
from jit.frame.cpython import NULL_FIRST
from jit.frame.decode import decode
from jit.frame.splice import BreakFrame, _NOT_HERE, emit_break

from test_resume import CASES, Manager, matching, outcome, visits


def state_of(function, args, index, nulls):
    """(bound locals, cells, stack) of a frame that has got to ``index``."""
    code, decoded = function.__code__, decode(function.__code__)
    cells = code.co_cellvars + code.co_freevars
    bound = [n for n, null in zip(decoded.names, nulls[0]) if not null and n not in cells]
    prefix = function_from(make_prefix(code, index, bound, nulls[1]), function.__globals__, None, function.__closure__,
                           function.__defaults__, function.__kwdefaults__)
    values, held, stack = prefix(*args)
    return dict(zip(bound, values)), dict(zip(cells, held)), list(stack)


def break_frame(function, index, values, held, nulls, prefix=""):
    def push_callable(asm, resume):
        asm.load_const(function_from(resume.code, function.__globals__, None, held))

    def push_cell(asm, name):
        asm.load_const(held[name].cell_contents)

    return BreakFrame(function.__code__, index, {n: prefix + n for n in values}, tuple(nulls), push_callable, push_cell)


def push_stack(asm, stack, nulls, name):
    left = iter(range(len(stack)))
    for null in nulls:
        if null:
            asm.push_null()
        else:
            asm.load_fast(f"{name}{next(left)}")


def with_break(function, args, index, nulls):
    values, held, stack = state_of(function, args, index, nulls)
    names = list(values) + [f".s{i}" for i in range(len(stack))]
    asm = Assembler(function.__name__, __file__, names)
    push_stack(asm, stack, nulls[1], ".s")
    emit_break(asm, [break_frame(function, index, values, held, nulls[1])])
    return function_from(asm.finish(), function.__globals__)(*values.values(), *stack)


def check(function, make_args):
    expected_args = make_args()
    expected = outcome(lambda: function(*expected_args))
    decoded, done = decode(function.__code__), 0
    for index, nulls in visits(function, make_args()).items():
        instr = decoded.instructions[index]
        if instr.op in _NOT_HERE or (decoded.reads_frame and instr.op == "CALL") or instr.op == "END_FOR":
            continue
        args = make_args()
        got = outcome(lambda: with_break(function, args, index, nulls))
        assert got == expected, (function.__name__, index, instr)
        assert args == expected_args, (function.__name__, index, instr)
        done += 1
    assert done > 2


@pytest.mark.parametrize("function, make_args", CASES, ids=[f"{f.__name__}{i}" for i, (f, _) in enumerate(CASES)])
def test_every_instruction(function, make_args):
    if function is matching:
        cases, point = make_args()[1:]
        check(function, lambda: ([], list(cases), point))
    else:
        check(function, make_args)


def test_frame_readers_are_refused():
    def f(a):
        return locals()

    index = next(i for i, instr in enumerate(decode(f.__code__).instructions) if instr.op == "CALL")
    with pytest.raises(errors.Unsupported, match="look into"):
        with_break(f, (1,), index, ([False], [NULL_FIRST, not NULL_FIRST]))


# --- a break in an inlined function ---------------------------------------------------------------------------------


def inner(log, x):
    total = 0
    for i in range(3):
        try:
            log.append(i)
            if i == x:
                raise KeyError(i)
            total += i
        except IndexError:
            total = -1
        finally:
            log.append("inner")
    with Manager(log):
        total += 1
        if x == 5:
            raise ValueError("in the block")
    return total


def outer(log, x):
    out = []
    for k in range(2):
        try:
            with Manager(log):
                out.append((k, inner(log, x)))
        except KeyError as error:
            log.append(repr(error))
            out.append("caught")
        except ValueError:
            raise RuntimeError("outer") from None
        finally:
            log.append("outer")
    return out


@pytest.mark.parametrize("x", [7, 1, 5])
def test_break_in_an_inlined_function(x):
    expected_log = []
    expected = outcome(lambda: outer(expected_log, x))
    outer_code = decode(outer.__code__)
    # The call of inner, and the state there without what the call takes: NULL inner log x.
    found = visits(outer, ([], x))
    call = next(i for i in sorted(found) if outer_code.instructions[i].op == "CALL"
                and outer_code.instructions[i].arg == (2, ())
                and "inner" in (outer_code.instructions[i - 3].arg, outer_code.instructions[i - 4].arg))
    inner_visits = visits(inner, ([], x))
    done = 0
    for index, nulls in inner_visits.items():
        instr = decode(inner.__code__).instructions[index]
        if instr.op in _NOT_HERE or instr.op in ("END_FOR", "RETURN_VALUE"):
            continue
        log = []

        def run():
            values, held, stack = state_of(outer, (log, x), call, found[call])
            stack, outer_nulls = stack[:-3], found[call][1][:-4]
            inner_values, inner_held, inner_stack = state_of(inner, (log, x), index, nulls)
            names = ["o" + n for n in values] + [f".s{i}" for i in range(len(stack))]
            names += ["i" + n for n in inner_values] + [f".t{i}" for i in range(len(inner_stack))]
            asm = Assembler("outer", __file__, names)
            push_stack(asm, stack, outer_nulls, ".s")
            push_stack(asm, inner_stack, nulls[1], ".t")
            emit_break(asm, [break_frame(outer, call, values, held, outer_nulls, "o"),
                             break_frame(inner, index, inner_values, inner_held, nulls[1], "i")])
            return function_from(asm.finish(), {})(*values.values(), *stack, *inner_values.values(), *inner_stack)

        assert outcome(run) == expected, (index, instr)
        assert log == expected_log, (index, instr)
        done += 1
    assert done > 20


def test_break_in_a_setter_drops_its_result():
    class Box:
        @property
        def value(self):
            return self._value

        @value.setter
        def value(self, new):
            self._value = abs(new)

    def f(box, x):
        box.value = x
        return box.value

    code = decode(f.__code__)
    index = next(i for i, instr in enumerate(code.instructions) if instr.op == "STORE_ATTR")
    setter = Box.value.fset
    at = next(i for i, instr in enumerate(decode(setter.__code__).instructions) if instr.op == "CALL")
    nulls = visits(setter, (Box(), -3))[at]
    box = Box()
    values, held, stack = state_of(setter, (box, -3), at, nulls)
    asm = Assembler("f", __file__, ["obox", "ox", *("i" + n for n in values), *(f".t{i}" for i in range(len(stack)))])
    push_stack(asm, stack, nulls[1], ".t")
    emit_break(asm, [break_frame(f, index, {"box": box, "x": -3}, {}, (), "o"),
                     break_frame(setter, at, values, held, nulls[1], "i")])
    assert function_from(asm.finish(), {})(box, -3, *values.values(), *stack) == 3
