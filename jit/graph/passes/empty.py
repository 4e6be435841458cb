"""What has no elements, and what is computed from such alone, is a constant: no kernel has to find its way through
nothing."""

from __future__ import annotations

import torch

from jit.devices import backend
from jit.graph.ir import CHECKED, Graph, Node
from jit.graph.passes.rewrite import changed
from jit.graph.prim_info import info

_COMPUTED = frozenset(("source", "pointwise", "copy", "reduction", "scan", "index"))  # kinds


def compute_empty(graph: Graph) -> Graph:
    changes = {}
    for node in graph.nodes:
        p = info(node.op)
        if (p.kind in _COMPUTED or _is_library_gradient(node)) and CHECKED not in node.attrs and not node.impure:
            if node.type.is_empty:
                changes[node] = _filled(node, 0)
            elif p.of_nothing is not None and node.inputs[0].type.is_empty:
                changes[node] = _filled(node, p.of_nothing)
    return changed(graph, changes)


def _is_library_gradient(node: Node) -> bool:
    """Whether the library computes a gradient where some of its kernels read beyond what has no elements. Elsewhere
    they may refuse an index."""
    return (node.op == "aten_call" and "backward" in node.attrs["target"]
            and not node.several and not backend(node.device).refuses_empty)


def _filled(node: Node, number: int) -> dict:
    """What makes ``node``, which may be a result with memory of its own, a filled tensor."""
    dtype = node.dtype
    value = (bool(number) if dtype is torch.bool else float(number) if dtype.is_floating_point
             else complex(number) if dtype.is_complex else number)
    return {"op": "full", "inputs": (), "attrs": {"shape": node.shape, "value": value}}
