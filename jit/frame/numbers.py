"""From symbolic floats to the native program (``runtime/numbers.py``) that computes them for a plan on each call."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from ..runtime.numbers import load_numbers
from .values.base import Value

if TYPE_CHECKING:
    from .emit import Emitter
    from .source import Source

_EXACT = 1 << 53


class NumberProgram:
    """Rows under construction. Each method gives the index of a row, or None for what a row cannot compute as Python
    does.

    Attributes:
        arguments: what the program is called with: values, to be emitted.
    """

    def __init__(self) -> None:
        self.rows: list[tuple] = []
        self.arguments: list = []
        self.known: dict = {}

    def argument(self, value: Source | SizeOf | Value) -> int:
        """The position of a value among the arguments."""
        key = ("argument", value.identity() if isinstance(value, Value) else value)
        if key not in self.known:
            self.known[key] = len(self.arguments)
            self.arguments.append(value)
        return self.known[key]

    def row(self, *row) -> int:
        """A row, made once."""
        key = (*row, math.copysign(1.0, row[1])) if row[0] == "const" else row
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append(row)
        return self.known[key]

    def const(self, number: float | int) -> int | None:
        if type(number) is not float and abs(number) > _EXACT:
            return None
        return self.row("const", float(number))

    def value(self, v: Value) -> int | None:
        """A symbolic float, an integer or a constant."""
        if v.is_leaf:
            return self.const(v.value)
        key = ("value", v.identity())
        if key not in self.known:
            before = len(self.rows), len(self.arguments), dict(self.known)
            row = v.row(self)
            if row is None:  # Python computes it
                rows, arguments, self.known = before
                del self.rows[rows:], self.arguments[arguments:]
                row = self.row("number", self.argument(v))
            self.known[key] = row
        return self.known[key]


@dataclasses.dataclass(frozen=True)
class SizeOf:
    """A size or stride of a tensor that is no input of the plan itself, as that of a wrapper around others."""

    source: Source
    what: str
    dim: int

    def emit(self, e: Emitter) -> None:
        e.load_size(self.source, self.what, self.dim)


def integer_of(origin: Source, what: str, *dim: int) -> Source | SizeOf:
    """What a plan is given for a symbol of this origin, with an ``emit``."""
    return origin if what == "int" else SizeOf(origin, what, *dim)


class Integers:
    """The integers of a plan some of which are halves of symbolic floats, as one argument.

    Args:
        origins: per integer (its source, what it is of that), or (symbolic float, "float_low" | "float_high").
    """

    def __init__(self, origins: list) -> None:
        self.program = NumberProgram()
        self.results = []
        for origin, kind, *dim in origins:
            self.results.append((kind.removeprefix("float_"), self.program.value(origin)) if is_half(kind)
                                else ("int", self.program.argument(integer_of(origin, kind, *dim))))

    def emit(self, e: Emitter) -> None:
        program = self.program
        e.load_or_give_up(self, load_numbers(len(program.arguments), program.rows, self.results),
                          [functools.partial(a.emit, e) for a in program.arguments])


def is_half(kind: str) -> bool:
    """Whether an integer of a kind is half of a symbolic float."""
    return kind.startswith("float_")
