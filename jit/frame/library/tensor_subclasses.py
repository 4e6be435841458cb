"""What makes tensors of subclasses, and what PyTorch's Python code asks of their classes; see ``frame.stand_ins``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from ... import torch_private
from ...errors import Unsupported
from ..tables import on_call, on_function, on_name, on_tensor_method
from ..values.constant import Constant
from ..values.new_parameters import NewParameter
from ..values.subclasses import PLAIN_CLASSES, HeldTensor, WrapperTensor, dispatches

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue


def as_held(s: Session, cls: type, plain: Value, maker: Callable) -> Value:
    """A new tensor object of a class over the memory of ``plain``."""
    if dispatches(s, cls):
        raise Unsupported(f"a {cls.__name__} is used, a tensor with data of its own whose class has a "
                          "__torch_dispatch__", kind="tensor-subclass")
    if cls is torch.Tensor:
        return plain
    if cls in PLAIN_CLASSES:
        raise Unsupported(f"a new torch.{cls.__qualname__}", "make it outside the compiled function",
                          kind="instantiate")
    s.set_field(s.asker, "seen", True)
    made = HeldTensor(cls, plain.handle(s), maker=maker)
    s.set_entry(s.recording.tensors, id(made.handle(s)), made)
    s.heap.keep(made)
    return made


def _class_of(s: Session, value: Value | None) -> type:
    if value is None or value.as_class is None or not issubclass(value.as_class, torch.Tensor):
        raise Unsupported("a tensor is made of a class that is no subclass of torch.Tensor", kind="argument-error")
    return value.const(s)


def remade(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    return torch_private.make_subclass(cls, tensor)


@on_tensor_method("as_subclass")
def as_subclass(s: Session, tensor: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = _class_of(s, args[0] if args else kwargs.get("cls"))
    return as_held(s, cls, s.record(torch.ops.aten.alias.default, [tensor], {}), torch.Tensor.as_subclass)


@on_call(torch.Tensor.as_subclass)
def as_subclass_of(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return as_subclass(s, args[0], args[1:], kwargs)


@on_call(torch.Tensor.__new__)
def new(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``C(tensor)`` of a class without a ``__new__``."""
    if len(args) != 2 or kwargs or not args[1].is_tensor or args[1].dispatches:
        raise Unsupported("a tensor of a subclass is made of something else than a tensor",
                          kind="instantiate")
    return as_subclass(s, args[1], args[:1], {})


@on_call(torch_private.make_subclass)
def make_subclass(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    wanted = args[2] if len(args) > 2 else kwargs.get("require_grad", Constant(False))
    if len(args) in (2, 3) and _class_of(s, args[0]) is torch.nn.Parameter and not s.in_a_map and not s.levels:
        made = NewParameter(s.record(torch.Tensor.detach, [args[1]], {}).handle(s), wanted.truth(s))
        s.set_field(s.recording, "new_leaves", s.recording.new_leaves + 1)
        s.set_entry(s.recording.tensors, id(made.handle(s)), made)
        s.heap.keep(made)
        return made
    if len(args) > 3 or len(args) < 2 or set(kwargs) - {"require_grad"} or wanted.truth(s):
        raise Unsupported("a tensor of a subclass is made that requires grad", "make it outside the compiled function",
                          kind="instantiate")
    return as_held(s, _class_of(s, args[0]), s.record(torch.Tensor.detach, [args[1]], {}), remade)


@on_call(torch_private.make_wrapper)
def make_wrapper(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = _class_of(s, args[0])
    if not dispatches(s, cls):
        raise Unsupported(f"a {cls.__name__} without data, whose class has no __torch_dispatch__",
                          kind="tensor-subclass")
    s.set_field(s.asker, "seen", True)
    return WrapperTensor(cls, made=(list(args), dict(kwargs)))


# -- what Python code of PyTorch's asks --------------------------------------------------------------------------


@on_call(torch_private.has_function)
def has_function(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(s.asker.seen and s.asker.overridden(args[0].items_list(s)))


@on_call(torch_private.has_function_unary, torch_private.has_function_variadic)
def has_function_of_these(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(s.asker.overridden(args))


@on_function(torch.overrides.handle_torch_function)
def handle_torch_function(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn, among, *given = args
    relevant = among.items_list(s)
    return s.asker.by_function(fn, s.asker.asked_by_python(relevant), s.asker.told_by_python(relevant), given, kwargs)


torch.overrides.get_default_nowrap_functions()  # cached from here on


def _data_of(self):
    return self._masked_data.detach()


@on_name(("torch.masked.maskedtensor.core", "MaskedTensor.get_data"))
def masked_data(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """By a class of autograd's that is made at each call; without a gradient that is all that it does."""
    if s.tracer.grad_enabled and args[0].getattr(s, "requires_grad").truth(s):
        raise Unsupported("the gradient with respect to a masked tensor", kind="gradient")
    return s.inline(s.wrap_raw(_data_of), args, kwargs)


def _followed(fn: Callable) -> None:
    """A function that is no operation on tensors, though it stands among those of ``torch._tensor``."""
    @on_function(fn)
    def follow(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return s.inline(s.wrap_raw(fn), args, kwargs)


_followed(torch_private.convert)
_followed(torch.Tensor.__torch_function__.__func__)


@on_function(torch_private.correct_aliasing)
def correct_aliasing(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``return_and_correct_aliasing(func, args, kwargs, out)``: what an operator changes is what it gives."""
    func, given, named, out = args
    op = func.const(s)
    schema = torch_private.schema(op)
    names = [a.name for a in schema.arguments]
    writes = [a.alias_info.before_set for a in schema.returns if a.alias_info is not None and a.alias_info.is_write]
    if not writes:
        return out
    positional = given.items_list(s)

    def given_as(alias: set) -> Value:
        at = next(i for i, a in enumerate(schema.arguments)
                  if a.alias_info is not None and a.alias_info.before_set & alias)
        return positional[at] if at < len(positional) else named.get_constant(s, names[at])

    changed = [given_as(alias) for alias in writes]
    return changed[0] if len(changed) == 1 else s.tuple_of(changed)
