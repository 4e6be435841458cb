"""Building and unpacking containers, and text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import messages
from ..cpython import NULL_FIRST
from ..executor import op
from ..library.builtin_functions import format_value
from ..values.base import Raised, is_sequence, type_name
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue
from ..values.mappings import dict_of_pairs, mapping_items
from ..values.sets import SetValue
from ..values.slices import SliceValue
from ..values.text import TensorText
from ...errors import Unsupported

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame
    from ..session import Session
    from ..values.base import Value


@op("BUILD_TUPLE")
def build_tuple(f: Frame, i: Instr) -> None:
    f.push(TupleValue(f.popn(i.arg)))


@op("BUILD_LIST")
def build_list(f: Frame, i: Instr) -> None:
    f.push(ListValue(f.popn(i.arg)))


@op("BUILD_SET")
def build_set(f: Frame, i: Instr) -> None:
    f.push(SetValue.of(f.s, f.popn(i.arg)))


@op("BUILD_MAP")
def build_map(f: Frame, i: Instr) -> None:
    flat = f.popn(2 * i.arg)
    f.push(dict_of_pairs(f.s, zip(flat[::2], flat[1::2])))


@op("BUILD_CONST_KEY_MAP")
def build_const_key_map(f: Frame, i: Instr) -> None:
    keys = f.pop().load(f.s)
    f.push(dict_of_pairs(f.s, zip(keys, f.popn(i.arg))))


@op("BUILD_STRING")
def build_string(f: Frame, i: Instr) -> None:
    parts = f.popn(i.arg)
    f.push(TensorText.join(f.s, parts))


@op("FORMAT_VALUE")
def format_op(f: Frame, i: Instr) -> None:
    conversion, has_spec = i.arg
    spec = f.pop() if has_spec else Constant("")
    f.push(format_value(f.s, f.pop(), conversion, spec))


@op("BUILD_SLICE")
def build_slice(f: Frame, i: Instr) -> None:
    parts = f.popn(i.arg)
    f.push(SliceValue(*parts, *[Constant(None)] * (3 - i.arg)))


@op("LIST_APPEND")
def list_append(f: Frame, i: Instr) -> None:
    value = f.pop()
    target = f.stack[-i.arg]
    target.extend(f.s, [value])
    target.changed(f.s, list.append, [value])


@op("LIST_EXTEND")
def list_extend(f: Frame, i: Instr) -> None:
    value = f.pop()
    target = f.stack[-i.arg]
    try:
        values = value.listed(f.s)
    except Raised as raised:
        if f.s.is_exception(raised.value, TypeError):
            cls = value.pytype(f.s)
            if not value.has_slot(f.s, "__iter__") and not is_sequence(cls):
                raise Raised(f.s.exception(TypeError(
                    f"Value after * must be an iterable, not {type_name(cls)}"))) from None
        raise
    target.extend(f.s, values)
    target.changed(f.s, list.extend, [TupleValue(values)])


@op("LIST_TO_TUPLE")
def list_to_tuple(f: Frame, i: Instr) -> None:
    f.push(TupleValue(f.pop().load(f.s)))


@op("SET_ADD")
def set_add(f: Frame, i: Instr) -> None:
    value = f.pop()
    target = f.stack[-i.arg]
    target.add(f.s, value)


@op("SET_UPDATE")
def set_update(f: Frame, i: Instr) -> None:
    given = f.pop()
    values = given.items_list(f.s)
    target = f.stack[-i.arg]
    entries = dict(target.load(f.s))
    for v in values:
        entries.setdefault(messages.set_element(f.s, v, target), v)
    if type(given) is SetValue or given.is_const() and isinstance(given.const(f.s), frozenset):
        target.update(f.s, entries, set.__ior__, [given])
    else:
        target.update(f.s, entries, set.update, [TupleValue(values)])


@op("MAP_ADD")
def map_add(f: Frame, i: Instr) -> None:
    value, key = f.pop(), f.pop()
    target = f.stack[-i.arg]
    target.plain_setitem(f.s, key, value)


@op("DICT_UPDATE")
def dict_update(f: Frame, i: Instr) -> None:
    pairs = mapping_items(f.s, f.pop())
    target = f.stack[-i.arg]
    for key, value in pairs:
        target.plain_setitem(f.s, key, value)


def _shown(callee) -> str:
    """A function as error texts show it: with its module, unless that is builtins."""
    if not callee.is_function:
        raise Unsupported("a keyword argument is given twice", kind="argument-error")
    module = callee.globals.get("__name__")
    return (f"{module}." if module and module != "builtins" else "") + f"{callee.qualname}()"


@op("DICT_MERGE")
def dict_merge(f: Frame, i: Instr) -> None:
    mapping = f.pop()
    if mapping.builtin is not dict and not hasattr(mapping.pytype(f.s), "keys"):
        raise Unsupported(f"{mapping.describe()} stands after ** in a call", kind="argument-error")
    pairs = mapping_items(f.s, mapping)
    target = f.stack[-i.arg]
    present = target.load(f.s)
    repeated = next((k for k in dict_of_pairs(f.s, pairs).entries if k in present), None)
    if repeated is not None:
        callee = f.stack[-i.arg - (2 if NULL_FIRST else 3)]
        text = f"{_shown(callee)} got multiple values for keyword argument {repeated!r}"
        raise Raised(f.s.exception(TypeError(text)))
    for key, value in pairs:
        target.plain_setitem(f.s, key, value)


@op("UNPACK_SEQUENCE")
def unpack_sequence(f: Frame, i: Instr) -> None:
    source = f.pop()
    values = unpack(f.s, source, i.arg)
    f.stack.extend(reversed(values))


def unpack(s: Session, source: Value, n: int) -> list[Value]:
    try:
        it = source.iter(s)
    except Raised as raised:
        cls = source.pytype(s)
        if s.is_exception(raised.value, TypeError) and not source.has_slot(s, "__iter__") and not is_sequence(cls):
            raise Raised(s.exception(TypeError(f"cannot unpack non-iterable {type_name(cls)} object"))) from None
        raise
    values = []
    for k in range(n):
        value = it.next(s)
        if value is None:
            raise Raised(s.exception(ValueError(f"not enough values to unpack (expected {n}, got {k})")))
        values.append(value)
    if it.next(s) is not None:
        counted = source.builtin in (tuple, list, dict) and source.pytype(s) is source.builtin
        raise Raised(s.exception(ValueError(messages.too_many(n, len(source.items_list(s)) if counted else None))))
    return values


@op("UNPACK_EX")
def unpack_ex(f: Frame, i: Instr) -> None:
    before, after = i.arg
    source = f.pop()
    try:
        values = source.items_list(f.s)
    except Raised as raised:
        if (source.has_slot(f.s, "__iter__") or is_sequence(source.pytype(f.s))
            or not f.s.is_exception(raised.value, TypeError)):
            raise
        raise Raised(f.s.exception(TypeError(
            f"cannot unpack non-iterable {type_name(source.pytype(f.s))} object"))) from None
    if len(values) < before + after:
        raise Raised(f.s.exception(ValueError(f"not enough values to unpack (expected at least {before + after}, got "
                                              f"{len(values)})")))
    middle = ListValue(values[before: len(values) - after])
    tail = values[len(values) - after:] if after else []
    f.stack.extend(reversed([*values[:before], middle, *tail]))
