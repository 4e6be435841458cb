"""Launches of Triton kernels of the program's own, as nodes: ``jit::run_kernel`` (``jit.runtime.user_kernels``), a
function of the memory that the kernel is given, which gives new memory for all that it may write.

A kernel is given addresses, from which it may reach all of a tensor's memory and not only the elements of the view
that was passed. So what goes into the node is the memory itself, once for each ``Base``, and where in it the argument
begins.
Nothing tells autograd of what a kernel writes: as in eager it has no gradient, and no version counter goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import saved_tensors
from jit.graph.attributes import attribute
from jit.graph.dims import Dim
from jit.graph.handles import Base, TensorHandle
from jit.graph.ir import UNWRITTEN, Node
from jit.graph.nested import several
from jit.runtime import user_kernels
from jit.runtime.holding import holding, lightly
from jit.runtime.user_kernels import Argument, Made, Number, Plain, Pointer, Several, Spec

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.ir import TensorType
    from jit.graph.tracer import Tracer


class Call:
    """A call in the making: its memory and its numbers."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.bases: list[Base] = []
        self.numbers: list[IntExpr] = []

    def add(self, *values: IntExpr) -> int:
        """Where these numbers stand among all."""
        self.numbers += values
        return len(self.numbers) - len(values)

    def argument(self, v: object) -> Argument:
        """An argument of the call."""
        if isinstance(v, TensorHandle):
            return self.pointer(v)
        if type(v) in (int, Dim):
            return Number(self.add(v))  # type: ignore[arg-type]
        if type(v) in (tuple, list):
            return Several(type(v), tuple(map(self.argument, v)))  # type: ignore[arg-type]
        return constant(v)

    def pointer(self, h: TensorHandle) -> Pointer:
        base = h.base
        if base.frozen is not None or h.is_conj:
            raise Unsupported("a view that is not known as one is given to a kernel", "clone() it first",
                              kind="overlapping-memory")
        if base not in self.bases:
            self.bases.append(base)
        return Pointer(self.bases.index(base), h.dtype, len(h.type.shape),
                       self.add(*h.type.shape, *h.type.strides, place(h)), not h.chain)

    def record(self, spec: Callable[[tuple, tuple], Spec], label: str, written: Sequence[int], impure: bool = False,
               more: tuple[TensorType, ...] = (), seen: bool = False) -> list[Node]:
        """Add the node, and make what it gives the content of the memory that is ``written``. ``spec(written, made)``
        gives what is called; ``more``: the types of its other results, which are returned; ``seen``: whether version
        counters go on, as for an operator."""
        user_kernels.define()
        tracer, b = self.tracer, self.tracer.builder
        written = tuple(sorted(written))
        memory: list[Node | None] = [base.node for base in self.bases]
        made: list[Made | None] = []
        for k in written:
            base = self.bases[k]
            t, new = base.type, None
            if base.input is None and base.node.attrs.get(UNWRITTEN):
                new, memory[k] = Made(t.dtype, t.device, t.rank, self.add(*t.shape, *t.strides)), None
            made.append(new)
        types = (*(self.bases[k].type for k in written), *more)
        name = user_kernels.name_of_spec(spec(written, tuple(made)), label)
        results = b.aten(user_kernels.OPERATOR, "", (name, tuple(memory), tuple(self.numbers)), types,
                         impure=impure or not written)
        for k, node in zip(written, several(results)):
            base = self.bases[k]
            whole = TensorHandle(tracer, base, (), base.node, base.requires_grad)
            if not seen:
                tracer.write(attribute(tracer, whole, "data"), b.detach(node), inplace=False)
                continue
            tracer.write(whole, b.detach(node), inplace=False)
            wrote, tracer.wrote = tracer.wrote, ()
            saved_tensors.note(tracer, torch.Tensor.copy_, (whole, tracer.fresh(node)), {}, whole, wrote, b.loc)
        return list(several(results)[len(written):])


DIVISIBLE = 16  # of which Triton asks whether integers and addresses are multiples


def examples(call: Call, arguments: Sequence[tuple[str, Argument]], loose: Collection[str],
             unaligned: Collection[str]) -> tuple[tuple[str, int], ...] | None:
    """A ``Launch``'s examples, on a device where it is launched natively: what Triton compiles a kernel for becomes a
    fact where sizes are symbols. ``loose``: the parameters of which Triton asks nothing; ``unaligned``: those of which
    it does not ask whether they are multiples."""
    if not backend(call.bases[0].type.device).launches_user_kernels:
        return None
    found = []
    for name, argument in arguments:
        if isinstance(argument, Several):
            return None
        if isinstance(argument, Pointer):
            at = call.numbers[argument.offset]
            held = call.bases[argument.memory].type.dtype
            if held is not argument.dtype and not (type(at) is int and at == 0):
                return None
            found.append((name, DIVISIBLE if _divides(at * argument.dtype.itemsize) else DIVISIBLE + 1))
        elif isinstance(argument, Number):
            n = call.numbers[argument.at]
            wide = n >= 1 << 31 or n < -(1 << 31)
            if type(n) is int and n == 1 and name not in loose:
                found.append((name, 1))
            else:
                even = name not in loose and name not in unaligned and _divides(n)
                found.append((name, (1 << 40 if wide else DIVISIBLE) + (0 if even else 1)))
    return tuple(found)


def _divides(n: IntExpr) -> bool:
    return bool(n % DIVISIBLE == 0)


def constant(v: object) -> Plain:
    """An argument that is known. Raises Unsupported for what cannot be held."""
    try:
        hash(v)
    except TypeError:
        raise Unsupported(f"a {type(v).__name__} is given to a kernel", kind="torch-argument") from None
    if holding(v) == "place":
        raise Unsupported(f"a {type(v).__name__} is given to a kernel", kind="torch-argument")
    return Plain(lightly(v), type(v))


def place(h: TensorHandle) -> IntExpr:
    """Where a tensor begins in the memory of its base, in elements of its own dtype."""
    at: IntExpr = 0  # in bytes
    t = h.base.type
    for step in h.chain:
        size, given = t.dtype.itemsize, step.attrs
        if step.op == "slice":
            at = at + given["start"] * t.strides[given["dim"]] * size
        elif step.op == "diagonal":
            n = given["offset"]
            at = at + abs(n) * t.strides[given["dim2" if n >= 0 else "dim1"]] * size
        elif step.op == "as_strided":
            at = given.get("place", given["offset"] or 0) * size
        elif step.op == "reinterpret" and given["how"] == "imag":
            at = at + size // 2
        t = step.type
    return at // h.dtype.itemsize

