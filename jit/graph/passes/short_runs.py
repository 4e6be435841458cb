"""Memory that lies in short runs: reductions of it in two steps, and tables of what is the same along a run.

Group normalisation of channels-last images adds up a few neighbouring channels of each pixel. Read row by row, that is
a few elements here and a few there: neither a vector of a CPU nor the threads of a GPU read neighbours. So the outer
dimensions are reduced first, with all that lies side by side, as sums over columns are, and what is left, a few
elements for each result, in a second small step.

What is the same for the elements of a run, such as the mean of a group, is written out for each of them where a CPU
would have to gather it: the processor reads it beside the elements then.

Squares about the mean are taken about each column's own mean, which lies side by side as well, and which some devices
do in one pass (see ``codegen.moments``), and put together by their counts (Chan, Golub, LeVeque, "Updating formulae and
a pairwise algorithm for computing sample variances", 1979): n * (mean of the column - mean)**2 is added for each column
of n.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.graph import dims
from jit.graph.ir import Graph, Node, TensorType
from jit.graph.passes.rewrite import rebuilt
from jit.graph.prim_info import STORED, info
from jit.graph.prims import REDUCTIONS

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

LONGEST_RUN = 32  # elements that are read in one piece otherwise
FEWEST_BESIDE = 4  # runs that lie side by side
FEWEST_OUTER = 16  # elements of a first step


def without_short_runs(graph: Graph) -> Graph:
    """The graph with such reductions in two steps, and with tables."""
    return rebuilt(graph, lambda n: _outer(n) is not None or _spread(n), _rewrite)


def _order(t: TensorType) -> list[int] | None:
    """The dimensions of a tensor that is walked, from the innermost in memory on; None where sizes are symbols."""
    if not all(type(s) is int for s in (*t.shape, *t.strides)):
        return None
    return sorted((d for d in range(t.rank) if t.shape[d] != 1 and t.strides[d]), key=lambda d: t.strides[d])


def _spread(n: Node) -> list[tuple[int, list[int]]]:
    """The operands of a pointwise node that are the same along short runs: their positions, with the dimensions of the
    runs."""
    if n.several or info(n.op).kind != "pointwise" or not backend(n.type.device).tables_of_runs:
        return []
    rank = n.type.rank
    if rank < 2:
        return []
    ones = [k for k, i in enumerate(n.inputs) if i.type.rank == rank and 1 in map(_known, i.type.shape)]
    order = _order(n.type) if ones else None
    found = []
    for k in ones if order else ():
        i = n.inputs[k]
        if not all(type(s) is int for s in i.type.shape):
            continue
        inner = list(itertools.takewhile(lambda d: i.type.shape[d] == 1, order))
        run, rest = dims.product([n.type.shape[d] for d in inner]), order[len(inner):]
        table = run * dims.product(i.type.shape)
        if (inner and rest and run <= LONGEST_RUN and n.type.strides[rest[0]] == run
                and i.type.shape[rest[0]] == n.type.shape[rest[0]] >= FEWEST_BESIDE
                and table * FEWEST_OUTER <= dims.product(n.type.shape)):
            found.append((k, inner))
    return found


def _known(size: IntExpr) -> int:
    """A size, or -1 for a symbol."""
    return size if type(size) is int else -1


def _table(b: Builder, operand: Node, result: TensorType, inner: list[int]) -> Node:
    """An operand written out along the runs, in the order in which the result is walked."""
    shape = [result.shape[d] if d in inner else s for d, s in enumerate(operand.type.shape)]
    strides, step = [0] * len(shape), 1
    for d in (*(_order(result) or ()), *range(len(shape))):
        if strides[d] == 0:
            strides[d], step = step, step * shape[d]
    return b.marked(b.clone(b.expand(operand, tuple(shape)), tuple(strides)), "", **{STORED: True})


def _outer(n: Node) -> list[int] | None:
    """The dimensions that are reduced first; None where there is only one step."""
    if n.op not in REDUCTIONS or info(n.op).combine not in ("sum", "max", "min") or "count" in n.attrs:
        return None
    if n.inputs[0].type.dtype not in (torch.float32, torch.float64) or n.attrs.get("nan_hits"):
        return None
    t = n.inputs[0].type
    sizes, order = t.shape, _order(t)
    if order is None:
        return None
    reduced, run, inner = set(n.attrs["dims"]), 1, []
    for d in order:
        if d not in reduced or t.strides[d] != run:
            break
        inner.append(d)
        run *= sizes[d]
    beside = order[len(inner)] if len(inner) < len(order) else None
    outer = [d for d in order[len(inner):] if d in reduced]
    if not inner or run > LONGEST_RUN or beside is None or beside in reduced or t.strides[beside] != run:
        return None
    if sizes[beside] < FEWEST_BESIDE or dims.product([sizes[d] for d in outer]) < FEWEST_OUTER:
        return None
    return sorted(outer)


def _rewrite(b: Builder, n: Node) -> Node | None:
    outer = _outer(n)
    if outer is None:
        inputs = list(n.inputs)
        for k, inner in _spread(n):
            inputs[k] = _table(b, inputs[k], n.type, inner)
        return b.node(n.op, tuple(inputs), n.attrs, n.type) if inputs != list(n.inputs) else None
    x, along, keep, dtype = n.inputs[0], n.attrs["dims"], n.attrs["keepdim"], n.type.dtype
    about = _about_the_mean(n)
    if about is None:
        return b.reduce(n.op, b.reduce(n.op, x, outer, True, dtype), along, keep, dtype)
    values, mean = about
    count = dims.product([x.type.shape[d] for d in outer])
    # Where sums could overflow, eager's mean does not: see ``ops.normalization``.
    scale = 1.0 if backend(n.type.device).one_pass_moments else 2.0**-16
    scaled = values if scale == 1 else b.mul(values, b.scalar(scale, dtype, x.type.device))
    own = b.div(b.reduce("sum", scaled, outer, True, dtype), b.scalar(count, dtype, x.type.device))
    own = own if scale == 1 else b.mul(own, b.scalar(1 / scale, dtype, x.type.device))
    squares, apart = b.sub(values, own), b.sub(own, mean)
    squares = b.reduce("sum", b.mul(squares, squares), outer, True, dtype)
    between = b.mul(b.mul(apart, apart), b.scalar(count, dtype, x.type.device))
    return b.reduce("sum", b.add(squares, between), along, keep, dtype)


def _about_the_mean(n: Node) -> tuple[Node, Node] | None:
    """``(x, mean)`` of a sum of ``(x - mean)**2`` with a mean that is the same along all that is reduced."""
    squared = n.inputs[0]
    if n.op != "sum" or squared.op != "mul" or squared.inputs[0] is not squared.inputs[1]:
        return None
    centred = squared.inputs[0]
    if centred.op != "sub" or centred.type.dtype is not n.type.dtype:
        return None
    x, mean = centred.inputs
    if x.type.shape != n.inputs[0].type.shape:
        return None
    first = x.type.rank - mean.type.rank
    if any(d >= first and not dims.structurally_equal(mean.type.shape[d - first], 1) for d in n.attrs["dims"]):
        return None
    return x, mean
