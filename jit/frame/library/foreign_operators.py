"""Operators of ``torch.library``, as far as their Python code is followed: the body of a ``triton_op``, so that its
kernels are nodes of the graph; the function registered as fake kernel, for the types of results with symbolic sizes;
``register_autograd``, as the ``torch.autograd.Function`` that PyTorch makes of it. The call itself is the tracer's
(``graph.foreign``)."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ...errors import Unsupported
from ...graph import foreign
from ...graph.binding import resolve
from ...graph.launches import Call
from ...graph.number_results import type_of
from ...runtime.direct import direct_call
from ...runtime.result_numbers import DTYPES
from ...runtime.user_kernels import Operation
from .. import source as src
from ..quiet import is_quiet
from ..states import grad_mode
from ..tables import wrapper
from ..values import batched
from ..values.base import Value
from ..values.containers import ListValue, TupleValue
from ..values.deferred import number_read
from ..values.functions import BuiltinValue
from . import autograd_functions

if TYPE_CHECKING:
    from ..session import Session
    from ..source import Source


class OperatorValue(BuiltinValue):
    """``torch.ops.<namespace>.<name>``, or one of its overloads."""

    def call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = resolve(self.fn)
        known = torch_private.custom_operator(made.name) if made is not None and foreign.is_foreign(made.name) else None
        if known is None or made is None:
            return super().call(s, args, kwargs)
        self.pin(s)
        return _Call(s, known, made.name).run(self, args, kwargs)

    def plain_call(self, s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return super().call(s, args, kwargs)


@wrapper(torch_private.OpOverload, torch_private.OpOverloadPacket)
def wrap_operator(s: Session, obj: object, source: Source | None) -> Value:
    return OperatorValue(obj, source)


def _refuse(name: str, why: str) -> Unsupported:
    return Unsupported(f"torch.ops.{name.replace('::', '.')}, an operator that is not PyTorch's own, {why}",
                       kind="foreign-operator")


class _Call:
    """A call of an operator that ``torch.library.custom_op`` or ``triton_op`` has made. ``known``: its record there."""

    def __init__(self, s: Session, known: Any, name: str) -> None:
        self.s, self.known, self.name = s, known, name
        self.schema = torch_private.schema(known._opoverload)
        # Which record it is, and what is read of it, are facts.
        self.value = s.wrap(known, src.Const(known))

    def registered(self, field: str) -> Value | None:
        """A function that was registered; None where there is none."""
        value = self.value.getattr(self.s, field)
        return None if value.is_const() and value.const(self.s) is None else value

    def run(self, operator: OperatorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        s = self.s
        body = self.body()
        needs = s.tracer.grad_enabled and any(v.handle(s).requires_grad for v in _tensors(s, (*args, *kwargs.values())))
        if body is None and not needs:
            return self.step(operator, args, kwargs)
        if batched.active(s):
            raise _refuse(self.name, "is called inside torch.vmap")
        given = self.positional(args, kwargs)
        if needs:
            return self.differentiable(operator, given, body)
        return self.followed(body, given)

    # the step

    def step(self, operator: OperatorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The operator as a step of the graph."""
        s = self.s
        quiet = self.is_quiet()
        with s.journal.temporarily(s.tracer, "quiet_kernel", quiet):
            if self.schema.is_mutable:
                return self.changing(args, kwargs)
            made = self.direct(args, kwargs) if quiet else None
            if made is not None:
                return made
            with s.journal.temporarily(s.tracer, "types_of_results", self.types(args, kwargs)):
                return operator.plain_call(s, args, kwargs)

    def direct(self, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """A call of the kernel without the operator around it; None where that is not possible."""
        s, schema = self.s, self.schema
        given = self.positional(args, kwargs)
        tensors = _tensors(s, given)
        if not tensors or direct_call(self.name, tensors[0].handle(s).device.type) is None:
            return None
        foreign.check(s.tracer, self.name)
        types = self.types(args, kwargs, always=True)
        if types is None or len(schema.returns) > 1 and len(types) != len(schema.returns):
            return None
        results = self.record(given, [], types)
        if str(schema.returns[0].type) == "List[Tensor]":
            return ListValue(results)
        results = [number_read(s, v) if str(r.type) in DTYPES else v for r, v in zip(schema.returns, results)]
        return results[0] if len(schema.returns) == 1 else TupleValue(results)

    def record(self, given: list[Value], written: list[Value], types: tuple) -> list[Value]:
        """The call as a function of its arguments' memory. -> its results of these types"""
        s = self.s
        call = Call(s.tracer)
        arguments = tuple(call.argument(v.lower(s)) for v in given)
        places = sorted({call.bases.index(v.handle(s).base) for v in written})
        s.tracer.builder.loc = s.recording.location()
        device = call.bases[0].type.device.type
        made = call.record(lambda changed, new: Operation(changed, new, self.name, device, arguments, len(types)),
                           self.name, places, True, types, seen=True)
        return [s.recording.tensor_of(s.tracer.fresh(node)) for node in made]

    def changing(self, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """An operator that changes some of its arguments: a function of their memory."""
        s, returns = self.s, self.schema.returns
        foreign.check(s.tracer, self.name)
        given = self.positional(args, kwargs)
        written = [v for a, v in zip(self.schema.arguments, given)
                   if a.alias_info is not None and a.alias_info.is_write for v in _tensors(s, [v])]
        fresh = [r for r in returns if r.alias_info is None]
        if len(returns) > 1 and len(fresh) < len(returns) or any(str(r.type) != "Tensor" for r in returns):
            raise _refuse(self.name, "changes its arguments, and returns what is no new tensor")
        types = self.types(args, kwargs, always=True) if fresh else ()
        if types is None or len(types) != len(fresh):
            raise _refuse(self.name, "has no fake kernel that is followed")
        results = self.record(given, written, types)
        if not returns:
            return s.from_python(None)
        if fresh:
            return results[0] if len(results) == 1 else TupleValue(results)
        return written[0] if len(written) == 1 else self.refuse_result()

    def refuse_result(self) -> Value:
        raise _refuse(self.name, "returns one of several arguments that it changes")

    def is_quiet(self) -> bool:
        """Whether its kernels do nothing but to compute."""
        kernels = [torch_private.registered_kernel(fn) for fn in self.known._backend_fns.values()]
        return bool(kernels) and all(is_quiet(fn) for fn in (*kernels, self.known._init_fn))

    def types(self, args: list[Value], kwargs: dict[str, Value], always: bool = False) -> tuple | None:
        """The types of its results by its fake kernel, followed with symbolic sizes; None where it is not followed, as
        for plain sizes but for ``always``."""
        s, fake = self.s, self.registered("_abstract_fn")
        handles = [v.handle(s) for v in _tensors(s, (*args, *kwargs.values()))]
        if fake is None or not always and not any(h.type.is_symbolic for h in handles):
            return None
        start = len(s.effects.log)
        with s.speculate(raises=True) as attempt:
            result = self.without_gradients(lambda: fake.call(s, args, kwargs))
            made = result.items_list(s) if result.builtin in (tuple, list) else [result]
            found = tuple(self.type_of_result(str(r.type), v) for r, v in zip(self.kinds(len(made)), made))
        return None if not attempt.went_through or s.effects.since(start) else found

    def kinds(self, count: int) -> list:
        """The results of the schema, for ``count`` that there are."""
        returns = list(self.schema.returns)
        return returns if len(returns) == count else returns * count

    def type_of_result(self, kind: str, value: Value) -> Any:
        return type_of(kind) if kind in DTYPES else value.handle(self.s).type

    # what is followed

    def body(self) -> Value | None:
        """The function of a ``triton_op``."""
        if not torch_private.is_triton_operator(self.name):
            return None
        fn = torch_private.registered_kernel(self.known._init_fn)
        return self.s.wrap(fn, src.Const(fn)) if isinstance(fn, types.FunctionType) else None

    def positional(self, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
        """The arguments in the order of the schema, with its defaults."""
        arguments, left = self.schema.arguments, dict(kwargs)
        if any(a.kwarg_only for a in arguments) or len(args) > len(arguments):
            raise _refuse(self.name, "is called with arguments that go by their names alone")
        given = list(args)
        for a in arguments[len(args):]:
            if a.name in left:
                given.append(left.pop(a.name))
            elif a.has_default_value():
                given.append(self.s.from_python(a.default_value))
            else:
                raise _refuse(self.name, "does not take these arguments")
        if left:
            raise _refuse(self.name, "does not take these arguments")
        return given

    def without_gradients(self, call: Callable[[], Value]) -> Value:
        s = self.s
        enabled, recording = grad_mode.is_on(s), s.tracer.grad_enabled
        grad_mode.switch_to(s, False)
        s.tracer.set_grad_enabled(False)
        try:
            return call()
        finally:
            grad_mode.switch_to(s, enabled)
            s.tracer.set_grad_enabled(recording)

    def followed(self, body: Value | None, given: list[Value]) -> Value:
        """The body of a ``triton_op``, followed. What it changes, its schema says."""
        s, start = self.s, len(self.s.effects.log)
        assert body is not None
        tensors = [v for a, v in zip(self.schema.arguments, given) for v in _tensors(s, [v])]
        written = [v for a, v in zip(self.schema.arguments, given)
                   if a.alias_info is not None and a.alias_info.is_write for v in _tensors(s, [v])]
        before = [(v, v.handle(s).base.version) for v in tensors]
        result = self.without_gradients(lambda: s.inline(body, given, {}))
        if s.effects.since(start):
            raise _refuse(self.name, "does more than to compute")
        if any(v.handle(s).base.version != version and not any(v is w for w in written) for v, version in before):
            raise _refuse(self.name, "changes what it does not say")
        bases = {v.handle(s).base for v in tensors}
        if any(v.handle(s).base in bases for v in _tensors(s, [result])):
            raise _refuse(self.name, "returns one of its arguments, or a view of one")
        for v in written:  # a version counter goes on for what kernels have written
            self.without_gradients(lambda v=v: s.torch_call(torch.Tensor.copy_, [v, v.detached(s)], {}))
        return result

    # gradients

    def differentiable(self, operator: OperatorValue, given: list[Value], body: Value | None) -> Value:
        """The call where gradients are recorded: what ``register_autograd`` was given, as an autograd.Function."""
        s = self.s
        backward, setup = self.registered("_backward_fn"), self.registered("_setup_context_fn")
        if backward is None:
            raise _refuse(self.name, "is called where gradients are recorded, and has none")
        if self.schema.is_mutable or any(v.builtin in (list, tuple) and _tensors(s, [v]) for v in given):
            raise _refuse(self.name, "is called where gradients are recorded, with lists of tensors, or changes some")
        tensors = _tensors(s, given)
        if body is None and not (self.is_quiet() and direct_call(self.name, tensors[0].handle(s).device.type)):
            raise _refuse(self.name, "is called where gradients are recorded, and is not called directly")
        for fn in (backward, setup):
            if fn is not None and not isinstance(getattr(fn, "obj", None), types.FunctionType):
                raise _refuse(self.name, "has a gradient that is not followed")
        forward = _forward_of(operator.fn) if body is None else body.obj
        cls = _function(forward, backward.obj, None if setup is None else setup.obj)
        return autograd_functions.apply(s, [s.wrap_class(cls), *given], {})


def _forward_of(operator: Any) -> Callable:
    def forward(*args):
        return operator(*args)

    return forward


def _function(forward: Callable, backward: Callable, setup: Callable | None) -> type:
    """The autograd.Function of an operator."""

    def set_up(ctx, inputs, output):
        setup(ctx=ctx, inputs=inputs, output=output)

    def nothing(ctx, inputs, output):
        pass

    return type("Operator", (torch.autograd.Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(backward),
        "setup_context": staticmethod(nothing if setup is None else set_up)})


def _tensors(s: Session, values: Any) -> list[Value]:
    """The tensors among values, also in lists."""
    found: list[Value] = []
    for v in values:
        if v.is_tensor:
            found.append(v)
        elif v.builtin in (list, tuple):
            found += _tensors(s, v.items_list(s))
    return found
