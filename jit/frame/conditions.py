"""What is relied on of numbers that change: how they compare, and not which they are.

``if momentum != 0`` holds for whatever momentum a schedule gives; the capture relies on the answer, which a guard asks
for again at each call (``facts.Numbers``). The same goes for numbers that are read off tensors on the CPU before the
graph runs, such as a step count. An answer that keeps changing is left to the interpreter in the end, like other facts
(``jit.frame.dynamic``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime import facts
from ..runtime.numbers import load_numbers
from .numbers import NumberProgram
from .source import Source

if TYPE_CHECKING:
    from .session import Session
    from .values.base import Value

# symbol -> (the row, whether its operands change places, whether its answer is the opposite)
_ROWS = {"<": ("<", False, False), ">": ("<", True, False), "<=": ("<=", False, False), ">=": ("<=", True, False),
         "==": ("==", False, False), "!=": ("==", False, True)}


def _source_of(s: Session, argument: object) -> Source | None:
    """Where the guard finds an argument of a program, or None."""
    if isinstance(argument, Source):
        return argument
    if argument.symbolic is int:
        origin = s.varying.origins().get(str(argument.dim))
        if origin is not None and origin[1] == "int" and isinstance(origin[0], Source):
            return origin[0]
        return s.varying.computed.source(argument.dim)
    return argument.source


def _relied_on(s: Session, program: NumberProgram, row: int, holds: bool, text: str) -> bool:
    """Rely on whether a row is other than zero, which ``holds`` says; False where that is no guard."""
    sources = tuple(_source_of(s, a) for a in program.arguments)
    if not sources or None in sources or s.varying.history is None:
        return False
    rows = tuple(program.rows)
    if not s.varying.history.takes(("condition", text, sources), holds):
        return False
    if not holds:
        row, rows = len(rows), (*rows, ("not", row))
    s.guards.add(sources[0], facts.Numbers(f"{text} is {holds}, of {', '.join(map(str, sources))}",
                                           load_numbers(len(sources), rows, (("high", row),)), sources))
    return True


def compared(s: Session, symbol: str, a: Value, b: Value) -> bool | None:
    """``a symbol b`` of two numbers of which one is a symbolic float, or None where it is no condition of a guard."""
    if symbol not in _ROWS:
        return None
    name, turned, opposite = _ROWS[symbol]
    program = NumberProgram()
    operands = [program.value(v) for v in ((b, a) if turned else (a, b))]
    if None in operands:
        return None
    x, y = (v.at_hand(s) for v in (a, b))
    if x is None or y is None:
        return None
    answer = {"<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y, "==": x == y, "!=": x != y}[symbol]
    row = program.row(name, *operands)
    return answer if _relied_on(s, program, row, answer != opposite, f"{_text(a)} {name} {_text(b)}") else None


def _text(v: Value) -> str:
    return repr(v.value) if v.is_leaf else v.describe()
