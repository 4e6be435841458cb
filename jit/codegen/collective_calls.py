"""Fewer copies for collectives, and where it is asked for fewer calls.

A functional collective copies what it is given, and works on the copy. Where nothing else reads the value, it works on
the value itself.

A collective costs the processor as much as ten kernels. With ``config.bucket_collectives`` those that follow each
other, need nothing of each other and do the same over the same processes are called at once, up to the bytes that
DistributedDataParallel puts in a bucket: where the last of them stands, and what reads an earlier one comes behind
that. That is not done unasked, since processes have to agree on it: one that runs a call in eager, because it is
compiled anew there for example, would call them one by one, and both would wait forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import config, torch_private
from ..graph.collectives import COALESCED, SPACE, WAIT
from ..graph.ir import Ref, Transform
from .indexing import VIEWS
from .library_calls import returns_alias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph.ir import Graph, Node

BUCKET_BYTES = 25 << 20
IN_PLACE = tuple(SPACE + name for name in ("all_reduce", "broadcast"))  # their results are as large as what they get


def in_fewer_steps(graph: Graph) -> Graph:
    """The graph, with collectives that are called in place, and together."""
    if not any(n.attrs["target"].startswith(SPACE) for n in graph.of_ops(("aten_call",))):
        return graph
    if config.bucket_collectives and (buckets := _buckets(graph)):
        graph = _Together(graph, buckets).run()
    return _InPlace(graph).run()


def _name(n: Node) -> str:
    """Which collective of one tensor a node starts; "" for none."""
    if n.op != "aten_call" or n.several or n.attrs["overload"] or not n.attrs["target"].startswith(SPACE):
        return ""
    name = n.attrs["target"][len(SPACE):]
    return name if name in torch_private.COALESCED_COLLECTIVES else ""


def _bytes(n: Node) -> int | None:
    sizes = n.inputs[0].type.shape
    if not all(type(s) is int for s in sizes):
        return None
    return n.inputs[0].type.numel * n.type.dtype.itemsize


def _buckets(graph: Graph) -> list[list[Node]]:
    """The collectives that are called together, in program order."""
    found: list[list[Node]] = []
    bucket: list[Node] = []
    behind: set[Node] = set()  # what needs one of the bucket
    filled = 0
    for n in graph.nodes:
        needs = not behind.isdisjoint(n.inputs)
        name = _name(n)
        if name and n.attrs["args"][0] == Ref(0) and (size := _bytes(n)) is not None:
            alike = bucket and (n.attrs["target"], n.attrs["args"], n.type.device) == (
                bucket[0].attrs["target"], bucket[0].attrs["args"], bucket[0].type.device)
            if needs or not alike or filled + size > BUCKET_BYTES:
                bucket, behind, filled = [], set(), 0
                if torch_private.coalesces(n.attrs["args"][-1], name):
                    found.append(bucket)
                    bucket.append(n)
            else:
                bucket.append(n)
            if bucket:
                behind.add(n)
                filled += size
        elif n.impure:
            bucket, behind, filled = [], set(), 0
        elif needs:
            behind.add(n)
    return [b for b in found if len(b) > 1]


class _Together(Transform):
    """Collectives of one bucket as one call, where the last of them stands."""

    def __init__(self, graph: Graph, buckets: list[list[Node]]) -> None:
        super().__init__(graph)
        self.buckets = {n: b for b in buckets for n in b}

    def order(self) -> Iterable[Node]:
        held: list[Node] = []  # what waits for the call of the bucket
        waiting: set[Node] = set()
        for n in self.graph.nodes:
            bucket = self.buckets.get(n)
            if bucket is not None and n is not bucket[-1]:
                waiting.add(n)
            elif bucket is not None:
                yield n
                yield from held
                held, waiting = [], set()
            elif waiting and not waiting.isdisjoint(n.inputs):
                held.append(n)
                waiting.add(n)
            else:
                yield n

    def visit(self, n: Node) -> Node:
        bucket = self.buckets.get(n)
        if bucket is None:
            return self.keep(n)
        tensors = tuple(self.new[m.inputs[0]] for m in bucket)
        operands = tuple(dict.fromkeys(tensors))
        args = (tuple(Ref(operands.index(t)) for t in tensors), *n.attrs["args"][1:])
        call = self.node("aten_call", operands, {**n.attrs, "target": n.attrs["target"] + COALESCED, "args": args},
                         tuple(m.type for m in bucket))
        for k, m in enumerate(bucket):
            self.new[m] = self.stands_for(self.node("getitem", (call,), {"index": k}, m.type, like=m), m)
        return self.new[n]


class _InPlace(Transform):
    """Collectives that work on what nothing else reads."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.users = graph.users()
        self.results = {o.node for o in graph.outputs}

    def visit(self, n: Node) -> Node:
        target = n.attrs["target"] if n.op == "aten_call" else ""
        plain = target.removesuffix(COALESCED)
        if plain in IN_PLACE and self._is_waited_for(n) and all(self._is_its_own(i) for i in n.inputs):
            return self.keep(n, attrs={**n.attrs, "target": target + "_"})
        return self.keep(n)

    def _is_waited_for(self, n: Node) -> bool:
        """Whether the memory is in use until a call has ended that the graph waits for."""
        readers = self.users[n]
        if n.several:
            return len(readers) == len(n.types) and all(self._is_waited_for(r) for r in readers)
        return n not in self.results and [r.attrs.get("target") for r in readers] == [WAIT]

    def _is_its_own(self, n: Node) -> bool:
        """Whether a value has memory that is written for its one reader."""
        while self._read_once(n) and n.op in VIEWS:
            n = n.inputs[0]
        if not self._read_once(n) or not n.inputs or n.op == "getitem":
            return False
        return n.op != "aten_call" or not returns_alias(n)

    def _read_once(self, n: Node) -> bool:
        return len(self.users[n]) == 1 and n not in self.results
