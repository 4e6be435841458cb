"""New values of the kinds that other kinds are made of. Values ask the session for them, so that no kind has to import
the kinds that stand above it."""

from __future__ import annotations

from .values.base import Value
from .values.constant import Constant
from .values.containers import ListValue, TupleValue
from .values.mappings import DictValue, InstanceDict
from .values.iterators import FunctionIterator, SequenceIterator
from .values.numbers import integer, scalar


class Makers:
    """The part of ``Session`` that makes values."""

    def tuple_of(self, values) -> TupleValue:
        return TupleValue(list(values))

    def list_of(self, values) -> ListValue:
        return ListValue(list(values))

    def dict_of(self, values: dict[str, Value]) -> DictValue:
        return DictValue({name: (Constant(name), value) for name, value in values.items()})

    def instance_dict(self, owner) -> InstanceDict:
        """``owner.__dict__``."""
        return InstanceDict(owner)

    def iterate(self, values, py: type | None = None) -> SequenceIterator:
        """An iterator over values; ``py``: its type."""
        return SequenceIterator(list(values), py=py)

    def iterate_by(self, step) -> FunctionIterator:
        """An iterator that gives what ``step(s)`` does, until that is None."""
        return FunctionIterator(step)

    def integer(self, n):
        """The value of an int or a Dim."""
        return integer(n)

    def scalar(self, value: Value):
        """A value as an int, float, bool or Dim for arithmetic."""
        return scalar(self, value)
