"""Vectors that are divided by a norm of theirs before a matrix is multiplied by them, as in front of the linear layers
of a transformer: ``W @ (x * g * s)``, where sums over ``x`` make the one number ``s``, is ``s * (W @ (x * g))``. The
kernel of the product reads ``x`` anyway and takes those sums beside its own, so that the norm needs no kernel in front
of it, whose end each product waits for: 2.5 % more tokens a second from a Llama of 1 billion parameters on an H100.

The vector is not rounded to its dtype in between: the product is more exact than eager's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

import torch

from jit.graph import dims
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jit.graph.build import Builder
    from jit.graph.ir import Graph, Node

LONGEST = 8192  # elements of a vector, which each program of a product reads whole
MOST_NODES = 16  # that make the number


@dataclass(frozen=True)
class Scaled:
    """What a vector is without its scale, in single precision, and the numbers whose product that is; the last field
    tells of each whether it divides."""

    rest: Node
    numbers: list[tuple[Node, bool]]

    def scale(self, b: Builder, rows: int, factors: Sequence[int]) -> list[tuple[Node, bool]]:
        """The numbers, each for as many rows of a matrix, with sums over the dimensions in which a row is read."""
        return [(_for_each(b, n, rows, factors, {}), divides) for n, divides in self.numbers]


def scaled(b: Builder, x: Node, made: Callable[[Node], bool]) -> Scaled | None:
    """A vector as one that is scaled; None where it is none. ``made``: whether a node is made by kernels here, and for
    this vector alone."""
    numbers: list = []
    rest = _without_numbers(b, x, numbers, made)
    return Scaled(rest, numbers) if numbers else None


def _one(n: Node) -> bool:
    return not n.several and all(type(s) is int and s == 1 for s in n.type.shape)


def _without_numbers(b: Builder, x: Node, numbers: list, made: Callable[[Node], bool]) -> Node:
    wide = torch.float32
    if x.op == "reshape" and not _one(x):
        return b.reshape(_without_numbers(b, x.inputs[0], numbers, made), x.type.shape)
    if made(x) and x.op == "cast" and x.inputs[0].type.dtype.is_floating_point:
        return _without_numbers(b, x.inputs[0], numbers, made)
    if made(x) and not _one(x) and _scales(x):
        left, right = x.inputs
        length, product = dims.product(x.type.shape), x.op == "mul"
        if _one(right) and _of_sums(right, length):
            numbers.append((right, not product))
            return _without_numbers(b, left, numbers, made)
        if product and _one(left) and _of_sums(left, length):
            numbers.append((left, False))
            return _without_numbers(b, right, numbers, made)
        if product:
            return b.emit("mul", tuple([_without_numbers(b, i, numbers, made) for i in x.inputs]), {}, wide)
    return b.cast(x, wide)


def _scales(n: Node) -> bool:
    return n.op == "mul" or n.op == "div"


def _of_sums(n: Node, length: int) -> bool:
    """Whether a number is made of sums over ``length`` elements, and of others, by few operations."""
    seen, stack, sums = set(), [n], 0
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "sum" and not n.attrs.get("precise"):
            if not dims.structurally_equal(dims.product(n.inputs[0].type.shape), length):
                return False
            sums += 1
        elif n.op != "scalar":
            if not (_one(n) and n.type.dtype is torch.float32 and info(n.op).kind == "pointwise" or n.op == "reshape"):
                return False
            stack += n.inputs
    return sums > 0 and len(seen) <= MOST_NODES


def _for_each(b: Builder, n: Node, rows: int, factors: Sequence[int], known: dict) -> Node:
    """A number that sums make, for each of the rows of a matrix, as (rows,)."""
    if n not in known:
        if n.op == "sum":
            x = b.expand(b.reshape(n.inputs[0], (1, *factors)), (rows, *factors))
            known[n] = b.reduce("sum", x, tuple(range(1, 1 + len(factors))), False, n.type.dtype)
        elif n.op == "scalar":
            known[n] = n
        elif n.op == "reshape":
            known[n] = _for_each(b, n.inputs[0], rows, factors, known)
        else:
            made = [_for_each(b, i, rows, factors, known) for i in n.inputs]
            known[n] = b.emit(n.op, tuple(made), dict(n.attrs), n.type.dtype)
    return known[n]


def read_by_products(graph: Graph, product: Callable[[Node], bool]) -> set[int]:
    """The ids of the nodes whose values nothing reads but products with one vector, as that vector, and nodes of this
    kind."""
    left = {o.node for o in graph.outputs}
    for n in reversed(graph.nodes):
        for k, i in enumerate(n.inputs):
            if not (k == 0 and product(n) or n not in left and (_scales(n) or n.op == "reshape" or n.op == "cast")):
                left.add(i)
    return {n.id for n in graph.nodes if n not in left}
