"""Which blocks of a mask are kept, from bounds of what the mask compares.

A mask over queries and keys mostly compares positions, or what is looked up by one of the two: ``q >= k``, ``q - k <
w``, ``document[q] == document[k]``. In a block of it each side lies between two bounds, which are known from the
block's numbers, or found along one axis, and these say whether the comparison holds for all of the block, or may hold
for some. So a mask of M by N need not be computed to know which of its blocks to visit. What is of another form, and
varies along both axes, is computed and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from jit.graph.dims import Dim, ceil_div, is_one
from jit.graph.ir import Node, same_ints
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.build import Builder

_LARGEST = 1 << 40  # of a constant, and _MOST of these added up, such that no sum leaves 64 bits
_MOST = 64
_PADDED = (1 << 63) - 1024  # the largest number of int64 that is one of float64


class _Bounds(NamedTuple):
    """Of integers, for each block: none is below ``low`` or above ``high``."""

    low: Node
    high: Node


class _Truth(NamedTuple):
    """Of truth values, for each block: where ``all`` holds all are true, and where ``any`` does not, none is."""

    all: Node
    any: Node


def block_states(b: Builder, kept: Node, side: int) -> Node:
    """Of each block of ``side`` by ``side`` of a mask, (..., M, N), whether none of it is true (0), perhaps some (1),
    or all, with none of the block beyond the mask (2): int32, (..., ceil(M / side), ceil(N / side))."""
    return _States(b, kept, side).state()


class _States:
    def __init__(self, b: Builder, kept: Node, side: int) -> None:
        self.b, self.kept, self.side = b, kept, side
        self.sizes = kept.shape[-2:]
        self.blocks = tuple(ceil_div(n, side) for n in self.sizes)
        self.found: dict[Node, _Truth] = {}

    def state(self) -> Node:
        b, truth = self.b, self.truth(self.kept)
        whole = truth.all
        for axis, (size, blocks) in enumerate(zip(self.sizes, self.blocks)):
            if type(size) is not int or size % self.side:
                inside = b.lt(self.firsts(axis), b.scalar(size - self.side + 1, torch.int64, whole.device))
                whole = b.logical_and(whole, inside)
        state = b.add(b.cast(truth.any, torch.int32), b.cast(whole, torch.int32))
        shape = (*self.kept.shape[:-2], *self.blocks)
        return state if same_ints(state.shape, shape) else b.clone(b.expand(state, shape))

    def firsts(self, axis: int) -> Node:
        """The number of the first row, or column, of each block."""
        numbers = self.b.iota(self.blocks[axis], 0, self.side, device=self.kept.device)
        return self.b.reshape(numbers, (self.blocks[0], 1) if axis == 0 else (1, self.blocks[1]))

    # truth values

    def truth(self, node: Node) -> _Truth:
        if node not in self.found:
            self.found[node] = self._truth(node)
        return self.found[node]

    def _truth(self, node: Node) -> _Truth:
        b, node = self.b, self.as_matrix(node)
        if _leads_only(node):
            return _Truth(*(self.led(node, v) for v in self.truth(node.inputs[0])))
        if not self.is_whole(node):
            return self.reduced(node)
        if node.op in _LOGIC:
            return _LOGIC[node.op](b, *map(self.truth, node.inputs))
        if node.op in _COMPARES and all(_is_integer(i.dtype) for i in node.inputs):
            sides = [self.bounds(i) for i in node.inputs]
            if None not in sides:
                return _COMPARES[node.op](b, *sides)
        return self.reduced(node)

    def reduced(self, node: Node) -> _Truth:
        if not self.is_whole(node):
            return _Truth(self.over(node, "all", True), self.over(node, "any", False))
        b = self.b
        count = self.over(b.cast(node, torch.int32), "sum", 0)
        return _Truth(b.eq(count, b.scalar(self.side ** 2, torch.int32, node.device)),
                      b.gt(count, b.scalar(0, torch.int32, node.device)))

    # integers

    def bounds(self, node: Node) -> _Bounds | None:
        """None where they are not known without computing the node for all of the block."""
        b, node = self.b, self.as_matrix(node)
        if _leads_only(node):
            inner = self.bounds(node.inputs[0])
            return inner and _Bounds(*(self.led(node, v) for v in inner))
        if self.is_whole(node):
            sides = [self.bounds(i) for i in node.inputs] if node.op in _ARITHMETIC and _stays_small(node) else [None]
            return None if None in sides else _ARITHMETIC[node.op](b, *sides)
        axis = next((a for a in (0, 1) if not is_one(node.shape[a - 2])), None)
        if axis is None:
            return _Bounds(node, node)
        positions = node.inputs[0] if node.op == "reshape" else node
        if (positions.op == "iota" and positions.attrs["start"] == 0 and positions.attrs["step"] == 1
            and node.dtype is torch.int64):  # fmt: skip
            first = self.firsts(axis)
            last = b.minimum(b.add(first, b.scalar(self.side - 1, torch.int64, node.device)),
                             b.scalar(self.sizes[axis] - 1, torch.int64, node.device))
            return _Bounds(first, last)
        limits = torch.iinfo(node.dtype)
        return _Bounds(self.over(node, "amin", min(limits.max, _PADDED)), self.over(node, "amax", limits.min))

    # nodes

    def as_matrix(self, node: Node) -> Node:
        """The node with two dimensions at least."""
        return node if len(node.shape) >= 2 else self.b.reshape(node, (1, 1, *node.shape)[-2:])

    def is_whole(self, node: Node) -> bool:
        """Whether it varies along both axes."""
        return not is_one(node.shape[-1]) and not is_one(node.shape[-2])

    def led(self, node: Node, value: Node) -> Node:
        """What was found of a node of which this one is a view, see ``_leads_only``."""
        shape = (*node.shape[:-2], *value.shape[-2:])
        return self.b.expand(value, shape) if node.op == "expand" else self.b.reshape(value, shape)

    def over(self, node: Node, op: str, rest: int | bool) -> Node:
        """The node reduced over the rows and columns of each block, those beyond the mask counting as ``rest``."""
        b = self.b
        lead, axes = node.shape[:-2], [a for a in (0, 1) if not is_one(node.shape[a - 2])]
        pads = [(0, self.blocks[a] * self.side - self.sizes[a] if a in axes else 0) for a in (0, 1)]
        if any(type(hi) is not int or hi for _, hi in pads):
            node = b.pad(node, [(0, 0)] * len(lead) + pads, rest)
        shape: list = list(lead)
        for a in (0, 1):
            shape += [self.blocks[a], self.side] if a in axes else [1]
        split = b.reshape(node, tuple(shape))
        parts = [len(lead) + 1 + 2 * i if axes == [0, 1] else len(lead) + 1 + axes[0] for i in range(len(axes))]
        return b.reduce(op, split, parts, dtype=split.dtype) if parts else split


def _is_integer(dtype: torch.dtype) -> bool:
    return dtype is not torch.bool and not dtype.is_floating_point and not dtype.is_complex


def _leads_only(node: Node) -> bool:
    """Whether it is its input, repeated, or with other dimensions in front of the same last two."""
    return node.op == "expand" or (
        node.op == "reshape" and len(node.inputs[0].shape) >= 2
        and same_ints(node.inputs[0].shape[-2:], node.shape[-2:]))


def _stays_small(node: Node) -> bool:
    """Whether nothing that it is made of can leave 64 bits: it is made of positions and constants alone."""
    seen, todo = 0, [node]
    while todo:
        n = todo.pop()
        seen += 1
        if seen > _MOST or n.dtype is not torch.int64:
            return False
        if n.op in _ARITHMETIC or n.op == "reshape":
            todo += n.inputs
        elif info(n.op).constant:
            if type(n.attrs["value"]) is not Dim and abs(n.attrs["value"]) > _LARGEST:
                return False
        elif (n.op != "iota" or type(n.attrs["start"]) is Dim or abs(n.attrs["start"]) > _LARGEST
              or abs(n.attrs["step"]) > 1):
            return False
    return True


def _equal(b: Builder, x: _Bounds, y: _Bounds) -> _Truth:
    return _Truth(b.logical_and(b.ge(x.low, y.high), b.le(x.high, y.low)),
                  b.logical_and(b.le(x.low, y.high), b.ge(x.high, y.low)))


def _not(b: Builder, x: _Truth) -> _Truth:
    return _Truth(b.logical_not(x.any), b.logical_not(x.all))


_LOGIC: dict[str, Callable] = {
    "logical_and": lambda b, x, y: _Truth(b.logical_and(x.all, y.all), b.logical_and(x.any, y.any)),
    "logical_or": lambda b, x, y: _Truth(b.logical_or(x.all, y.all), b.logical_or(x.any, y.any)),
    "logical_not": _not,
}
_COMPARES: dict[str, Callable] = {
    "ge": lambda b, x, y: _Truth(b.ge(x.low, y.high), b.ge(x.high, y.low)),
    "gt": lambda b, x, y: _Truth(b.gt(x.low, y.high), b.gt(x.high, y.low)),
    "le": lambda b, x, y: _Truth(b.le(x.high, y.low), b.le(x.low, y.high)),
    "lt": lambda b, x, y: _Truth(b.lt(x.high, y.low), b.lt(x.low, y.high)),
    "eq": _equal,
    "ne": lambda b, x, y: _not(b, _equal(b, x, y)),
}
_ARITHMETIC: dict[str, Callable] = {
    "add": lambda b, x, y: _Bounds(b.add(x.low, y.low), b.add(x.high, y.high)),
    "sub": lambda b, x, y: _Bounds(b.sub(x.low, y.high), b.sub(x.high, y.low)),
    "neg": lambda b, x: _Bounds(b.neg(x.high), b.neg(x.low)),
    "abs": lambda b, x: _Bounds(b.maximum(b.maximum(x.low, b.neg(x.high)), b.scalar(0, torch.int64, x.low.device)),
                                b.maximum(b.abs(x.high), b.abs(x.low))),
    "minimum": lambda b, x, y: _Bounds(b.minimum(x.low, y.low), b.minimum(x.high, y.high)),
    "maximum": lambda b, x, y: _Bounds(b.maximum(x.low, y.low), b.maximum(x.high, y.high)),
}
