"""The operators, which the tracer expands into prims or leaves to the library.

How to add an op
----------------
Put it into a file ``jit/graph/ops/<family>.py`` (every module of that package is imported); nothing else needs an edit.

``@op("softmax")`` registers ``fn(b, self, dim, dtype=None)`` for every callable of PyTorch whose schema name is
``aten::softmax``: ``torch.softmax``, ``Tensor.softmax``, ``torch.ops.aten.softmax.int``, and also, derived from it,
``softmax_`` and ``out=``. Write the signature as Python callers see it (the tracer has already mapped ``input`` to
``self``, ``axis`` to ``dim``, ``keepdims`` to ``keepdim``; ``other``, ``x2`` are your own names). Several names may be
given. Options:

- ``varargs="size"``: trailing positional ints are packed into that tuple parameter (``x.view(2, 3)``).
- ``alias=True``: the result may be the input itself or a view of it. The result node decides: the same node means the
  same tensor object, a chain of view prims means a view, anything else is new memory. Without it, results are always
  new memory.
- ``raw=True``: ``fn(tracer, *args)`` gets TensorHandles and returns finished results. For identity, metadata and
  mutation.

A composite gets a ``Builder`` b (``build.py``) and Nodes in place of tensors, and returns a Node or a
tuple/list/NamedResult of them. Use ``b.add(x, y)``, ``b.cast``, ``b.sum(x, dims, keepdim)``...; these take Python
numbers and Dims next to Nodes and do not promote dtypes: promote with ``b.promote(...)``. Return ``NotImplemented`` for
a form that is better left to the ``aten_call`` fallback. Raise ``Unsupported`` for what cannot be captured. For an
error that eager raises as well, raise the ordinary Python exception (ShapeError, IndexError, TypeError, ...): the
tracer turns it into ``EagerRaises``.

``@pointwise("where")`` is ``@op`` for elementwise operations: the result gets the strides that TensorIterator would
give to the operation's tensor arguments, however many prims were used.

``@extern("mm")`` gives the result type of an op that stays an ``aten_call``: ``fn(*args) -> TensorType`` gets
TensorTypes in place of tensors; return NotImplemented to fall back to running on meta tensors.

``@form("mul")`` gives the expansion of an op that is registered, with the same parameters, for complex numbers
(``ops/complex_numbers.py``).

What else is known of an operator, such as its class under autocast, is its row in ``op_info.py``.
What an operation is expanded into are prims: see ``prim_info``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable

from jit.graph.op_info import op_info
from jit.graph.prim_info import info

if TYPE_CHECKING:
    from jit.graph.ir import Node


@dataclass(frozen=True)
class Op:
    """An expansion, bound to PyTorch's callables by schema name. See the module's text for the options."""

    name: str
    fn: Callable
    varargs: str | None = None
    alias: bool = False
    raw: bool = False
    pointwise: bool = False
    wraps: bool = False
    several: bool = False
    swapped: bool = False
    like_first: bool = False
    numbers: bool = False
    masks: bool = False


OPS: dict[str, Op] = {}


def op(*names: str, varargs: str | None = None, alias: bool = False, raw: bool = False, several: bool = False,
       numbers: bool = False) -> Callable:
    """Register the decorated expansion under schema names (without ``aten::``).

    ``several``: for autograd the results are several views of one operation, which it refuses to change in place.
    ``numbers``: see ``pointwise``.
    """

    def register(fn: Callable) -> Callable:
        for name in names:
            OPS[name] = Op(name, fn, varargs, alias, raw, several=several, numbers=numbers)
        return fn

    return register


def pointwise(*names: str, wraps: bool = False, swapped: bool = False, like_first: bool = False, numbers: bool = False,
              masks: bool = False) -> Callable:
    """Register an elementwise expansion; the result's strides follow the tensor arguments.

    ``wraps``: eager makes 0-dim tensors of Python numbers among the operands (as for ``add``), which has a bearing on
    strides. ``swapped``: its kernel takes the second operand first, whose strides then come first too. ``like_first``:
    its kernel writes into a tensor like the first operand, which has that one's strides where it is dense, those of
    dimensions of size 1 among them. ``numbers``: those among its operands may be floats that change between calls.
    ``masks``: bools among its operands are no numbers, and are not promoted.
    """

    def register(fn: Callable) -> Callable:
        for name in names:
            OPS[name] = Op(name, fn, pointwise=True, wraps=wraps, swapped=swapped, like_first=like_first,
                           numbers=numbers, masks=masks)
        return fn

    return register


COMPLEX: dict[str, dict] = {}  # op -> the fields of its entry that are others for complex numbers, its expansion first


def form(*names: str, **fields: bool) -> Callable:
    """Register the decorated expansion for calls with complex numbers among the arguments, with other ``fields`` of the
    entry than those of the op's own."""

    def register(fn: Callable) -> Callable:
        COMPLEX.update(dict.fromkeys(names, {"fn": fn, **fields}))
        return fn

    return register


@functools.cache
def complex_form(name: str) -> Op | None:
    """The entry of the op ``name`` for complex numbers, or None."""
    return replace(OPS[name], **COMPLEX[name]) if name in COMPLEX else None


LIBRARY: dict[str, Callable] = {}  # operator that stays a library call -> its type rule


def extern(*names: str) -> Callable:
    """Register the type rule of an op that stays a library call."""

    def register(fn: Callable) -> Callable:
        LIBRARY.update(dict.fromkeys(names, fn))
        return fn

    return register


def may_raise(node: Node) -> bool:
    """Whether an operation may raise for the data that it meets, and so has to be done although nobody reads its
    result."""
    if node.op == "aten_call":
        target = node.attrs["target"]
        return not target.startswith("jit::") and not op_info(target).total
    return info(node.op).checks


PYTHON: dict[Callable, Callable] = {}


def python_function(*functions: Callable) -> Callable:
    """Register ``fn(tracer, *args, **kwargs)`` for torch functions that are written in Python, keyed by the function
    object."""

    def register(fn: Callable) -> Callable:
        for f in functions:
            PYTHON[f] = fn
        return fn

    return register
