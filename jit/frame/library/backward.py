"""``backward()``, ``torch.autograd.grad`` and ``Tensor.grad`` inside the program. What is odd about a call is left to
eager, which knows the errors and warnings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import backward as graph
from ...graph.functions import is_hooked
from ...runtime import facts
from .. import source as src
from ..tables import on_function, on_tensor_attribute, on_tensor_method, on_tensor_setter
from ..tensor_guards import guard_place
from ..values.constant import Constant
from ..values.containers import TupleValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

NONE = Constant(None)
_BACKWARD = inspect.signature(torch.autograd.backward)
_GRAD = inspect.signature(torch.autograd.grad)


def _break(why: str) -> Unsupported:
    return Unsupported(why, kind="autograd")


def _is_none(s: Session, value: Value) -> bool:
    return value.is_const() and value.const(s) is None


def _tensors(s: Session, value: Value, what: str) -> list:
    """The tensor values of a tensor or a sequence of them."""
    values = value.items_list(s) if value.is_sequence else [value]
    if not all(v.is_tensor for v in values):
        raise _break(f"{what} that are no tensors")
    return list(values)


def _tangents(s: Session, value: Value | None, count: int) -> list:
    """A handle or None for each root."""
    if value is None or _is_none(s, value):
        return [None] * count
    values = value.items_list(s) if value.is_sequence else [value]
    if len(values) != count:
        raise _break("another number of gradients than of tensors")
    return [None if _is_none(s, v) else _tensors(s, v, "gradients")[0].handle(s) for v in values]


def _flag(s: Session, value: Value | None, default: bool | None = None) -> bool:
    """A flag; None where it is None or not given."""
    return default if value is None or _is_none(s, value) else value.truth(s)


def _process_group_is_absent(s: Session) -> None:
    """Reducers of a process group hang on gradients in C++, where nothing shows them."""
    world = torch_private.process_groups()
    if world is not None:
        if torch.distributed.is_initialized():
            raise _break("backward() in a process group")
        s.guards.add(src.GetAttr(src.Const(world, "world"), "default_pg"), facts.identity(None))


def _no_hooks(s: Session, value: TensorValue) -> None:
    """Guard that nothing looks at, or changes, a leaf's gradient, and that it gets one: a view that was there before
    its base was made to require grad does so too, and is a leaf, but no gradient comes to it."""
    if value.obj is None:
        return
    guard_place(s, value)
    if torch_private.is_view(value.obj) and value.obj.is_leaf:
        base = src.GetAttr(value.source, "_base")
        s.guards.add(src.GetAttr(base, "requires_grad"), facts.Equals(torch_private.base_of(value.obj).requires_grad))
        if torch_private.base_of(value.obj).requires_grad:
            raise _break("a gradient of a view that requires grad because its base does since")
    for name in torch_private.gradient_hooks:
        hooks = getattr(value.obj, name, None)
        if hooks:
            raise _break("backward() to a tensor with hooks on its gradient")
        if hasattr(value.obj, name):
            s.guards.add(src.GetAttr(value.source, name), facts.identity(hooks))


def _differentiate(s: Session, roots: list[Value], tangents: list[None], wrt: list[Value], keep: bool,
                   create: bool, as_leaves: bool = False) -> list:
    """Values of the gradients, or None where there is none."""
    if not s.inner_gradients:
        raise _break("backward() through an operation whose gradient is left to eager")
    _process_group_is_absent(s)
    handles = [v.handle(s) for v in roots]
    if any(is_hooked(v.handle(s).node) for v in wrt):
        raise _break("a gradient with respect to a tensor that has a hook")
    found = graph.record(s.tracer, handles, tangents, [v.handle(s) for v in wrt], keep, create, as_leaves)
    return [None if h is None else s.recording.tensor_of(h) for h in found]


@on_function(torch.autograd.backward)
def autograd_backward(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _BACKWARD.bind(*args, **kwargs).arguments
    roots = _tensors(s, given["tensors"], "roots")
    if _flag(s, given.get("create_graph"), False):
        raise _break("backward() with create_graph=True")
    if not _is_none(s, given.get("grad_variables", NONE)):
        raise _break("backward() with grad_variables")
    inputs = given.get("inputs", NONE)
    if s.asker.overridden([*roots, *(inputs.items_list(s) if inputs.is_sequence else [inputs])]):
        named = {k: given.get(k, Constant(p.default)) for k, p in _BACKWARD.parameters.items()}
        return s.asker.call(torch.autograd.backward, [named.pop("tensors")], named)
    keep = _flag(s, given.get("retain_graph"), False)
    tangents = _tangents(s, given.get("grad_tensors"), len(roots))
    wanted = given.get("inputs")
    if wanted is None or _is_none(s, wanted):
        for v in roots:
            v.handle(s)
        targets = [s.recording.tensor_of(h) for h in graph.leaves(s.tracer)]
    else:
        targets = _tensors(s, wanted, "inputs")
        if not targets or not all(v.handle(s).requires_grad for v in targets):
            raise _break("backward() with no inputs, or some that do not require grad")
    if any(not v.handle(s).is_leaf or v.handle(s).chain and v.obj is not None for v in targets):
        way = graph.reached(s.tracer, [v.handle(s) for v in roots], [v.handle(s) for v in targets])
        if any(not v.handle(s).is_leaf and v.handle(s).node in way for v in targets) or wanted is not None:
            raise _break("backward() to a tensor that is the result of other operations")
    gradients = _differentiate(s, roots, tangents, targets, keep, False, as_leaves=True)
    for v, g in zip(targets, gradients):
        if g is not None:
            _no_hooks(s, v)
            _accumulate(s, v, g)
    return NONE


def _accumulate(s: Session, leaf: TensorValue, gradient: TensorValue) -> None:
    """``AccumulateGrad``: the first gradient is the tensor's ``grad``, others are added to it in place."""
    have = grad(s, leaf)
    if _is_none(s, have):
        set_grad(s, leaf, gradient)
        return
    if have.handle(s).requires_grad:
        raise _break("a gradient is added to one that requires grad")
    s.torch_call(torch.Tensor.add_, [have, gradient], {})


@on_tensor_method("backward")
def backward(s: Session, tensor: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    given = {**dict(zip(names, args)), **kwargs}
    if not set(given) <= set(names) or len(args) > len(names):
        raise _break("backward() with the wrong arguments")
    given["grad_tensors"] = given.pop("gradient", NONE)
    return autograd_backward(s, [tensor], given)


@on_function(torch.autograd.grad)
def autograd_grad(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _GRAD.bind(*args, **kwargs).arguments
    outputs, inputs = given["outputs"], given["inputs"]
    if not (outputs.is_tensor or outputs.is_sequence):
        raise _break("torch.autograd.grad of other things than tensors")
    roots = _tensors(s, outputs, "outputs")
    wrt = _tensors(s, inputs, "inputs") if inputs.is_tensor or inputs.is_sequence else []
    if s.asker.overridden([*roots, *wrt]):
        named = {k: given.get(k, Constant(p.default)) for k, p in _GRAD.parameters.items()}
        return s.asker.call(torch.autograd.grad, [named.pop("outputs"), named.pop("inputs")], named)
    if not wrt or not _flag(s, given.get("only_inputs"), True):
        raise _break("torch.autograd.grad with rare options")
    create = _flag(s, given.get("create_graph"), False)
    keep = _flag(s, given.get("retain_graph"), create)
    materialize = _flag(s, given.get("materialize_grads"), False)
    unused = _flag(s, given.get("allow_unused"), materialize)
    if _flag(s, given.get("is_grads_batched"), False):
        return _mapped(s, roots, wrt, given.get("grad_outputs", NONE), keep=keep, create=create,
                       unused=unused, materialize=materialize)
    for v in wrt:
        if not v.handle(s).requires_grad:
            raise _break("torch.autograd.grad with respect to a tensor that does not require grad")
        _no_hooks(s, v)
    found = _differentiate(s, roots, _tangents(s, given.get("grad_outputs"), len(roots)), wrt, keep, create)
    if any(g is None for g in found) and not unused:
        raise _break("torch.autograd.grad with respect to a tensor that was not used")
    if materialize:
        found = [s.torch_call(torch.zeros_like, [v], {"requires_grad": Constant(False)}) if g is None else g
                 for v, g in zip(wrt, found)]
    return TupleValue([NONE if g is None else g for g in found])


def _gradients_of_each(outputs, inputs, tangents, keep, create, unused, materialize):
    """``torch.autograd.grad`` with ``is_grads_batched``: mapped over the first dimension of what it is given."""
    missing = []

    def one(*given):
        found = torch.autograd.grad(outputs, inputs, given, retain_graph=keep, create_graph=create, allow_unused=unused)
        missing.extend([g is None for g in found])
        return tuple([g for g in found if g is not None])

    made = iter(torch.vmap(one)(*tangents))
    found = [None if left_out else next(made) for left_out in missing]
    if materialize:
        found = [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs)]
    return tuple(found)


def _mapped(s: Session, roots: list, wrt: list, tangents: Value, **flags: bool) -> Value:
    given = tangents.items_list(s) if tangents.is_sequence else [tangents]
    if len(given) != len(roots) or not all(v.is_tensor for v in given):
        raise _break("batched gradients of which some are not given")
    try:
        return s.inline(s.wrap_raw(_gradients_of_each), [TupleValue(list(v)) for v in (roots, wrt, given)],
                        {name: Constant(flag) for name, flag in flags.items()})
    except Unsupported as error:
        error.frames = []  # a break inside is one of the call
        raise


# -- Tensor.grad -----------------------------------------------------------------------------------------------------


@on_tensor_attribute("grad", "_grad")
def grad(s: Session, tensor: TensorValue) -> Value:
    if tensor.grad is None:
        s.set_field(tensor, "grad", _grad_from_outside(s, tensor) if tensor.obj is not None
                    else _grad_of_new(s, tensor))
    return tensor.grad


def _grad_of_new(s: Session, tensor):
    handle = tensor.handle(s)
    if handle.requires_grad and not handle.is_leaf:
        raise Unsupported("the .grad of a tensor that is not a leaf is used", kind="tensor-attribute")
    return NONE


def _grad_from_outside(s: Session, tensor: TensorValue) -> Value:
    obj = tensor.obj
    if obj.requires_grad and not obj.is_leaf or tensor.source is None:
        raise Unsupported("the .grad of a tensor that is not a leaf is used", kind="tensor-attribute")
    if tensor.source.watched:
        s.guards.add(tensor.source, facts.identity(obj))
    value = s.wrap(obj.grad, src.Grad(tensor.source))
    if obj.grad is None:
        s.guards.add(value.source, facts.identity(None))
    return value


def _set_grad(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    tensor.grad = gradient


@on_tensor_setter("grad")
def set_grad(s: Session, tensor: TensorValue, value: Value) -> None:
    if _is_none(s, value):
        value = NONE
    elif not value.is_tensor or value is tensor:
        raise Unsupported(".grad is set to something else than a tensor", kind="tensor-attribute")
    else:
        have, given = tensor.handle(s), value.handle(s)
        if (given.requires_grad or given.dtype is not have.dtype or given.device != have.device
            or list(given.shape) != list(have.shape)):
            raise Unsupported(".grad is set to a tensor of another shape or dtype, or one with a history",
                              kind="tensor-attribute")
    # Such a leaf does not leave the graph.
    if tensor.obj is None and not (tensor.handle(s).is_leaf and tensor.handle(s).requires_grad):
        raise Unsupported("the .grad of a tensor that is made here is set", kind="tensor-attribute")
    s.set_field(tensor, "grad", value)
    if tensor.obj is not None:
        s.effect(_set_grad, [tensor, value])


@on_tensor_method("requires_grad_")
def requires_grad_(s: Session, tensor: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | TensorValue:
    wanted = (args[0] if args else kwargs.get("requires_grad", Constant(True))).truth(s)
    handle = tensor.handle(s)
    if any(level.duals is None for level in s.levels) and not s.levels[-1].lets:
        raise Unsupported("requires_grad_() inside of a transform of torch.func, which eager refuses",
                          "call it outside", kind="functorch")
    if handle.requires_grad == wanted:
        return tensor
    if not wanted and tensor.obj is None:
        return s.record(torch.Tensor.requires_grad_, [tensor, *args], kwargs)
    if tensor.obj is not None or not handle.dtype.is_floating_point:
        raise Unsupported("requires_grad_() changes whether gradients are recorded", kind="autograd")
    graph.make_leaf(s.tracer, handle)
    return tensor


