"""Structural pattern matching."""

from __future__ import annotations

import collections.abc
from typing import TYPE_CHECKING

from .. import protocols
from ..executor import op
from ..library.class_checks import is_instance, matches
from ..values.base import Raised
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..canonical import Instr
    from ..executor import Frame

_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@op("MATCH_SEQUENCE")
def match_sequence(f: Frame, i: Instr) -> None:
    f.push(Constant(matches(f.s, f.stack[-1], collections.abc.Sequence)))


@op("MATCH_MAPPING")
def match_mapping(f: Frame, i: Instr) -> None:
    f.push(Constant(matches(f.s, f.stack[-1], collections.abc.Mapping)))


@op("MATCH_KEYS")
def match_keys(f: Frame, i: Instr) -> None:
    keys, subject = f.stack[-1].items_list(f.s), f.stack[-2]
    values = []
    for key in keys:
        if subject.builtin is dict:
            entry = subject.load(f.s).get(key.hash_key(f.s))
            value = None if entry is None else entry[1]
        else:
            value = subject.getitem(f.s, key) if protocols.contains(f.s, subject, key) else None
        if value is None:
            f.push(Constant(None))
            return
        values.append(value)
    f.push(TupleValue(values))


@op("MATCH_CLASS")
def match_class(f: Frame, i: Instr) -> None:
    names, cls, subject = f.pop().items_list(f.s), f.pop(), f.pop()
    if not is_instance(f.s, subject, cls):
        f.push(Constant(None))
        return
    real, attrs = cls.const(f.s), []
    if i.arg:
        if real in _SELF_MATCHING:
            attrs.append(subject)
        else:
            f.s.class_lookup(real, "__match_args__")
            order = getattr(real, "__match_args__", ())
            if len(order) < i.arg:
                raise Raised(f.s.exception(TypeError(
                    f"{real.__name__}() accepts {len(order)} positional sub-pattern{'' if len(order) == 1 else 's'} "
                    f"({i.arg} given)")))
            names = [Constant(n) for n in order[: i.arg]] + names
    for name in names:
        try:
            attrs.append(subject.getattr(f.s, name.const(f.s)))
        except Raised as raised:
            if not f.s.is_exception(raised.value, AttributeError):
                raise
            f.push(Constant(None))
            return
    f.push(TupleValue(attrs))
