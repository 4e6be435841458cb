"""Which memory each value of a schedule has, as far as it is decided: passes fill this in, one after the other (see
``Planner.schedule``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import indexing, memory
from .indexing import FIXED
from .lower import Place

if TYPE_CHECKING:
    import torch

    from ..graph.ir import Graph, Node, Output, TensorType
    from .fusion import Schedule
    from .groups import Group, Root


@dataclass(eq=False)
class Storage:
    """Memory behind a materialised value, which is needed from step ``first`` to step ``last``. ``kind``: input, extern
    (made by the library), alloc (a tensor of its own), temp (a part of the arena) or part (of ``whole``, from element
    ``offset`` on). ``loose``: it may start anywhere in another tensor."""

    kind: str
    slot: int
    type: TensorType
    first: int = -1
    last: int = -1
    nbytes: object = 0
    loose: bool = False
    whole: Storage | None = None
    offset: int = 0

    @property
    def dtype(self) -> torch.dtype:
        return self.type.dtype


@dataclass
class Buffers:
    """
    ``uses``: value -> numbers of the steps that read it from memory, the number behind the last one for the graph's
    results. ``aliased``: values whose memory results of the library may share. ``direct``: the graph's outputs that
    kernels write into their inputs; ``commits``: the numbers of these kernels' steps.
    """

    graph: Graph
    schedule: Schedule
    storages: dict[Node, Storage] = field(default_factory=dict)
    uses: dict[Node, list[int]] = field(default_factory=dict)
    aliased: set[Node] = field(default_factory=set)
    direct: set[Output] = field(default_factory=set)
    commits: set[int] = field(default_factory=set)
    partial: list[Storage] = field(default_factory=list)  # partial results of split reductions
    n_slots: int = 0

    def add(self, kind: str, type_: TensorType, first: int = -1, last: int = -1) -> Storage:
        """A storage with a slot of its own."""
        return Storage(kind, self.new_slot(), type_, first, last)

    def new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def place_of(self, node: Node) -> Place | None:
        """Where a value lies, for a kernel; None where it is not in memory."""
        s = self.storages.get(node)
        return None if s is None else Place(s, (s if s.kind == "input" else node).type.strides, 0, node.type.dtype)


def nbytes(t: TensorType) -> object:
    return memory.storage_numel(t) * t.dtype.itemsize


def in_step(group: Group, source: Node, root: Root, strides: tuple) -> bool:
    """Whether every read of ``source`` in the group is of the very element of memory that ``root`` stores, with these
    strides, in the same iteration."""
    stored = {p: s for p, s in zip(root.out_place(), strides) if p != FIXED}
    for m in group.members:
        for align in m.reads.get(source, ()):
            if align is None:
                return False
            read = {m.place[d]: s for d, s in zip(align, source.type.strides) if d != FIXED}
            if read.keys() != stored.keys() or not all(indexing.same(read[k], stored[k]) for k in read):
                return False
    return True
