"""Leaves that require grad, and views of leaves: autograd refuses to write to them where gradients are recorded.

It does so before an operator looks at its operands, and behind what Python's bindings and composed operators say. So a
call that is refused for its operands too is asked again of eager with stand-ins that are such leaves (``refusals``),
and one that is not is refused when its result is to be written (``Tracer.check_change``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit import torch_private
from jit.errors import EagerRaises

if TYPE_CHECKING:
    import torch

    from jit.graph.handles import TensorHandle


def which(target: TensorHandle) -> str | None:
    """"a leaf" or "a view of a leaf" of a tensor that requires grad and may not be written; None of another one."""
    if not target.requires_grad:
        return None
    last = max((k for k, step in enumerate(target.chain) if step.op == "detach"), default=-1)
    view, shown = last + 1 < len(target.chain), target.base.example
    if last >= 0 or target.base.grad:
        shown = None  # what the memory is elsewhere says nothing about this tensor
    if shown is not None and torch_private.is_view(shown):
        if torch_private.base_of(shown).is_leaf:
            return "a view of a leaf"
    elif view and (shown is not None and shown.requires_grad and shown.is_leaf or target.is_leaf or _inner(target)):
        return "a view of a leaf"
    return "a leaf" if target.is_leaf else None


def of_real(tensor: torch.Tensor) -> str | None:
    """The same of a real tensor."""
    if torch_private.is_view(tensor) and torch_private.base_of(tensor).is_leaf:
        return "a view of a leaf"
    return "a leaf" if tensor.is_leaf else None


def _inner(target: TensorHandle) -> bool:
    """Whether a tensor is a view of a leaf that the program has made itself."""
    return any(h.base is target.base and h.is_leaf and h.chain == target.chain[:len(h.chain)]
               for h in target.tracer.inner_leaves)


def refusal(target: TensorHandle) -> EagerRaises | None:
    """What eager raises where a tensor is written while gradients are recorded."""
    found = which(target)
    if found is None:
        return None
    return EagerRaises(RuntimeError(f"{found} Variable that requires grad is being used in an in-place operation."),
                       (target.base,))
