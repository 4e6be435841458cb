"""The text of kernels with neighbouring results for each point (``neighbours``): a vector is a second dimension of a
block, which ``_parts_<n>`` takes apart and ``_joined_<n>`` puts together. A thread has all of it, so that both are
nothing but registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import types
from .emit import EMITTERS, Emitter
from .neighbours import LENGTHS, Access, accesses
from .ops import helper

if TYPE_CHECKING:
    from ..loops import Load, Statement, Store
    from .tiling import Tiling


def _declare(n: int) -> None:
    """``_parts_n``: a block of vectors as a block for each of their elements; ``_joined_n``: the way back."""
    lines, halves = [], ["x"]
    while len(halves) < n:
        left, made = n // len(halves) // 2, []
        for h in halves:
            whole = h if left == 1 else f"tl.reshape({h}, [x.shape[0], {left}, 2])"
            lines.append(f"{h}0, {h}1 = tl.split({whole})")
            made += [f"{h}0", f"{h}1"]
        # The first halving tells the last bit of a place.
        halves = made
    order = {_place(h): h for h in halves}
    body = "\n    ".join(lines)
    helper(f"_parts_{n}", f"@triton.jit\ndef _parts_{n}(x):\n    {body}\n"
                          f"    return {', '.join(order[i] for i in range(n))}\n")
    given = [f"a{i}" for i in range(n)]
    text = _tree(given)
    helper(f"_joined_{n}", f"@triton.jit\ndef _joined_{n}({', '.join(given)}):\n"
                           f"    return tl.reshape({text}, [a0.shape[0], {n}])\n")


def _place(name: str) -> int:
    return sum(int(bit) << k for k, bit in enumerate(name[1:]))


def _tree(names: list[str]) -> str:
    """Blocks joined so that the last dimension tells the last bit of a block's number."""
    return names[0] if len(names) == 1 else f"tl.join({_tree(names[::2])}, {_tree(names[1::2])})"


for _n in LENGTHS:
    _declare(_n)


class VectorEmitter(Emitter):
    """The text of such a kernel, whose points are all one range."""

    def __init__(self, tiling: Tiling, *args: object) -> None:
        super().__init__(tiling, *args)
        self.vectors: dict[int, Access] = {}
        for access in accesses(self.kernel):
            first = next(iter(access.members.values()))
            if access.length > 1 and self.block["x"] > 1 and first.buffer in self.aligned:
                self.vectors.update((id(s), access) for s in access.members.values())
        self.left = {id(a): len(a.members) for a in self.vectors.values()}

    def statement(self, s: Statement) -> None:
        access = self.vectors.get(id(s))
        if access is None:
            super().statement(s)
        elif s.loaded:
            self._read(access)
        else:
            self._write(access)

    def _address(self, access: Access, s: Load | Store) -> str:
        pointer = self.address(s.buffer, access.start) + self._spread_over_mask(s)
        return f"({pointer})[:, None] + tl.arange(0, {access.length})[None, :]"

    def _read(self, access: Access) -> None:
        """The whole vector, at the first of its elements."""
        s = next(iter(access.members.values()))
        if self.left[id(access)] == len(access.members):
            text = self._address(access, s)
            mask = self.mask(self.varies[s.dst], s.mask)
            if mask:
                text += f", mask=({mask})[:, None]"
                if s.mask is not None:
                    dtype = self.kernel.buffer_of[s.buffer].dtype
                    other = types.constant if dtype is torch.float64 else types.literal
                    text += f", other={other(s.other, dtype)}"
            names = [self.names[access.members[i].dst] if i in access.members else "_" for i in range(access.length)]
            parts = self.helper(f"_parts_{access.length}")
            self.line(f"{', '.join(names)} = {parts}(tl.load({text}{self.eviction(s)}))")
        self.left[id(access)] -= 1

    def _write(self, access: Access) -> None:
        """The whole vector, at the last of its elements."""
        self.left[id(access)] -= 1
        if self.left[id(access)]:
            return
        s = access.members[0]
        values = ", ".join(self.full(access.members[i].value) for i in range(access.length))
        mask = self.mask(self._ranges(self.kernel.along(s)), s.mask)
        self.line(f"tl.store({self._address(access, s)}, {self.helper(f'_joined_{access.length}')}({values})"
                  + (f", mask=({mask})[:, None]" if mask else "") + self.written + ")")


EMITTERS["vectors"] = VectorEmitter
