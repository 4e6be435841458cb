"""What ``torch.nn.Module`` does in Python that is better left as one step: hooks on gradients, and the first call of a
lazy module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

from torch.utils.hooks import BackwardHook

from ... import torch_private
from ...errors import NeedsEager, Unsupported
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
    raise NeedsEager("a lazy module makes its parameters", kind="lazy-module")
