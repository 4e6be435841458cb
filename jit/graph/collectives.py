"""Collectives as steps of the graph: PyTorch's functional operators (``_c10d_functional``), which start to communicate
and give a tensor that may be read once ``wait_tensor`` has been called on it.

All processes of a group have to issue the same collectives in the same order. So a collective is a library call that
stays where the program has it among the others: it is never merged, dropped or done again, and nothing is communicated
while a graph is traced or compiled, since its types follow from its arguments'. ``wait_tensor`` is no such step: it is
called right before something reads what it waits for (``codegen.fusion``), so that kernels and collectives run
meanwhile. What a collective reads has memory of its own, as that of every operator that is not PyTorch's own
arithmetic, so that nothing is written there meanwhile.

The gradients are those that PyTorch registers: of a sum over the processes the sum of the gradients, of a gathering the
sum scattered, and so on. Where a tensor is spread over processes (``Share``), its parts are no values of their own, and
have other ones: ``moved`` has the communication that leads from one way to spread it to another, and the prim
``redistributed`` the one that leads the gradient back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jit import torch_private
from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import aten
from jit.graph.dims import Dim, specialize
from jit.graph.handles import to_node
from jit.graph.ir import Node, TensorType, contiguous_strides, same_ints
from jit.graph.nested import several
from jit.graph.sym_float import plain

if TYPE_CHECKING:
    from typing import Callable

    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr
    from jit.graph.tracer import Tracer

SPACE = "_c10d_functional::"
_SPACES = (SPACE, "_c10d_functional_autograd::")
WAIT = SPACE + "wait_tensor"
COALESCED = "_coalesced"


def _first(t: TensorType, size: IntExpr) -> TensorType:
    """The type of a row-major tensor like ``t`` with another first size."""
    return TensorType.contiguous((size, *t.shape[1:]), t.dtype, t.device)


def _alike(t: TensorType, *args: object) -> TensorType:
    return TensorType.contiguous(t.shape, t.dtype, t.device)


def _gathered(t: TensorType, count: int, group: str) -> TensorType:
    return _first(t, (t.shape[0] if t.shape else 1) * count)


def _scattered(t: TensorType, how: str, count: int, group: str) -> TensorType:
    size = t.shape[0] if t.shape else 0
    if type(size) is Dim:
        size = specialize(size)
    if not t.shape or size % count:
        raise Unsupported(f"reduce_scatter of {t} over {count} processes", kind="collective")
    return _first(t, size // count)


def _exchanged(t: TensorType, received: Sequence[IntExpr], sent: Sequence[IntExpr], group: str) -> TensorType:
    return _first(t, sum(received))


# name -> the type of a result, from that of the argument and the other arguments.
TYPES: dict[str, Callable] = {
    "all_reduce": _alike, "broadcast": _alike, "all_gather_into_tensor": _gathered,
    "reduce_scatter_tensor": _scattered, "all_to_all_single": _exchanged,
}


def is_collective(name: str) -> bool:
    """Whether an operator is one of those that are steps of the graph."""
    space, _, plain_name = name.rpartition("::")
    return f"{space}::" in _SPACES and (plain_name.removesuffix(COALESCED) in TYPES or plain_name in _IDENTITIES)


_IDENTITIES = ("wait_tensor", "_wrap_tensor_autograd")  # the second one waits when its result is used


def call(tracer: Tracer, name: str, overload: object, args: Sequence[object], kwargs: dict) -> object:
    """Record a call of the operator ``name``, of which ``overload`` is what the program calls.

    Raises Unsupported where it cannot be a step of the graph.
    """
    if tracer.autocast and not name.startswith(SPACE):
        raise Unsupported(f"{name} under autocast", kind="autocast")
    op, handles, b = name.rpartition("::")[2], [], tracer.builder
    nodes, named = to_node(plain(list(args)), handles), to_node(plain(dict(kwargs)), handles)
    if op in _IDENTITIES:
        result = wait(b, nodes[0] if nodes else next(iter(named.values())))
        return tracer.wrap(result, handles, False, result.id, name)
    # What the program calls may be a form that is kept for older programs.
    (o,) = aten.overloads(SPACE + op)
    values = o.bind(nodes, named)
    if values is None:
        raise Unsupported(f"torch.ops.{name.replace('::', '.')} with these arguments", kind="collective")
    if tracer.grad_enabled and any(h.requires_grad for h in handles):
        _check_differentiable(name, op, values)
    made = record(b, op, *values)
    return tracer.wrap(made, handles, False, several(made)[0].id, name)


def _check_differentiable(name: str, op: str, values: list) -> None:
    """Raise Unsupported where PyTorch has no gradient for a call."""
    if op == "broadcast" or not torch_private.has_kernel_for_key(name, "Autograd"):
        raise Unsupported(f"the gradient of {name.replace('::', '.')}, which PyTorch does not have", kind="gradient")
    if any(isinstance(v, str) and v.lower() in REDUCTIONS and v.lower() != "sum" for v in values[1:2]):
        raise Unsupported(f"the gradient of a reduction by {values[1]} over processes", kind="gradient")


REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def record(b: Builder, op: str, given: Node | tuple[Node, ...], *args: object) -> object:
    """A node that starts a collective, or a list of nodes for one of several tensors. ``args``: the others in the
    order of the schema."""
    args = tuple(tuple(v) if isinstance(v, list) else v for v in args)
    if op.endswith(COALESCED):
        if not given:
            raise Unsupported("a collective of no tensors", kind="collective")
        tensors = tuple(dense(b, n) for n in given)
        types = tuple(TYPES[op.removesuffix(COALESCED)](n.type, *args) for n in tensors)
        return list(b.aten(SPACE + op, "", (tensors, *args), types, impure=True))
    return b.aten(SPACE + op, "", (dense(b, given), *args), TYPES[op](given.type, *args), impure=True)


def wait(b: Builder, started: Node) -> Node:
    """What a collective has given, once it may be read."""
    return b.aten(WAIT, "", (started,), started.type)


def dense(b: Builder, n: Node) -> Node:
    """A value laid out row by row, as collectives take it."""
    t = n.type
    strides = contiguous_strides(t.shape)
    return n if same_ints(t.strides, strides) else b.clone(n, strides)


# tensors that are spread over processes


@dataclass(frozen=True)
class Group:
    """The processes over which a tensor is spread: their group's name, how many there are, which one this is."""

    name: str
    size: int
    rank: int


@dataclass(frozen=True)
class Share:
    """What each process has of a tensor: all of it; with ``dim`` a part of that dimension; or a summand (``reduction``
    says how summands become one)."""

    dim: int | None = None
    reduction: str | None = None


WHOLE = Share()


def moved(b: Builder, x: Node, source: Share, target: Share, group: Group) -> Node:
    """What this process has of a tensor under ``target``, from what it has under ``source``."""
    if source == target:
        return x
    if source.reduction is not None:
        if target.dim is None:
            if target.reduction is not None:
                raise Unsupported("summands that are put together in another way", kind="collective")
            return _waited(b, "all_reduce", x, source.reduction, group.name)
        lined = _lined_up(b, x, target.dim, 0, group.size)
        return _waited(b, "reduce_scatter_tensor", lined, source.reduction, group.size, group.name)
    if target.reduction is not None:
        whole = moved(b, x, source, WHOLE, group)
        if target.reduction not in ("sum", "avg"):
            raise Unsupported(f"summands for a {target.reduction} of a whole tensor", kind="collective")
        return whole if target.reduction == "avg" else b.div(whole, group.size)
    if source.dim is None:
        return _own_part(b, x, target.dim, group)
    if target.dim is not None and not backend(x.device).host:  # as PyTorch does it
        lined = _lined_up(b, x, target.dim, 0, group.size)
        each = (lined.shape[0] // group.size,) * group.size
        return _lined_up(b, _waited(b, "all_to_all_single", lined, each, each, group.name), 0, source.dim, group.size)
    gathered = _waited(b, "all_gather_into_tensor", x, group.size, group.name)
    whole = _lined_up(b, gathered, 0, source.dim, group.size)
    return whole if target.dim is None else _own_part(b, whole, target.dim, group)


def redistributed(b: Builder, x: Node, source: Share, target: Share, group: Group) -> Node:
    """``moved``, with the gradient that leads back."""
    y = moved(b, x, source, target, group)
    factor = 1 / group.size if source.reduction == "avg" else None
    return _with_way_back(b, y, x, _of_gradient(target), _of_gradient(source), group, factor)


def summed_back(b: Builder, x: Node, group: Group) -> Node:
    """``x``, of which each process has all, for an operation of which each computes a part: the gradient is the sum
    of what they find."""
    return _with_way_back(b, x, x, Share(reduction="sum"), WHOLE, group, None)


def _with_way_back(b: Builder, y: Node, x: Node, source: Share, target: Share, group: Group,
                   factor: float | None) -> Node:
    return b.node("redistributed", (y, x), {"way": (source, target, group), "factor": factor}, y.type)


def _of_gradient(share: Share) -> Share:
    """How the gradient of what is spread so is spread: each summand has all of it."""
    return WHOLE if share.reduction is not None else share


def _waited(b: Builder, op: str, x: Node, *args: object) -> Node:
    return wait(b, record(b, op, x, *args))


def _lined_up(b: Builder, x: Node, divided: int, joined: int, count: int) -> Node:
    """``x`` cut into ``count`` pieces along one dimension, which are put behind each other along another one."""
    if divided == joined:
        return x
    size = _part(x, divided, count)
    return b.cat([b.slice(x, divided, k * size, size) for k in range(count)], joined)


def _own_part(b: Builder, x: Node, dim: int, group: Group) -> Node:
    size = _part(x, dim, group.size)
    return dense(b, b.clone(b.slice(x, dim, group.rank * size, size)))


def _part(x: Node, dim: int, count: int) -> int:
    """A process's share of a dimension. Raises Unsupported where not all have the same."""
    size = specialize(x.shape[dim])
    if size % count:
        raise Unsupported(f"dimension {dim} of {x.type} spread over {count} processes", kind="collective")
    return size // count
