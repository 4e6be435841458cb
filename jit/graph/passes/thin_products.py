"""Products of a matrix and a vector, or a few, as sums of products, which kernels compute with what stands around them.

The library reads a weight as it is stored in its operand's dtype, so one that is kept in eight or four bits is written
to memory in sixteen before it is multiplied: six times the bytes. A product with a vector does nothing but read its
matrix once, and that is what the loops of a reduction do: as ``sum(matrix * vector)`` the nodes that make the matrix,
those that follow the product, and others that read the same matrix, are part of its kernel as they are of any
reduction's. The products of halves are not rounded before they are added, as in the library.

The sum is taken over as many dimensions as the matrix is made of along it: where its nodes see the row as groups that
have a factor each, or as pairs that lie in one byte, an axis of its own for each of them leaves no division in any
address. Parts that are joined by a concatenation are sums of their own, added up for each element, so that none is
selected by its position.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

import torch

from jit import config
from jit.devices import backend
from jit.graph import dims
from jit.graph.ir import Graph, Node, filled
from jit.graph.passes import scaled_vectors
from jit.graph.passes.rewrite import rebuilt
from jit.graph.prim_info import OF_A_PRODUCT, info
from jit.graph.prims import base_of

if TYPE_CHECKING:
    Row = tuple[tuple[int | None, int], ...]

    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_PARTS = 4  # of a row, that are joined


def sum_thin_products(graph: Graph) -> Graph:
    """The graph with its products with vectors as sums where kernels are faster than the library."""
    if config.match_eager_rounding:  # a product of elements would be rounded, which the library does not do
        return graph
    if not any(map(_is_thin, graph.of_ops(("aten_call",)))):
        return graph
    alone = scaled_vectors.read_by_products(graph, _with_one_vector)
    return rebuilt(graph, _is_thin, functools.partial(_rewrite, alone), ("aten_call",))


def _with_one_vector(n: Node) -> bool:
    """Whether a node is a product of one vector with a matrix, and its kernel may take sums over the vector along."""
    if not _interesting(n) or n.attrs["target"] not in ("aten::linear", "aten::mm"):
        return False
    x, w, *_ = filled(n.attrs["args"], n.inputs)
    return (x is not w and backend(n.type.device).norms_in_products and _is(dims.product(x.type.shape[:-1]), 1)
            and w.type.rank == 2 and all(type(s) is int for s in w.type.shape) and w.type.numel > x.type.numel
            and {x.type.dtype, w.type.dtype} == {n.type.dtype} and _pays(w, 1, n)
            and x.type.shape[-1] <= scaled_vectors.LONGEST)


def _interesting(n: Node) -> bool:
    return (n.op == "aten_call" and not n.several and not n.impure and n.attrs["overload"] == ""
            and n.type.dtype in DTYPES and backend(n.type.device).sums_products is not None)


def _is_thin(n: Node) -> bool:
    """Whether there may be few vectors on one side."""
    if not _interesting(n):
        return False
    device = backend(n.type.device)
    most = device.most_vectors if n.type.dtype is torch.float32 else device.most_half_vectors
    return any(_few(size, most) for size in (dims.product(n.type.shape[:-1]), *n.type.shape[-1:]))


def _operands(b: Builder, n: Node) -> tuple[Node, Node, Node | None] | None:
    """(left operand, right operand, what is added or None) of a product of matrices; None for other calls."""
    target, args = n.attrs["target"], list(filled(n.attrs["args"], n.inputs))
    if target == "aten::mm":
        return args[0], args[1], None
    if target == "aten::mv":
        return args[0], b.unsqueeze(args[1], 1), None  # it has one column, and a result without a dimension for it
    if target == "aten::addmm" and all(type(a) in (int, float) and a == 1 for a in args[3:]):
        return args[1], args[2], args[0]
    if target == "aten::linear" and args[1].type.rank == 2:
        return args[0], b.transpose(args[1], 0, 1), args[2] if len(args) > 2 else None
    return None


def _rewrite(alone: set[int], b: Builder, n: Node) -> Node | None:
    """The nodes that compute ``n``, or None to leave it as it is."""
    device = backend(n.type.device)
    most = device.most_vectors if n.type.dtype is torch.float32 else device.most_half_vectors
    found = _operands(b, n)
    if found is None or any(t.type.dtype is not n.type.dtype for t in found[:2]):
        return None
    x, w, added = found
    rows, columns, depth = dims.product(x.type.shape[:-1]), w.type.shape[1], x.type.shape[-1]
    if type(depth) is not int or depth < 2:
        return None
    total = None
    if _few(rows, most) and _pays(w, rows, n):
        matrix = b.transpose(w, 0, 1)
        found = scaled_vectors.scaled(b, x, lambda n: n.id in alone) if _with_one_vector(n) else None
        total = _summed(b, matrix, b.reshape(x, (rows, depth))) if found is None else _scaled(b, matrix, found)
    elif _is(columns, 1) and _pays(x, columns, n):
        flat = b.try_view(x, (rows, depth))
        total = None if flat is None else _summed(b, flat, b.transpose(w, 0, 1))
    if total is None:
        return None
    total = b.reshape(total, n.type.shape)
    if added is not None:
        total = b.emit("add", (total, added), {}, n.type.dtype)
    return total if total.type == n.type else None


def _is(size: IntExpr, value: int) -> bool:
    return type(size) is int and size == value


def _few(size: IntExpr, most: int) -> bool:
    return type(size) is int and 1 <= size <= most


def _pays(matrix: Node, vectors: int, n: Node) -> bool:
    """Whether a kernel is faster than the library: where it reads fewer bytes, or reads the same as fast."""
    made = info(base_of(matrix).op).kind in ("pointwise", "copy")
    if vectors == 1:
        return made or backend(n.type.device).sums_products == "all"
    t = matrix.type
    return made and 4 * sum(map(_bytes, _leaves(base_of(matrix)))) <= 3 * t.dtype.itemsize * dims.hint(t.numel)


def _leaves(node: Node) -> set[Node]:
    """The values in memory of which a matrix is made."""
    found, seen, stack = set(), set(), [node]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            if info(n.op).kind in ("pointwise", "copy", "view"):
                stack += n.inputs
            else:
                found.add(n)
    return found


def _bytes(node: Node) -> int:
    return 0 if node.several else node.type.dtype.itemsize * dims.hint(node.type.numel)


def _summed(b: Builder, matrix: Node, vectors: Node) -> Node:
    """``vectors @ matrix.T``, without a dimension for the vectors where there is one."""
    (rows, depth), count = matrix.type.shape, vectors.type.shape[0]
    factors, joined = _factors(matrix, depth)
    own, first = ((), 1) if _is(count, 1) else ((count,), 2)
    matrix = b.reshape(matrix, (*(1,) * len(own), rows, *factors))
    vectors = b.reshape(vectors, (*own, 1, *factors))
    terms = []
    for at in itertools.product(*(range(factors[d]) for d in joined)):
        m, v = matrix, vectors
        for d, i in reversed(list(zip(joined, at))):
            m, v = b.select(m, first + d, i), b.select(v, first + d, i)
        terms.append(b.marked(b.emit("mul", (m, v), {}, m.type.dtype), "", **{OF_A_PRODUCT: True}))
    while len(terms) > 1:
        added = b.emit("add", (terms.pop(0), terms.pop(0)), {}, matrix.type.dtype)
        terms.append(b.marked(added, "", **{OF_A_PRODUCT: True}))
    along = tuple(range(first, terms[0].type.rank))
    return b.reduce("sum", terms[0], along, False, matrix.type.dtype)


def _scaled(b: Builder, matrix: Node, vector: scaled_vectors.Scaled) -> Node:
    """The sums of products with a vector that is scaled, which is computed where it is read."""
    rows, depth = matrix.type.shape
    factors, _ = _factors(matrix, depth)
    wide, rest = b.cast(b.reshape(matrix, (rows, *factors)), torch.float32), b.reshape(vector.rest, (1, *factors))
    product = b.marked(b.emit("mul", (wide, rest), {}, torch.float32), "", **{OF_A_PRODUCT: False})
    total = b.reduce("sum", product, tuple(range(1, 1 + len(factors))), False, torch.float32)
    for number, divides in vector.scale(b, rows, factors):
        total = b.emit("div" if divides else "mul", (total, number), {}, torch.float32)
    return b.cast(total, matrix.type.dtype)


def _factors(matrix: Node, depth: int) -> tuple[list[int], list[int]]:
    """Sizes whose product is the length of a row, outermost first, and the places of those along which parts are
    joined."""
    strides, parts = {1, depth}, {}
    _divide(matrix, ((matrix.type.rank - 1, depth),), strides, parts, set())
    chain = [1]
    for s in sorted(strides):
        if s % chain[-1] == 0 and s > chain[-1]:
            chain.append(s)
    if chain[-1] != depth:
        return [depth], []
    steps = list(zip(chain, chain[1:]))[::-1]
    joined, some = [], 1
    for d, (inner, step) in enumerate(steps):
        if parts.get(inner) == step // inner and some * step // inner <= MOST_PARTS:
            joined.append(d)
            some *= step // inner
    return ([step // inner for inner, step in steps], joined) if len(joined) < len(steps) else ([depth], [])


def _divide(node: Node, row: Row, strides: set[int], parts: dict[int, int], seen: set) -> None:
    """Note where a row is divided by the nodes that make it.

    Args:
        row: of ``node``'s dimensions, those over which the row's elements lie in order, outermost first, with sizes;
            None for one along which nothing varies. The first may be the inner part of a dimension.
        strides: gets the numbers of neighbouring elements that lie together in some dimension.
        parts: gets the number of parts, by the length of one, of those that a concatenation joins.
    """
    if (node, row) in seen or all(d is None for d, _ in row):
        return
    seen.add((node, row))
    inner, at = 1, {}
    for d, size in reversed(row):
        strides.add(inner)
        at[d] = inner
        inner *= size
    op = node.op
    if op == "cat":
        d = node.attrs["dim"]
        lengths = {i.type.shape[d] for i in node.inputs if i.type.rank == node.type.rank}
        if d in at and (d, node.type.shape[d]) in row and len(lengths) == 1:
            (length,) = lengths
            strides.add(at[d] * length)
            parts[at[d] * length] = node.type.shape[d] // length
    elif op == "permute":
        order = node.attrs["dims"]
        _divide(node.inputs[0], tuple([(None if d is None else order[d], n) for d, n in row]), strides, parts, seen)
    elif op == "reshape":
        found = _through_reshape(node.inputs[0].type.shape, node.type.shape, row)
        if found is not None:
            _divide(node.inputs[0], found, strides, parts, seen)
    elif info(op).kind == "pointwise" or op in ("expand", "clone"):
        for i in node.inputs:
            shape = i.type.shape
            less = node.type.rank - len(shape)
            kept = [(None if d is None or d < less or _is(shape[d - less], 1) else d - less, n) for d, n in row]
            _divide(i, tuple(kept), strides, parts, seen)


def _through_reshape(source: tuple[IntExpr, ...], target: tuple[IntExpr, ...], row: Row) -> Row | None:
    """A row of the dimensions of ``target`` in those of ``source``; None where its elements do not lie in order."""
    left, found = [(d, n) for d, n in row if n != 1], []

    def constant() -> None:
        while left and left[-1][0] is None:
            found.insert(0, left.pop())

    for a, b in reversed(dims.segments(source, target)):
        constant()
        own = []
        while left and left[-1][0] in b:
            own.insert(0, left.pop())
        if own and ([d for d, _ in own] != b[len(b) - len(own):] or any(n != target[d] for d, n in own[1:])):
            return None
        size = math.prod(n for _, n in own)
        for d in reversed(a):
            if size == 1:
                break
            whole = type(source[d]) is int and size % source[d] == 0
            if not whole and not dims.divisible(source[d], size):
                return None
            found.insert(0, (d, source[d] if whole else size))
            size = size // source[d] if whole else 1
        if size != 1:
            return None
    constant()
    return None if left else tuple(found)
