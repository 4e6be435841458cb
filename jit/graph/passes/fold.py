"""Compute elementwise operations on constants: scalars give a scalar, filled tensors a filled tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph.dims import Dim
from jit.graph.ir import Graph, Node
from jit.graph.passes.rewrite import value_rewritten
from jit.graph.prim_info import info
from jit.graph.prims import evaluate

if TYPE_CHECKING:
    from jit.graph.build import Builder


def _value(node: Node, inputs: tuple[Node, ...]) -> object:
    """The node's value for 0-dim inputs, computed by eager on the CPU, but on the node's device where the devices
    differ: in whole numbers of what these cannot hold."""
    tensors = [torch.tensor(i.attrs["value"], dtype=i.dtype) for i in inputs]
    if node.op == "cast":
        if tensors[0].dtype.is_floating_point and not node.dtype.is_floating_point and not abs(tensors[0]) < 128:
            tensors[0] = tensors[0].to(node.device)
    if info(node.op).takes_number and inputs[1].op == "scalar":
        tensors[1] = inputs[1].attrs["value"]  # unrounded, as eager takes Python numbers
    return evaluate(node, tensors).item()


def fold_constants(graph: Graph) -> Graph:
    """The same graph where there is nothing to compute."""
    return value_rewritten(graph, _folded, _filled) if any(map(_is_constant, graph.nodes)) else graph


def _is_constant(node: Node) -> bool:
    """Whether it is an elementwise operation on known numbers."""
    return info(node.op).kind == "pointwise" and all(info(i.op).constant and type(i.attrs["value"]) is not Dim
                                                     for i in node.inputs)


def _number(node: Node) -> object | None:
    """The number that ``node`` holds everywhere; None where it is not to be folded."""
    if not _is_constant(node):
        return None
    if node.dtype.is_complex or node.op == "fma":  # PyTorch has no such function to ask
        return None
    try:
        return _value(node, node.inputs)
    except (RuntimeError, AssertionError):  # the latter where this PyTorch has no such device
        return None


def _folded(b: Builder, node: Node) -> Node | None:
    value = _number(node)
    if value is None:
        return None
    return (b.node("full", (), {"shape": node.shape, "value": value}, node.type) if node.shape
            else b.node("scalar", (), {"value": value}, node.type))


def _filled(node: Node) -> Node:
    """A result of the graph stays the node that it is: new memory, which is filled."""
    value = None if node.impure else _number(node)
    return node if value is None else node.replace("full", (), {"shape": node.shape, "value": value})
