"""Sizes that are symbols, as integers that PyTorch computes with: a ``torch.SymInt`` takes any object that answers for
it, and here that is an integer expression of ours (``graph.dims``). So what PyTorch makes of the sizes of stand-ins
(``frame.stand_ins``) are expressions, and what it asks about them becomes a fact as when a rule of ours asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..graph.dims import Dim, specialize

if TYPE_CHECKING:
    from ..graph.dims import IntExpr


class SizeNode:
    """What a ``torch.SymInt`` or a ``torch.SymBool`` asks. ``value``: an int, a Dim, or a bool."""

    def __init__(self, value: IntExpr) -> None:
        self.value = value

    def is_int(self) -> bool:
        return type(self.value) is not bool

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_float(self) -> bool:
        return False

    is_nested_int = is_constant = is_float

    def has_hint(self) -> bool:
        return True

    is_symbolic = has_hint

    def maybe_as_int(self) -> int | None:
        return self.value if type(self.value) is int else None

    def nothing(self) -> None:
        return None

    constant_int = constant_bool = nested_int = nested_int_coeff = nothing

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(number)

    wrap_bool = wrap_int

    def clone(self) -> SizeNode:
        return self

    def decided(self, *where: object) -> bool:
        return bool(self.value)

    guard_bool = bool_ = guard_or_false = guard_or_true = statically_known_true = decided
    expect_true = guard_size_oblivious = decided

    def plain(self, *where: object) -> int:
        return specialize(self.value)

    guard_int = int_ = plain

    def text(self) -> str:
        return str(self.value)

    _graph_repr = str = text

    def add(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value + other.value)

    def sub(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value - other.value)

    def mul(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value * other.value)

    def floordiv(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value // other.value)

    int_floordiv = floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.value % other.value)

    def neg(self) -> SizeNode:
        return SizeNode(-self.value)

    def eq(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value == other.value))

    def ne(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value != other.value))

    def gt(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value > other.value))

    def ge(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value >= other.value))

    def lt(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value < other.value))

    def le(self, other: SizeNode) -> SizeNode:
        return SizeNode(bool(self.value <= other.value))

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self if bool(self.value >= other.value) else other

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self if bool(self.value <= other.value) else other

    def sym_and(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.decided() and other.decided())

    def sym_or(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.decided() or other.decided())

    def sym_not(self) -> SizeNode:
        return SizeNode(not self.value)


def to_torch(size: IntExpr) -> Any:
    """A size as an argument of PyTorch."""
    return torch.SymInt(SizeNode(size)) if type(size) is Dim else size


def from_torch(size: Any) -> IntExpr:
    """A size that PyTorch gives."""
    return size.node.value if isinstance(size, torch.SymInt) and isinstance(size.node, SizeNode) else int(size)
