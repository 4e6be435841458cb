"""``torch.autograd.Function``: its forward, inlined, and where gradients are recorded its backward too, which becomes
part of the graph of gradients."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Callable

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from ... import torch_private
from ...errors import Unsupported
from ...graph import gradient_layout
from ...graph.functions import FunctionTrace
from ..speculation import reachable
from ..states import grad_mode
from ..states.function_state import unasked
from ..states.grad_mode import GRAD_MODE
from ..states.index_modes import MODES, modes
from ..tables import on_call, on_function
from ..values.base import Raised, Value
from ..values.constant import Constant
from ..values.containers import ListValue, TupleValue
from ..values.functions import CellValue
from ..values.new_parameters import refuse_leaves
from ..values.objects import ObjectValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..session import Session

_ONCE = once_differentiable(lambda ctx: None).__code__


class Context(FunctionCtx):
    """What ``forward``, ``setup_context`` and ``backward`` see as ``ctx``."""

    def __init__(self, needs_input_grad) -> None:
        self.needs_input_grad = needs_input_grad

    @property
    def saved_tensors(self):
        return self.__dict__.get("to_save", ())


def _forward_with_context(cls, ctx: ObjectValue, *args: object):
    return cls.forward(ctx, *args)


def _forward_then_context(cls, ctx: ObjectValue, *args: object):
    output = cls.forward(*args)
    cls.setup_context(ctx, args, output)
    return output


def _break(why: str, hint: str = "") -> Unsupported:
    return Unsupported(f"an autograd.Function {why}", hint, kind="autograd")


@(on_function if isinstance(torch_private.function_apply, types.FunctionType)
  else on_call)(torch_private.function_apply)
def apply(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, *given = args
    known = cls.const(s)
    separate = known.setup_context is not torch.autograd.Function.setup_context
    if kwargs:
        raise _break("called with keyword arguments")  # which only some versions of PyTorch take
    if any(level.duals is None for level in s.levels):
        _refuse_transforms(s, known, separate)
    if separate:
        given = _with_defaults(s, known.forward, given)
    refuse_leaves(s, given)
    tensors = [v for v in given if v.is_tensor]
    needs = [v.is_tensor and v.handle(s).requires_grad for v in given]
    recorded = s.tracer.grad_enabled and any(needs)
    if recorded and known in s.differentiated:
        raise _break("whose backward applies it again")
    ctx = s.wrap_class(Context).call(s, [TupleValue([Constant(n) for n in needs])], {})
    enabled, recording = grad_mode.is_on(s), s.tracer.grad_enabled
    grad_mode.switch_to(s, False)
    s.tracer.set_grad_enabled(False)
    try:
        result = s.inline(s.wrap_raw(_forward_then_context if separate else _forward_with_context),
                          [cls, ctx, *given], {})
    finally:
        grad_mode.switch_to(s, enabled)
        s.tracer.set_grad_enabled(recording)
    several, outputs = result.builtin is tuple, result.several(s)
    if _field(s, ctx, "dirty_tensors"):
        raise _break("that changes its arguments in place")
    if not recorded:
        made = [_returned(s, o, tensors, any(needs)) for o in outputs]
        return result if made == outputs else TupleValue(made, result.cls) if several else made[0]
    if s.asker.overridden([o for o in outputs if o.is_tensor]):
        raise _break("with a gradient that gives a tensor of which a class, or a mode, is asked")
    made = _recorded(s, known, cls, ctx, given, needs, outputs)
    return TupleValue(made, result.cls) if several else made[0]


def _returned(s: Session, output: Value, tensors: list[Value], needs: bool) -> Value:
    """A result without a history: an argument that is returned is a new tensor there. ``needs``: some argument requires
    grad, though no gradients are recorded."""
    if not output.is_tensor or not any(output is v for v in tensors):
        return output
    if needs:
        with unasked(s):
            return s.torch_call(torch.Tensor.detach, [output], {})
    recording = s.tracer.grad_enabled
    try:
        with s.states.told(GRAD_MODE, False):
            s.tracer.set_grad_enabled(False)
            return s.torch_call(torch.Tensor.view_as, [output, output], {})  # a call of the tensor's own method
    finally:
        s.tracer.set_grad_enabled(recording)


def _refuse_transforms(s: Session, known: type, separate: bool) -> None:
    """Inside of a transform of ``torch.func`` eager refuses functions that lack what it needs, or asks other methods of
    them than these."""
    if not separate:
        raise _break("without a setup_context inside of a transform")
    if s.in_a_map and not known.generate_vmap_rule:
        raise _break("that says itself what a map over it is, or does not say it")
    if s.tracer.forward_mode:
        raise _break("in forward mode, for which its jvp is asked")


def _with_defaults(s: Session, forward: Callable, given: list[Value]) -> list:
    """The positional arguments of ``forward``, with its defaults, as ``apply`` binds them for functions with a
    ``setup_context``."""
    try:
        bound = inspect.signature(forward).bind(*given)
    except TypeError as error:
        raise Raised(s.exception(error)) from None
    if len(bound.args) == len(given) and not bound.kwargs and all(p.default is p.empty
                                                                  for p in bound.signature.parameters.values()):
        return given
    bound.apply_defaults()
    if bound.kwargs:
        raise _break("whose forward has keyword-only parameters")
    return [v if isinstance(v, Value) else s.from_python(v) for v in bound.args]


def _field(s: Session, ctx: ObjectValue, name: str) -> list:
    """The elements of a tuple that a method of the context has kept, if any."""
    value = ctx.attrs.get(name)
    return list(value.items_list(s)) if isinstance(value, (TupleValue, ListValue)) else []


def _recorded(s: Session, known: type, cls, ctx: ObjectValue, given: list[Value], needs: list[bool],
              outputs: list[Value]) -> list:
    """The results with a gradient: the backward is traced, and hung on them."""
    constant = _field(s, ctx, "non_differentiable")
    places = [k for k, o in enumerate(outputs) if o.is_tensor and not any(o is c for c in constant)
              and (o.handle(s).dtype.is_floating_point or o.handle(s).dtype.is_complex)]
    kept = ctx.attrs.get("materialize_grads")
    if kept is not None and not kept.truth(s) and len(places) > 1:
        raise _break("of several results whose gradients may be None")
    if any(v.is_tensor and any(o is v for k, o in enumerate(outputs) if k not in places) for v in given):
        raise _break("that returns one of its inputs without a gradient")
    if not places:
        return outputs
    arguments = [v for v, n in zip(given, needs) if n]
    trace = FunctionTrace(s.tracer, [v.handle(s) for v in arguments], [outputs[k].handle(s) for k in places])
    saved = _field(s, ctx, "to_save")
    for place, v in enumerate(saved):
        if not v.is_tensor and not (v.is_const() and v.const(s) is None):
            raise _break("that saves something else than tensors for its backward")
        index = next((i for i, k in enumerate(places) if outputs[k] is v and not any(v is a for a in given)), None)
        if index is not None:
            saved[place] = s.recording.tensor_of(trace.saved_result(index))
    s.set_entry(ctx.attrs, "to_save", TupleValue(saved))
    tangents = [s.recording.tensor_of(trace.tangents[places.index(k)]) if k in places else _no_gradient(s, o, kept)
                for k, o in enumerate(outputs)]
    gradients, second = _backward(s, known, cls, ctx, given, tangents)
    if len(gradients) > len(given) and all(_is_none(s, g) for g in gradients[len(given):]):
        del gradients[len(given):]
    if len(gradients) != len(given):
        raise _break("whose backward gives another number of gradients than forward takes arguments")
    found = []
    for v, n, g in zip(given, needs, gradients):
        none = _is_none(s, g)
        if not none and not g.is_tensor or not none and not v.is_tensor:
            raise _break("whose backward gives a gradient for something else than a tensor")
        if n:
            found.append(None if none else g.handle(s))
    results = trace.finish(found, second)
    gradient_layout.note_function(s.tracer, trace, found, results)
    made = dict(zip(places, results))
    return [s.recording.tensor_of(made[k]) if k in made else _without_gradient(s, o) for k, o in enumerate(outputs)]


def _is_none(s: Session, value: Value) -> bool:
    return value.is_const() and value.const(s) is None


def _without_gradient(s: Session, output: Value) -> Value:
    return output.detached(s) if output.is_tensor else output


def _no_gradient(s: Session, output: Value, kept) -> Value:
    """What the backward gets for a result without a gradient."""
    if not output.is_tensor or kept is not None and not kept.truth(s):
        return Constant(None)
    return s.torch_call(torch.zeros_like, [output], {})


def _backward(s: Session, known: type, cls, ctx: ObjectValue, given: list[Value],
              tangents: list[Value]) -> tuple[list[Value], str | None]:
    """-> the gradients that the backward gives, and how it can be differentiated (see ``graph.functions``).
    What it does besides computing them is refused: it is done when the backward runs."""
    method = "vjp" if known.vjp is not torch.autograd.Function.vjp else "backward"
    if method == "vjp" and known.backward is not torch.autograd.Function.backward:
        raise _break("with a backward and a vjp")
    code = getattr(getattr(known, method), "__code__", None)
    before = reachable([ctx, cls, *given])
    done, mark = len(s.effects.log), s.journal.checkpoint()
    calls = s.states.uses[GRAD_MODE]
    try:
        with (s.states.told(GRAD_MODE, False),  # the graph keeps gradients of gradients
              s.states.told(MODES, modes(s)),  # those that the program is in here are none where it runs
              s.journal.temporarily(s, "differentiated", (*s.differentiated, known))):
            result = cls.getattr(s, method).call(s, [ctx, *tangents], {})
    except Raised as raised:
        raise _break(f"whose backward raises {raised.value.cls.__name__}",
                     "mend its backward: in eager it raises the same") from None
    finally:
        s.tracer.set_grad_enabled(grad_mode.is_on(s))
    if s.effects.since(done):
        raise _break("whose backward has side effects")
    if any(id(holder) in before for holder, *_ in s.journal.changes_since(mark)
           if not (isinstance(holder, (TensorValue, CellValue)) or holder is ctx.attrs)):
        raise _break("whose backward changes objects that were there before")
    second = "once" if code is _ONCE else "traced" if s.states.uses[GRAD_MODE] == calls else None
    return result.several(s), second
