"""Jumps, loops, return and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ...errors import Unsupported
from .. import both_ways
from ..assumptions import truth_at
from ..cpython import ITERATOR_SLOTS
from ..executor import NULL, Returned, Yielded, op
from ..values.base import Raised
from ..values.constant import Constant
from ..values.deferred import Deferred

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..values.base import Value


@op("JUMP")
def jump(f: Frame, i: Instr) -> int:
    return i.target


def truth(f: Frame, i: Instr, value: Value) -> bool:
    """Which way a conditional jump goes."""
    tensor = value.truth_of(f.s) if type(value) is Deferred else value
    if tensor is not None and tensor.is_tensor and tensor.known(f.s) is None:
        assumed = truth_at(f, i, tensor)
        if assumed is not None:
            return assumed
    return value.truth(f.s)


@op("POP_JUMP_IF_TRUE")
def pop_jump_if_true(f: Frame, i: Instr) -> int | None:
    return _jump(f, i, True)


@op("POP_JUMP_IF_FALSE")
def pop_jump_if_false(f: Frame, i: Instr) -> int | None:
    return _jump(f, i, False)


def _jump(f: Frame, i: Instr, wanted: bool) -> int | None:
    value = f.pop().asked_truth(f.s)
    try:
        return i.target if truth(f, i, value) is wanted else None
    except Unsupported as refusal:
        if not (value.is_tensor or value.is_read) or not refusal.kind.startswith("data-dependent"):
            raise
        return both_ways.followed(f, i, value, wanted, refusal)


@op("POP_JUMP_IF_NONE")
def pop_jump_if_none(f: Frame, i: Instr) -> int | None:
    return i.target if f.pop().is_nothing(f.s) else None


@op("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(f: Frame, i: Instr) -> int | None:
    return None if f.pop().is_nothing(f.s) else i.target


@op("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(f: Frame, i: Instr) -> int | None:
    if f.stack[-1].truth(f.s):
        return i.target
    f.pop()


@op("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(f: Frame, i: Instr) -> int | None:
    if not f.stack[-1].truth(f.s):
        return i.target
    f.pop()


@op("GET_ITER")
def get_iter(f: Frame, i: Instr) -> None:
    f.push(f.pop().iter(f.s))


@op("FOR_ITER")
def for_iter(f: Frame, i: Instr) -> int | None:
    value = f.stack[-ITERATOR_SLOTS].next(f.s)
    if value is None:
        f.popn(ITERATOR_SLOTS)
        return i.target
    f.push(value)


@op("RETURN_VALUE")
def return_value(f: Frame, i: Instr) -> NoReturn:
    raise Returned(f.pop())


@op("RETURN_GENERATOR")
def return_generator(f: Frame, i: Instr) -> None:
    f.push(Constant(None))


@op("YIELD_VALUE")
def yield_value(f: Frame, i: Instr) -> None:
    value = f.pop()
    f.pc += 1
    raise Yielded(value)


@op("GET_YIELD_FROM_ITER")
def get_yield_from_iter(f: Frame, i: Instr) -> None:
    value = f.pop()
    f.push(value.awaited(f.s) or value.iter(f.s))


@op("SEND")
def send(f: Frame, i: Instr) -> int | None:
    sent, receiver = f.pop(), f.stack[-ITERATOR_SLOTS]
    value, result = receiver.send(f.s, sent)
    f.push(result if value is None else value)
    return i.target if value is None else None


@op("END_SEND")
def end_send(f: Frame, i: Instr) -> None:
    value = f.pop()
    f.popn(ITERATOR_SLOTS)
    f.push(value)


@op("CLEANUP_THROW")
def cleanup_throw(f: Frame, i: Instr) -> None:
    """What ``yield from`` does with an exception of the generator that it delegates to: StopIteration ends it with a
    value."""
    error = f.stack[-1]
    if not f.s.is_exception(error, StopIteration):
        raise Raised(f.pop())
    f.popn(2 + ITERATOR_SLOTS)
    f.stack += [Constant(None), NULL][:ITERATOR_SLOTS]
    f.push(error.getattr(f.s, "value"))
