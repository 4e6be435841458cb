"""Records kept as compressed bytes until somebody asks for them: what an entry has to have at hand, but seldom reads,
such as the steps that its plan was loaded from and the graph behind its gradients.

Plain constants, tuples, the records of classes that were registered with ``by_value`` and, where that is asked for,
lists, dicts, sets and slices are written; every other object is kept as it is, and is the same one when the record is
read.
"""

from __future__ import annotations

import dataclasses
import io
import operator
import pickle
import zlib
from typing import Any

from jit import turns
from jit.runtime.naming import Naming
from jit.runtime.names import Name, Value, calling, rule
from jit.runtime.steps import fields_of

_PLAIN = {type(None), bool, int, float, complex, str, tuple}
_CONTAINERS = {dict, list, slice}
_values: set[type] = set()


def by_value(*classes: type) -> None:
    """Have records of these classes written: they can be pickled, or are frozen dataclasses, and nobody asks which of
    two equal ones it is."""
    _values.update(classes)


def _made(cls: type, *values: object) -> object:
    """A frozen dataclass of its fields."""
    record: Any = object.__new__(cls)
    for field, value in zip(fields_of(cls), values, strict=True):
        object.__setattr__(record, field, value)
    return record


def _kept(place: int) -> object:
    """Stands in the bytes for the reader's ``kept[place]``."""
    raise NotImplementedError


class _Writer(pickle.Pickler):
    """Writes containers too. The pickler asks about none of these, nor about numbers and texts."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.kept: list[object] = []

    def reducer_override(self, obj: object) -> Any:
        turns.point()
        cls = type(obj)
        if cls in _values:
            if dataclasses.is_dataclass(cls) and cls.__reduce__ is object.__reduce__:
                return _made, (cls, *[self.field(getattr(obj, field)) for field in fields_of(cls)])
            return NotImplemented
        if obj is _kept or obj is _made or cls in _PLAIN or cls in _CONTAINERS:
            return NotImplemented
        self.kept.append(obj.value if isinstance(obj, _Whole) else obj)  # once: the pickler remembers that it has
        return _kept, (len(self.kept) - 1,)

    def field(self, value: object) -> object:
        """What is written of a part of a record."""
        return value


class _WriterOfRecords(_Writer):
    """Keeps containers as they are. The pickler does not ask about those, so they are written as something else."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.whole: dict[int, _Whole] = {}

    def field(self, value: object) -> object:
        if type(value) is tuple:
            fields = [v if type(v) is int else self.field(v) for v in value]
            return value if all(map(operator.is_, fields, value)) else tuple(fields)
        if type(value) in _PLAIN or type(value) in _values:
            return value
        return self.whole.setdefault(id(value), _Whole(value))


class _Whole:
    """Stands for an object that is kept."""

    def __init__(self, value: object) -> None:
        self.value = value


class _Reader(pickle.Unpickler):
    kept: tuple[object, ...]

    def find_class(self, module: str, name: str) -> Any:
        return self.kept.__getitem__ if name == _kept.__name__ else super().find_class(module, name)


class Packed:
    """A record, which ``packed()`` gives: a new one that is equal to it each time. ``containers``: the lists, dicts,
    sets and slices in it are new ones too. Raises RecursionError for one that is nested too deeply."""

    __slots__ = ("data", "kept")

    def __init__(self, record: object, containers: bool = False) -> None:
        file = io.BytesIO()
        writer = _Writer(file) if containers else _WriterOfRecords(file)
        writer.dump(writer.field(record))
        self.data, self.kept = zlib.compress(file.getvalue(), 1), tuple(writer.kept)

    def __call__(self) -> Any:
        reader = _Reader(io.BytesIO(zlib.decompress(self.data)))
        reader.kept = self.kept
        return reader.load()


def packed_of(data: bytes, *kept: object) -> Packed:
    """A record of the bytes and the objects that it was packed as."""
    packed: Packed = object.__new__(Packed)
    packed.data, packed.kept = data, kept
    return packed


@rule(Packed)
def _name_of_packed(naming: Naming, packed: Packed) -> Name:
    """The bytes as they are: what they hold has no name but constants and what classes of ours are made of."""
    return calling(packed_of, Value(packed.data), *map(naming.data, packed.kept))
