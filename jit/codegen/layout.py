"""Runs convolutions in the channels-last format: a rewrite of a graph that changes strides and nothing else.

The library's convolutions are about twice as fast on channels-last activations, on tensor cores and on CPUs alike. The
first convolution's input is copied into that format; the strides of everything behind it are inferred again, so that
pointwise work in between stays in the format; views that need the old strides, and the graph's outputs, get them back
by a copy, which fuses with its producer. Weights are left to the library, which reorders them in either case. For
training it is the joint graph that is rewritten, before it is divided, so that what the forward saves and what the
backward reads have one format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import devices, logs
from ..errors import JitError
from ..graph import aten, dims, layout, prims
from ..graph.ir import Graph, Node, TensorType, Transform, filled, same_ints
from ..graph.op_info import op_info
from ..graph.passes import convolutions
from ..graph.passes.windows import make_windows
from .indexing import base_of

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Output

log = logs.channel("graph")

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution of images or volumes that has a channels-last form worth using."""
    at = op_info(node.attrs["target"]).images if node.op == "aten_call" else 0
    if not 0 < at < len(node.inputs):  # with fewer inputs one tensor is two of the operands
        return False
    x, w = node.inputs[at - 1].type, node.inputs[at].type
    return x.rank == w.rank == 4 and x.dtype in FLOATS and type(x.shape[1]) is int and x.shape[1] > 1


def wants_channels_last(graph: Graph) -> bool:
    """Whether the rewrite pays: several convolutions, of constant sizes, in the plain format."""
    found = [n for n in graph.of_ops(("aten_call",)) if is_convolution(n)]
    if len(found) < 2 or any(not n.several and n.type.is_symbolic for n in graph.nodes):
        return False
    if _views_of_results(graph):
        return False
    return any(not layout.is_channels_last(n.inputs[0].type.shape, n.inputs[0].type.strides) for n in found)


def _views_of_results(graph: Graph) -> bool:
    """Whether two different outputs lie in one piece of new memory: copies would part them."""
    nodes = {o.node for o in graph.outputs if o.mutates is None}
    bases = [base for base in map(base_of, nodes) if base.op != "input"]
    return len(set(bases)) < len(bases)


class Restrider(Transform):
    """Rebuilds a graph with other strides: those that a subclass gives in ``rebuild`` to the nodes that it ``prefers``,
    and what follows from them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.copies = {}

    def in_format(self, node: Node, strides: tuple[IntExpr, ...]) -> Node:
        """A node's value with the given strides, copied if they differ."""
        t = node.type
        if prims.strides_agree(t, t.replace(strides=strides)):
            return node
        key = (node, strides)
        if key not in self.copies:
            copy = self.node("clone", (node,), {}, t.replace(strides=strides), node)
            self.copies[key] = self.stands_for(copy, node)
        return self.copies[key]

    def result(self, node: Node, t: TensorType) -> Node:
        """A node's value as a result of type ``t``: with the very strides, also where a dimension of one element makes
        them no difference in memory."""
        node = self.in_format(node, t.strides)
        if same_ints(node.type.strides, t.strides):
            return node
        key = (node, t.shape, t.strides)
        if key not in self.copies:
            self.copies[key] = self.node("reshape", (node,), {"shape": t.shape}, t, node)
        return self.copies[key]

    def visit(self, n: Node) -> Node:
        inputs = self.operands(n)
        return self.keep(n, inputs) if inputs == n.inputs and not self.prefers(n) else self.rebuild(n, inputs)

    def output(self, o: Output) -> Node:
        return self.result(self.new[o.node], o.node.type) if o.mutates is None else self.new[o.node]

    def prefers(self, n: Node) -> bool:
        """Whether a node wants strides of its own, or of its inputs."""
        raise NotImplementedError

    def rebuild(self, n: Node, inputs: tuple[Node, ...]) -> Node:
        if n.op != "getitem" and all(same_ints(a.type.strides, b.type.strides)
                                     for a, b in zip(inputs, n.inputs) if not a.several):
            return self.node(n.op, inputs, n.attrs, n.type)
        if n.op == "getitem":
            return self.node(n.op, inputs, n.attrs, inputs[0].type[n.attrs["index"]])
        type_ = self.infer(n, inputs)
        if type_ is None:
            inputs = tuple(self.in_format(a, b.type.strides) if not a.several else a
                           for a, b in zip(inputs, n.inputs))
            type_ = n.type
        return self.node(n.op, inputs, n.attrs, type_)

    def infer(self, n: Node,
              inputs: tuple[Node, ...]) -> TensorType | tuple[TensorType | None, TensorType, None] | None:
        """The node's type for inputs in their new formats, or None when it cannot take them."""
        types = tuple(i.type for i in inputs)
        try:
            if n.op == "aten_call":
                return self.library_type(n, inputs)
            if n.op == "clone" or n.op == "as_strided":
                return n.type if n.op == "clone" else None
            type_ = prims.infer(n.op, types, n.attrs, n.type.dtype)
        except (layout.ShapeError, JitError, RuntimeError):
            # RuntimeError: what a run on meta tensors gives for operators that have none.
            return None
        return type_ if type_ is not None and same_ints(type_.shape, n.type.shape) else None

    def library_type(self, n: Node,
                     inputs: tuple[Node, ...]) -> TensorType | tuple[TensorType | None, TensorType, None]:
        target, overload = n.attrs["target"], n.attrs["overload"]
        if not target.startswith("aten::"):
            return None
        name = target.removeprefix("aten::")
        o = aten.Overload(name, getattr(getattr(torch.ops.aten, name), overload or "default"))

        types, _ = aten.result_types(o, list(filled(n.attrs["args"], inputs)))
        return types if isinstance(types, tuple) == n.several else None


def _adds_in_chains(node: Node) -> bool:
    """Whether the CPU library adds up the gradient of a convolution's weights in another way channels-last than in
    the plain format: not by matrix products, which add by blocks, but over all pixels of all images in one chain of
    float32 additions. It does where it has no direct kernel for the plain format, which needs whole vectors of
    channels in each group or, for one group, enough channels where the kernel has holes. PyTorch itself takes matrix
    products for one small image and, with one thread, for kernels of one pixel on fewer than 16 images; narrow ones
    are such chains. Groups of one channel are seen to by ``weights_as_sums``."""
    x, w = node.inputs[1].type, node.inputs[2].type
    stride, dilation, groups = (node.attrs["args"][i] for i in (4, 6, 9))
    channels, holes = (w.shape[0] // groups, w.shape[1]), any(d != 1 for d in dilation)
    if groups > 1 and channels == (1, 1):
        return False
    if torch.get_num_threads() == 1 and x.shape[0] < 16 and same_ints(w.shape[2:], (1, 1)):
        if not holes and all(s == 1 for s in stride) and min(channels) < 16:
            return True
    if holes and (min(channels) < 16 or any(s != 1 for s in stride)):
        return True
    if groups > 1:
        return any(c % (16 if holes else 8) for c in channels)
    return x.shape[0] == 1 and dims.product(x.shape) <= 20480 and min(w.shape[2:]) <= 3


def _exact_in_plain(node: Node) -> tuple[bool, bool]:
    """Which gradients of a convolution are to be taken in the format that the program gives its operands, so that
    their sums are as exact as there: that of its input, and those of its weights and bias. Sums over the channels of
    a group have chains in the same convolutions, of twice eager's error from a hundred products on; with one group
    they have none."""
    w = node.inputs[2].type
    if not devices.backend(w.device).adds_in_chains or w.dtype is not torch.float32:
        return False, False
    transposed, _, groups, wanted = node.attrs["args"][7:]
    chains = _adds_in_chains(node)
    terms = dims.product((w.shape[1] if transposed else w.shape[0] // groups, *w.shape[2:]))
    return wanted[0] and chains and groups > 1 and terms > 64, wanted[1] and chains or wanted[2]


class _Convolutions(Restrider):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.of_inputs = {}  # convolution -> its other part, with the gradient of its input alone

    def prefers(self, n: Node) -> bool:
        return is_convolution(n)

    def rebuild(self, n: Node, inputs: tuple[Node, ...]) -> Node:
        if n.op == "getitem" and n.attrs["index"] == 0 and n.inputs[0] in self.of_inputs:
            inputs = (self.of_inputs[n.inputs[0]],)
        if not is_convolution(n):
            return super().rebuild(n, inputs)
        images = op_info(n.attrs["target"]).images
        plain = _exact_in_plain(n) if images == 2 else (False, False)
        if not any(plain):
            return super().rebuild(n, self.in_channels_last(inputs, images))
        if n.attrs["args"][10][0] and not plain[0]:
            made = super().rebuild(_part(n, (0,)), self.in_channels_last(inputs, images))
            self.of_inputs[n] = self.stands_for(made, n)
            n = _part(n, (1, 2))
        given = [self.in_format(a, b.type.strides) for a, b in zip(inputs[:2], n.inputs)]
        return super().rebuild(n, (*given, *inputs[2:]))

    def in_channels_last(self, inputs: tuple[Node, ...], images: int) -> tuple:
        last = [self.in_format(x, layout.channels_last_strides(x.type.shape)) for x in inputs[:images]]
        return (*last, *inputs[images:])


def _part(node: Node, indices) -> Node:
    """The gradients of a convolution with these indices alone."""
    args = node.attrs["args"]
    wanted = tuple(w and i in indices for i, w in enumerate(args[10]))
    types = tuple(t if w else None for t, w in zip(node.type, wanted))
    return node.replace(attrs={**node.attrs, "args": (*args[:10], wanted)}, type=types)


def channels_last(graph: Graph) -> Graph:
    """The graph with its convolutions in the channels-last format where that pays, and those of one pixel as matrix
    products where they have it, with gradients of weights as sums where the library's are not exact, and with windows
    in the place of calls, which follow the format of what they read; the same graph where there is nothing to
    change."""
    if wants_channels_last(graph):
        graph = _Convolutions(graph).run()
    for rewrite in (convolutions.as_products, convolutions.patch_gradients, convolutions.each_channels_gradients,
                    convolutions.weights_as_sums, make_windows):
        graph = rewrite(graph)
    return graph


def operands_laid_out(graph: Graph) -> Graph:
    """The graph with the operands of convolutions laid out as kernels read them best, where that costs no more than
    what the library does with them; the same graph where there is nothing to change."""
    return convolutions.channels_of_weights_last(convolutions.weights_last(convolutions.wide_pixels(graph)))
