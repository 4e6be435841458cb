"""Integer expressions as a plan's register program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.dim_trees import fold
from ..graph.ir import origins_in

if TYPE_CHECKING:
    import torch
    from ..graph.dims import IntExpr
    from ..graph.ir import Node


class Registers:
    """Compiles IntExprs to registers; equal subexpressions share one.

    Symbols are read from the first input dimension (or stride) that is that symbol alone; a symbol that no input shows
    becomes an extra int argument, listed in ``int_symbols``.
    """

    _OPS = {"+": "add", "*": "mul", "//": "floordiv", "%": "mod", "max": "max", "min": "min"}

    def __init__(self, inputs: list[Node]) -> None:
        self.program: list[tuple] = []
        self.int_symbols: list[str] = []
        self._index: dict[tuple, int] = {}
        self._symbols = origins_in(inputs)

    def _emit(self, *instruction: Any) -> int:
        r = self._index.get(instruction)
        if r is None:
            r = self._index[instruction] = len(self.program)
            self.program.append(instruction)
        return r

    def symbol(self, name: str) -> int:
        """The register of a size symbol."""
        found = self._symbols.get(name)
        if found is None:
            found = self._symbols[name] = ("int", len(self.int_symbols))
            self.int_symbols.append(name)
        return self._emit(*found)

    def reg(self, e: IntExpr) -> int:
        """The register that holds ``e``."""
        return fold(e, lambda n: self._emit("const", n), lambda s: self.symbol(s.name),
                    lambda function, a, b: self._emit(self._OPS[function], a, b))

    def regs(self, values: tuple[IntExpr, ...]) -> tuple:
        return tuple(self.reg(v) for v in values)


def run(program: Sequence[tuple[Any, ...]], tensors: list[torch.Tensor], ints: tuple = ()) -> list:
    """The values of all registers, for tests: what the native runtime computes at the start of a call."""
    out = []
    for op, *a in program:
        if op == "const":
            out.append(a[0])
        elif op == "size":
            out.append(tensors[a[0]].size(a[1]))
        elif op == "stride":
            out.append(tensors[a[0]].stride(a[1]))
        elif op == "int":
            out.append(ints[a[0]])
        else:
            x, y = out[a[0]], out[a[1]]
            out.append({"add": x + y, "sub": x - y, "mul": x * y, "max": max(x, y),
                        "min": min(x, y)}[op] if op not in ("floordiv", "mod")
                       else x // y if op == "floordiv" else x % y)
    return out
