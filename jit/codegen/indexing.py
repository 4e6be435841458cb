"""Views as arithmetic on indices: how an index into a view becomes one into the value under it, and which dimensions
stay in step.

An *index* is a tuple of IntExprs, one per dimension. An *alignment* is its cheap abstraction for the fusion pass: for
each dimension of a value, the dimension of the loop nest whose variable indexes it directly, or ``FIXED`` for a
dimension of size 1; the whole is None when some dimension is indexed in any other way. On the way through a tree, such
a dimension is ``LOOSE``: an operand that is broadcast along it is in step all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Optional

from ..graph.dims import is_one, same, segments, size_hint
from ..graph.prims import info, names

if TYPE_CHECKING:
    from ..graph.dims import IntExpr
    from ..graph.ir import Node

VIEWS = names(kind="view", in_kernels=True)  # that kernels read through
FIXED = -1
LOOSE = -2


def linear(index: tuple[IntExpr, ...], strides: tuple[IntExpr, ...]) -> IntExpr:
    """``sum(i * s)``: an element offset."""
    out = 0
    for i, s in zip(index, strides):
        if type(i) is not int or i:
            out = out + i * s
    return out


def contiguous_strides(shape: tuple[IntExpr, ...]) -> tuple:
    """Row-major strides as eager computes them (a dimension of size 0 counts as 1)."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        if not (type(size) is int and size == 0):
            step = step * size
    return tuple(reversed(strides))


def numel_hint(shape: Sequence[IntExpr]) -> int:
    out = 1
    for s in shape:
        out *= s if type(s) is int else size_hint(s)
    return out


def bytes_hint(node: Node) -> int:
    """Bytes of all elements of a value; 0 of several results, which have nodes of their own."""
    return 0 if node.several else numel_hint(node.type.shape) * node.type.dtype.itemsize


def reshape_index(source: tuple[IntExpr, ...], target: tuple[IntExpr, ...], index: tuple[IntExpr, ...]) -> tuple:
    """The index into a value of shape ``source`` of element ``index`` of its row-major reshape to ``target``."""
    out = [0] * len(source)
    if any(type(n) is int and n == 0 for n in source):
        return tuple(out)  # of no element
    for a, b in segments(source, target):
        if len(a) == 1 and len(b) == 1:
            out[a[0]] = index[b[0]]
            continue
        flat = 0
        for d in b:
            flat = flat * target[d] + index[d]
        for k in reversed(a[1:]):
            out[k] = flat % source[k]
            flat = flat // source[k]
        out[a[0]] = flat
    return tuple(out)


def view_index(node: Node, index: tuple[IntExpr, ...]) -> tuple:
    """The index into ``node.inputs[0]`` of element ``index`` of the view ``node``; of ``as_strided`` where that one is
    dense."""
    op, attrs, shape = node.op, node.attrs, node.inputs[0].type.shape
    if info(op).is_whole_view:
        return index
    if op == "permute":
        out = [0] * len(shape)
        for i, d in enumerate(attrs["dims"]):
            out[d] = index[i]
        return tuple(out)
    if op == "reshape":
        return reshape_index(shape, node.type.shape, index)
    if op == "expand":
        return broadcast_index(shape, index)
    if op == "slice":
        d = attrs["dim"]
        return index[:d] + (index[d] * attrs["step"] + attrs["start"],) + index[d + 1 :]
    if op == "diagonal":
        d1, d2, offset = attrs["dim1"] % len(shape), attrs["dim2"] % len(shape), attrs["offset"]
        rest, along = list(index[:-1]), index[-1]
        out = [None] * len(shape)
        out[d1] = along + (-offset if offset < 0 else 0)
        out[d2] = along + (offset if offset > 0 else 0)
        for k in range(len(shape)):
            if out[k] is None:
                out[k] = rest.pop(0)
        return tuple(out)
    if op == "as_strided":
        place = attrs["offset"] or 0
        for i, s in zip(index, attrs["stride"]):
            place = place + i * s
        strides = node.inputs[0].type.strides
        return tuple(0 if is_one(n) else place // s % n for n, s in zip(shape, strides))
    raise KeyError(op)


def broadcast_index(shape: tuple[IntExpr, ...], index: tuple[IntExpr, ...]) -> tuple:
    """The index into an operand of ``shape`` of element ``index`` of the result it is broadcast to."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if is_one(s) else i for s, i in zip(shape, tail))


def broadcast_alignment(shape: tuple[IntExpr, ...], align: tuple[int, ...] | None) -> Optional[tuple]:
    if align is None:
        return None
    tail = align[len(align) - len(shape) :]
    return tuple([FIXED if is_one(s) else a for s, a in zip(shape, tail)])


def view_alignment(node: Node, align: tuple[int, ...] | None) -> Optional[tuple]:
    """The alignment of ``node.inputs[0]`` under that of the view ``node``."""
    if align is None:
        return None
    op, attrs, shape = node.op, node.attrs, node.inputs[0].type.shape
    if info(op).is_whole_view:
        return align
    if op == "permute":
        out = [FIXED] * len(shape)
        for i, d in enumerate(attrs["dims"]):
            out[d] = align[i]
        return tuple(out)
    if op == "expand":
        return broadcast_alignment(shape, align)
    if op == "slice":
        d = attrs["dim"]
        whole = (type(attrs["start"]) is int and attrs["start"] == 0 and attrs["step"] == 1
                 and same(attrs["length"], shape[d]))
        return align if whole else loosened(align, (d,))
    if op == "reshape":
        out = [FIXED] * len(shape)
        for a, b in segments(shape, node.type.shape):
            for d in a:
                out[d] = align[b[0]] if len(a) == len(b) == 1 else LOOSE
        return tuple(out)
    return None


def loosened(align: tuple[int, ...] | None, dims: Collection[int]) -> Optional[tuple]:
    """The alignment with dimensions that are indexed in another way."""
    return None if align is None else tuple([LOOSE if d in dims else a for d, a in enumerate(align)])


def view_offset(node: Node) -> tuple[bool, int]:
    """What a view adds to its input's element offset, given that the input is materialised with its type's strides.

    ``as_strided`` returns its own offset, which is absolute: (True, offset); every other view (False, offset to add).
    """
    op, attrs = node.op, node.attrs
    if op == "as_strided":
        return True, attrs["offset"] or 0
    strides = node.inputs[0].type.strides
    if op == "slice":
        return False, attrs["start"] * strides[attrs["dim"]]
    if op == "diagonal":
        offset, rank = attrs["offset"], len(strides)
        return False, (-offset * strides[attrs["dim1"] % rank] if offset < 0
                       else offset * strides[attrs["dim2"] % rank])
    return False, 0


def base_of(node: Node) -> Node:
    """The value under a chain of views."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def unaliased(node: Node) -> Node:
    """The node whose very elements ``node`` shows."""
    while info(node.op).is_whole_view:
        node = node.inputs[0]
    return node


def offset_in_base(node: Node) -> int:
    """The element offset of a view in its base."""
    return in_memory(node, lambda n: None)[1]


def in_memory(node: Node, places: Callable[[Node], object | None]) -> tuple[Node, int]:
    """What is in memory under a chain of views, the base if no view before it has a place of its own, and the element
    offset of ``node`` there."""
    total, absolute = 0, False
    while node.op in VIEWS and places(node) is None:
        begins_anew, offset = view_offset(node)
        total, absolute, node = total if absolute else total + offset, absolute or begins_anew, node.inputs[0]
    return node, total
