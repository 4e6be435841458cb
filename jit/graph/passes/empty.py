"""What has no elements, and what is computed from such alone, is a constant: no kernel has to find its way through
nothing."""

from __future__ import annotations

import torch

from jit.graph.ir import CHECKED, Graph, Node
from jit.graph.prims import POINTWISE, REDUCTIONS

_OF_NOTHING = {"sum": 0, "squares": 0, "any": 0, "prod": 1, "all": 1}  # the other reductions refuse to be that
_COMPUTED = POINTWISE | REDUCTIONS | frozenset("clone cat flip constant_pad cumsum gather index iota".split())


def compute_empty(graph: Graph) -> Graph:
    for node in graph.nodes:
        if (node.op in _COMPUTED or _is_library_gradient(node)) and CHECKED not in node.attrs and not node.impure:
            if node.type.is_empty:
                _fill(node, 0)
            elif node.op in _OF_NOTHING and node.inputs[0].type.is_empty:
                _fill(node, _OF_NOTHING[node.op])
    return graph


def _is_library_gradient(node: Node) -> bool:
    """Whether the library computes a gradient on a GPU, where some of its kernels read beyond what has no elements. On
    a CPU they may refuse an index."""
    return (node.op == "aten_call" and "backward" in node.attrs["target"]
            and not isinstance(node.type, tuple) and node.device.type != "cpu")


def _fill(node: Node, number: int):
    """Make ``node``, which may be a result with memory of its own, a filled tensor."""
    dtype = node.dtype
    value = (bool(number) if dtype is torch.bool else float(number) if dtype.is_floating_point
             else complex(number) if dtype.is_complex else number)
    node.op, node.inputs, node.attrs = "full", (), {"shape": node.shape, "value": value}
