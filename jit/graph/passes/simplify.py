"""Algebraic rules, a table by prim. A rule gives an existing or a new node of the same type and value as eager's, or
None."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable

import torch

from jit.graph import pairs
from jit.graph.handles import overlaps_itself
from jit.graph.ir import Graph, Node, same_ints
from jit.graph.passes.rewrite import value_rewritten
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.build import Builder

RULES: dict[str, list] = {}


def rule(*ops: str) -> Callable:
    """Register ``fn(builder, node) -> Node | None`` for prims."""

    def register(fn: Callable) -> Callable:
        for op in ops:
            RULES.setdefault(op, []).append(fn)
        return fn

    return register


def simplify(graph: Graph) -> Graph:
    return value_rewritten(graph, _simpler)


def _simpler(b: Builder, node: Node) -> Node | None:
    for fn in RULES.get(node.op, ()):
        new = fn(b, node)
        if new is not None and new.type == node.type:
            return new
    return None


def _constant(node: Node) -> float | int | None:
    """The number that a scalar or filled node holds everywhere, else None."""
    return (node.attrs["value"] if info(node.op).constant and isinstance(node.attrs["value"], (int, float))
            else None)


# casts

_WIDTH = {torch.float16: (11, 5), torch.bfloat16: (8, 8), torch.float32: (24, 8), torch.float64: (53, 11)}
_INT_BITS = {torch.bool: 1, torch.uint8: 8, torch.int8: 7, torch.int16: 15, torch.int32: 31, torch.int64: 63}
_UNSIGNED = (torch.bool, torch.uint8)


def holds_exactly(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every value of ``narrow`` is a value of ``wide``."""
    if wide is narrow:
        return True
    if narrow in _WIDTH:
        return wide in _WIDTH and all(w >= n for w, n in zip(_WIDTH[wide], _WIDTH[narrow]))
    if narrow in _INT_BITS:
        if wide in _WIDTH:
            return _INT_BITS[narrow] <= _WIDTH[wide][0] and not (wide is torch.float16 and _INT_BITS[narrow] > 11)
        return (wide in _INT_BITS and wide not in _UNSIGNED and _INT_BITS[wide] >= _INT_BITS[narrow]
                or wide is torch.uint8 and narrow is torch.bool)
    return False


@rule("cast")
def cast_of_cast(b: Builder, node: Node) -> Node | None:
    """A detour over a wider type changes nothing."""
    inner = node.inputs[0]
    if inner.op != "cast" or not holds_exactly(inner.dtype, inner.inputs[0].dtype):
        return None
    source = inner.inputs[0]
    if source.dtype is node.dtype:
        return source
    return b.node("cast", (source,), {}, node.type)


@rule("cast")
def cast_to_own_dtype(b: Builder, node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0].dtype is node.dtype else None


# arithmetic identities: exact for every value, NaN, infinities and signed zeros included


@rule("mul")
def times_one(b: Builder, node: Node) -> Node | None:
    a, b = node.inputs
    return a if _constant(b) == 1 else b if _constant(a) == 1 else None


@rule("div")
def over_one(b: Builder, node: Node) -> Node | None:
    return node.inputs[0] if _constant(node.inputs[1]) == 1 else None


@rule("add")
def plus_zero(b: Builder, node: Node) -> Node | None:
    """``x + 0`` for integers and ``x + -0.0`` for floats; ``-0.0 + 0.0`` is ``0.0`` and stays."""
    for x, c in (node.inputs, node.inputs[::-1]):
        v = _constant(c)
        if v == 0 and (not node.dtype.is_floating_point or math.copysign(1, v) < 0):
            return x
    return None


@rule("sub")
def minus_zero(b: Builder, node: Node) -> Node | None:
    v = _constant(node.inputs[1])
    if v == 0 and (not node.dtype.is_floating_point or math.copysign(1, v) > 0):
        return node.inputs[0]
    return None


@rule("neg", "logical_not", "bitwise_not")
def involution(b: Builder, node: Node):
    inner = node.inputs[0]
    return inner.inputs[0] if inner.op == node.op else None


@rule("where")
def where_same(b: Builder, node: Node):
    condition, a, b = node.inputs
    if a is b:
        return a
    v = _constant(condition)
    return None if v is None else a if v else b


@rule("relu", "abs", "floor", "ceil", "trunc", "round", "sign")
def idempotent(b: Builder, node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0].op == node.op else None


# views


@rule("permute")
def permute_of_permute(b: Builder, node: Node) -> Node | None:
    inner, dims = node.inputs[0], node.attrs["dims"]
    if inner.op == "permute":
        source, order = inner.inputs[0], tuple(inner.attrs["dims"][d] for d in dims)
        if order == tuple(range(len(order))):
            return source
        return b.node("permute", (source,), {"dims": order}, node.type)
    return inner if dims == tuple(range(len(dims))) else None


@rule("reshape")
def reshape_of_reshape(b: Builder, node: Node) -> Node:
    inner = node.inputs[0]
    if inner.op == "reshape":
        source = inner.inputs[0]
        if source.type == node.type:
            return source
        return b.node("reshape", (source,), node.attrs, node.type)
    return inner


@rule("expand", "alias")
def no_change(b: Builder, node: Node) -> Node:
    return node.inputs[0]


@rule("slice")
def whole_slice(b: Builder, node: Node) -> Node | None:
    a = node.attrs
    return (node.inputs[0] if same_ints((a["start"], a["length"], a["step"]), (0, node.inputs[0].shape[a["dim"]], 1))
            else None)


@rule("slice")
def slice_of_slice(b: Builder, node: Node) -> Node | None:
    inner = node.inputs[0]
    if inner.op != "slice" or inner.attrs["dim"] != node.attrs["dim"]:
        return None
    a, i = node.attrs, inner.attrs
    attrs = {"dim": a["dim"], "start": i["start"] + a["start"] * i["step"],
             "length": a["length"], "step": a["step"] * i["step"]}
    return b.node("slice", (inner.inputs[0],), attrs, node.type)


@rule("reinterpret")
def part_of_pair(b: Builder, node: Node) -> Node | None:
    """Parts of complex numbers that were put together from parts, and those that lie in memory as pairs."""
    how, x = node.attrs["how"], node.inputs[0]
    if x.dtype not in pairs.PARTS or how not in ("real", "imag", "view_as_real") or overlaps_itself(node.type):
        return None
    known = pairs.computed(x)
    if how == "view_as_real":
        if x.op == "reinterpret" and x.attrs["how"] == "view_as_complex":
            return x.inputs[0]
        own = [s // 2 for s in node.type.strides[:-1]]
        return pairs.joined(b, pairs.moved_parts(b, x), own).inputs[0] if known else None
    part = getattr(pairs.moved_parts(b, x) if known else pairs.parts(b, x), "re" if how == "real" else "im")
    part = b.expand(part, node.type.shape)
    return part if part.type == node.type else b.clone(part, node.type.strides)


@rule("slice")
def slice_of_cat(b: Builder, node: Node) -> Node | None:
    """A slice that is exactly one of the parts."""
    inner, a = node.inputs[0], node.attrs
    if inner.op != "cat" or inner.attrs["dim"] != a["dim"] or not same_ints((a["step"],), (1,)):
        return None
    start = 0
    for part in inner.inputs:
        size = part.shape[a["dim"]]
        if same_ints((start, size), (a["start"], a["length"])):
            return part if part.type == node.type or overlaps_itself(node.type) else b.clone(part, node.type.strides)
        start = start + size
    return None


@rule("clone")
def clone_unread(b: Builder, node: Node) -> Node:
    """Values never change within a graph: a copy with the same layout is only needed for memory of its own, which
    outputs keep."""
    return node.inputs[0]


@rule("cat")
def cat_of_one(b: Builder, node: Node):
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule("constant_pad")
def pad_by_nothing(b: Builder, node: Node):
    return node.inputs[0] if all(same_ints(p, (0, 0)) for p in node.attrs["pads"]) else None
