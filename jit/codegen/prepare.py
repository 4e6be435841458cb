"""Makes a graph compilable: what kernels cannot compute becomes a library call, and hazards of the outputs become
copies.

A dtype without kernels (complex, float8, ...), an ``as_strided`` of a graph input (its offset counts from the start of
the storage, which a kernel does not see) and operands on another device are turned into ``aten_call`` nodes. The graph
that is given is not changed.
"""

from __future__ import annotations

from ..errors import Unsupported
from ..graph.ir import Graph, Ref, TensorType, Transform
from . import fusion, loops, lower
from .indexing import VIEWS, base_of

_BINARY_TENSOR = {"add": "add", "sub": "sub", "mul": "mul", "div": "div",
                  "pow": "pow", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
                  "fmod": "fmod", "remainder": "remainder", "bitwise_and": "bitwise_and",
                  "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor"}
_BINARY_DEFAULT = frozenset("maximum minimum fmax fmin atan2 copysign hypot logical_and logical_or logical_xor".split())
_LIBRARY = {}


def _library(*ops):
    def register(fn):
        _LIBRARY.update(dict.fromkeys(ops, fn))
        return fn

    return register


@_library(*_BINARY_TENSOR, *_BINARY_DEFAULT, "floor_div", "trunc_div", "shl", "shr")
def _binary(n):
    if n.op in _BINARY_TENSOR:
        return f"aten::{_BINARY_TENSOR[n.op]}", "Tensor_Tensor" if n.op == "pow" else "Tensor", (Ref(0), Ref(1))
    if n.op in ("floor_div", "trunc_div"):
        return "aten::div", "Tensor_mode", (Ref(0), Ref(1), "floor" if n.op == "floor_div" else "trunc")
    if n.op in ("shl", "shr"):
        return f"aten::bitwise_{'left' if n.op == 'shl' else 'right'}_shift", "Tensor", (Ref(0), Ref(1))
    return f"aten::{n.op}", "Tensor" if n.op == "copysign" else "", (Ref(0), Ref(1))


@_library(*(loops.UNARY - {"cast"}))
def _unary(n):
    return f"aten::{n.op}", "", (Ref(0),)


@_library("cast")
def _cast(n):
    return "aten::_to_copy", "", (Ref(0), n.type.dtype)


@_library("where")
def _where(n):
    return "aten::where", "self", (Ref(0), Ref(1), Ref(2))


@_library("fma")
def _fma(n):
    return "aten::addcmul", "", (Ref(2), Ref(0), Ref(1), 1)


@_library("clone")
def _clone(n):
    return "aten::clone", "", (Ref(0),)


@_library("flip")
def _flip(n):
    return "aten::flip", "", (Ref(0), tuple(n.attrs["dims"]))


@_library("cat")
def _cat(n):
    return "aten::cat", "", (tuple(Ref(k) for k in range(len(n.inputs))), n.attrs["dim"])


@_library("constant_pad")
def _pad(n):
    return "aten::constant_pad_nd", "", (Ref(0), tuple(p for pair in reversed(n.attrs["pads"]) for p in pair),
                                         n.attrs["value"])


@_library("sum")
def _sum(n):
    return "aten::sum", "dim_IntList", (Ref(0), tuple(n.attrs["dims"]), n.attrs["keepdim"], n.type.dtype)


@_library("prod", "any", "all", "argmax", "argmin")
def _one_dim(n):
    d = n.attrs["dims"]
    if len(d) != 1:
        raise Unsupported(f"{n.op} over several dimensions of {n.inputs[0].type.dtype}", kind="kernel")
    extra = (n.type.dtype,) if n.op == "prod" else ()
    return (f"aten::{n.op}", "" if n.op.startswith("arg") else {"prod": "dim_int"}.get(n.op, "dim"),
            (Ref(0), d[0], n.attrs["keepdim"], *extra))


@_library("amax", "amin")
def _extreme(n):
    return f"aten::{n.op}", "", (Ref(0), tuple(n.attrs["dims"]), n.attrs["keepdim"])


@_library("cumsum")
def _cumsum(n):
    return "aten::cumsum", "", (Ref(0), n.attrs["dim"], n.type.dtype)


@_library("gather")
def _gather(n):
    return "aten::gather", "", (Ref(0), n.attrs["dim"], Ref(1))


@_library("index")
def _index(n):
    if not n.attrs.get("wrap", True):
        one = len(n.inputs[1].type.shape) == 1
        return ("aten::index_select", "", (Ref(0), n.attrs["dims"][0],
                                           Ref(1))) if one else ("aten::embedding", "", (Ref(0), Ref(1)))
    return "aten::index", "Tensor", (Ref(0), (None,) * n.attrs["dims"][0] + tuple(Ref(k)
        for k in range(1, len(n.inputs))))


@_library("as_strided")
def _as_strided(n):
    return "aten::as_strided", "", (Ref(0), tuple(n.attrs["size"]), tuple(n.attrs["stride"]), n.attrs["offset"])


@_library("reinterpret")
def _reinterpret(n):
    how = n.attrs["how"]
    if how == "dtype":
        return "aten::view", "dtype", (Ref(0), n.type.dtype)
    return {"conj": "aten::_conj"}.get(how, f"aten::{how}"), "", (Ref(0),)


@_library("iota")
def _iota(n):
    start, step = n.attrs["start"], n.attrs["step"]
    return "aten::arange", "start_step", (start, start + n.attrs["length"] * step,
                                          step, n.type.dtype, None, n.type.device)


@_library("scalar", "full")
def _full(n):
    return "aten::full", "", (tuple(n.type.shape), n.attrs["value"], n.type.dtype, None, n.type.device)


def library_call(node) -> dict:
    """The attributes of an ``aten_call`` that computes the same from the same inputs. Raises Unsupported where there is
    none."""
    if node.op not in _LIBRARY:
        raise Unsupported(f"{node.op} over {node.type.dtype}", hint="run this part in eager, with jit.disable",
                          kind="kernel")
    return dict(zip(("target", "overload", "args"), _LIBRARY[node.op](node)))


def _needs_library(node) -> bool:
    if node.op in VIEWS:
        return node.op == "as_strided" and base_of(node).op == "input"
    if node.op in fusion.EXTERN:
        return False
    if node.op == "reinterpret" or node.type.device.type == "meta":
        return True
    kinds = lower.KERNEL_DTYPES
    return node.type.dtype not in kinds or any(i.type.dtype not in kinds for i in node.inputs)


def _is_conjugate(node) -> bool:
    return node.op == "aten_call" and node.attrs["target"] == "aten::_conj"


def prepare(graph: Graph) -> Graph:
    """The graph, or a changed copy of it, in which every node is a kernel's business, a view, or a library call."""
    live = live_nodes(graph)
    hazards = [o for o in graph.outputs if o.mutates is not None and base_of(o.node).op == "input"]
    foreign = _foreign_operands(graph)
    if (len(live) == len(graph.nodes) and not hazards and not foreign
        and not any(_needs_library(n) for n in graph.nodes)):
        return graph
    return _Prepare(graph, live, hazards, foreign).run()


class _Prepare(Transform):
    def __init__(self, graph, live, hazards, foreign):
        super().__init__(graph)
        self.live, self.hazards, self.foreign, self.moved = live, hazards, foreign, {}

    def wants(self, n):
        return n in self.live

    def visit(self, n, inputs):
        if n in self.foreign:
            inputs = tuple([self.on(n, i) if k in self.foreign[n] else i for k, i in enumerate(inputs)])
        if n.op in VIEWS and _is_conjugate(inputs[0]):
            # A view of memory that is read conjugated: the flag belongs to the tensor object, so it is set last.
            shown = self.add(n.op, inputs[0].inputs, n.attrs, n.type, n)
            return self.add("aten_call", (shown,), inputs[0].attrs, n.type, n)
        return self.add("aten_call", inputs, library_call(n), n.type, n) if _needs_library(n) else self.keep(n, inputs)

    def on(self, n, operand):
        """An operand on the device of ``n``."""
        key = (operand, n.type.device)
        if key not in self.moved:
            attrs = {"target": "aten::_to_copy", "overload": "", "args": (Ref(0), None, None, n.type.device)}
            self.moved[key] = self.add("aten_call", (operand,), attrs, operand.type.replace(device=n.type.device), n)
        return self.moved[key]

    def output(self, o):
        node = self.new[o.node]
        if o not in self.hazards:
            return node
        t = node.type
        return self.add("clone", (node,), {}, TensorType.contiguous(t.shape, t.dtype, t.device), node)


def live_nodes(graph) -> set:
    """The nodes that an output, an input or an impure library call needs."""
    live = {o.node for o in graph.outputs} | set(graph.inputs)
    for n in reversed(graph.nodes):
        if n in live or n.impure:
            live.add(n)
            live.update(n.inputs)
    return live


def _foreign_operands(graph) -> dict:
    """Node -> operand numbers that lie on another device than the node (CPU numbers in a CUDA expression)."""
    found = {}
    devices = {n.type.device for n in graph.nodes if isinstance(n.type, TensorType)}
    if len(devices) < 2:
        return found
    for n in graph.nodes:
        if n.op in VIEWS or n.op in fusion.EXTERN or n.op in fusion.SOURCES:
            continue
        ks = [k for k, i in enumerate(n.inputs) if i.type.device != n.type.device and i.op not in fusion.SOURCES]
        if ks:
            found[n] = ks
    return found
