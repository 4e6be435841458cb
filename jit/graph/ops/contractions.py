"""Sums of products over named or numbered dimensions, as PyTorch composes them: of permuted and folded operands whose
product is one ``bmm`` or ``mm``, or an elementwise product where nothing is summed. So they fuse with what is around
them, and their gradients are those of the parts.

Source of the order of the steps, on which strides and rounding depend: aten/src/ATen/native/Linear.cpp of PyTorch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from jit.errors import Unsupported
from jit.graph.dims import hint, product
from jit.graph.handles import TensorHandle
from jit.graph.layout import normalize_dim
from jit.graph.nested import unpacked
from jit.graph.registry import op

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer

ELLIPSIS = "..."


class _Wrong(Exception):
    """Not a call that PyTorch takes; it is left to say so itself."""


class _Calls:
    """Operators by name, called on handles: ``calls.permute(x, (1, 0))``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __getattr__(self, name: str) -> Callable:
        return lambda *args: self._tracer.call_op(name, args, {})


def _is_one(size: IntExpr) -> bool:
    return type(size) is int and size == 1


def _left_to_pytorch(t: Tracer, name: str, args: tuple) -> TensorHandle:
    if t.autocast:
        raise Unsupported(f"{name} under autocast",
                          "cast explicitly, or leave autocast outside of the compiled function",
                          kind="autocast")
    return t._call_aten(name, args, {})


# einsum


class _Equation(NamedTuple):
    """Where each label of an einsum stands among the dimensions of its operands and the summed ones behind them."""

    operands: tuple[tuple[str, ...], ...]
    place: dict[str, int]
    dots: range  # the places of what ``...`` stands for
    kept: int  # as many are dimensions of the result
    all: int


def _labels(text: str) -> tuple[str, ...]:
    found, text = [], text.replace(" ", "")
    while text:
        label = ELLIPSIS if text.startswith(ELLIPSIS) else text[0]
        if label != ELLIPSIS and not (label.isascii() and label.isalpha()) or label == ELLIPSIS and label in found:
            raise _Wrong
        found.append(label)
        text = text[len(label):]
    return tuple(found)


def _parsed(equation: str, ranks: Sequence[int]) -> _Equation:
    left, arrow, right = equation.partition("->")
    operands = tuple(map(_labels, left.split(",")))
    if len(operands) != len(ranks) or ">" in right:
        raise _Wrong
    covered = 0
    for labels, rank in zip(operands, ranks):
        named = len(labels) - (ELLIPSIS in labels)
        if not (named <= rank if ELLIPSIS in labels else named == rank):
            raise _Wrong
        covered = max(covered, rank - named)
    counts = {c: sum(labels.count(c) for labels in operands) for c in sorted(set(itertools.chain(*operands)))}
    counts.pop(ELLIPSIS, None)
    result = _labels(right) if arrow else (ELLIPSIS, *(c for c, n in counts.items() if n == 1))
    if len(set(result)) < len(result) or not set(result) <= {ELLIPSIS, *counts}:
        raise _Wrong
    place: dict[str, int] = {}
    at = dots = 0
    for label in result:
        if label == ELLIPSIS:
            dots, at = at, at + covered
        else:
            place[label], at = at, at + 1
    kept = at
    if ELLIPSIS not in result:
        dots, at = at, at + covered
    for label in counts:
        if label not in place:
            place[label], at = at, at + 1
    return _Equation(operands, place, range(dots, dots + covered), kept, at)


def _aligned(run: _Calls, eq: _Equation, labels: tuple[str, ...], x: TensorHandle) -> TensorHandle:
    """``x`` with all dimensions of the equation in their order; those that it lacks have size 1."""
    order: list[int | None] = [None] * eq.all
    own = x.ndim - (len(labels) - 1)  # dimensions behind ``...``
    dim = 0
    for label in labels:
        if label == ELLIPSIS:
            for place in eq.dots[len(eq.dots) - own:]:
                order[place], dim = dim, dim + 1
        elif (earlier := order[eq.place[label]]) is None:
            order[eq.place[label]], dim = dim, dim + 1
        else:
            if not x.shape[dim] == x.shape[earlier]:
                raise _Wrong
            x = run.movedim(run.diagonal(x, 0, earlier, dim), -1, earlier)
    for place, found in enumerate(order):
        if found is None:
            x = run.unsqueeze(x, dim)
            order[place], dim = dim, dim + 1
    return run.permute(x, tuple(order))


def _product_of_pair(run: _Calls, x: TensorHandle, y: TensorHandle, summed: Sequence[int]) -> TensorHandle:
    """The product of two operands of as many dimensions, summed over those in which both have more than one element."""
    if not summed:
        return run.mul(x, y)
    both, left, right = [], [], []
    for k, (m, n) in enumerate(zip(x.shape, y.shape)):
        if k not in summed:
            (right if _is_one(m) else left if _is_one(n) else both).append(k)
    if left and right and right[-1] < left[0] and _results_lie_in_order():
        x, y, left, right = y, x, right, left
    batch, rows, inner, columns = ([v.shape[k] for k in dims] for v, dims in
                                   ((x, both), (x, left), (x, summed), (y, right)))
    sizes = [product(s) for s in (batch, rows, inner, columns)]
    a = run.reshape(run.permute(x, (*both, *left, *summed, *right)), (sizes[0], sizes[1], sizes[2]))
    b = run.reshape(run.permute(y, (*both, *summed, *right, *left)), (sizes[0], sizes[2], sizes[3]))
    order = [*both, *left, *summed, *right]
    result = run.view(run.bmm(a, b), (*batch, *rows, *[1] * len(summed), *columns))
    return run.permute(result, tuple([order.index(k) for k in range(len(order))]))


@functools.cache
def _results_lie_in_order() -> bool:
    """Whether this PyTorch exchanges the operands where the second one's dimensions come first in the result."""
    x, y = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    return torch.einsum("ij,jk->ki", x, y).is_contiguous()


def _contracted(run: _Calls, eq: _Equation, operands: list[TensorHandle], path: Sequence[int] | None) -> TensorHandle:
    left = [_aligned(run, eq, labels, x) for labels, x in zip(eq.operands, operands)]
    if len(left) == 1:
        return run.sum(left[0], tuple(range(eq.kept, eq.all))) if eq.all > eq.kept else left[0]
    # In how many operands that are left a dimension has more than one element.
    counts = [0] * eq.all
    for k in range(eq.all):
        size: IntExpr = 1
        for x in left:
            if not _is_one(x.shape[k]):
                if not _is_one(size) and not size == x.shape[k]:
                    raise _Wrong
                size, counts[k] = x.shape[k], counts[k] + 1
    steps = iter(path or ())
    while len(left) > 1:
        i, j = (0, 1) if path is None else sorted((next(steps), next(steps)))
        y, x = left.pop(j), left.pop(i)
        summed, alone = [], ([], [])
        for k in range(eq.kept, eq.all):
            wide = [not _is_one(v.shape[k]) for v in (x, y)]
            if all(wide):
                counts[k] -= 1
                if counts[k] == 1:
                    summed.append(k)
                    counts[k] = 0
            elif any(wide) and counts[k] == 1:
                alone[wide[1]].append(k)
                counts[k] = 0
        x, y = (run.sum(v, tuple(dims), True) if dims else v for v, dims in zip((x, y), alone))
        left.insert(0 if path is None else len(left), _product_of_pair(run, x, y, summed))
    return run.view(left[0], tuple(left[0].shape[:eq.kept])) if eq.all > eq.kept else left[0]


def contraction_order(equation: str, operands: Sequence[TensorHandle]) -> list[int] | None:
    """The pairs in which ``torch.einsum`` has opt_einsum contract three operands and more; None: from the left."""
    chosen = torch.backends.opt_einsum
    if len(operands) <= 2 or not chosen.is_available() or not chosen.enabled:
        return None
    shapes = [tuple(map(hint, x.shape)) for x in operands]
    found = chosen.get_opt_einsum().contract_path(equation, *shapes, shapes=True, optimize=chosen.strategy)[0]
    return [k for pair in found for k in pair]


@op("einsum", raw=True)
def einsum(t: Tracer, equation: str, *operands: TensorHandle | Sequence[TensorHandle], path=None) -> TensorHandle:
    given = list(unpacked(operands))
    mark = t.journal.checkpoint()
    try:
        return _contracted(_Calls(t), _parsed(equation, [x.ndim for x in given]), given, path)
    except _Wrong:
        t.journal.rollback(mark)
        return _left_to_pytorch(t, "einsum", (equation, given))


# by numbers of dimensions


def _dims(dims: int | Sequence[int], rank: int) -> list[int]:
    return [normalize_dim(d, rank) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]


@op("tensordot", raw=True)
def tensordot(t: Tracer, self: TensorHandle, other: TensorHandle, dims_self: Sequence[int],
              dims_other: Sequence[int]) -> TensorHandle:
    args = (self, other, dims_self, dims_other)
    try:
        first, second = _dims(dims_self, self.ndim), _dims(dims_other, other.ndim)
    except (IndexError, TypeError):
        return _left_to_pytorch(t, "tensordot", args)
    if (len(first) != len(second) or len(set(first)) < len(first) or len(set(second)) < len(second)
        or self.dtype is not other.dtype):
        return _left_to_pytorch(t, "tensordot", args)
    run, x, y, inner = _Calls(t), self, other, 1
    for i, j in zip(first, second):
        if _is_one(other.shape[j]):
            x = run.sum(x, (i,), True)
        elif _is_one(self.shape[i]):
            y = run.sum(y, (j,), True)
        elif not self.shape[i] == other.shape[j]:
            return _left_to_pytorch(t, "tensordot", args)
        else:
            inner = inner * self.shape[i]
    rows = [k for k in range(x.ndim) if k not in first]
    columns = [k for k in range(y.ndim) if k not in second]
    m, n = ([v.shape[k] for k in dims] for v, dims in ((x, rows), (y, columns)))
    a = run.reshape(run.permute(x, (*rows, *first)), (product(m), inner))
    b = run.reshape(run.permute(y, (*second, *columns)), (inner, product(n)))
    return run.reshape(run.mm(a, b), (*m, *n))


@op("inner", raw=True)
def inner(t: Tracer, self: TensorHandle, other: TensorHandle) -> TensorHandle:
    if not self.ndim or not other.ndim:
        return t.call_op("mul", (self, other), {})
    if not self.shape[-1] == other.shape[-1]:
        return _left_to_pytorch(t, "inner", (self, other))
    return tensordot(t, self, other, [-1], [-1])
