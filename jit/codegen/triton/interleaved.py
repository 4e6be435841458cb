"""Accesses that lie interleaved in memory: what points of a kernel read or write at ``2 * x`` and at ``2 * x + 1``, as
pairs that are put side by side, rotary embeddings of pairs or every second element do.

Each of them alone takes every second element of the cache lines, one by one. Together they are one contiguous range,
which is read in whole vectors and split in registers, or joined there and written in whole vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph import dims
from .analysis import Group, interleaved
from .emit import EMITTERS, Emitter, bound_fits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..loops import Statement


class InterleavedEmitter(Emitter):
    """The text of a kernel whose last dimension is ``side``, with such accesses along it as one."""

    side = "x"

    def __init__(self, *args: object) -> None:
        self.groups: list = []
        super().__init__(*args)
        side = self.side
        if self.order[-1:] == [side] and not self.config.singly:
            self.groups = interleaved(self.kernel, "@" + side)
        self.group_of = {id(s): g for g in self.groups for s in g.members}
        self.counts = sorted({g.count for g in self.groups if g.step > 0})
        extent = self.extents.get(side, 1)
        if self.counts and not bound_fits((extent + self.block[side]) * self.counts[-1]):
            self.wide.add(side)

    def place(self, name: str, text: str) -> None:
        super().place(name, text)
        if name == self.side:
            self.places_of_all(lambda count: f"{text} * {count * self.block[name]}")

    def places_of_all(self, start: Callable[[int], str]) -> None:
        """The places that the accesses of a block, so many for each point, go through from ``start`` on."""
        side = self.side
        for count in self.counts:
            length = count * self.block[side]
            self.line(f"{side}_{count} = {start(count)} + {self.arange_of(side, length)}")
            if side in self.masked:
                self.line(f"{side}_{count}_in = {side}_{count} < {self.text(self.extents[side] * count)}")

    def statement(self, s: Statement) -> None:
        group = self.group_of.get(id(s))
        if group is None:
            super().statement(s)
        elif s is self.kernel.body[group.last if s.stored else group.first]:
            (self._write if s.stored else self._read)(group)

    def _access(self, group: Group, along: frozenset) -> tuple:
        """The address of a group of accesses that vary along these dimensions, their condition or None, and the shape
        of one of them. Where the order is turned around, each point's vector is a dimension of its own."""
        s = group.members[0]
        shape = [self.length[n] if n in along else 1 for n in self.order]
        if group.step < 0:
            mask, outer = self.mask(along), ", ".join(":" * len(self.order))
            inner = ", ".join(["None"] * len(self.order))
            return (f"({self.address(s.accessed, s.index)})[{outer}, None] + tl.arange(0, {group.count})[{inner}, :]",
                    mask and f"({mask})[{outer}, None]", shape)
        axis, name = "@" + self.side, f"{self.side}_{group.count}"
        x = next(a for a in self.kernel.axes + self.kernel.raxes if a.name == axis).sym
        saved = self.names[axis]
        self.names[axis] = name
        address = self.address(s.accessed, dims.subst(s.index, {axis: 0}) + x)
        self.names[axis] = saved
        mask = self.mask(along - {self.side})
        if self.side in self.masked:
            mask = f"{mask} & {name}_in" if mask else f"{name}_in"
        return address, mask, shape

    def _read(self, group: Group) -> None:
        names = [self.names[s.dst] for s in group.members]
        text, shape = self.read_together(group)
        self._split(f"tl.reshape({text}, {[*shape, *[2] * (group.count.bit_length() - 1)]})", names)

    def read_together(self, group: Group) -> tuple[str, list[int]]:
        """The load of all that a group reads, in its order in memory, and the shape of one of its members."""
        first = group.members[0]
        address, mask, shape = self._access(group, self.varies[first.dst])
        return f"tl.load({address}" + (f", mask={mask}" if mask else "") + self.eviction(first) + ")", shape

    def _split(self, text: str, names: list[str]) -> None:
        even, odd = names[::2], names[1::2]
        if len(names) == 2:
            self.line(f"{even[0]}, {odd[0]} = tl.split({text})")
            return
        halves = [f"{part[0]}_{len(part)}" for part in (even, odd)]
        self.line(f"{halves[0]}, {halves[1]} = tl.split({text})")
        self._split(halves[0], even)
        self._split(halves[1], odd)

    def _write(self, group: Group) -> None:
        first = group.members[0]
        along = self._ranges(self.kernel.along(first))
        address, mask, shape = self._access(group, along)
        dimensions = {n for n in self.order if n in along}
        values = [self.names[s.value] if self.varies[s.value] >= dimensions
                  else f"tl.broadcast_to({self.names[s.value]}, {shape})" for s in group.members]
        shape = [*shape, group.count] if group.step < 0 else [*shape[:-1], shape[-1] * group.count]
        self.line(f"tl.store({address}, tl.reshape({joined(values)}, {shape})" + (f", mask={mask}" if mask else "")
                  + (self.written if along >= self.points else "") + ")")


def joined(values: list[str]) -> str:
    """Values side by side, in their order, along dimensions of two behind their own."""
    return values[0] if len(values) == 1 else f"tl.join({joined(values[::2])}, {joined(values[1::2])})"


EMITTERS.update(dict.fromkeys(("flat", "strip"), InterleavedEmitter))
