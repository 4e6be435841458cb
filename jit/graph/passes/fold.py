"""Compute elementwise operations on constants: scalars give a scalar, filled tensors a filled tensor."""

from __future__ import annotations

import torch

from jit.graph.dims import Dim
from jit.graph.ir import Graph, Node
from jit.graph.passes.rewrite import Rewriter
from jit.graph.prim_info import info
from jit.graph.prims import evaluate


def _value(node: Node, inputs) -> object:
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
    def folded(node):
        """(prim, its attributes) that stand for ``node``; None where it is not to be folded."""
        if info(node.op).kind != "pointwise" or not all(info(i.op).constant and type(i.attrs["value"]) is not Dim
                                                        for i in node.inputs):
            return None
        if node.dtype.is_complex or node.op == "fma":  # PyTorch has no such function to ask
            return None
        try:
            value = _value(node, node.inputs)
        except (RuntimeError, AssertionError):  # the latter where this PyTorch has no such device
            return None
        return ("full", {"shape": node.shape, "value": value}) if node.shape else ("scalar", {"value": value})

    def rule(r, node):
        found = folded(node)
        return found and r.node(found[0], (), found[1], node.type, node.loc)

    def in_place(node):
        """A result of the graph stays the node that it is: new memory, which is filled."""
        found = None if node.impure else folded(node)
        if found is not None:
            node.op, node.inputs, node.attrs = "full", (), {"shape": node.shape, "value": found[1]["value"]}

    return Rewriter(graph).run(rule, in_place)
