"""Which results of an operator show the memory of an argument, asked of PyTorch itself on meta tensors.

An operator's schema says so of a view, but not where the operator is made of others: ``einsum`` of one operand permutes
it, ``meshgrid`` expands, and ``atleast_1d`` or ``sum_to_size`` may give the very tensor that they were given. So the
operator is run on tensors without values, and the storages of its results are compared with those of its arguments.
Where one is shared, a second run records the view operators on the way from the argument to the result, which are then
done on the argument's handle.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple

import torch

from jit import torch_private
from jit.errors import Unsupported
from jit.graph.dims import Dim, specialize
from jit.graph.handles import offset_in_base, view_path
from jit.graph.nested import frozen, holds, several
from jit.graph.registry import OPS

if TYPE_CHECKING:
    from jit.graph.handles import TensorHandle
    from jit.graph.ir import Node
    from jit.graph.tracer import Tracer


class Step(NamedTuple):
    """A view operator: its name, its arguments after the tensor, and which of its results, where it has several."""

    name: str
    args: tuple
    kwargs: dict
    index: int | None


class Shown(NamedTuple):
    """A result that shows the memory of tensor argument number ``argument`` (counted through lists), as ``steps`` make
    it: it is the argument itself where there are none. ``steps`` is None where the way is not known. ``place``: the
    sizes, strides and offset of the result."""

    argument: int
    steps: tuple | None
    place: tuple


def found(result: torch.Tensor | Sequence[torch.Tensor], tensors: list, again: Callable) -> tuple | None:
    """For each tensor of the result of a call on ``tensors``, which have storages of their own, the ``Shown`` that says
    what it shows of them, or None for new memory; None alone where all of it is new. Where not, ``again`` makes the
    call a second time."""
    owners = {torch_private.storage_id(t): k for k, t in reversed(list(enumerate(tensors)))}
    if not any(_storage(r) in owners for r in several(result)):
        return None
    with torch.no_grad(), _Recorder(tensors) as recorder:
        result = again()
    made = []
    for r in several(result):
        argument = owners.get(_storage(r))
        place = None if argument is None else (tuple(r.shape), r.stride(), r.storage_offset(), r.dtype)
        made.append(None if argument is None else Shown(argument, recorder.paths.get(id(r)), place))
    return tuple(made)


def _storage(t: torch.Tensor) -> int | None:
    return torch_private.storage_id(t) if isinstance(t, torch.Tensor) else None


class _Recorder(torch_private.DispatchMode):
    """``paths``: the id of a tensor that shows memory of an argument -> the steps that made it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.paths = {id(t): () for t in tensors}
        self.held: list = []  # so that no id is used twice

    def __torch_dispatch__(self, func: object, types: tuple, args: tuple[torch.Tensor, list[int]] = (),
                           kwargs: dict | None = None) -> torch.Tensor:
        result = func(*args, **(kwargs or {}))
        self.held.append(result)
        source = args[0] if args else None
        before = self.paths.get(id(source))
        # Else the operator shares memory and does not say so.
        view = any(r.alias_info is not None for r in torch_private.schema(func).returns)
        if before is not None and view and not holds(torch.Tensor, args[1:]):
            for k, r in enumerate(several(result)):
                if _storage(r) == _storage(source) and id(r) not in self.paths:
                    step = Step(torch_private.schema(func).name.partition("::")[2],
                                tuple(args[1:]), kwargs or {}, None if r is result else k)
                    self.paths[id(r)] = (*before, step)
        return result


def show(tracer: Tracer, handle: TensorHandle, shown: Shown, node: Node | None = None, call=None) -> TensorHandle:
    """The handle of a result that shows memory of the argument ``handle``. ``node``: what an expansion made for the
    result; ``call``: as ``ViewStep`` has it.

    Raises Unsupported where it is not known how.
    """
    if shown.steps is None:
        return _unsafe(tracer, handle, shown, node, call)
    for step in shown.steps:
        entry = OPS.get(step.name)
        if entry is None or not (entry.alias or entry.raw):
            raise _unknown()
        handle = tracer.call_op(step.name, (handle, *step.args), step.kwargs)
        if step.index is not None:
            handle = handle[step.index]
    return handle


def _unsafe(tracer: Tracer, handle, shown: Shown, node: Node | None, call):
    """A result on the memory of an argument that is no view of it to autograd, as ``unsafe_split`` gives it: it has a
    version counter of its own, and where it has a history, a change of either is none to the other's."""
    path = None if node is None else view_path(node, handle.node)
    if path == ():
        node = tracer.builder.alias(handle.node)
        path = view_path(node, handle.node)
    view = None if path is None else tracer.view(handle, path, node)
    if view is None or not _is_at(view, handle, shown.place):
        raise _unknown()
    if not view.requires_grad:
        return tracer.attribute(view, "data")
    input_itself = (handle.base.input is not None and handle.base.node is handle.base.input
                    and not handle.chain and handle.base.region is None)
    if input_itself and call is not None:
        operator, rest, index = call
        rest = frozen(object, _number, rest)
        call = (operator, rest, index) if all(type(e) is int for v in rest
                                              for e in (v if type(v) is tuple else (v,))) else None
    if not view.is_leaf and (handle.base.input is None or input_itself and call is not None):
        tracer.restrict(view, "hidden")
        view.chain[-1].call = call if input_itself else None
        tracer.set(handle.base, "shadows", [*handle.base.shadows, weakref.ref(view)])
        return view
    raise _unknown()


def _number(v):
    return specialize(v) if type(v) is Dim else v


def _unknown() -> Unsupported:
    return Unsupported("a result that shows memory of an argument in a way that has no rule here",
                       "clone() the result", kind="unknown-function")


def _is_at(view, handle, place) -> bool:
    """Whether a view of ``handle`` has these sizes, strides, offset and dtype."""
    sizes, strides, offset, dtype = place
    there, start = offset_in_base(view), offset_in_base(handle)
    return (*view.type.shape, *view.type.strides, view.type.dtype) == (*sizes,
        *strides, dtype) and None not in (there, start) and there - start == offset
