"""``torch.autograd.forward_ad``: dual numbers, and ``torch.autograd.functional``'s maps over them.

A dual level is a level of gradients (``library.transforms``). ``make_dual`` makes a tensor of its own that gradients
are taken with respect to, and remembers its tangent. ``unpack_dual`` asks for the tangent of what was computed: the
vector Jacobian product with respect to all such tensors is linear in the vector, and its own gradient with respect to
that, applied to the tangents, is what forward mode gives.

A break inside of a level leaves the whole function to eager: nothing can go on between its two ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import backward
from ...graph.gradient_paths import carrying
from ..tables import on_name
from ..values.constant import Constant
from ..values.containers import TupleValue
from . import transforms

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

NONE = Constant(None)
BELOW = torch_private.MAPS_BELOW


def _refuse(why: str) -> Unsupported:
    return Unsupported(why, "nothing needs to be done: it runs in eager", kind="functorch")


def _duals(s: Session) -> list:
    return [level for level in s.levels if level.duals is not None]


def _open(s: Session, kwargs: dict[str, Value]):
    """The level that a call names."""
    found = _duals(s)
    asked = kwargs["level"].const(s)
    if asked != 0 or len(found) != 1:
        raise _refuse("dual numbers of a level that was not entered inside")
    if not s.tracer.grad_enabled:
        raise _refuse("dual numbers under torch.no_grad")
    return found[0]


@on_name(("torch.autograd.forward_ad", "_maybe_load_decompositions"))
def nothing(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NONE


@on_name((BELOW, "_enter_dual_level"))
def enter(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not s.inner_gradients or _duals(s) or torch_private.in_forward_mode():
        raise _refuse("a dual level inside of another one")
    transforms.refuse_modes(s)
    transforms.grad_begins(s, [], {})
    *before, level = s.levels
    s.journal.set_field(s, "levels", (*before, replace(level, duals=())))
    s.journal.set_field(s.tracer, "captured_before", level.outside[1])  # such a level refuses nothing
    return Constant(0)


@on_name((BELOW, "_make_dual"))
def make_dual(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor, tangent = args
    level = _open(s, kwargs)
    if not (tensor.is_tensor and tangent.is_tensor):
        raise _refuse("a dual number of what is no tensor")
    if tensor.handle(s).shape != tangent.handle(s).shape or tensor.handle(s).dtype is not tangent.handle(s).dtype:
        raise _refuse("a tangent of another shape or dtype than its tensor")
    transforms.refuse_modes(s, tensor, tangent)
    tangent = transforms.laid_out(s, tensor, tangent)
    dual = transforms.grad_enters(s, [tensor, Constant(level.number)], {})
    if not dual.handle(s).dtype.is_floating_point:
        raise _refuse("a dual number of other than real floating point numbers")
    if not dual.handle(s).requires_grad:
        backward.make_leaf(s.tracer, dual.handle(s))
    made = (dual, tangent, dual.handle(s).base.version)
    s.journal.set_field(s, "levels", tuple(replace(one, duals=(*one.duals, made)) if one.number == level.number
                                           else one for one in s.levels))
    return dual


def _tangent(vjp, output, duals, tangents):
    def pulled(vector):
        return torch.autograd.grad(output, duals, vector, create_graph=True, retain_graph=True)

    _, push = vjp(pulled, torch.zeros_like(output))
    found, = push(tangents)
    return found


@on_name((BELOW, "_unpack_dual"))
def unpack_dual(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor, level = args[0], _open(s, kwargs)
    if not tensor.is_tensor:
        raise _refuse("unpack_dual of what is no tensor")
    transforms.refuse_modes(s, tensor)
    for dual, tangent, _ in level.duals:
        if dual is tensor:
            return TupleValue([_given(s, tensor, level), tangent])
    nodes, new = backward.unfolded(s.tracer)
    reached = [(dual, tangent) for dual, tangent, _ in level.duals
               if new[tensor.handle(s).node] in carrying(nodes, {new[dual.handle(s).node]})]
    if not reached:
        return TupleValue([tensor, NONE])
    duals, tangents = (TupleValue(list(v)) for v in zip(*reached))
    vjp = s.wrap_raw(torch.func.vjp.__globals__["_vjp_with_argnums"])
    try:
        found = s.inline(s.wrap_raw(_tangent), [vjp, tensor, duals, tangents], {})
        if not s.in_a_map:
            found = transforms.laid_out(s, tensor, found, wholly=False)
    except Unsupported as error:
        error.frames = []  # a break inside is one of the call
        raise
    return TupleValue([_left(s, tensor, level), _left(s, found, level)])


def _given(s: Session, dual: Value, level: transforms.Level) -> Value:
    """The tensor that a dual number was made of, a view of it as in eager; leave() refuses where that was changed."""
    whole = next(outside for inside, _, _, outside in level.entered if inside is dual.handle(s))
    return s.torch_call(torch.Tensor.view_as, [whole, whole], {})


def _left(s: Session, tensor: Value, level: transforms.Level) -> Value:
    """A tensor as it is without the level."""
    handle = tensor.handle(s)
    found = backward.outer(s.tracer, handle, _leaves(s, level), level.tracked)
    return tensor if found is handle else s.recording.tensor_of(found)


def _leaves(s: Session, level: transforms.Level) -> tuple:
    """The tensors that the program has made to require grad, before the level and inside."""
    duals = [dual.handle(s) for dual, *_ in level.duals]
    return tuple([h for h in s.tracer.inner_leaves if not any(h is d for d in duals)])


@on_name((BELOW, "_exit_dual_level"))
def leave(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    level = _open(s, kwargs)
    if any(dual.handle(s).base.version != version for dual, _, version in level.duals):
        raise _refuse("a dual number is changed in place")
    nodes, new = backward.unfolded(s.tracer)
    inside = carrying(nodes, {new[dual.handle(s).node] for dual, *_ in level.duals})
    leaves = _leaves(s, level)
    for tensor in list(s.recording.tensors.values()):
        handle = tensor.handle(s)
        if handle.requires_grad and new.get(handle.node) in inside:
            if backward.outer(s.tracer, handle, leaves, level.tracked) is not handle:
                s.tracer.set(handle, "_grad", False)
    transforms.grad_ends(s, [], {})
    s.tracer.set(s.tracer, "inner_leaves", leaves)
    return NONE


def _mapped(function, in_dims=0, out_dims=0, allow_none_pass_through=False):
    return torch.vmap(function, in_dims, out_dims)


@on_name(("torch._vmap_internals", "_vmap"))
def older_map(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The map that ``torch.autograd.functional`` uses."""
    return s.inline(s.wrap_raw(_mapped), args, kwargs)
