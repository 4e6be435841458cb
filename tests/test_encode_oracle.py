"""What is emitted reads back as it was written, and needs no deeper a stack than it announces, as the ``bytecode``
library works that out on its own."""

import dataclasses
import dis
import functools
import inspect

import bytecode
import pytest
import torch

import jit
from jit.frame.decode import decode
from jit.frame.resume import make_resume


def functions():
    for module in (dataclasses, functools, inspect):
        for name, value in vars(module).items():
            if (inspect.isfunction(value) and value.__module__ == module.__name__
                and not inspect.isgeneratorfunction(value)):
                yield pytest.param(value.__code__, id=f"{module.__name__}.{name}")


def readable(code):
    """The library knows no variable of an inlined comprehension (3.12) that is a free variable as well."""
    known = len(code.co_varnames) + len(set(code.co_cellvars) - set(code.co_varnames))
    return all(i.arg < known
               for i in dis.get_instructions(code) if i.opname in ("LOAD_FAST", "STORE_FAST", "LOAD_FAST_AND_CLEAR"))


def well_formed(code):
    """The library can read the code, agrees that the announced stack is deep enough, and builds it again to the same
    instructions."""
    read = bytecode.Bytecode.from_code(code)
    assert read.compute_stacksize() <= code.co_stacksize
    again = read.to_code()
    assert bytecode.ConcreteBytecode.from_code(again) is not None
    names = [i.name for i in bytecode.ConcreteBytecode.from_code(code)
             if getattr(i, "name", "") not in ("EXTENDED_ARG", "CACHE", "NOP")]
    assert names == [i.name for i in bytecode.ConcreteBytecode.from_code(again)
                     if getattr(i, "name", "") not in ("EXTENDED_ARG", "CACHE", "NOP")]


@pytest.mark.parametrize("code", list(functions()))
def test_resume_functions(code):
    decoded = decode(code)
    points = [i for i, instr in enumerate(decoded.instructions) if instr.op == "CALL" and i > decoded.body
              and decoded.stack_depth(i) is not None]
    names = [n for n in code.co_varnames[: code.co_argcount] if n not in code.co_cellvars]
    for index in points[:3]:
        depth = decoded.stack_depth(index)
        resumed = make_resume(code, index, names, depth, (False,) * depth).code
        if readable(resumed):
            well_formed(resumed)


def test_rewritten_function():
    def f(x, items):
        items.append(x.sum())
        return {"y": [torch.relu(x), x.shape[0]]}

    compiled = jit.compile(f, backend="eager")
    compiled(torch.ones(3), [])
    (entry,) = compiled.entries
    well_formed(entry.target.__code__)
