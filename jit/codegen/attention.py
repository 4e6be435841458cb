"""Attention as kernels: what ``jit::attention`` and its backward compute, in the language of loops as far as that goes.

The axes are the rows of a batch together (``z``), queries (``y``), keys (``x``), the width of queries and keys (``r``)
and that of values (``d``). What is computed of a score is statements like those of any other kernel; scores, the
gradients of their functions' results and the results of the kernel are ``Given``: the layout (``triton.attention``)
computes them with products of blocks. Loads of operands are in the body for their addresses.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import config, devices
from ..graph import dims
from ..graph.ir import filled
from . import loops
from .apart import Apart
from .indexing import base_of, linear, offset_in_base
from .lower import Place, register_dtype

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Graph, Node
    from .buffers import Buffers

SCORE, GRADIENT, OUT, SUMS = 0, 1, 2, 3  # numbers of what is given; further results follow


@dataclass(frozen=True)
class Parts:
    """The names of a kernel's statements that a layout has to know: ``loads`` are those of whole operands by role;
    ``results`` by tree (any block, a block of which all is kept): the names of what it computes."""

    kind: str  # "forward", "keys" (gradients of keys and values) or "queries"
    loads: tuple
    results: tuple
    stores: tuple
    safe: bool
    far: bool
    side: int = 0

    def load(self, role: str) -> str | None:
        return dict(self.loads).get(role)


class _Tree(Apart):
    """Builds the statements of a graph apart, of which inputs are given or are values of the graph around it."""

    def __init__(self, places: Any, device: torch.device) -> None:
        super().__init__(places, device)
        self.names: dict[Node, str] = {}
        self.around: dict = {}
        self.outer: dict[Node, Node] = {}

    def value(self, node: Node, index: tuple[IntExpr, ...], mask: str | None = None) -> str:
        if node in self.names:
            return self.names[node]
        if node not in self.outer:
            return super().value(node, index, mask)
        mine, self._memo = self._memo, self.around  # graphs count their nodes apart
        try:
            return super().value(self.outer[node], index, mask)
        finally:
            self._memo = mine

    def operand(self, node: Node, batch: tuple[IntExpr, ...], row: IntExpr, column: IntExpr) -> str:
        """The load of a whole operand's element."""
        base = base_of(node)
        place = self.places(base)
        view = Place(place.storage, node.type.strides, place.offset + offset_in_base(node), place.dtype)
        return self.b.load(self.buffer(view.storage, view.dtype, False),
                           view.offset + linear((*batch, row, column), view.strides))


def kernels(node: Node, graph: Graph, buffers: Buffers, number: int) -> list[tuple[loops.Kernel, tuple]]:
    """The kernels of a call, each with what its buffers are."""
    results = {n.attrs["index"]: n for n in graph.nodes if n.op == "getitem" and n.inputs[0] is node}
    results = {k: n for k, n in results.items() if n in buffers.storages}
    args = list(filled(node.attrs["args"], node.inputs))
    if node.attrs["target"] == "jit::attention":
        return [_kernel("forward", f"k{number}", args, results, buffers)]
    found = []
    if 0 in results:
        found.append(_kernel("queries", f"k{number}", args, {0: results[0]}, buffers))
    if 1 in results or 2 in results:
        found.append(_kernel("keys", f"k{number + len(found)}", args, {1: results.get(1), 2: results.get(2)}, buffers))
    return found


def _unflattened(z: IntExpr, shape: tuple[IntExpr, ...]) -> tuple[IntExpr, ...]:
    index: list[IntExpr] = []
    for n in reversed(shape[1:]):
        index.insert(0, z % n)
        z = z // n
    return (z, *index) if shape else ()


def _kernel(kind: str, name: str, args: list, results: dict, buffers: Buffers) -> tuple[loops.Kernel, tuple]:
    q, k, v = args[:3]
    e = _Tree(buffers.place_of, q.type.device)
    b = e.b
    batch = q.type.shape[:-2]
    z, y, x = b.axis(dims.product(batch)), b.axis(q.type.shape[-2]), b.axis(k.type.shape[-2])
    r, d = b.axis(q.type.shape[-1], "r"), b.axis(v.type.shape[-1], "r")
    lead = _unflattened(z, batch)
    loads = [("q", e.operand(q, lead, y, r)), ("k", e.operand(k, lead, x, r)), ("v", e.operand(v, lead, x, d))]
    if kind == "forward":
        leaves, blocks, side, *trees, safe, far = args[3:]
    else:
        g, sums, rest, delta, leaves, blocks, side, *trees, safe = args[3:]
        far = rest is not None
        loads.append(("g", e.operand(g, lead, y, d)))
        for role, n in (("sums", sums), ("rest", rest), ("delta", delta)):
            if n is not None:
                loads.append((role, e.value(n, (*lead, y))))
    e.around = e._memo
    places = z + y + x
    found = []
    for tree in trees:
        if tree is None:
            continue
        s = b.given(SCORE, places, torch.float32)
        given = {tree.inputs[0]: _rounded(e, s, tree.inputs[0].type.dtype)}
        if kind != "forward":
            last = tree.inputs[-1].type.dtype
            given[tree.inputs[-1]] = _rounded(e, b.given(GRADIENT, places, torch.float32), last)
        e.names, e.outer = given, dict(zip(tree.inputs[1:], leaves))
        e._memo = {}
        outputs = []
        for o in tree.outputs:
            shape = o.node.type.shape
            value = e.value(o.node, (*_unflattened(z, shape[:-2]), y, x))
            outputs.append(b.cast(value, torch.float32))
        found.append(tuple(outputs))
    if blocks is not None:
        e._memo = e.around
        lead_of_x = _unflattened(z, trees[0].outputs[0].node.type.shape[:-2])
        loads.append(("blocks", _state(e, blocks, lead_of_x, y, x)))
    stores = []
    for k_, n in results.items():
        if n is not None:
            role = {"forward": ("out", "sums", "top", "rest"), "queries": ("q",), "keys": (None, "k", "v")}[kind][k_]
            at = {"out": (y, d), "sums": (y,), "top": (y,), "rest": (y,), "q": (y, r), "k": (x, r), "v": (x, d)}[role]
            stores.append((role, _store(e, n, (*lead, *at), OUT + k_, z + sum(at))))
    wanted = {n for outputs in found for n in outputs} | {n for _, n in loads} | {n for _, n in stores}
    b.body = _live(b.body, wanted)
    parts = Parts(kind, tuple(loads), tuple(found), tuple(stores), safe, far, side if blocks is not None else 0)
    made = loops.verify_addresses(b.finish(name))
    emitter = importlib.import_module(devices.backend(q.type.device).emitter.removesuffix("target") + "attention")
    return dataclasses.replace(made, layout=emitter.AttentionLayout(parts)), tuple(e.arguments)


def _rounded(e: _Tree, value: str, dtype: torch.dtype) -> str:
    """A value as one of the tree's dtype: of products of halves the sum in float32, if eager's bits are not asked
    for."""
    if dtype in loops.HALF:
        return e.round(value, dtype) if config.match_eager_rounding else value
    return e.b.cast(value, register_dtype(dtype))


def _state(e: _Tree, blocks: Node, lead: tuple[IntExpr, ...], y: IntExpr, x: IntExpr) -> str:
    """The load of a block's state, at the numbers of a block of queries and one of keys."""
    shape = blocks.type.shape[:-2]
    own = lead[len(lead) - len(shape):] if len(shape) <= len(lead) else lead
    index = tuple(0 if type(n) is int and n == 1 else i for n, i in zip(shape, own))
    return e.operand(blocks, index, y, x)


def _store(e: _Tree, node: Node, index: tuple[IntExpr, ...], number: int, expr: IntExpr) -> str:
    place = e.places(node)
    name = e.b.given(number, expr, place.dtype)
    e.b.store(e.buffer(place.storage, place.dtype, True), place.offset + linear(index, place.strides), name)
    return name


def _live(body: list, wanted: set[str]) -> list:
    live, kept = set(wanted), []
    for s in reversed(body):
        if s.effect or s.dst in live:
            live.update(s.uses)
            kept.append(s)
    return kept[::-1]


