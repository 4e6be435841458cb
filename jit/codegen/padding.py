"""Rows that begin at aligned addresses, in matrices that a kernel makes for the library to multiply.

cuBLAS has no fast kernels for matrices whose rows do not begin at multiples of 16 bytes: on an H200 the two products of
the backward of a classifier of 50257 columns take 1.1 ms each, and 0.2 ms with padded rows. Where such a matrix is an
intermediate of ours, its rows are laid further apart.
"""

from __future__ import annotations

from .. import devices
from ..graph import dims
from ..graph.ir import Graph, Node, TensorType, same_ints
from ..graph.op_info import op_info
from ..graph.prims import info
from . import fusion
from .indexing import VIEWS, base_of, contiguous_strides
from .layout import Restrider


def padded_strides(t: TensorType) -> tuple[int, ...] | None:
    """Strides with aligned rows for a row-major type of a half dtype; None where the rows are aligned, or it would not
    pay."""
    backend = devices.backend(t.device)
    if (not backend.aligned_rows or t.dtype.itemsize != 2 or t.rank < 2
        or type(t.shape[-1]) is not int or dims.hint(t.numel) < backend.worth_aligning):
        return None
    unit, width = backend.aligned_rows // t.dtype.itemsize, t.shape[-1]
    if width < 8 * unit or width % unit == 0 or not same_ints(t.strides, contiguous_strides(t.shape)):
        return None
    return contiguous_strides((*t.shape[:-1], -(-width // unit) * unit))[:-1] + (1,)


def _candidates(graph: Graph) -> dict:
    """Node -> its padded strides, for what kernels make and products read, and nothing else sees as a tensor."""
    found, seen = {}, {base_of(o.node) for o in graph.outputs}
    for n in graph.nodes:
        if (n.op == "as_strided" or info(n.op).kind == "part"
            or n.op == "aten_call" and not op_info(n.attrs["target"]).aligned):
            seen.update(base_of(i) for i in n.inputs)
    for n in graph.of_ops(("aten_call",)):
        if op_info(n.attrs["target"]).aligned:
            for base in {base_of(i) for i in n.inputs[-2:]} - seen:
                if base.op not in fusion.EXTERN and base.op not in VIEWS and base.op not in fusion.SOURCES:
                    strides = padded_strides(base.type)
                    if strides is not None:
                        found[base] = strides
    return found


class _Padder(Restrider):
    def __init__(self, graph: Graph, strides: dict[Node, tuple[int, ...]]) -> None:
        super().__init__(graph)
        self.strides = strides

    def prefers(self, n: Node) -> bool:
        return n in self.strides

    def rebuild(self, n: Node, inputs: tuple[Node, ...]) -> Node:
        if n in self.strides:
            return self.node(n.op, inputs, n.attrs, n.type.replace(strides=self.strides[n]))
        return super().rebuild(n, inputs)


def pad_rows(graph: Graph) -> Graph:
    """The graph with aligned rows where that pays, or the same graph."""
    found = _candidates(graph)
    return _Padder(graph, found).run() if found else graph
