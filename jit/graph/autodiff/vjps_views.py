"""Gradients of views and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from jit.errors import Unsupported
from jit.graph import layout, pairs
from jit.graph.autodiff.rules import vjp
from jit.graph.dims import Dim
from jit.graph.ir import contiguous_strides, same_ints

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.ir import Node


@vjp("permute")
def permute(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    dims = n.attrs["dims"]
    inverse = [0] * len(dims)
    for to, source in enumerate(dims):
        inverse[source] = to
    return (b.permute(g, inverse),)


@vjp("reshape")
def reshape(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    return (b.reshape(g, n.inputs[0].type.shape),)


@vjp("expand")
def expand(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    return (b.sum_to(g, n.inputs[0].type.shape),)


@vjp("alias", "clone")
def same(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    return (g,)


@vjp("reinterpret")
def reinterpret(b: GradBuilder, n: Node, g: Node) -> tuple:
    """Real and imaginary parts; the gradient of a complex number is dL/dre + i dL/dim."""
    how, x = n.attrs["how"], n.inputs[0]
    if how in ("view_as_real", "view_as_complex"):
        back = "view_as_complex" if how == "view_as_real" else "view_as_real"
        if how == "view_as_real" and not same_ints(g.type.strides, contiguous_strides(g.type.shape)):
            g = b.clone(g, contiguous_strides(g.type.shape))  # also where a size is 0 or 1: pairs have to be dense
        return (pairs.reinterpreted(b, g, back),)
    if how == "conj":
        if g.dtype not in pairs.PARTS:
            return (b.call("conj_physical", (g,), g.type),)
        return (pairs.joined(b, pairs.conjugate(b, pairs.parts(b, g)), layout.preserved_strides(g.type)),)
    if how not in ("real", "imag"):
        raise Unsupported("the gradient of memory that is read as another dtype",
                          "compute it outside the compiled function", kind="gradient")
    zero = b.zeros(g.type)
    if x.dtype in pairs.PARTS:
        return (pairs.joined(b, pairs.Pair(g, zero) if how == "real" else pairs.Pair(zero, g)),)
    return (b.call("complex", (g, zero) if how == "real" else (zero, g),
                   g.type.replace(dtype=x.type.dtype, strides=layout.preserved_strides(g.type))),)


@vjp("detach")
def detach(b: GradBuilder, n: Node, g: Node) -> tuple[None]:
    return (None,)


def spaced(b: GradBuilder, g: Node, dim: int, step: int) -> Node:
    """``g`` with ``step - 1`` zeros behind every element along ``dim``."""
    lead, size, tail = g.type.shape[:dim], g.type.shape[dim], g.type.shape[dim + 1 :]
    wide = b.reshape(g, (*lead, size, 1, *tail))
    pads = [(0, 0)] * (dim + 1) + [(0, step - 1)] + [(0, 0)] * len(tail)
    return b.reshape(b.pad(wide, pads), (*lead, size * step, *tail))


@vjp("slice")
def slice_(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    """Zeros around the gradient."""
    x, a = n.inputs[0], n.attrs
    d, size = a["dim"], n.inputs[0].type.shape[a["dim"]]
    if type(a["step"]) is Dim or a["step"] != 1:
        g = spaced(b, g, d, a["step"])
    behind = size - a["start"] - g.type.shape[d]
    if type(behind) is int and behind < 0:  # the zeros behind the last element reach beyond the end
        g = b.slice(g, d, 0, size - a["start"])
        behind = 0
    pads = [(0, 0)] * x.type.rank
    pads[d] = (a["start"], behind)
    return (b.pad(g, pads),)


@vjp("diagonal")
def diagonal(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    """The gradient on the diagonal of zeros."""
    x, a = n.inputs[0], n.attrs
    shape, d1, d2, offset = x.type.shape, a["dim1"] % x.type.rank, a["dim2"] % x.type.rank, a["offset"]
    d, first = g.type.rank - 1, max(-offset, 0)
    # One value for each row of the matrix, zero where the diagonal does not reach it, then spread along the row.
    line = b.pad(g, [(0, 0)] * d + [(first, shape[d1] - first - g.type.shape[d])])
    order = list(range(d))
    order.insert(d1 if d1 < d2 else d1 - 1, d)
    line = b.unsqueeze(b.permute(line, order), d2)
    on = b.eq(b.add(b.positions(shape, d1, x.type.device), offset), b.positions(shape, d2, x.type.device))
    return (b.where(on, b.expand(line, shape), 0),)


# copies


@vjp("flip")
def flip(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    return (b.flip(g, n.attrs["dims"]),)


@vjp("cat")
def cat(b: GradBuilder, n: Node, g: Node) -> tuple[Callable, ...]:
    d, start, parts = n.attrs["dim"], 0, []
    for x in n.inputs:
        size = x.type.shape[d]
        parts.append(lambda start=start, size=size, x=x: b.cast(b.piece(g, d, start, size), x.type.dtype))
        start = start + size
    return tuple(parts)


@vjp("constant_pad")
def constant_pad(b: GradBuilder, n: Node, g: Node) -> tuple[Node, ...]:
    """What was added is cut off again; what was cut off (negative pads) gets zeros."""
    pads = n.attrs["pads"]
    if any(type(p) is int and p < 0 for pair in pads for p in pair):
        return (b.pad(g, [(-lo, -hi) for lo, hi in pads]),)
    inside = g
    for d, (lo, hi) in enumerate(pads):
        if not (type(lo) is int and lo == 0 and type(hi) is int and hi == 0):
            inside = b.piece(inside, d, lo, n.inputs[0].type.shape[d])
    return (inside if inside is g else b.clone(inside),)
