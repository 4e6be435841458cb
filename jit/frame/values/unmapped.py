"""Which tensors inside ``torch.vmap`` are mapped: those that a call has made from one that is, though no number of
theirs may differ from slice to slice, as those of ``x.new_zeros(3)`` do not. What is made from nothing that is mapped,
such as ``torch.zeros(3)``, or the sum of a tensor from outside, is one for all slices: it leaves the map expanded, and
PyTorch refuses to change it in place by what is mapped, in words that depend on the operation; the graph would give
each slice a tensor of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ...errors import Unsupported
from ...graph import mapping, maps, physical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...graph.dims import IntExpr
    from ...graph.handles import Base, TensorHandle
    from ..library.transforms import Level
    from ..session import Session
    from .base import Value


def _handles(s: Session, values: Iterable[Value]) -> Iterator[TensorHandle]:
    """The tensors among the arguments of a call."""
    for v in values:
        if v.is_tensor:
            yield v.handle(s)
        elif not v.is_plain:
            yield from _handles(s, v.nested(s) or ())


def _bases(s: Session, values: Iterable[Value]) -> Iterator[Base]:
    """Their memory."""
    return (handle.base for handle in _handles(s, values))


def _outside(base: Base, first: int) -> bool:
    """Whether memory comes from outside of a map that began with a number."""
    return base.version < first or base.input is not None


def mapped(s: Session, base: Base) -> frozenset[int]:
    """The numbers of the maps in which memory is mapped."""
    if base.mapped is None:
        nodes = s.tracer.builder.nodes
        s.journal.set_field(base, "mapped", frozenset(
            level.number for level in s.levels if level.randomness and base.node in maps.depends(nodes, level.number)))
    return base.mapped


def differs(s: Session, base: Base, number: int) -> bool:
    """Whether memory is mapped in the map of this number."""
    return number in mapped(s, base) or base.node in maps.depends(s.tracer.builder.nodes, number)


def slice_of(s: Session, whole: TensorHandle, number: int) -> TensorHandle:
    """One slice along the first dimension, as the function of a map sees it."""
    slice_ = mapping.enter(s.tracer, whole, number)
    slice_.base.mapped = mapped(s, whole.base) | {number}
    return slice_


def note(s: Session, args: Iterable[Value], result: Value) -> None:
    """A call inside of a map has given this."""
    levels = [level for level in s.levels if level.randomness]
    if not levels:
        return
    bases = list(_bases(s, args))
    found = frozenset().union(*[mapped(s, base) for base in bases])
    for base in _bases(s, [result]):
        if not any(base is b for b in bases) and not _outside(base, levels[0].first):
            base.mapped = found
    for level in levels:
        for base in bases if level.number in found else ():
            if (level.number not in base.mapped and not _outside(base, level.first)
                and base.node in maps.depends(s.tracer.builder.nodes, level.number)):
                raise Unsupported("a tensor that is not mapped is changed in place by one that is, inside torch.vmap",
                                  "use the operation that gives a new tensor", kind="functorch")


def lay_out(s: Session, fn: Callable, args: list, kwargs: dict, result: Value, start: int) -> None:
    """A call inside of maps has given this, which is laid out as by PyTorch's maps. ``start``: the number of the first
    node that it has made. Raises Unsupported where PyTorch refuses the call."""
    levels = [level for level in s.levels if level.randomness]
    if not levels or not all(level.entered for level in levels):
        return
    in_progress = [physical.Map(level.number, size(s, level), level.randomness) for level in levels]
    found, error = physical.asked(in_progress, fn, args, kwargs, lambda h: bool(mapped(s, h.base)))
    if error is not None:
        raise Unsupported("an operation that PyTorch refuses inside torch.vmap",
                          "nothing needs to be done: it runs in eager", kind="functorch")
    made = list(_handles(s, [result]))
    if found is not None and len(found) == len(made):
        for handle, of in zip(made, found):
            if physical.of(handle) is None:
                physical.lay_out(handle, of, start)


def size(s: Session, level: Level) -> IntExpr:
    """How many slices a map has."""
    return level.entered[0][-1].handle(s).shape[0]
