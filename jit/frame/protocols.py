"""Python's protocols for operators, as CPython has them: in which order the slots of two operands are asked, and what
holds where none of them answers.

A kind of value fills in the slots (``values/base.py``): ``number``, ``inplace``, ``concat``, ``repeat``, ``unary``,
``compare``, ``contains``. A slot answers None for ``NotImplemented``. Source: CPython's ``Objects/abstract.c`` and
``do_richcompare`` in ``Objects/object.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..runtime import facts
from . import messages
from .operators import BINARY, COMPARE, Binary, Comparison, Unary
from .values.base import Raised, Value, is_made_by_program, type_name
from .values.constant import Constant

if TYPE_CHECKING:
    from .session import Session


def binary_op(s: Session, op: Binary, a: Value, b: Value) -> Value:
    """``a op b``, or ``a op= b``."""
    result = a.inplace(s, op, b) if op.inplace is not None else None
    if result is None:
        result = number_op(s, op, a, b)
    if result is None and op.symbol == "+" and not a.by_class(s, op.forward):
        result = a.concat(s, op, b)
    if result is None and op.symbol == "*":
        result = a.repeat(s, op, b)
        if result is None and (op.inplace is None or not _has_sequence_methods(a.pytype(s))):
            result = b.repeat(s, BINARY["*"], a)
    if result is not None:
        return result
    if a.is_const() and b.is_const():
        return s.fold(op.fn, [a, b], {})
    raise Raised(s.exception(TypeError(
        f"unsupported operand type(s) for {op.shown}: '{type_name(a.pytype(s))}' and '{type_name(b.pytype(s))}'")))


def _has_sequence_methods(cls: type) -> bool:
    """Whether a type has any of the C methods of a sequence, for which ``*=`` does not ask the right operand. Those
    made by a class statement have all of them."""
    return is_made_by_program(cls) or hasattr(cls, "__len__")


def number_op(s: Session, op: Binary, a: Value, b: Value) -> Value | None:
    """What the number slots of two operands give: the right one's comes first where it overrides the left one's."""
    for value in (b, a) if b.overrides(s, op.reflected, a) else (a, b):
        result = value.number(s, op, a, b)
        if result is not None:
            return result
    return None


def unary_op(s: Session, op: Unary, a: Value) -> Value:
    result = a.unary(s, op)
    return s.fold(op.fn, [a], {}) if result is None else result


def rich_compare(s: Session, op: Comparison, a: Value, b: Value) -> Value:
    """``a < b`` and the like; the result is not turned into a bool."""
    sides = ((a, op, b), (b, op.swapped, a))
    for value, asked, other in reversed(sides) if b.derives(s, a) else sides:
        result = value.compare(s, asked, other)
        if result is not None:
            return result
    if op.equality is not None:
        return Constant(_identical(s, a, b) == op.equality)
    if a.is_const() and b.is_const():
        return s.fold(op.fn, [a, b], {})
    raise Raised(s.exception(TypeError(f"'{op.symbol}' not supported between instances of "
                                       f"'{type_name(a.pytype(s))}' and '{type_name(b.pytype(s))}'")))


def _identical(s: Session, a: Value, b: Value) -> bool:
    """Equality of objects that define none, guarded."""
    for v in (a, b):
        if v.source is not None:
            v.pytype(s)
    return same_object(s, a, b)


def same_or_equal(s: Session, a: Value, b: Value) -> bool:
    """The comparison that containers use: identity first, then equality."""
    if a is b or type(a) is not Constant and type(b) is not Constant and a.identity() == b.identity():
        return True
    return rich_compare(s, COMPARE["=="], a, b).truth(s)


def contains(s: Session, container: Value, item: Value) -> bool:
    """``item in container``: its own method, or a walk over its iterator."""
    found = container.contains(s, item)
    if found is not None:
        return found
    return search(s, iterate(s, container, messages.not_a_container(container.pytype(s))), item)


def iterate(s: Session, iterable: Value, refusal: str) -> Value:
    """``iter(iterable)`` for C code that has its own words for what is no iterable."""
    try:
        return iterable.iter(s)
    except Raised as raised:
        if not s.is_exception(raised.value, TypeError):
            raise
        raise Raised(s.exception(TypeError(refusal))) from None


def length_hint(s: Session, v: Value) -> None:
    """What ``PyObject_LengthHint`` asks of an object: what is no length is passed over where it is a TypeError."""
    try:
        if v.has_slot(s, "__len__"):
            v.length(s)
            return
    except Raised as raised:
        if not s.is_exception(raised.value, TypeError):
            raise
    if not v.has_special(s, "__length_hint__"):
        return
    try:
        found = v.call_special(s, "__length_hint__", [])
    except Raised as raised:
        if not s.is_exception(raised.value, TypeError):
            raise
        return
    if found.is_const() and found.const(s) is NotImplemented:
        return
    if found.exact_int() is None:
        raise Raised(s.exception(TypeError(f"__length_hint__ must be an integer, not {type_name(found.pytype(s))}")))
    if found.exact_int() < 0:
        raise Raised(s.exception(ValueError("__length_hint__() should return >= 0")))


def search(s: Session, iterator: Value, item: Value) -> bool:
    """Whether an iterator comes to something that is ``item`` or equal to it."""
    while (element := iterator.next(s)) is not None:
        if same_or_equal(s, element, item):
            return True
    return False


def same_object(s: Session, a: Value, b: Value) -> bool:
    """``a is b``; what the answer rests on is guarded."""
    if type(a) is Constant and type(b) is Constant:
        return _same_constant(s, a, b)
    x, y = a.identity(), b.identity()
    if x == y:
        return x is not None
    numbers = a.exact_int(), b.exact_int()
    if None not in numbers:
        if not numbers[0] == numbers[1]:
            return False
        if -5 <= a.index(s) <= 256:  # CPython has one object for each of these
            return True
        raise Unsupported("two equal integers are compared with `is`", "compare them with ==", kind="operator")
    for p, q in ((a, b), (b, a)):
        p.told_apart(s, q)
    if a.source is not None and b.source is not None and type(a) is not Constant and type(b) is not Constant:
        s.guards.add(a.source, facts.Distinct(b.source))
    return False


def _same_constant(s: Session, a: Constant, b: Constant) -> bool:
    same = a.value is b.value
    if a.source is not None and b.source is not None:
        s.guards.add(a.source, facts.Same(b.source) if same else facts.Distinct(b.source))
        return same
    if a.source is None:
        a, b = b, a
    if a.source is not None:
        if same:
            s.guards.add(a.source, facts.identity(a.value))
        elif type(a.value) is not type(b.value):
            a.pytype(s)
        else:
            s.guards.add(a.source, facts.IsNot(b.value))
    return same
