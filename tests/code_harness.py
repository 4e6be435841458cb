"""Code objects for the tests of decoding, encoding and resuming: those of modules, and the beginnings of functions."""

import functools
import types

from jit.frame import encode, resume
from jit.frame.canonical import Instr
from jit.frame.decode import decode


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


@functools.cache
def codes_of(path) -> list:
    """Every code object of a file."""
    with open(path, encoding="utf-8") as file:
        return list(codes(compile(file.read(), path, "exec")))


def make_prefix(code, index, locals_, null_mask=()):
    """Code with the signature of ``code`` that stops when it first gets to canonical instruction ``index``.

    It returns (values of ``locals_``, cells in the order of ``co_cellvars + co_freevars``, stack values without the
    NULLs of ``null_mask``), each a tuple. An exception being handled there stays the thread's current one, as the
    resume function expects. Where the original does not get to ``index``, neither does this.
    """
    decoded = decode(code)
    index = resume.normal(decoded, index)
    depth = resume.check(code, decoded, index, None)
    nulls = [bool(n) for n in null_mask] + [False] * (depth - len(null_mask))
    cells = code.co_cellvars + code.co_freevars
    where = decoded.instructions[index]

    def step(op, arg=None):
        return Instr(op, arg, line=where.line, positions=where.positions)

    # STORE_FAST takes NULL too, which POP_TOP does not.
    positions = decoded.position_slots(index)  # numbers of the interpreter's own, which no variable can hold
    stop = [step("POP_TOP") if i in positions else step("STORE_FAST", f"{resume.STACK_PREFIX}{i}")
            for i in reversed(range(depth))]
    slots = [i for i in range(depth) if not nulls[i]]
    for op, names in (("LOAD_FAST", list(locals_)), ("LOAD_CLOSURE", cells),
                      ("LOAD_FAST", [f"{resume.STACK_PREFIX}{i}" for i in slots])):
        stop += [step("LOAD_CONST", 0) if n in {f"{resume.STACK_PREFIX}{i}" for i in positions} else step(op, n)
                 for n in names] + [step("BUILD_TUPLE", len(names))]
    stop += [step("BUILD_TUPLE", 3), step("RETURN_VALUE")]

    kept = resume.reachable(decoded.instructions, 0, stop=index)
    before, after = [i for i in kept if i < index], [i for i in kept if i > index]
    moved = {old: k for k, old in enumerate(before)}
    moved[index] = len(before)
    moved.update((old, len(before) + len(stop) + k) for k, old in enumerate(after))
    out = (resume.relocated(decoded.instructions, before, moved) + stop
           + resume.relocated(decoded.instructions, after, moved))
    return encode.encode(out, name=code.co_name, filename=code.co_filename, varnames=code.co_varnames,
                         cellvars=code.co_cellvars, freevars=code.co_freevars, argcount=code.co_argcount,
                         posonly=code.co_posonlyargcount, kwonly=code.co_kwonlyargcount, flags=code.co_flags,
                         qualname=code.co_qualname, first_line=code.co_firstlineno, paired=False)
