"""Makes a graph compilable: what kernels cannot compute becomes a library call, and hazards of the outputs become
copies.

A dtype without kernels (complex, ..., and float8 where more is done than to convert and move it), an ``as_strided`` of
a graph input (its offset counts from the start of the storage, which a kernel does not see) and operands on another
device are turned into ``aten_call`` nodes. The graph that is given is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import devices
from ..errors import Unsupported
from ..graph.ir import Graph, Ref, TensorType, Transform
from ..graph.prims import info, library_form
from . import fusion
from .indexing import VIEWS, base_of

if TYPE_CHECKING:
    from ..graph.ir import Node, Output


def library_call(node: Node) -> dict:
    """The attributes of an ``aten_call`` that computes the same from the same inputs. Raises Unsupported where there is
    none."""
    found = library_form(node)
    if found is None:
        raise Unsupported(f"{node.op} over {node.type.dtype}", hint="run this part in eager, with jit.disable",
                          kind="kernel")
    return dict(zip(("target", "overload", "args"), found))


def _needs_library(node: Node) -> bool:
    if node.op in VIEWS:
        return node.op == "as_strided" and base_of(node).op == "input"
    if node.op in fusion.EXTERN:
        return False
    backend = devices.backend(node.type.device)
    if not info(node.op).in_kernels or not backend.memory:
        return True
    others = {t.dtype for t in (node.type, *(i.type for i in node.inputs))} - backend.dtypes
    return bool(others) and not (info(node.op).moves and others <= backend.stored)


def _is_conjugate(node: Node) -> bool:
    return node.op == "aten_call" and node.attrs["target"] == "aten::_conj"


def _shows_call(node: Node) -> bool:
    """Whether it is a view of complex numbers that a library call has given."""
    return node.op in VIEWS and node.type.dtype.is_complex and info(node.inputs[0].op).kind in ("call", "part")


def prepare(graph: Graph) -> Graph:
    """The graph, or a changed copy of it, in which every node is a kernel's business, a view, or a library call."""
    live = live_nodes(graph)
    hazards = [o for o in graph.outputs if o.mutates is not None and base_of(o.node).op == "input"]
    foreign = _foreign_operands(graph)
    if (len(live) == len(graph.nodes) and not hazards and not foreign
        and not any(_needs_library(n) or _shows_call(n) for n in graph.nodes)):
        return graph
    return _Prepare(graph, live, hazards, foreign).run()


class _Prepare(Transform):
    def __init__(self, graph: Graph, live: set[Node], hazards: list[Output], foreign: dict) -> None:
        super().__init__(graph)
        self.live, self.hazards, self.foreign, self.moved, self.plains = live, hazards, foreign, {}, {}

    def order(self) -> list:
        return [n for n in self.graph.nodes if n in self.live]

    def visit(self, n: Node) -> Node:
        inputs = self.operands(n)
        if n in self.foreign:
            inputs = tuple([self.on(n, i) if k in self.foreign[n] else i for k, i in enumerate(inputs)])
        if n.op in VIEWS and _is_conjugate(inputs[0]):
            # A view of memory that is read conjugated: the flag belongs to the tensor object, so it is set last.
            shown = self.node(n.op, inputs[0].inputs, n.attrs, n.type)
            return self.node("aten_call", (shown,), inputs[0].attrs, n.type)
        if _shows_call(n):
            inputs = (self.plain(inputs[0]),)
        return self.node("aten_call", inputs, library_call(n), n.type) if _needs_library(n) else self.keep(n, inputs)

    def plain(self, n: Node) -> Node:
        """What a library call has given, in memory that is not to be read conjugated, as that of ``fft.ifft`` is."""
        if n not in self.plains:
            attrs = {"target": "aten::resolve_conj", "overload": "", "args": (Ref(0),)}
            self.plains[n] = self.node("aten_call", (n,), attrs, n.type)
        return self.plains[n]

    def on(self, n: Node, operand):
        """An operand on the device of ``n``."""
        key = (operand, n.type.device)
        if key not in self.moved:
            attrs = {"target": "aten::_to_copy", "overload": "", "args": (Ref(0), None, None, n.type.device)}
            self.moved[key] = self.node("aten_call", (operand,), attrs, operand.type.replace(device=n.type.device))
        return self.moved[key]

    def output(self, o: Output) -> Node:
        node = self.new[o.node]
        if o not in self.hazards:
            return node
        t = node.type
        return self.node("clone", (node,), {}, TensorType.contiguous(t.shape, t.dtype, t.device))


def live_nodes(graph: Graph) -> set:
    """The nodes that an output, an input or an impure library call needs."""
    live = {o.node for o in graph.outputs} | set(graph.inputs)
    for n in reversed(graph.nodes):
        if n in live or n.impure:
            live.add(n)
            live.update(n.inputs)
    return live


def _foreign_operands(graph: Graph) -> dict:
    """Node -> operand numbers that lie on another device than the node (CPU numbers in a CUDA expression)."""
    found = {}
    devices = {n.type.device for n in graph.nodes if not n.several}
    if len(devices) < 2:
        return found
    for n in graph.nodes:
        if n.op in VIEWS or n.op in fusion.EXTERN or n.op in fusion.SOURCES:
            continue
        ks = [k for k, i in enumerate(n.inputs) if i.type.device != n.type.device and i.op not in fusion.SOURCES]
        if ks:
            found[n] = ks
    return found
