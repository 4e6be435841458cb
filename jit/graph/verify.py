"""A check of everything that a well-formed graph promises. Run after every pass in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph.dims import Dim, hint, structurally_equal
from jit.graph.ir import Graph, Ref, TensorType, same_ints
from jit.graph.nested import of_kind
from jit.graph.prim_info import PRIMS
from jit.graph.prims import infer, strides_agree

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.ir import Node


class InvalidGraph(AssertionError):
    """The graph breaks a rule; the message names the node."""


def _same_sizes(a: tuple[IntExpr, ...], b: tuple[IntExpr, ...]) -> bool:
    """Whether sizes or strides are the same, be it only by what is guarded: symbols that are equal for the tensors at
    hand."""
    return len(a) == len(b) and all(structurally_equal(x, y) or Dim in (type(x), type(y)) and hint(x) == hint(y)
                                    for x, y in zip(a, b))


class Known:
    """Nodes that were checked, so that those of which a pass changes nothing are not checked again after it."""

    def __init__(self) -> None:
        self._of: dict[tuple, tuple] = {}  # identities of what a check reads -> those objects, which keeps them

    def add(self, node: Node) -> bool:
        """Note what a check of a node reads. -> whether that was not known before"""
        read = (node.type, *(i.type for i in node.inputs), *node.attrs.values())
        key = (node.op, *node.attrs, *map(id, read))
        return self._of.setdefault(key, read) is read


def verify(graph: Graph, known: Known | None = None) -> Graph:
    """Return the graph, or raise InvalidGraph: order, arity, attributes, shapes, dtypes, strides of views, outputs.

    Args:
        known: of checks of graphs before this one, where these have passed.
    """
    seen: set = set()
    ids: set = set()
    for node in graph.nodes:
        _check_place(node, seen)
        if known is None or known.add(node):
            _check_node(node)
        if node.id in ids:
            raise InvalidGraph(f"two nodes have id {node.id}")
        ids.add(node.id)
        seen.add(node)
    for index, node in enumerate(graph.inputs):
        if node.op != "input" or node.attrs["index"] != index or node not in seen:
            raise InvalidGraph(f"input {index} is {node}")
    written = set()
    for o in graph.outputs:
        if o.node not in seen:
            raise InvalidGraph(f"output {o.node} is not in the graph")
        if o.node.several:
            raise InvalidGraph(f"output {o.node} has several results")
        if o.mutates is not None:
            if o.mutates in written:
                raise InvalidGraph(f"input {o.mutates} is written twice")
            written.add(o.mutates)
            target = graph.inputs[o.mutates].type
            if (not same_ints(o.node.shape, target.shape) or o.node.dtype != target.dtype
                or o.node.device != target.device):
                raise InvalidGraph(f"{o.node} does not fit into input {o.mutates}: {target}")
    return graph


def _check_place(node: Node, seen: set[Node]) -> None:
    for i in node.inputs:
        if i not in seen:
            raise InvalidGraph(f"{node} reads {i.name} before it is defined")
        if i.several and node.op != "getitem":
            raise InvalidGraph(f"{node} reads several results")


def _check_node(node: Node) -> None:
    """What depends on a node, the types of its operands and nothing else."""
    if node.op not in PRIMS:
        raise InvalidGraph(f"unknown prim in {node}")
    try:
        hash(tuple(node.attrs.items()))
    except TypeError:
        raise InvalidGraph(f"unhashable attribute in {node}") from None
    if node.op == "aten_call":
        if sorted({ref.index for ref in of_kind(Ref, node.attrs["args"])}) != list(range(len(node.inputs))):
            raise InvalidGraph(f"the template of {node} does not use its inputs")
        return
    if node.op == "autograd_function":
        return
    if not isinstance(node.type, TensorType):
        raise InvalidGraph(f"{node} has no type")
    types, p = tuple(i.type for i in node.inputs), PRIMS[node.op]
    if p.arity is not None and len(types) != p.arity:
        raise InvalidGraph(f"{node} should have {p.arity} operands")
    if p.kind == "pointwise":
        if node.op != "cast":
            operands = types[1:] if node.op == "where" else types
            if len({t.dtype for t in operands}) != 1:
                raise InvalidGraph(f"mixed dtypes in {node}: {types}")
            if p.result is None and not p.of_words and node.dtype != operands[0].dtype:
                raise InvalidGraph(f"the dtype of {node} is not that of its operands")
        if node.op == "where" and types[0].dtype != torch.bool:
            raise InvalidGraph(f"the condition of {node} is not bool")
    if (node.op == "gather" and types[1].dtype != torch.int64 or node.op == "index"
        and any(t.dtype not in (torch.int64, torch.int32) for t in types[1:])):
        raise InvalidGraph(f"the index of {node} is not an integer tensor")
    if p.kind in ("input", "number"):
        return
    if node.op == "full":
        if not same_ints(node.attrs["shape"], node.shape):
            raise InvalidGraph(f"shape of {node}")
        return
    if node.op == "iota":
        if not same_ints((node.attrs["length"],), node.shape):
            raise InvalidGraph(f"length of {node}")
        return
    expected = infer(node.op, types, node.attrs, node.dtype)
    if not _same_sizes(expected.shape, node.shape) or expected.dtype != node.dtype or expected.device != node.device:
        raise InvalidGraph(f"{node} should be {expected}")
    if (p.kind == "view" and not strides_agree(expected, node.type)
        and not _same_sizes(expected.strides, node.type.strides)):
        raise InvalidGraph(f"{node} should have strides {expected.strides}, not {node.type.strides}")
