"""Several kernels as one: a program looks by its number which of them it belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from ..loops import Kernel
from ..template import Layout
from . import analysis
from .emit import Source, emit
from .tiling import thin, simplify

SMALL = 1 << 16  # points of a kernel that takes no longer than its launch


def kind_of(kernel: Kernel) -> str | None:
    """Of which kind a kernel is: those of one kind may be one launch; None for one that stays alone."""
    if kernel.layout is not None or kernel.sizes or not all(type(a.extent) is int and a.extent
                                                            for a in kernel.axes + kernel.raxes):
        return None
    return _kind(kernel.key, kernel)


_known: dict[str, str | None] = {}


def _kind(key: str, kernel: Kernel) -> str | None:
    if key not in _known:
        if len(_known) > 4096:
            _known.clear()
        if analysis.counted(kernel):  # it may ask for memory, and wants the threads that it was laid out for
            _known[key] = None
            return None
        small = math.prod(a.extent for a in kernel.axes + kernel.raxes) <= SMALL
        _known[key] = "thin" if kernel.raxes and thin(simplify(kernel)) else "small" if small else None
    return _known[key]


@dataclass(frozen=True)
class SideBySide(Layout):
    """``parts``: the kernels; ``names``: of their buffers, among those of the whole."""

    parts: tuple[Kernel, ...]
    names: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        return f"SideBySide({', '.join(p.key for p in self.parts)})"

    def emit(self, kernel: Kernel, aligned: Collection[str] | None, interpret: bool) -> Source:
        sources = []
        for part, names in zip(self.parts, self.names):
            own = None if aligned is None else {b.name for b, n in zip(part.buffers, names) if n in aligned}
            sources.append(emit(part, aligned=own, interpret=interpret))
        text, calls, arguments, divisible, first = [], [], [], [], 0
        for i, s in enumerate(sources):
            own = [f"k{i}_b{k}" for k in range(len(s.arguments))]
            text.append(_part(s, i))
            calls += [f"    {'el' if i else ''}if program < {first + s.grid}:" if i < len(sources) - 1 else "    else:",
                      f"        part_{i}({', '.join([f'program - {first}' if first else 'program', *own])})"]
            divisible += [len(arguments) + p for p in s.divisible]
            arguments += s.arguments
            first += s.grid
        names = ", ".join(f"k{i}_b{k}" for i, s in enumerate(sources) for k in range(len(s.arguments)))
        function = f"{sources[0].function}_and_{len(sources) - 1}"
        text += [f"\n\n@triton.jit\ndef {function}({names}):\n    program = tl.program_id(0)\n", "\n".join(calls), "\n"]
        return Source("".join(text), function, tuple(arguments), tuple(divisible), first,
                      max(s.warps for s in sources), max(s.stages for s in sources),
                      fused=all(s.fused for s in sources))


def _part(s: Source, i: int) -> str:
    """The text of a kernel as a function that is given the program's number."""
    text = s.text.replace("tl.program_id(0)", "program")
    head = re.compile(rf"^def {s.function}\((.*)\):\n", re.MULTILINE)
    return head.sub(lambda m: f"def part_{i}(program, {m[1]}):\n", text, count=1) + "\n"
