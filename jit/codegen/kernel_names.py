"""Names of kernels: of the function in a binary, and of a step of a plan that runs it (``jit.shown`` says why these are
two)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import shown
from ..graph.prim_info import QUOTIENT
from ..graph.prims import base_of, info
from ..observing import Place

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .loops import Kernel

_MOST_WORDS = 4


def of_function(kernel: Kernel, *kind: str) -> str:
    """The name of a kernel's function in a binary: its operations, which follow from its structure alone. Kernels of
    other structures may have the same one."""
    words: list[str] = []
    for s in kernel.body:
        word = s.prim or s.combine
        label = info(s.prim).label if s.prim else None
        word = word if label is None else label
        if word and (not words or words[-1] != word):
            words.append(word)
    return "_".join(["jit", *kind, *words[:6]])[:60] if words else "_".join(["jit", *kind, "copy"])


def of_step(origins: Iterable[Any], backward: bool) -> str:
    """The name of a step that runs kernels of these groups and nodes: the program's operations that they compute, and
    the place of the first one."""
    nodes: dict[Node, None] = {}
    for origin in origins:
        nodes |= computed(origin)[0]
    found = places(nodes)
    file, line = found[0][:2] if found else ("", 0)
    return shown.kernel(words(nodes) or ("copy",), file, line, backward)


def computed(origin: Any) -> tuple[dict[Node, None], dict[Node, None]]:
    """The nodes that the kernel of a group, or of a node, computes, in order, and those that it reads."""
    members = getattr(origin, "members", None)
    if members is None:
        return {origin: None}, dict.fromkeys(origin.inputs)
    reads = {node: None for m in members for node in m.reads}
    found: dict[Node, None] = {}
    waiting = [*(m.node for m in members), *origin.calls]
    own = set(waiting)
    pieces: dict[Node, list[Node]] = {}  # concatenations -> the operands that this kernel puts in their places
    for m in members:
        if m.part is not None:
            pieces.setdefault(m.node, []).append(m.node.inputs[m.part])

    def operands(node: Node) -> Sequence[Node]:
        return pieces.get(node, node.inputs)

    while waiting:
        node = waiting.pop()
        if node not in found and (node in own or not _is_read(node, reads, own)):
            found[node] = None
            waiting += [i for i in operands(node) if i.op != "input"]
    order = sorted(found, key=lambda n: n.id)
    return dict.fromkeys(order), reads | {i: None for n in order for i in operands(n) if i.op == "input"}


def _is_read(node: Node, reads: Container[Node], own: Container[Node]) -> bool:
    """Whether a node is there before a kernel that reads these, and computes library calls of its ``own``."""
    kind = info(node.op).kind
    return (node in reads or base_of(node) in reads or kind == "call"
            or kind == "part" and node.inputs[0] not in own)


def places(nodes: Iterable[Node]) -> tuple[Place, ...]:
    """Where in the program nodes stand."""
    return tuple(dict.fromkeys(Place(*(n.loc.user or n.loc)[:3]) for n in nodes if n.loc is not None))


def what(node: Node) -> str:
    """The name of a node's operation."""
    return node.attrs["target"].removeprefix("aten::") if node.op == "aten_call" else node.op


def words(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The operations of the program that tell most of what nodes compute, each once, in order: those that cost more
    than arithmetic does are named before others."""
    cheap: dict[str, bool] = {}
    for n in nodes:
        record = info(n.op)
        if record.kind in ("number", "source", "copy", "view"):
            continue
        name = (n.loc.call if n.loc is not None and n.loc.call else what(n)).rstrip("_")
        cheap[name] = cheap.get(name, True) and record.kind == "pointwise" and record.cost.cpu <= QUOTIENT.cpu
    kept: Sequence[str] = sorted(cheap, key=cheap.__getitem__)[:_MOST_WORDS]
    return tuple(name for name in cheap if name in kept)
