"""Kernels that ``torch.library.custom_op`` was given, called by plans without the operator around them.

In eager such a call passes PyTorch's dispatcher and three layers of Python for each of its keys, which takes longer
than most kernels. Below autograd, where a plan runs, what is left to do is to call the function and to see that it has
returned no memory that it was given. Which function that is, is looked at in each call, since another one may be
registered, or this one disabled.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

from jit import torch_private
from jit.runtime import names
from jit.runtime.result_numbers import DTYPES

_TYPES = frozenset(("Tensor", "int", "SymInt", "float", "bool", "str"))


def direct_call(name: str, device: str) -> Callable | None:
    """A function that does what the operator ``name`` does on a type of device, below autograd; None for operators for
    which there is none."""
    known = torch_private.custom_operator(name)
    if known is None:
        return None
    schema = torch_private.schema(known._opoverload)
    wrapped = known._backend_fns.get(device, known._backend_fns.get(None))
    if (wrapped is None or schema.is_mutable or not torch_private.any_aliased
            or any(a.kwarg_only or not _is_plain(str(a.type)) for a in schema.arguments)
            or any(r.alias_info is not None for r in schema.returns)
            or not _are_results([str(r.type) for r in schema.returns])):
        return None
    return _direct(name, device, weakref.ref(known), weakref.ref(wrapped),
                   weakref.ref(torch_private.registered_kernel(wrapped)))


def _are_results(types: list[str]) -> bool:
    """Whether a call with results of these types is a step: tensors, or numbers beside tensors, or a list of them."""
    return types == ["List[Tensor]"] or "Tensor" in types and set(types) <= {"Tensor", *DTYPES}


def _is_plain(type_: str) -> bool:
    """Whether values of a type are passed on as they are."""
    for around in ("Optional[", "List[", "Optional["):
        if type_.startswith(around):
            type_ = type_[len(around):-1]
    return type_ in _TYPES


def _direct(name: str, device: str, known: weakref.ref, wrapped: weakref.ref, kernel: weakref.ref) -> Callable:
    any_aliased = torch_private.any_aliased

    def call(*args: Any) -> Any:
        record, fn = known(), kernel()
        registered = {} if record is None or record._disabled_kernel else record._backend_fns
        if fn is None or registered.get(device, registered.get(None)) is not wrapped():
            return torch_private.operator_of(name)(*args)
        result = fn(*args)
        if any_aliased(args, {}, result if type(result) is tuple else (result,)):
            torch_private.refuse_alias(name.partition("::")[2], args, {}, result, lambda: inspect.getmodule(fn))
        return result

    return names.made(call, direct_call, name, device)
