"""CPython 3.15: an iterator has a second stack slot, imports say whether they are lazy."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator

from . import cp314
from .row import Steps, Tables


def delegate(iterable: Iterable) -> Iterator | types.CoroutineType:
    """What ``yield from iterable`` sends to, outside coroutines."""
    if type(iterable) is types.CoroutineType:
        raise TypeError("cannot 'yield from' a coroutine object in a non-coroutine generator")
    return iter(iterable)


def _iterator(t: Tables, arg: int) -> Steps:
    return ("GET_YIELD_FROM_ITER" if arg else "GET_ITER", None), ("PUSH_NULL", None)


def _calling(function: object) -> Steps:
    """A call with the value on top, where nothing pushes the second slot: GET_ITER itself may leave a list and a
    position, which no variable can hold."""
    return ("LOAD_CONST", function), ("SWAP", 2), ("CALL", 0)


ROW = dataclasses.replace(
    cp314.ROW,
    version=(3, 15),
    iterator_slots=2,
    paired={"GET_ITER": 0, "GET_YIELD_FROM_ITER": 3},
    reads={
        **cp314.ROW.reads,
        "GET_ITER": _iterator,
        "IMPORT_NAME": lambda t, arg: (("IMPORT_NAME", t.names[arg >> 2]),),
        "POP_ITER": lambda t, arg: (("POP_TOP", None), ("POP_TOP", None)),
    },
    writes={
        **cp314.ROW.writes,
        "GET_ITER": lambda arg: _calling(iter),
        "GET_YIELD_FROM_ITER": lambda arg: _calling(delegate),
        "IMPORT_NAME": lambda name: (("IMPORT_NAME", (False, True, name)),),  # not lazily
    },
    resumes=7,
)
