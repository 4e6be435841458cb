"""Programs of numbers: what a plan's integers are computed from when they are floats that change between calls, with
Python's own results.

A program is called with Python floats, ints and tensors of one element, and gives its results as the bytes of native
int64 values, which a plan takes in place of its ints. It gives None where Python's arithmetic would raise or give
something else than a float, for integers that a double does not hold exactly, and for finite numbers that float32
cannot hold, which eager refuses as operands of narrower tensors. Rows, each a double that later rows may read::

    ("const", float)   ("number", argument)   ("item", argument)          # of a tensor on the CPU: what item() gives
    ("+" | "-" | "*" | "/" | "**", row, row)   ("neg", row)   ("sqrt", row)   # as Python and math have them
    ("add32" | "sub32" | "mul32", row, row)   ("round32", row)              # as tensors of float32 have them
    ("<" | "<=" | "==", row, row)   ("not", row)                            # 1 or 0
    ("call", function, rows)                                                # a Python function of floats

A condition of a guard is such a program whose results are all other than zero (``facts.Numbers``).

Results: ("int", argument) | ("low", row) | ("high", row), the halves of a double's bits as signed 32-bit integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Callable

from jit.runtime import native
from jit.runtime.naming import Naming
from jit.runtime.names import Name, calling, rule


def load_numbers(n_arguments: int, rows: Iterable[tuple], results: Iterable[tuple]) -> Callable[..., bytes | None]:
    """The native callable of a program. Raises ValueError or TypeError saying which row is wrong."""
    return native().load_numbers(n_arguments, tuple(rows), tuple(results))


@rule("jit.runtime.native.Numbers")
def _name_of_numbers(naming: Naming, program: Any) -> Name:
    return calling(load_numbers, *map(naming.data, program.data))


def unpack(results: bytes) -> tuple:
    """The int64 values in what a program gives."""
    return struct.unpack(f"{len(results) // 8}q", results)
