"""CPython 3.12: intrinsics, methods as a bit of LOAD_ATTR, END_FOR and END_SEND, jumps forward."""

from __future__ import annotations

import dataclasses
import opcode
from collections.abc import Callable

from . import cp311
from .row import Steps, Tables
from .symbols import INTRINSIC_OPS


def _attribute(t: Tables, arg: int) -> Steps:
    return (("LOAD_METHOD" if arg & 1 else "LOAD_ATTR", t.names[arg >> 1]),)


def _returned(t: Tables, arg: int) -> Steps:
    return ("LOAD_CONST", t.consts[arg]), ("RETURN_VALUE", None)


def _intrinsic(arity: int) -> Callable[[Tables, int], Steps]:
    op = f"CALL_INTRINSIC_{arity}"
    names = [n.removeprefix(f"INTRINSIC_{arity}_").removeprefix("INTRINSIC_")
             for n in getattr(opcode, f"_intrinsic_{arity}_descs", ())]

    def read(t: Tables, arg: int) -> Steps:
        own = INTRINSIC_OPS.get(names[arg])
        return ((own, None) if own else (op, names[arg]),)

    return read


def _call(count: int, kwnames: tuple) -> Steps:
    return (("KW_NAMES", kwnames), ("CALL", count)) if kwnames else (("CALL", count),)


ROW = dataclasses.replace(
    cp311.ROW,
    version=(3, 12),
    compare=4,
    masks=True,
    reads={**cp311.ROW.reads, "LOAD_ATTR": _attribute, "RETURN_CONST": _returned, "CALL_INTRINSIC_1": _intrinsic(1),
           "CALL_INTRINSIC_2": _intrinsic(2)},
    folded=frozenset({"CACHE"}),
    no_end_send=False,
    call=_call,
    writes={op: lambda arg, arity=2 if op == "PREP_RERAISE_STAR" else 1, name=name: (
        (f"CALL_INTRINSIC_{arity}", name),) for name, op in INTRINSIC_OPS.items()},
    directed=False,
    jump_or_pop=False,
    end_for="END_FOR",
    yields=lambda arg: arg or 0,
    throws_into_delegates=False,
    sorts_by_truth=True,
    subset_looks_up=True,
)
