"""Groups that are alike are lowered once: the layers of a network are one kernel each time, over other memory.

What lowering may know of a group is written down as its *structure*: the nodes from its roots to the values that lie
in memory, under numbers, each with its op, attributes and type; which of them lie in which memory, under a number too;
and how the group walks over them. A kernel is made of the structure alone, from nodes that are made of it, so whatever
is not part of it cannot matter. Where the numbers of memory stand among a kernel's arguments, each group has its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..graph.dims import Dim
from ..graph.ir import Node
from ..turns import point
from . import fusion, lower
from .groups import Group, Root
from .indexing import VIEWS
from .loops import index_key
from .lower import Lowered, Place

if TYPE_CHECKING:
    from .buffers import Storage


class _Value(NamedTuple):
    """A node: the number of its kind (op, attributes and type), those of its inputs, and the memory in which it lies,
    with the number of the strides there, -1 for those of its type; memory -1 is none."""

    kind: int
    inputs: tuple[int, ...]
    memory: int
    strides: int


class _Member(NamedTuple):
    """A root: its node, the number of the place at which it begins in it, -1 for all of it, and what ``groups.Root``
    says of it. A part of a concatenation has a node of its own, of its operand alone."""

    node: int
    offset: int
    place: tuple[int, ...]
    after: bool
    reads: tuple[tuple[int, frozenset], ...]


class _Walk(NamedTuple):
    """How a group goes over its members, of which these are the numbers."""

    members: tuple[int, ...]
    dims: int
    reduced: frozenset[int]
    split: str | None


class _Structure(NamedTuple):
    device: torch.device
    values: tuple[_Value, ...]
    members: tuple[_Member, ...]
    walk: _Walk
    columns: _Walk | None


class Alike:
    """Lowers groups, and remembers what became of each structure.

    Args:
        storages: node -> the memory in which its value lies.
    """

    def __init__(self, storages: dict[Node, Storage]) -> None:
        self.storages = storages
        self.parts: list[Any] = []  # what numbers in structures stand for
        self._numbers: dict[Hashable, int] = {}
        self._kinds: dict[Node, int] = {}
        self._lowered: dict[_Structure, list[Lowered]] = {}

    def lower(self, group: Group, name: str) -> list[Lowered]:
        """As ``lower_group``. Arguments are storages, and the keys of partial results. ``name``: of the kernels, if
        they are new."""
        point()
        found = _Description(self, group)
        lowered = self._lowered.get(found.structure)
        if lowered is None:
            lowered = self._lowered[found.structure] = self._made(found.structure, name)
        own = found.memory
        return [Lowered(one.kernel, [own[a] if type(a) is int else a for a in one.arguments], one.partials)
                for one in lowered]

    def number(self, key: Hashable, what: Any) -> int:
        """The number that stands for ``what``, the same for an equal ``key``."""
        found = self._numbers.setdefault(key, len(self.parts))
        if found == len(self.parts):
            self.parts.append(what)
        return found

    def sizes(self, values: Iterable) -> int:
        values = tuple(values)
        return self.number(("sizes", *map(index_key, values)), values)

    def kind(self, n: Node) -> int:
        """The number of what a node computes, from whatever it reads."""
        found = self._kinds.get(n)
        if found is None:
            attrs = tuple([(k, _exact(v)) for k, v in n.attrs.items()]) if n.attrs else ()
            found = self._kinds[n] = self.number((n.op, attrs, n.type), (n.op, n.attrs, n.type))
        return found

    # what is lowered

    def _made(self, structure: _Structure, name: str) -> list[Lowered]:
        nodes: list[Node] = []
        places: dict[Node, Place] = {}
        for k, (kind, inputs, memory, strides) in enumerate(structure.values):
            op, attrs, type_ = self.parts[kind]
            n = Node(k, op, tuple([nodes[i] for i in inputs]), attrs, type_)
            nodes.append(n)
            if memory >= 0:
                places[n] = Place(memory, type_.strides if strides < 0 else self.parts[strides], 0, type_.dtype)
        roots = []
        for k, m in enumerate(structure.members):
            root = Root(nodes[m.node], k, None if m.offset < 0 else 0)
            if m.offset >= 0:
                (root.offset,) = self.parts[m.offset]
            root.place, root.after, root.reads = m.place, m.after, {nodes[i]: set(aligns) for i, aligns in m.reads}
            roots.append(root)
        group = self._group(structure.device, structure.walk, roots)
        if structure.columns is not None:
            group.columns = self._group(structure.device, structure.columns, roots)
        stored = {m.node: places[m.node] for m in roots if m.node in places}
        return lower.lower_group(group, places.get, stored, name)

    def _group(self, device: torch.device, walk: _Walk, roots: list[Root]) -> Group:
        group = Group(device)
        group.members, group.dims = [roots[k] for k in walk.members], list(self.parts[walk.dims])
        group.reduced, group.split = walk.reduced, walk.split
        return group


class _Description:
    """Writes down the structure of a group.

    Attributes:
        memory: the storages that its numbers stand for.
    """

    def __init__(self, alike: Alike, group: Group) -> None:
        self.alike, self.memory = alike, []
        self._memory: dict[Storage, int] = {}
        self._values: list[_Value] = []
        self._numbers: dict[Node, int] = {}
        self._members = {m.node for m in group.members if m.part is None}
        members = tuple([self._member(m, bool(group.split)) for m in group.members])
        self.structure = _Structure(
            group.device, tuple(self._values), members, self._walk(group, tuple(range(len(members)))),
            None if group.columns is None else self._walk(
                group.columns, tuple([group.members.index(m) for m in group.columns.members])))

    def _walk(self, group: Group, members: tuple[int, ...]) -> _Walk:
        return _Walk(members, self.alike.sizes(group.dims), group.reduced, group.split)

    def _member(self, m: Root, split: bool) -> _Member:
        if m.part is None:
            node, offset = self.value(m.node), -1
        else:
            node = self._add(m.node, self.alike.kind(m.node), [self.value(m.source)])
            offset = self.alike.sizes((m.offset,))
        # Into how many pieces rows are cut depends on how they are read.
        reads = tuple([(self.value(n), frozenset(aligns)) for n, aligns in m.reads.items()]) if split else ()
        return _Member(node, offset, m.place, m.after, reads)

    def value(self, n: Node) -> int:
        """The number of a node, with all that it is computed from here."""
        found = self._numbers.get(n)
        if found is not None:
            return found
        if n.op in VIEWS and n in self.alike.storages:  # memory of its own
            kind, inputs = self.alike.number(("input", n.type), ("input", {}, n.type)), []
        elif n not in self.alike.storages or n in self._members or n.op in VIEWS or n.op in fusion.SOURCES:
            kind, inputs = self.alike.kind(n), [self.value(i) for i in n.inputs]
        else:  # read from memory, where nothing matters but its type, and the numbers that say how large it may be
            kind = self.alike.number((n.op, n.type), (n.op, {}, n.type))
            inputs = [self.value(i) for i in n.inputs if i.op in fusion.SOURCES]
        found = self._numbers[n] = self._add(n, kind, inputs)
        return found

    def _add(self, n: Node, kind: int, inputs: Iterable[int]) -> int:
        memory = strides = -1
        s = self.alike.storages.get(n)
        if s is not None:
            memory = self._memory.get(s, -1)
            if memory < 0:
                memory = self._memory[s] = len(self.memory)
                self.memory.append(s)
            if s.kind == "input" and s.type is not n.type:
                strides = self.alike.sizes(s.type.strides)
        self._values.append(_Value(kind, tuple(inputs), memory, strides))
        return len(self._values) - 1


def _exact(value: Any) -> Hashable:
    """A key for what stands in an attribute, in which 1, 1.0 and True differ, and 0.0 and -0.0."""
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value
    if kind is tuple:
        return (tuple, *map(_exact, value))
    if kind is Dim:
        return index_key(value)
    return kind, repr(value) if kind in (float, complex) else value
