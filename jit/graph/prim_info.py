"""The record of a prim: all that any part of the compiler asks about it, in one place.

The records are made in ``pointwise.py`` (each beside the gradient) and ``prims.py``. Whoever wants to know something of
an operation asks ``info(node.op)``; there are no other sets of names of prims. Outside of the record stand only the
texts of a pointwise prim in C++ and in Triton, an entry each of a table (``codegen.cpp.ops``, ``codegen.triton.ops``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

if TYPE_CHECKING:
    from jit.graph.ir import Node

# Attributes of nodes, for the fusion of kernels. Nodes that multiply and add elements of a matrix and a vector: each
# element of the matrix is read once, the vector from memory.
OF_A_PRODUCT = "of_a_product"
# Nodes that are to lie in memory, where fusing would compute them again for each reader.
STORED = "stored"
# Sums over a batch of what the rows of another reduction read, for kernels that reduce these to take along.
BESIDE_ROWS = "beside_rows"


class Cost(NamedTuple):
    """What one element costs.

    repeat: beside an addition, where several readers of a value may each compute it for themselves.
    cpu: in units of a float addition. gpu: about how many instructions.
    """

    repeat: int = 1
    cpu: int = 1
    gpu: int = 1


MOVE = Cost(repeat=0)
LOOKUP = Cost(repeat=2)
QUOTIENT = Cost(3, 3, 4)
EXPONENTIAL = Cost(8, 14, 4)
FUNCTION = Cost(8, 14, 16)
RARE = Cost(16, 14, 16)

NOTHING = ((),)
OTHERS = "others"  # all operands but the one whose gradient it is
IN_ALL, IN_EACH, IN_FIRST = "in all operands together", "in each operand", "in the first operand"


@dataclass(frozen=True)
class PrimInfo:
    """A basic operation.

    kind:
        ``input``: a value from outside. ``number``: a 0-dim constant. ``source``: other values made from nothing.
        ``pointwise``. ``view``: the same memory. ``copy``: moves elements. ``reduction``, ``scan``, ``index``.
        ``scatter``: a tensor with values written to places that data decide.
        ``window``: see ``windows``. ``call``: of the library. ``part``: one of several results. ``gradient``: says what
        gradients are, gone before kernels are made. ``kernel``: no node, only in kernels.
    text: ``(node, argument texts) -> str``: a Python expression over eager tensors.
    infer: ``(input types, attrs, dtype) -> TensorType``, ``dtype`` being the wanted result dtype or None. None where
        there is no rule, and for the kinds that share one (see ``prims.infer``).
    library: ``(node, operands) -> (target, overload, argument template)`` of the ``aten_call`` that computes the same.
        Where it is None, a pointwise prim is the operator of PyTorch of its name.
    checks: whether it may raise for the data that it meets; ``library`` raises the same.
    arity: the number of operands; None for any number.
    result: the dtype of the result where it does not depend on those of the operands.
    operators: the operators of PyTorch that are this prim of one tensor, of integers in the default float.

    Numbers:
    exact_numbers: computes with a number among halves as the program gives it, in float32, as eager's kernels of
        arithmetic do; for all others it is rounded first.
    takes_number: the eager form takes a Python number as second operand.
    rounds: the result need not be a value of a half type that it is announced in; others move values, or round by
        themselves.
    commutative: the order of two operands does not matter.
    smooth: passes a small relative error on as a small error.
    bools, integers: what kernels compute of these. The names of prims, each of the result of the one before (of none:
        the operand itself), a dtype in which it is computed, or the number that it always is. None: the prim itself.
    truth: takes operands as truth values.
    of_words: makes a value of any dtype of the bits of integers.
    cost: of one element.
    constant: all elements are the attribute ``value``.
    of_nothing: the number that a reduction of no elements gives; None where eager refuses that.
    combine: what a kernel's reduction is called.
    label: what names of kernels call it; "": nothing. None: by its name.
    number_row: what computes it in a program of numbers that runs before the graph; None where that has nothing for
        it.

    Memory:
    in_kernels: kernels compute it, or read through it; else it is always a library call.
    at_start: a view that begins at its operand's first element.
    same_dims: the result has the dimensions of its operand, in their order.
    in_order: the result is all elements of its operand, in their row-major order.

    Gradients:
    gradient: ``fn(b, node, g)``, see ``autodiff.rules``; other rules are registered there.
    saves: for each operand (the last entry holds for all that follow) the positions of the operands whose values its
        gradient reads in eager, or ``OTHERS``. None: it reads its operand or the result.
    linear: ``IN_ALL``, ``IN_EACH`` or ``IN_FIRST``.
    flat: the gradient is taken for no gradient at all: a zero, which has no derivative.
    complex_gradient: the rule holds for complex numbers.
    by_parts: of complex numbers it is the same of their real parts, and of their imaginary ones; see ``pairs``.
    plain: the prim of one operand that gives the same value, and does not say what its gradient is.
    """

    name: str
    kind: str
    text: Callable
    infer: Callable | None = None
    library: Callable | None = None
    checks: bool = False
    arity: int | None = None
    result: torch.dtype | None = None
    operators: tuple = ()
    exact_numbers: bool = False
    takes_number: bool = False
    rounds: bool = False
    commutative: bool = False
    smooth: bool = False
    bools: tuple | torch.dtype | int | None = None
    integers: tuple | int | None = None
    truth: bool = False
    of_words: bool = False
    cost: Cost = Cost()
    constant: bool = False
    of_nothing: float | None = None
    combine: str | None = None
    label: str | None = None
    number_row: str | None = None
    in_kernels: bool = True
    at_start: bool = False
    same_dims: bool = False
    in_order: bool = False
    gradient: Callable | None = None
    saves: tuple | None = None
    linear: str | None = None
    flat: bool = False
    complex_gradient: bool = False
    by_parts: bool = False
    plain: str | None = None

    @property
    def is_whole_view(self) -> bool:
        """Whether it shows its operand as it is."""
        return self.kind == "view" and self.same_dims

    @property
    def moves(self) -> bool:
        """Whether its values are those of its operands, perhaps converted."""
        return self.kind in ("copy", "index", "number") or self.kind == "pointwise" and not self.rounds

    @property
    def is_source(self) -> bool:
        """Whether it makes values from nothing."""
        return self.kind in ("number", "source")

    @property
    def repeatable(self) -> bool:
        """Whether it is cheap enough to be computed a second time."""
        return self.kind in ("pointwise", "view", "copy", "index", "part")

    @property
    def compares(self) -> bool:
        """Whether it compares two numbers."""
        return self.result is torch.bool and self.arity == 2 and not self.truth

    @property
    def gives_element(self) -> bool:
        """Whether a reduction gives one of its elements, and not what is computed from them."""
        return self.combine in ("max", "min")

    @property
    def gives_position(self) -> bool:
        """Whether a reduction gives a place among the elements, which their order decides."""
        return self.kind == "reduction" and self.result is torch.int64

    @property
    def saves_nothing(self) -> bool:
        """Whether eager keeps no value for the gradient."""
        return self.saves == NOTHING


PRIMS: dict[str, PrimInfo] = {}


def info(name: str) -> PrimInfo:
    """The record of a prim."""
    return PRIMS[name]


def names(**facts) -> frozenset:
    """The prims whose records say all of this."""
    return frozenset(p.name for p in PRIMS.values() if all(getattr(p, k) == v for k, v in facts.items()))


def prim(name: str, kind: str, text: Callable, library: Callable | None = None, **facts: object) -> Callable:
    """Make the record of a prim; the type rule that it decorates becomes part of it."""
    PRIMS[name] = PrimInfo(name, kind, text, library=library, **facts)

    def register(infer):
        PRIMS[name] = dataclasses.replace(PRIMS[name], infer=infer)
        return infer

    return register


def _named_as_in_torch(n: Node, a) -> str:
    return f"torch.{n.op}({', '.join(a)})"


def pointwise(name: str, arity: int = 1, text: Callable = _named_as_in_torch, rounds: bool = True,
              **facts: object) -> Callable:
    """Make the record of a pointwise prim; the gradient rule that it decorates becomes part of it."""
    PRIMS[name] = PrimInfo(name, "pointwise", text, arity=arity, rounds=rounds, **facts)

    def register(gradient):
        PRIMS[name] = dataclasses.replace(PRIMS[name], gradient=gradient)
        return gradient

    return register
