"""Runs convolutions in the channels-last format: a rewrite of a graph that changes strides and nothing else.

The library's convolutions are about twice as fast on channels-last activations, on tensor cores and on CPUs alike. The first convolution's input is
copied into that format; the strides of everything behind it are inferred again, so that pointwise work in between stays in
the format; views that need the old strides, and the graph's outputs, get them back by a copy, which fuses with its producer.
Weights are left to the library, which reorders them in either case. For training it is the joint graph that is rewritten, before it is divided,
so that what the forward saves and what the backward reads have one format.
"""

from __future__ import annotations

import torch

from .. import logs
from ..errors import JitError
from ..graph import aten, dims, layout, prims, registry
from ..graph.ir import Graph, Node, Output, Ref, TensorType, same_ints
from ..graph.passes import convolutions
from .indexing import base_of

log = logs.channel("graph")

# Target -> the number of leading inputs that are images.
CONVOLUTIONS = {"aten::conv2d": 1, "aten::convolution": 1, "aten::conv3d": 1, "aten::convolution_backward": 2}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def is_convolution(node) -> bool:
    """Whether a node is a convolution of images or volumes that has a channels-last form worth using."""
    if node.op != "aten_call" or node.attrs["target"] not in CONVOLUTIONS:
        return False
    at = CONVOLUTIONS[node.attrs["target"]]
    x, w = node.inputs[at - 1].type, node.inputs[at].type
    return x.rank == w.rank == 4 and x.dtype in FLOATS and type(x.shape[1]) is int and x.shape[1] > 1


def wants_channels_last(graph) -> bool:
    """Whether the rewrite pays: several convolutions, of constant sizes, in the plain format."""
    found = [n for n in graph.nodes if is_convolution(n)]
    if len(found) < 2 or any(isinstance(n.type, TensorType) and n.type.is_symbolic for n in graph.nodes):
        return False
    if _views_of_results(graph):
        return False
    return any(not layout.is_channels_last(n.inputs[0].type.shape, n.inputs[0].type.strides) for n in found)


def _views_of_results(graph) -> bool:
    """Whether two different outputs lie in one piece of new memory: copies would part them."""
    nodes = {o.node for o in graph.outputs if o.mutates is None}
    bases = [base for base in map(base_of, nodes) if base.op != "input"]
    return len(set(bases)) < len(bases)


class Restrider:
    """Rebuilds a graph with other strides: those that a subclass gives in ``rebuild`` to the nodes that it ``prefers``, and what follows from them."""

    def __init__(self, graph):
        self.graph, self.nodes, self.new = graph, [], {}
        self.next_id = graph.next_id
        self.copies = {}

    def add(self, op, inputs, attrs, type_, like) -> Node:
        node = Node(self.next_id, op, tuple(inputs), attrs, type_, like.loc)
        self.next_id += 1
        self.nodes.append(node)
        return node

    def in_format(self, node, strides) -> Node:
        """A node's value with the given strides, copied if they differ."""
        t = node.type
        if prims.strides_agree(t, t.replace(strides=strides)):
            return node
        key = (node, strides)
        if key not in self.copies:
            copy = self.copies[key] = self.add("clone", (node,), {}, t.replace(strides=strides), node)
            self.graph.origins.setdefault(copy.id, node.id)
        return self.copies[key]

    def result(self, node, t: TensorType) -> Node:
        """A node's value as a result of type ``t``: with the very strides, also where a dimension of one element makes them no difference in memory."""
        node = self.in_format(node, t.strides)
        if same_ints(node.type.strides, t.strides):
            return node
        key = (node, t.shape, t.strides)
        if key not in self.copies:
            self.copies[key] = self.add("reshape", (node,), {"shape": t.shape}, t, node)
        return self.copies[key]

    def run(self) -> Graph:
        for n in self.graph.nodes:
            inputs = tuple(self.new[i] for i in n.inputs)
            if n.op == "input" or (inputs == n.inputs and not self.prefers(n)):
                self.nodes.append(n)
                self.new[n] = n
            else:
                made = self.new[n] = self.rebuild(n, inputs)
                self.graph.origins.setdefault(made.id, n.id)
        outputs = [Output(self.result(self.new[o.node], o.node.type) if o.mutates is None else self.new[o.node], o.mutates) for o in self.graph.outputs]
        return Graph(self.graph.inputs, self.nodes, outputs, self.graph.env, self.graph)

    def prefers(self, n) -> bool:
        """Whether a node wants strides of its own, or of its inputs."""
        raise NotImplementedError

    def rebuild(self, n, inputs) -> Node:
        if n.op != "getitem" and all(same_ints(a.type.strides, b.type.strides) for a, b in zip(inputs, n.inputs) if isinstance(a.type, TensorType)):
            return self.add(n.op, inputs, n.attrs, n.type, n)
        if n.op == "getitem":
            return self.add(n.op, inputs, n.attrs, inputs[0].type[n.attrs["index"]], n)
        type_ = self.infer(n, inputs)
        if type_ is None:
            inputs = tuple(self.in_format(a, b.type.strides) if isinstance(a.type, TensorType) else a for a, b in zip(inputs, n.inputs))
            type_ = n.type
        return self.add(n.op, inputs, n.attrs, type_, n)

    def infer(self, n, inputs):
        """The node's type for inputs in their new formats, or None when it cannot take them."""
        types = tuple(i.type for i in inputs)
        try:
            if n.op == "aten_call":
                return self.library_type(n, inputs)
            if n.op == "clone" or n.op == "as_strided":
                return n.type if n.op == "clone" else None
            type_ = prims.infer(n.op, types, n.attrs, n.type.dtype)
        except (layout.ShapeError, JitError, RuntimeError):  # RuntimeError: what a run on meta tensors gives for operators that have none
            return None
        return type_ if type_ is not None and same_ints(type_.shape, n.type.shape) else None

    def library_type(self, n, inputs):
        target, overload = n.attrs["target"], n.attrs["overload"]
        if not target.startswith("aten::"):
            return None
        name = target.removeprefix("aten::")
        o = aten.Overload(name, getattr(getattr(torch.ops.aten, name), overload or "default"))

        def fill(v):
            if isinstance(v, Ref):
                return inputs[v.index]
            return tuple(map(fill, v)) if isinstance(v, (tuple, list)) else v

        values = list(fill(n.attrs["args"]))
        rule = registry.library(name).rule
        types = NotImplemented if rule is None else rule(*[aten._as_type(v) for v in values])
        if types is NotImplemented:
            types = aten.trial(o, values)[0]
        if isinstance(types, list):
            types = tuple(types)
        return types if isinstance(types, tuple) == isinstance(n.type, tuple) else None


def _exact_in_plain(node) -> bool:
    """Whether a convolution's gradients are to be taken in the format that the program gives them. Those of weights with holes and of few channels are sums by matrix products
    in the CPU library's plain format, and of four times the error, by chains of additions, in channels-last; so are those of biases, where a program asks the library for them."""
    if node.op != "aten_call" or node.attrs["target"] != "aten::convolution_backward":
        return False
    w, dilation, wanted = node.inputs[2].type, node.attrs["args"][6], node.attrs["args"][10]
    if w.device.type != "cpu" or w.dtype is not torch.float32:
        return False
    return wanted[2] or type(w.shape[1]) is int and w.shape[1] < 16 and any(d != 1 for d in dilation)


class _Convolutions(Restrider):
    def prefers(self, n) -> bool:
        return is_convolution(n) and not _exact_in_plain(n)

    def rebuild(self, n, inputs) -> Node:
        if _exact_in_plain(n):
            inputs = (*[self.in_format(a, b.type.strides) for a, b in zip(inputs[:2], n.inputs)], *inputs[2:])
        elif is_convolution(n):
            images = CONVOLUTIONS[n.attrs["target"]]
            inputs = (*[self.in_format(x, layout.channels_last_strides(x.type.shape)) for x in inputs[:images]], *inputs[images:])
        return super().rebuild(n, inputs)


def channels_last(graph: Graph) -> Graph:
    """The graph with its convolutions in the channels-last format where that pays, and those of one pixel as matrix products where they have it;
    the same graph where there is nothing to change."""
    if wants_channels_last(graph):
        graph = _Convolutions(graph).run()
    return convolutions.as_products(graph)
