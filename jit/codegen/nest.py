"""Fewer and longer axes for a kernel: those of one iteration dropped, and neighbours joined, so that loops are long and
indices simple."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Callable

from ..graph import dims
from . import loops

if TYPE_CHECKING:
    from .loops import Axis, Kernel


def without_ones(kernel: Kernel) -> Kernel:
    """The kernel without axes of one iteration; one reduction axis stays where there is any."""
    ones = {a.name: 0 for a in kernel.axes + kernel.raxes if type(a.extent) is int and a.extent == 1}
    axes, raxes = (tuple([a for a in group if a.name not in ones]) for group in (kernel.axes, kernel.raxes))
    return dataclasses.replace(kernel, axes=axes, raxes=raxes or kernel.raxes[-1:],
                               body=loops.substituted(kernel.body, ones))


def joined(kernel: Kernel, join: Callable) -> Kernel:
    """The kernel with neighbouring axes of a kind made one, where ``join(outer, inner, body)`` gives the axis that
    stands for both and the body over it, not None."""
    groups, body = (list(kernel.axes), list(kernel.raxes)), kernel.body
    for group in groups:
        i = len(group) - 2
        while i >= 0:
            found = join(group[i], group[i + 1], body)
            if found:
                group[i : i + 2], body = [found[0]], found[1]
            if not found or i == len(group) - 1:
                i -= 1
    return dataclasses.replace(kernel, axes=tuple(groups[0]), raxes=tuple(groups[1]), body=body)


def walked_as_one(outer: Axis, inner: Axis, body: tuple) -> tuple[Axis, tuple] | None:
    """The join of two axes that every expression walks as one."""
    for s in body:
        if not s.symbols.isdisjoint((outer.name, inner.name)):
            a, b = dims.coefficient(s.expression, outer.name), dims.coefficient(s.expression, inner.name)
            if a is None or b is None or not dims.structurally_equal(a, b * inner.extent):
                return None
    axis = loops.Axis(inner.name, outer.extent * inner.extent, inner.kind)
    return axis, loops.substituted(body, {outer.name: 0, inner.name: axis.sym})


def period(kernel: Kernel, axis: Axis) -> int | None:
    """The iterations after which what the indices of a kernel make of an axis repeats, where all that repeats does so
    after the same number of them, which divides the axis."""
    found = set() if type(axis.extent) is not int else {
        n for s in kernel.body if axis.name in s.symbols for n in dims.periods(s.expression, axis.name)}
    return next((n for n in found if axis.extent % n == 0), None) if len(found) == 1 else None


def unfolded(kernel: Kernel, shortest: int) -> Kernel:
    """The kernel with each parallel axis made two where indices walk it in periods of one length, of ``shortest``
    iterations or more: ``repeat`` along a row reads its input at ``i % n``, which an axis of ``n`` walks in order."""
    for axis in kernel.axes:
        n = period(kernel, axis)
        if n is None or n < shortest or n >= axis.extent:
            continue
        names = {a.name for a in kernel.axes + kernel.raxes}
        name = next(a for a in (f"{axis.kind}{i}" for i in range(len(names) + 1)) if a not in names)
        outer = loops.Axis(name, axis.extent // n, axis.kind)
        inner = loops.Axis(axis.name, n, axis.kind)
        at = kernel.axes.index(axis)
        body = loops.substituted(kernel.body, {axis.name: outer.sym * n + inner.sym})
        kernel = dataclasses.replace(kernel, axes=(*kernel.axes[:at], outer, inner, *kernel.axes[at + 1:]), body=body)
    return kernel


def collapse(kernel: Kernel) -> Kernel:
    """The kernel with neighbouring axes joined that every expression walks as one, and its axes numbered again."""
    kernel = joined(kernel, walked_as_one)
    axes, raxes = (tuple([dataclasses.replace(a, name=f"{a.kind}{i}") for i, a in enumerate(group)])
                   for group in (kernel.axes, kernel.raxes))
    renamed = {a.name: new.sym for a, new in zip(kernel.axes + kernel.raxes, axes + raxes) if a.name != new.name}
    if not renamed:
        return kernel
    return dataclasses.replace(kernel, axes=axes, raxes=raxes, body=loops.substituted(kernel.body, renamed))
