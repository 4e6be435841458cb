"""What ``torch.nn.Module`` does in Python that is better left as one step: hooks on gradients, and the first call of a
lazy module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

import torch
from torch.utils.hooks import BackwardHook

from ... import torch_private
from ...errors import NeedsEager, Unsupported
from ...graph.probe import StandIns
from ..assumptions import Reconsider
from ..states import grad_mode
from ..tables import on_function

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


def _hooks_gradients(method: Callable) -> None:
    """Putting the hooks of a module around its arguments or results: nothing to do where no gradient is recorded."""

    @on_function(method)
    def set_up(s: Session, args, kwargs: dict[str, Value]):
        if grad_mode.is_on(s):
            raise Unsupported("a backward hook of a module is set up",
                              "remove the hook before compiled calls that need not be looked at", kind="autograd")
        return s.inline(s.wrap_raw(method), args, kwargs)


_hooks_gradients(BackwardHook.setup_input_hook)
_hooks_gradients(BackwardHook.setup_output_hook)


@on_function(torch_private.infer_parameters)
def infer_parameters(s: Session, args: list[Value], kwargs: dict[str, Value]) -> NoReturn:
    """A lazy module makes its parameters at its first call. They are made at once, as that call would make them, and
    the capture begins anew with a module like any other. Where random numbers were drawn before, or the module might
    look at values that are not there yet, the whole call is left to eager."""
    module = args[0].real(s) if args[0].is_object else None
    drawn = any(n.impure for n in s.tracer.builder.nodes)
    given = None if module is None or drawn or kwargs else _as_given(s, module, args[1:])
    if given is None:
        raise NeedsEager("a lazy module makes its parameters", kind="lazy-module")
    torch_private.infer_parameters(module, *given)
    raise Reconsider("lazy_modules")


def _as_given(s: Session, module: torch.nn.Module, args: list[Value]) -> list | None:
    """The arguments as real objects: tensors from outside themselves; for results of the graph, of which PyTorch's own
    modules ask for no more than sizes, types and devices, zeros. None where this does not do."""
    own = type(module).initialize_parameters.__module__.startswith("torch.nn.modules.")
    made = StandIns(0, None)

    def real(v: Value) -> object:
        if v.is_tensor:
            handle = v.handle(s)
            if v.obj is not None and handle.is_input and not handle.base.mutated:
                return v.obj
            if own:
                return made.of(handle)
        elif v.builtin in (list, tuple) and v.nested(s) is not None:
            parts = [real(e) for e in v.items_list(s)]
            return parts if v.cls is list else v.cls(*parts) if hasattr(v.cls, "_fields") else v.cls(parts)
        elif v.is_mapping and v.cls is dict:
            return {k.const(s): real(e) for k, e in v.load(s).values()}
        elif v.is_const():
            return v.const(s)
        elif v.is_object and v.obj is not None:
            return v.real(s)
        raise Unsupported("an argument of a lazy module that is not there yet", kind="lazy-module")

    with s.speculate(keep=False) as attempt:
        found = [real(v) for v in args]
    return found if attempt.went_through else None
