"""What a schedule is made of: kernels, as groups of graph nodes, and library calls, one interface for both.

A *root* is a computation that gets a place of its own in a kernel: a reduction, a value that must be stored, or one
that is too dear to compute in each of its readers. A *group* is a set of roots over one iteration space, that is, one
kernel. Whoever walks a schedule asks its steps for ``members``, ``reads``, ``may_fail`` and the like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

from .. import devices
from ..graph.op_info import op_info
from ..graph.prims import REDUCTIONS, SCANS, SCATTERS, info
from .indexing import FIXED, base_of, is_one, same
from .library_calls import computed_here, device_of, returns_alias

if TYPE_CHECKING:
    import torch

    from ..graph.ir import Node
    from .planner import Planner


class Root:
    """A computation placed in a group.

    ``source`` is evaluated at every point of ``domain`` (a shape); ``reduced`` are the domain's dimensions that it
    reduces or scans. ``node`` is the graph node that it (or, for one operand of a concatenation, a part of it)
    materialises. ``reads`` maps each base value outside the tree to its alignments in the domain, and ``through`` to
    the shapes and strides of views, with their alignments, where a dimension of it is several of the domain. ``place``
    maps domain dimensions to group dimensions.
    """

    __slots__ = ("node", "source", "domain", "reduced", "out_align", "reads", "through", "kept",
                 "size", "position", "group", "place", "after", "part", "strides", "offset")

    def __init__(self, node: Node, position: int, part: int | None = None) -> None:
        self.node, self.position, self.part = node, position, part
        self.source = node if part is None else node.inputs[part]
        self.reduced, self.after, self.group, self.place = (), False, None, None
        self.kept = None  # (dimension, start, length) of what is stored of a row
        self.domain = self.source.type.shape
        self.strides, self.offset = node.type.strides, 0
        if part is not None:
            dim = node.attrs["dim"]
            for earlier in node.inputs[:part]:
                self.offset = self.offset + earlier.type.shape[dim] * node.type.strides[dim]
        rank = len(self.domain)
        self.out_align = tuple(FIXED if is_one(s) else d for d, s in enumerate(self.domain))
        if node.op in REDUCTIONS and part is None:
            self.domain = node.inputs[0].type.shape
            rank = len(self.domain)
            self.reduced = tuple(d for d in node.attrs["dims"] if not is_one(self.domain[d]))
            kept = [d for d in range(rank) if node.attrs["keepdim"] or d not in node.attrs["dims"]]
            self.out_align = tuple(FIXED if d in node.attrs["dims"] or is_one(self.domain[d]) else d for d in kept)
        elif node.op in SCATTERS and part is None:  # over the values: data say where they go
            self.domain = node.inputs[1].type.shape
            self.out_align = (FIXED,) * node.type.rank
        elif node.op in SCANS and part is None:
            dim = node.attrs["dim"]
            self.domain = node.inputs[0].type.shape
            self.reduced = (dim,) if rank and not is_one(self.domain[dim]) else ()
            if "length" in node.attrs and self.reduced and not same(node.attrs["length"], self.domain[dim]):
                self.kept = dim, node.attrs["start"], node.attrs["length"]
                self.out_align = tuple(FIXED if d == dim else a for d, a in enumerate(self.out_align))

    @property
    def needs_row(self) -> bool:
        """Whether its value needs all of a row: a reduction or a scan."""
        return bool(self.reduced)

    def out_place(self) -> tuple[int, ...]:
        """Output dimension -> group dimension or FIXED."""
        return tuple(FIXED if d == FIXED else self.place[d] for d in self.out_align)

    def __repr__(self) -> str:
        return f"Root({self.node.name}:{self.node.op}{'' if self.part is None else f'[{self.part}]'})"


class Group:
    """Roots over one iteration space. ``dims``: extents (none is 1); ``reduced``: the dims that are reduction axes;
    ``reads``: all that the roots read; ``calls``: library calls that its kernel computes itself, with the template of
    each; ``lay_out``: what is done with that kernel (see ``epilogues``); ``readers``: the roots and library calls that
    run behind it because of what they read; ``columns``: the roots of a group of sums over columns that its kernel
    takes along, and of what reads these sums, as a group over the same dims."""

    waits = False
    __slots__ = ("dims", "reduced", "members", "mask", "anc", "device", "reads", "split", "position", "needs", "number",
                 "calls", "lay_out", "columns", "readers")

    may_alias = False

    def __init__(self, device: torch.device) -> None:
        self.device, self.dims, self.reduced, self.members = device, [], frozenset(), []
        self.mask = self.anc = self.position = 0
        self.needs, self.reads, self.split, self.readers = [], set(), None, []
        self.calls, self.lay_out, self.columns = {}, None, None

    def __repr__(self) -> str:
        return f"Group({self.members})"

    def library_results(self, parts: dict[Node, list[Node]]) -> tuple:
        return ()

    def outside(self, roots: dict[Node, list[Root]]) -> list[Node]:
        """The values that it reads from memory, once for each root that does."""
        return [node for m in self.members for node in m.reads
                if node.op == "cat" or not any(q.group is self for q in roots.get(node, ()))]

    def may_fail(self, checked: set[Node]) -> bool:
        """Whether the kernel reads at positions that tensors say, which it checks. One that stops by itself leaves
        nothing that could be run again. ``checked``: see ``failing.checked``."""
        if devices.backend(self.device).traps:
            return False
        return any(info(m.node.op).checks or not checked.isdisjoint(m.node.inputs) for m in self.members)

    def plan(self, planner: Planner, t: int) -> None:
        planner.run_kernels(self, t)


class LibraryCall:
    """A node that the library computes."""

    __slots__ = ("node", "mask", "anc", "reads", "position", "needs", "number", "readers")

    members = ()

    def __init__(self, node: Node, position: int) -> None:
        self.node, self.position, self.mask, self.anc, self.needs, self.readers = node, position, 0, 0, [], []
        self.reads = {base_of(i) for i in node.inputs}

    def __repr__(self) -> str:
        return f"LibraryCall({self.node.name}:{self.node.op})"

    @property
    def group(self) -> LibraryCall:
        """What it has become part of: itself, always."""
        return self

    @property
    def waits(self) -> bool:
        """Whether it only waits for what is under way."""
        return self.node.op == "aten_call" and op_info(self.node.attrs["target"]).waits

    @property
    def may_alias(self) -> bool:
        """Whether its results may share memory with its operands, and start anywhere in it."""
        return returns_alias(self.node)

    def library_results(self, parts: dict[Node, list[Node]]) -> Sequence[Node]:
        """The nodes that stand for its results. ``parts``: those that pick one of several results."""
        return parts.get(self.node, ()) if self.node.several else (self.node,)

    def outside(self, roots: dict[Node, list[Root]]) -> list[Node]:
        return [base_of(i) for i in self.node.inputs]

    def may_fail(self, checked: set[Node]) -> bool:
        """Always: the library may refuse values that it cannot compute with, and needs memory of its own. Kernels in
        its place do neither, where they stop by themselves."""
        if self.node.op != "aten_call":
            return False
        return not (computed_here(self.node) and devices.backend(device_of(self.node)).traps)

    def plan(self, planner: Planner, t: int) -> None:
        planner.call_library(self)


Step = Union[Group, LibraryCall]
