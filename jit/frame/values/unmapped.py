"""Tensors that a function inside ``torch.vmap`` makes from nothing that is mapped, such as ``torch.zeros(3)``, or
the sum of a tensor from outside: one for all slices. PyTorch refuses to change such a tensor in place by what is
mapped, in words that depend on the operation; the graph would give each slice a tensor of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Unsupported
from ...graph import maps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...graph.handles import Base
    from ..session import Session
    from .base import Value


def _bases(s: Session, values: Iterable[Value]) -> Iterator[Base]:
    """The memory of the tensors among the arguments of a call."""
    for v in values:
        if v.is_tensor:
            yield v.handle(s).base
        elif not v.is_plain:
            yield from _bases(s, v.nested(s) or ())


def _outside(base: Base, first: int) -> bool:
    """Whether memory comes from outside of a map that began with a number."""
    return base.version < first or base.input is not None


def note(s: Session, args: Iterable[Value], result: Value) -> None:
    """A call inside of a map has given this."""
    bases = list(_bases(s, args))
    first = min((level.first for level in s.levels if level.randomness), default=None)
    if first is not None and all(b.unmapped or _outside(b, first) for b in bases):
        for base in _bases(s, [result]):
            base.unmapped = base.unmapped or not _outside(base, first)
    for base in bases:
        if base.unmapped and any(level.randomness and base.node in maps.depends(s.tracer.builder.nodes, level.number)
                                 for level in s.levels):
            raise Unsupported("a tensor that is not mapped is changed in place by one that is, inside torch.vmap",
                              "use the operation that gives a new tensor", kind="functorch")
