"""Complex numbers as pairs of real ones, which is what kernels compute.

The parts of a complex node are read from its memory seen as real numbers, and ``joined`` puts a real and an imaginary
part side by side in memory, which is a complex tensor. Where a graph reads what it has joined (``computed``), also
through views and copies, a simplification takes the parts themselves (``moved_parts``): a chain of operations has
nothing complex in it but at its ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from jit.graph import layout
from jit.graph.ir import Node, TensorType, same_ints
from jit.graph.prim_info import info
from jit.graph.prims import VIEWS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # what kernels compute
JOINED = {part: whole for whole, part in PARTS.items()}


class Pair(NamedTuple):
    """A complex number, or a tensor of them: two nodes of one real dtype, either of which may be broadcast."""

    re: Node
    im: Node


def computed(x: Node) -> bool:
    """Whether a complex node is a view or copy of one whose parts are computed here, or of one that is lazily
    conjugated."""
    while x.op in VIEWS or x.op == "clone":
        if x.op == "reinterpret":
            return x.attrs["how"] in ("view_as_complex", "conj")
        x = x.inputs[0]
    return False


def _conjugated(x: Node) -> bool:
    """Whether the tensor that a node is when the graph runs has its conjugate bit set."""
    conjugated = False
    while x.op in VIEWS:
        conjugated ^= x.op == "reinterpret" and x.attrs["how"] == "conj"
        x = x.inputs[0]
    return conjugated


def parts(b: Builder, x: Node) -> Pair:
    """The real and the imaginary part of a complex node, as its memory has them."""
    if info(x.op).constant:
        return _of_constant(b, x)
    if _conjugated(x):  # which memory does not show
        x = b.node("clone", (x,), {}, layout.empty_like(x.type))
    return _of_memory(b, reinterpreted(b, x, "view_as_real"))


def _of_constant(b: Builder, x: Node) -> Pair:
    dtype, value = PARTS[x.dtype], complex(x.attrs["value"])
    if x.op == "scalar":
        return Pair(*(b.scalar(v, dtype, x.device) for v in (value.real, value.imag)))
    return Pair(*(b.full(x.shape, v, dtype, x.device) for v in (value.real, value.imag)))


def moved_parts(b: Builder, x: Node, sources: Collection[Node] = ()) -> Pair:
    """The parts of a complex node as what it was made of, through all that moves elements, down to ``sources``, whose
    parts are read."""
    how = x.attrs["how"] if x.op == "reinterpret" else None
    if x in sources:
        return parts(b, x)
    if how == "view_as_complex":
        return _of_memory(b, x.inputs[0])
    if how == "conj":
        return conjugate(b, moved_parts(b, x.inputs[0], sources))
    if info(x.op).by_parts and any(i.dtype.is_complex for i in x.inputs):
        own = [moved_parts(b, i, sources) if i.dtype.is_complex else (i, i) for i in x.inputs]
        return Pair(*(_moved(b, x, operands) for operands in zip(*own)))
    return parts(b, x)


def _moved(b: Builder, x: Node, operands: tuple[Node, ...]) -> Node:
    """What ``x`` does, done to parts, which may have other strides than the whole."""
    if x.op == "reshape":
        return b.reshape(operands[0], x.type.shape)
    return operands[0] if x.op == "clone" else b.emit(x.op, operands, x.attrs)


def _of_memory(b: Builder, x: Node) -> Pair:
    """The parts that lie side by side in memory."""
    last = x.type.rank - 1
    if x.op == "cat" and x.attrs["dim"] == last and all(same_ints(i.shape[last:], (1,)) for i in x.inputs):
        return Pair(*(b.drop_dim(i, last) if i.op != "reshape" or not same_ints(i.inputs[0].shape, x.shape[:-1])
                      else i.inputs[0] for i in x.inputs))
    return Pair(b.select(x, last, 0), b.select(x, last, 1))


def reinterpreted(b: Builder, x: Node, how: str, dtype: torch.dtype | None = None) -> Node:
    """The memory of ``x`` as ``how`` says (see the prim ``reinterpret``)."""
    return b.node("reinterpret", (x,), {"how": how}, layout.reinterpreted(x.type, how, dtype))


def operand(b: Builder, v: Any, part: torch.dtype, device: torch.device) -> Pair:
    """An operand of an operation that is computed in pairs of ``part``: of a real one the imaginary part is zero, which
    takes part in the arithmetic, as in eager (zero times infinity is no number)."""
    if not isinstance(v, Node):
        real, imag = (v.real, v.imag) if type(v) is complex else (v, 0.0)
        return Pair(b.scalar(real, part, device), b.scalar(imag, part, device))
    if v.dtype.is_complex:
        return Pair(*(b.cast(p, part) for p in parts(b, v)))
    return Pair(b.cast(v, part), b.scalar(0.0, part, device))


def joined(b: Builder, pair: Pair, strides: Sequence[IntExpr] | None = None) -> Node:
    """The complex tensor of these parts, in memory of its own of these ``strides``."""
    re, im = pair
    shape = layout.broadcast_shapes(re.type.shape, im.type.shape)
    wide = [b.expand(p, shape) for p in pair]
    if strides is None:
        kept = re if same_ints(re.shape, shape) else im if same_ints(im.shape, shape) else wide[0]
        strides = layout.preserved_strides(kept.type)
    if any(p.type.is_symbolic for p in wide):  # strides that are equal for sizes at hand are no view's for others
        wide = [b.contiguous(p) for p in wide]
    memory = b.cat([b.unsqueeze(p, len(shape)) for p in wide], len(shape))
    memory.type = TensorType(memory.shape, (*(2 * s for s in strides), 1), memory.dtype, memory.device)
    return b.node("reinterpret", (memory,), {"how": "view_as_complex"},
                  TensorType(shape, tuple(strides), JOINED[re.dtype], memory.device))


def laid_out(b: Builder, x: Node, strides: Sequence[IntExpr], start: int) -> Node:
    """``x`` in memory of these strides: it may be changed where it was made since the node ``start``."""
    memory = x.inputs[0] if x.op == "reinterpret" and x.attrs["how"] == "view_as_complex" else None
    if memory is None or memory.op != "cat" or memory.id < start:
        return b.clone(x, tuple(strides))
    memory.type = memory.type.replace(strides=(*(2 * s for s in strides), 1))
    x.type = x.type.replace(strides=strides)
    return x


def converted(b: Builder, x: Node, dtype: torch.dtype) -> Node:
    """A real or complex tensor in another complex dtype."""
    re, im = operand(b, x, PARTS[dtype], x.device)
    if b.recording and not x.dtype.is_complex:
        im = b.with_zero_gradients(b.expand(im, x.shape), [x])
    return joined(b, Pair(re, im), layout.preserved_strides(x.type))


def chosen(b: Builder, condition: Node, x: Node, y: Node) -> Node:
    """The elements of ``x`` where the condition holds, else those of ``y``, both of one complex dtype."""
    both = zip(parts(b, x), parts(b, y))
    types = (condition.type, x.type, y.type)
    return joined(b, Pair(*(b.where(condition, p, q) for p, q in both)),
                  layout.iterator_strides(layout.broadcast_shapes(*(t.shape for t in types)), types))


# arithmetic


def conjugate(b: Builder, x: Pair) -> Pair:
    return Pair(x.re, b.neg(x.im))


def negative(b: Builder, x: Pair) -> Pair:
    return Pair(b.neg(x.re), b.neg(x.im))


def plus(b: Builder, x: Pair, y: Pair) -> Pair:
    return Pair(b.add(x.re, y.re), b.add(x.im, y.im))


def minus(b: Builder, x: Pair, y: Pair) -> Pair:
    return Pair(b.sub(x.re, y.re), b.sub(x.im, y.im))


def times(b: Builder, x: Pair, y: Pair) -> Pair:
    return Pair(b.sub(b.mul(x.re, y.re), b.mul(x.im, y.im)), b.add(b.mul(x.re, y.im), b.mul(x.im, y.re)))


def scaled(b: Builder, x: Pair, factor: Node | float) -> Pair:
    """Both parts times a real number."""
    return Pair(b.mul(x.re, factor), b.mul(x.im, factor))


def over(b: Builder, x: Pair, y: Pair) -> Pair:
    """``x / y`` without overflow on the way: by the larger of the parts of ``y``.

    Source: R. L. Smith, Algorithm 116 (1962), as in ``c10/util/complex.h``, whose order of operations it has.
    """
    wide, high = b.abs(y.re), b.abs(y.im)
    swap = b.logical_not(b.ge(wide, high))
    large, small = b.where(swap, y.im, y.re), b.where(swap, y.re, y.im)
    first, second = b.where(swap, x.im, x.re), b.where(swap, x.re, x.im)
    ratio = b.div(small, large)
    scale = b.reciprocal(b.add(large, b.mul(small, ratio)))
    re = b.mul(b.add(first, b.mul(second, ratio)), scale)
    im = b.mul(b.sub(second, b.mul(first, ratio)), scale)
    zero = b.logical_and(b.eq(wide, 0.0), b.eq(high, 0.0))
    return Pair(b.where(zero, b.div(x.re, wide), re),
                b.where(zero, b.div(x.im, wide), b.where(swap, b.neg(im), im)))


def added(b: Builder, x: Node, y: Node) -> Node:
    """The sum of two complex tensors of one type, such as of two gradients."""
    if x.dtype not in PARTS:
        return b.add(x, y)
    return joined(b, plus(b, parts(b, x), parts(b, y)), layout.iterator_strides(x.type.shape, (x.type, y.type)))
