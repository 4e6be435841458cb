"""Gradients of tensors of classes with a ``__torch_dispatch__``, which have no data of their own: into the graph and
out of it they go as gradients of the tensors inside.

An argument that requires grad comes with *carriers*, one for each tensor inside of it that has gradients: tensors of
the same values whose history leads to the argument (``Carry``). The graph gives gradients to those, of which the
gradient of the argument is made by ``__tensor_unflatten__``. A result gets its history the other way round
(``Emerge``), or, where it is a view of another such tensor, by the operator that it came of (``shown``). A gradient is
taken to have the context of what it is the gradient of; where it has another, it is a break in the graph, and an error
in a backward from outside.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import torch_private
from ..errors import Unsupported
from .protocols import same_or_equal
from .source import Source, _Derived
from .values.constant import Constant
from .values.mappings import DictValue
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from ..graph.handles import TensorHandle
    from .emit import Emitter
    from .session import Session
    from .values.base import Value


def has_gradient(tensor: Any) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def of_gradient(context: Any) -> Any:
    """The context of a tensor as that of its gradient, which requires no grad, where that is a part of it."""
    if type(context) is dict and "requires_grad" in context:
        return {**context, "requires_grad": False}
    return context


class Carry(torch.autograd.Function):
    """Tensors inside of one tensor, with a history that leads to it."""

    @staticmethod
    def forward(ctx: Any, whole: Any, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
        ctx.names, ctx.cls = names, type(whole)
        others, context = whole.__tensor_flatten__()
        ctx.context = of_gradient(context)
        ctx.others = {n: getattr(whole, n) for n in others if n not in names}
        ctx.layout = whole.size(), whole.stride()
        ctx.like = [(t.shape, t.dtype, t.device) for t in (getattr(whole, n) for n in names)]
        ctx.set_materialize_grads(False)
        return tuple([getattr(whole, n).detach() for n in names])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, None]:
        if all(g is None for g in gradients):
            return None, None
        parts = dict(ctx.others)
        for name, g, (shape, dtype, device) in zip(ctx.names, gradients, ctx.like):
            parts[name] = torch.zeros(shape, dtype=dtype, device=device) if g is None else g
        return ctx.cls.__tensor_unflatten__(parts, ctx.context, *ctx.layout), None


class Emerge(torch.autograd.Function):
    """A tensor whose history is that of the tensors inside of it, which have those values."""

    @staticmethod
    def forward(ctx: Any, made: list, *parts: torch.Tensor) -> Any:
        whole, ctx.names = made
        ctx.cls, ctx.context = type(whole), of_gradient(whole.__tensor_flatten__()[1])
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple:
        if type(gradient) is not ctx.cls or of_gradient(gradient.__tensor_flatten__()[1]) != ctx.context:
            raise RuntimeError(f"jit: the gradient of a {ctx.cls.__name__} that a compiled function has returned is of "
                               "another class, or has another context, than that tensor")
        return None, *[getattr(gradient, n) for n in ctx.names]


class _Given:
    """A mode in which an operator gives what is there: what autograd makes of it is as in eager. It is none by
    inheritance: those of PyTorch load its own compiler."""

    def __init__(self, whole: Any, func: Any) -> None:
        self.whole, self.func = whole, func

    def is_infra_mode(self) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self.whole if func is self.func else func(*args, **kwargs or {})


def shown(whole: Any, func: Any, recorded: bool, names: tuple[str, ...], *given: Any) -> Any:
    """``whole``, which is what an operator gives, as a view of what the operator is given: in-place changes of it get
    that a history. Keyword arguments, of these names, come last.

    The class is not asked once more: it was while capturing, and what it does then is in the graph."""
    args = given[:len(given) - len(names)]
    torch_private.push_dispatch_mode(_Given(whole, func))
    try:
        with torch.set_grad_enabled(recorded), torch_private.WithoutFunctionOfClasses():
            return func(*args, **dict(zip(names, given[len(args):])))
    finally:
        torch_private.pop_dispatch_mode(None)


def carry(whole: Any, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    return Carry.apply(whole, names)


def emit_shown(e: Emitter, value: Any, how: Any) -> None:
    """Make what is on top of the stack, the object of ``value``, the view that it is."""
    made = e.memo[value.memo_key()]
    e.cmd("pop")
    given = [functools.partial(e.load, v) for v in (*how.args, *how.kwargs.values())]
    e.call(shown, e.local(made), e.const(how.func), e.const(how.recorded), e.const(tuple(how.kwargs)), *given)
    e.remember(value)


def emerge(whole: Any, names: tuple[str, ...], *parts: torch.Tensor) -> Any:
    return Emerge.apply([whole, names], *parts)


@dataclass(frozen=True)
class Carried(_Derived):
    """The carriers of the tensor ``of``. No guard reads them."""

    names: tuple[str, ...]

    stays = guarded = False

    def load(self, e: Emitter) -> None:
        e.call(carry, lambda: e.load_source_or_const(e.session.heap.by_source[self.of]), e.const(self.names))

    def __str__(self) -> str:
        return f"the carriers of {self.of}"


@dataclass(frozen=True)
class Carrier(_Derived):
    """One of them."""

    index: int

    stays = guarded = False

    def load(self, e: Emitter) -> None:
        e.load_source(self.of)
        e.load_const(self.index)
        e.cmd("subscript")

    def __str__(self) -> str:
        return f"{self.of}[{self.index}]"


def taken_apart(s: Session, value: Any) -> tuple[dict[str, Value], Value]:
    """(name -> tensor inside, context) as ``__tensor_flatten__`` says."""
    if not s.class_lookup(value.cls, "__tensor_flatten__")[0]:
        raise Unsupported(f"the gradient of a {value.cls.__name__}, which has no __tensor_flatten__", kind="gradient")
    names, context = value.call_method(s, "__tensor_flatten__").items_list(s)
    parts = {n.const(s): value.getattr(s, n.const(s)) for n in names.items_list(s)}
    if not all(p.is_tensor and not p.dispatches for p in parts.values()):
        raise Unsupported(f"the gradient of a {value.cls.__name__} with such tensors inside", kind="gradient")
    return parts, context


def with_gradient(s: Session, value: Any, parts: dict[str, Value]) -> dict[str, Any]:
    names = parts if value.carrying is None else value.carrying
    return {n: parts[n] for n in names if has_gradient(parts[n].handle(s))}  # type: ignore[attr-defined]


def context_of(s: Session, value: Any) -> Value:
    """The context that a gradient of a tensor has."""
    return s.inline(s.wrap_raw(of_gradient), [taken_apart(s, value)[1]], {})


def carriers(s: Session, value: Any) -> dict[str, TensorValue]:
    """Those of an argument, as inputs of the graph."""
    if value.carriers is None:
        if value.source is None:
            raise Unsupported("a new tensor of a class with a __torch_dispatch__ that requires grad", kind="gradient")
        inner = with_gradient(s, value, taken_apart(s, value)[0])
        found, whole = {}, Carried(value.source, tuple(inner))
        for index, (name, part) in enumerate(inner.items()):
            if part.obj is None:
                raise Unsupported(f"the gradient of a {value.cls.__name__} whose tensors inside have been replaced",
                                  kind="gradient")
            found[name] = _input(s, part, Carrier(whole, index))
        s.set_field(value, "carriers", found)
    return value.carriers


def _input(s: Session, like: TensorValue, source: Source) -> TensorValue:
    example = like.obj.detach().requires_grad_()
    handle = s.tracer.input(example, source)
    handle.node.type = handle.base.type = handle.type = like.handle(s).type  # whose sizes and strides are guarded
    handle.is_leaf = False
    made = TensorValue(handle, example, source)
    s.recording.inputs.append(made)
    s.recording.tensors[id(handle)] = made
    s.heap.keep(made)
    return made


def same_context(s: Session, a: Any, b: Any) -> None:
    """Raises Unsupported where two tensors differ in class or context."""
    if a.cls is not b.cls or not same_or_equal(s, context_of(s, a), context_of(s, b)):
        raise Unsupported(f"the gradient of a {b.cls.__name__} that has another context, or is a {a.cls.__name__}",
                          kind="gradient")


def arguments(s: Session, leaf: Any, gradient: Any) -> list[tuple[TensorHandle, TensorHandle | None]]:
    """(what gets a gradient, the gradient or None) for a tensor of any class."""
    if not leaf.dispatches:
        return [(leaf.handle(s), None if gradient is None else gradient.handle(s))]
    given = carriers(s, leaf)
    if gradient is None:
        return [(c.handle(s), None) for c in given.values()]
    if not gradient.dispatches:
        raise Unsupported(f"the gradient of a {leaf.cls.__name__} that is a plain tensor", kind="gradient")
    same_context(s, gradient, leaf)
    parts = taken_apart(s, gradient)[0]
    return [(c.handle(s), parts[name].handle(s)) for name, c in given.items()]  # type: ignore[attr-defined]


def rebuilt(s: Session, value: Any, parts: dict[str, Value]) -> Any:
    """A tensor of the class and context of ``value`` with other tensors inside."""
    own, context = taken_apart(s, value)[0], context_of(s, value)
    given = DictValue({n: (Constant(n), parts.get(n, p)) for n, p in own.items()})
    return s.wrap_class(value.cls).getattr(s, "__tensor_unflatten__").call(
        s, [given, context, value.getattr(s, "shape"), value.call_method(s, "stride")], {})
