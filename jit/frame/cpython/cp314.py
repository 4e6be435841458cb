"""CPython 3.14: special methods of ``with`` looked up one by one, a loop's iterator popped by an instruction of its
own, constants without a place in the table, borrowed local variables, templates, functions that make annotations."""

from __future__ import annotations

import dataclasses
import opcode

from . import cp313
from .row import Steps, Tables
from .symbols import BINARY_OPERATORS, SUBSCRIPT

SPECIAL_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")


def _common(t: Tables, arg: int) -> Steps:
    value = opcode._common_constants[arg]
    return (("LOAD_ASSERTION_ERROR", None) if value is AssertionError else ("LOAD_CONST", value),)


def _binary(t: Tables, arg: int) -> Steps:
    operator = BINARY_OPERATORS[arg]
    return (("BINARY_SUBSCR", None) if operator == SUBSCRIPT else ("BINARY_OP", operator),)


ROW = dataclasses.replace(
    cp313.ROW,
    version=(3, 14),
    exit_slots=2,
    reads={
        **cp313.ROW.reads,
        "BINARY_OP": _binary,
        "END_ASYNC_FOR": lambda t, arg: (("END_ASYNC_FOR", None),),
        "LOAD_COMMON_CONSTANT": _common,
        "LOAD_FAST_BORROW": lambda t, arg: (("LOAD_FAST", t.slots[arg]),),
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": cp313.pair("LOAD_FAST", "LOAD_FAST"),
        "LOAD_SMALL_INT": lambda t, arg: (("LOAD_CONST", arg),),
        "LOAD_SPECIAL": lambda t, arg: (("LOAD_SPECIAL", SPECIAL_METHODS[arg]),),
        "POP_ITER": lambda t, arg: (("POP_TOP", None),),
    },
    folded=cp313.ROW.folded | {"NOT_TAKEN"},
    pops_loop="POP_ITER",
    always_kwargs=True,
    writes={
        **cp313.ROW.writes,
        "BINARY_SUBSCR": lambda arg: (("BINARY_OP", SUBSCRIPT),),
        "END_FOR": lambda arg: (("END_FOR", None), ("POP_ITER", None)),
        "LOAD_ASSERTION_ERROR": lambda arg: (("LOAD_COMMON_CONSTANT", 0),),
        "LOAD_SPECIAL": lambda arg: (("LOAD_SPECIAL", SPECIAL_METHODS.index(arg)),),
    },
    has_docstring=0x4000000,
)
