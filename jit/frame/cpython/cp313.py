"""CPython 3.13: NULL after the callable, names of keywords on the stack, exact bools for jumps, pairs of local
variables in one instruction, text and functions in smaller steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import cp312
from .row import Steps, Tables
from .symbols import CONVERSIONS, FUNCTION_PARTS


def _global(t: Tables, arg: int) -> Steps:
    load = ("LOAD_GLOBAL", t.names[arg >> 1])
    return (load, ("PUSH_NULL", None)) if arg & 1 else (load,)


def pair(first: str, second: str) -> Callable[[Tables, int], Steps]:
    return lambda t, arg: ((first, t.slots[arg >> 4]), (second, t.slots[arg & 15]))


def _call(count: int, kwnames: tuple) -> Steps:
    return (("LOAD_CONST", kwnames), ("CALL_KW", count)) if kwnames else (("CALL", count),)


def _function(parts: tuple[str, ...]) -> Steps:
    flags = (1 << FUNCTION_PARTS.index(part) for part in reversed(parts))
    return ("MAKE_FUNCTION", ()), *(("SET_FUNCTION_ATTRIBUTE", flag) for flag in flags)


def _text(arg: tuple[str | None, bool]) -> Steps:
    """Text that a conversion gives is formatted only where the program says how."""
    conversion, spec = arg
    convert: Steps = (("CONVERT_VALUE", CONVERSIONS.index(conversion)),) if conversion else ()
    if spec:
        return (("SWAP", 2), *convert, ("SWAP", 2), ("FORMAT_WITH_SPEC", None)) if convert else (
            ("FORMAT_WITH_SPEC", None),)
    return convert or (("FORMAT_SIMPLE", None),)


ROW = dataclasses.replace(
    cp312.ROW,
    version=(3, 13),
    null_first=False,
    compare=5,
    reads={
        **cp312.ROW.reads,
        "LOAD_GLOBAL": _global,
        "LOAD_FAST_LOAD_FAST": pair("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": pair("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": pair("STORE_FAST", "STORE_FAST"),
        "CONVERT_VALUE": lambda t, arg: (("FORMAT_VALUE", (CONVERSIONS[arg], False)),),
        "FORMAT_SIMPLE": lambda t, arg: (("FORMAT_VALUE", (None, False)),),
        "FORMAT_WITH_SPEC": lambda t, arg: (("FORMAT_VALUE", (None, True)),),
        "MAKE_FUNCTION": lambda t, arg: (("MAKE_FUNCTION", ()),),
    },
    folded=cp312.ROW.folded | {"TO_BOOL"},
    pops_loop="POP_TOP",
    call=_call,
    writes={
        **cp312.ROW.writes,
        "END_FOR": lambda arg: (("END_FOR", None), ("POP_TOP", None)),
        "LOAD_CLOSURE": lambda arg: (("LOAD_FAST", arg),),  # of a cell's name it gives the cell
        "MAKE_FUNCTION": _function,
        "FORMAT_VALUE": _text,
    },
    tests="TO_BOOL",
)
