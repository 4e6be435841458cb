"""The fields of a version's row: bytecode first, and then what captured code can tell of the interpreter's C."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping

Steps = tuple[tuple[str, object], ...]  # instructions: (name, argument)


class Tables:
    """What arguments of original instructions index: constants, names, and the variables' slots in the frame."""

    __slots__ = ("consts", "names", "slots")

    def __init__(self, code: types.CodeType) -> None:
        self.consts, self.names = code.co_consts, code.co_names
        varnames = code.co_varnames
        self.slots = varnames + tuple(c for c in code.co_cellvars if c not in varnames) + code.co_freevars


@dataclasses.dataclass(frozen=True)
class Row:
    """How a version's bytecode is read and written.

    Attributes:
        version: (major, minor).
        null_first: a callable without a self has NULL below it on the stack, and not above.
        compare: bits of COMPARE_OP's argument below the operator.
        masks: whether these hold the mask of results that the specialising interpreter wants.
        reads: original opcode -> the canonical instructions of its argument; others are named alike.
        folded: original opcodes that are part of a neighbour.
        no_end_send: a finished SEND drops its receiver by itself, so that decoding puts an END_SEND there.
        pops_loop: what follows an END_FOR and is a part of it: a finished FOR_ITER skips the two, or does their work.
        iterator_slots: stack slots of the iterator of a loop or of a ``yield from``. The second one is NULL (or, in
            frames of the interpreter's own, the position in a list or tuple that stands in the first).
        paired: canonical op -> the argument of the GET_ITER that it and a PUSH_NULL behind it are together.
        exit_slots: stack slots of what leaves a ``with`` block: a method and its self (or a callable and NULL) where
            there are two.
        always_kwargs: CALL_FUNCTION_EX takes keyword arguments, or NULL, each time.
        resumes: the bits of RESUME's argument that say where.
        has_docstring: the flag of code whose first constant is a docstring; 0 where a str there is always one.
        call: the original steps of a CALL, of (number of arguments, names of keywords).
        writes: canonical op -> the original steps of its argument, by canonical arguments; others are named alike.
        directed: conditional jumps have one form for each direction; elsewhere they only go forward.
        tests: the instruction that makes a bool, which conditional jumps and UNARY_NOT want; None where they do it.
        jump_or_pop: JUMP_IF_TRUE_OR_POP and JUMP_IF_FALSE_OR_POP are there.
        end_for: what an exhausted FOR_ITER has to jump to, or None for anything.
        yields: what YIELD_VALUE is given, of the canonical argument.
        throws_into_delegates: ``generator.throw`` itself ends a ``yield from`` whose delegate has come to its end by
            it, and no CLEANUP_THROW does.
        sorts_by_truth: ``list.sort`` takes the truth of ``reverse``, and not its value as a C int.
        subset_looks_up: ``set.issubset`` looks up the elements of what is no set, and makes none of them.
    """

    version: tuple[int, int]
    null_first: bool
    compare: int
    masks: bool
    reads: Mapping[str, Callable[[Tables, int], Steps]]
    folded: frozenset[str]
    no_end_send: bool
    pops_loop: str | None
    iterator_slots: int
    paired: Mapping[str, int]
    exit_slots: int
    always_kwargs: bool
    resumes: int
    has_docstring: int
    call: Callable[[int, tuple], Steps]
    writes: Mapping[str, Callable[[object], Steps]]
    directed: bool
    tests: str | None
    jump_or_pop: bool
    end_for: str | None
    yields: Callable[[int | None], int]
    throws_into_delegates: bool
    sorts_by_truth: bool
    subset_looks_up: bool
