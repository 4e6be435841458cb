"""Convolutions on CUDA without their bias, which is added by a node of its own.

The library adds it in a pass over the result, and sums it up in the backward in another, slow one; an addition of ours fuses with what reads it, and
its gradient with what makes it. The values are the same: the library rounds the product before it adds.
"""

from __future__ import annotations

from jit.graph.ir import Graph, Node, Ref, TensorType, same_ints
from jit.graph.passes.rewrite import rebuilt

_WITH_BIAS = frozenset(["aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution"])


def separate_bias(graph: Graph) -> Graph:
    """The graph with the biases of its CUDA convolutions apart; the same graph when there is none."""
    return rebuilt(graph, _applies, _rewrite)


def _applies(n: Node) -> bool:
    return (n.op == "aten_call" and n.attrs["target"] in _WITH_BIAS and isinstance(n.type, TensorType) and n.type.device.type == "cuda"
            and n.type.dtype.is_floating_point and isinstance(n.attrs["args"][2], Ref))


def _rewrite(b, n: Node, inputs):
    args = n.attrs["args"]
    values = [inputs[a.index] if isinstance(a, Ref) else a for a in args]
    bias, spatial = values[2], values[1].type.rank - 2
    if bias.type.dtype is not n.type.dtype:
        return None
    plain = b.aten(n.attrs["target"], n.attrs["overload"], (*values[:2], None, *values[3:]), n.type)
    made = b.add(plain, b.reshape(bias, bias.type.shape + (1,) * spatial))
    return made if same_ints(made.type.strides, n.type.strides) else b.clone(made, n.type.strides)
