"""Integers that the program computes from sizes by way of floats, such as ``int(x.size(0) * 0.5)``.

A size is a polynomial of symbols, and a product with a float is none. Where all sizes in it are those of one tensor
from outside, the integer is a symbol of its own, whose source computes it from that tensor with Python's own
arithmetic: for guards and, at each call, for the plan. Else the sizes are numbers, as with all else that Python
computes and the graph needs to know. As with sizes, 0 and 1 are always numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from .. import torch_private
from ..graph.dim_text import render
from ..graph.dims import Sym, free_symbols, hint
from ..runtime import facts, names
from . import source as src
from .dynamic import LARGEST

if TYPE_CHECKING:
    from ..graph.dims import Dim, IntExpr
    from .guards import Guards
    from .values.numbers import FloatValue

_FUNCTIONS = {f.__name__: f for f in (math.floor, math.ceil, math.trunc, int, round, float, max, min)}


class _NoSource(Exception):
    """It is not computed from the sizes of one tensor alone."""


class ComputedSizes:
    """Of one capture. ``guards``: its guards, whose integers get the symbols."""

    def __init__(self, guards: Guards) -> None:
        self.guards = guards

    def integer(self, value: FloatValue, fn: Callable) -> Dim | None:
        """A symbol for ``fn`` (such as ``math.floor``) of a float; None where there is none."""
        try:
            number = fn(value.value)
            text = _Text(self.guards.sizes.origins())
            return self._symbol(f"{fn.__name__}({text.of(value)})", text, number)
        except (_NoSource, ArithmeticError, ValueError):
            return None

    def scaled(self, size: Dim, factor: float) -> Dim | None:
        """A symbol for a size times a float, rounded down."""
        try:
            text = _Text(self.guards.sizes.origins())
            made = self._symbol(f"int({text.size(size)} * {factor!r})", text, int(hint(size) * factor))
        except _NoSource:
            return None
        if made is not None:
            for name in free_symbols(made):
                self.guards.sizes.env.origins.setdefault(name, self.guards.sizes.integers[name])
        return made

    def source(self, size: Dim) -> src.Source | None:
        """Where a guard finds a size that is made of those of one tensor."""
        try:
            text = _Text(self.guards.sizes.origins())
            computed = text.size(size)
            return None if text.tensor is None else src.Computed(text.tensor, _of_sizes, (computed,))
        except _NoSource:
            return None

    def _symbol(self, text: str, sizes: _Text, number: int) -> Dim | None:
        if sizes.tensor is None or not 1 < number < LARGEST:
            return None
        source = src.Computed(sizes.tensor, _of_sizes, (text,))
        integers, env = self.guards.sizes.integers, self.guards.sizes.env
        known = next((name for name, origin in integers.items() if origin == (source, "int")), None)
        if known is None:
            known = f"i{len(integers)}"
            integers[known] = (source, "int")
            self.guards.add(source, facts.TypeIs(int))
            env.require(Sym(known, number, env=env) - 2)  # type: ignore[arg-type]  # a symbol is no int
        return Sym(known, number, lo=2, hi=LARGEST, env=env)  # type: ignore[return-value]


class _Text:
    """Numbers as source text over ``x``, the one tensor whose sizes they are made of. ``origins``: symbol -> what it
    stands for."""

    def __init__(self, origins: dict) -> None:
        self.origins, self.tensor = origins, None

    def of(self, value) -> str:
        """A float or integer of the program's."""
        if value.is_leaf:
            number = value.value
            if type(number) not in (int, float, bool) or not math.isfinite(number):
                raise _NoSource
            return f"({number!r})"
        if value.symbolic is int:
            return self.size(value.dim)
        if value.fn is None:
            raise _NoSource  # a float from outside
        parts = [self.of(a) for a in value.args]
        if callable(value.fn):
            name = value.fn.__name__
            if getattr(math, name, None) is not value.fn and _FUNCTIONS.get(name) is not value.fn:
                raise _NoSource
            return f"{name}({', '.join(parts)})"
        return f"({value.fn}{parts[0]})" if len(parts) == 1 else f"({parts[0]} {value.fn} {parts[1]})"

    def size(self, e: IntExpr) -> str:
        return f"({render(e, 'py', {name: self._symbol(name) for name in free_symbols(e)})})"

    def _symbol(self, name: str) -> str:
        source, what, *dim = self.origins.get(name, (None, None))
        if what in ("size", "stride") and isinstance(source, src.Source):
            self._from(source)
            return f"{what}(x, {dim[0]})"
        if what == "int" and type(source) is src.Computed and source.maker is _of_sizes:
            self._from(source.of)
            return f"({source.arguments[0]})"
        raise _NoSource

    def _from(self, source: src.Source) -> None:
        if self.tensor not in (None, source) or not source.guarded:
            raise _NoSource
        self.tensor = source


def _of_sizes(text: str) -> Callable:
    """The function of a tensor that a text says."""
    known = {**vars(math), **_FUNCTIONS, "size": torch.Tensor.size, "stride": torch.Tensor.stride}

    compute = eval(f"lambda x: {text}", {"__builtins__": {}, **known})

    def read(tensor: torch.Tensor) -> int:
        with torch_private.WithoutFunctionOfClasses():
            return compute(tensor)

    return names.made(read, _of_sizes, text)
