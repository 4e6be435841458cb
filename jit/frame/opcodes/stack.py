"""The stack itself, operators and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Unsupported
from .. import protocols
from ..executor import NULL, op
from ..operators import BINARY, COMPARE, INPLACE, UNARY
from ..values.base import lookup
from ..values.constant import Constant
from ..values.slices import SliceValue

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


@op("NOP", "RESUME", "COPY_FREE_VARS", "END_FOR")
def nop(f: Frame, i: Instr) -> None:
    return None


@op("POP_TOP")
def pop_top(f: Frame, i: Instr) -> None:
    f.pop()


@op("COPY")
def copy(f: Frame, i: Instr) -> None:
    f.push(f.stack[-i.arg])


@op("SWAP")
def swap(f: Frame, i: Instr) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


@op("PUSH_NULL")
def push_null(f: Frame, i: Instr) -> None:
    f.push(NULL)


@op("LOAD_CONST")
def load_const(f: Frame, i: Instr) -> None:
    f.push(f.s.from_python(i.arg))


@op("BINARY_OP")
def binary_op(f: Frame, i: Instr) -> None:
    b, a = f.pop(), f.pop()
    f.push(protocols.binary_op(f.s, (INPLACE if i.arg[1] else BINARY)[i.arg[0]], a, b))


@op("UNARY_NEGATIVE")
def unary_negative(f: Frame, i: Instr) -> None:
    f.push(protocols.unary_op(f.s, UNARY["-"], f.pop()))


@op("UNARY_POSITIVE")
def unary_positive(f: Frame, i: Instr) -> None:
    f.push(protocols.unary_op(f.s, UNARY["+"], f.pop()))


@op("UNARY_INVERT")
def unary_invert(f: Frame, i: Instr) -> None:
    f.push(protocols.unary_op(f.s, UNARY["~"], f.pop()))


@op("UNARY_NOT")
def unary_not(f: Frame, i: Instr) -> None:
    f.push(Constant(not f.pop().truth(f.s)))


@op("COMPARE_OP")
def compare_op(f: Frame, i: Instr) -> None:
    b, a = f.pop(), f.pop()
    f.push(protocols.rich_compare(f.s, COMPARE[i.arg], a, b))


@op("IS_OP")
def is_op(f: Frame, i: Instr) -> None:
    b, a = f.pop(), f.pop()
    f.push(Constant(protocols.same_object(f.s, a, b) != bool(i.arg)))


@op("CONTAINS_OP")
def contains_op(f: Frame, i: Instr) -> None:
    container, item = f.pop(), f.pop()
    f.push(Constant(protocols.contains(f.s, container, item) != bool(i.arg)))


@op("BINARY_SUBSCR")
def binary_subscr(f: Frame, i: Instr) -> None:
    key, obj = f.pop(), f.pop()
    f.push(obj.getitem(f.s, key))


def refuses_tensor(s: Session, obj: Value, key: Value, method: str) -> None:
    """A sequence that cannot be changed asks a tensor for its value as an index before it says so."""
    if key.is_tensor and not lookup(obj.pytype(s), method)[0]:
        raise Unsupported(f"a tensor is the index of {obj.describe()}", "index with an int",
                          kind="data-dependent-value")


@op("STORE_SUBSCR")
def store_subscr(f: Frame, i: Instr) -> None:
    key, obj, value = f.pop(), f.pop(), f.pop()
    refuses_tensor(f.s, obj, key, "__setitem__")
    obj.setitem(f.s, key, value)


@op("DELETE_SUBSCR")
def delete_subscr(f: Frame, i: Instr) -> None:
    key, obj = f.pop(), f.pop()
    refuses_tensor(f.s, obj, key, "__delitem__")
    obj.delitem(f.s, key)


@op("BINARY_SLICE")
def binary_slice(f: Frame, i: Instr) -> None:
    stop, start, obj = f.pop(), f.pop(), f.pop()
    f.push(obj.getitem(f.s, SliceValue(start, stop, Constant(None))))


@op("STORE_SLICE")
def store_slice(f: Frame, i: Instr) -> None:
    stop, start, obj, value = f.pop(), f.pop(), f.pop(), f.pop()
    obj.setitem(f.s, SliceValue(start, stop, Constant(None)), value)


@op("GET_LEN")
def get_len(f: Frame, i: Instr) -> None:
    f.push(f.s.integer(f.stack[-1].length(f.s)))
