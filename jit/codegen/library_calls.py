"""What the planner needs to know of an operator of the library: its arguments, whether its result may be memory of
an argument, and whether it can write into memory of ours."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .. import devices, torch_private
from ..graph.ir import operator
from ..graph.op_info import op_info
from ..graph.prims import COMPUTED_HERE
from ..runtime.user_kernels import OPERATOR, Launch, spec_of
from .triton.user_kernels import capability_of, code_of

if TYPE_CHECKING:
    import torch

    from ..graph.ir import Node

REPLAY = "jit::vjp"  # the target of a library call that stands for the gradient of another


@functools.lru_cache(4096)
def _arguments(op: object) -> tuple:
    return tuple(torch_private.schema(op).arguments)


def arguments_of(target: str, overload: str) -> tuple:
    """The arguments in the schema of an operator."""
    return _arguments(operator(target, overload))


@functools.lru_cache(4096)
def _operator_returns_alias(target: str, overload: str) -> bool:
    if op_info(target).fresh or target == OPERATOR:
        return False
    if not target.startswith(("aten::", "prims::")):
        return True  # whatever its schema says
    if any(r.alias_info is not None for r in torch_private.schema(operator(target, overload)).returns):
        return True
    name = f"{target}.{overload}" if overload else target
    return torch_private.has_kernel_for_key(name, "CompositeImplicitAutograd")


def returns_alias(node: Node) -> bool:
    """Whether a library call's result may share memory with an argument."""
    if computed_here(node):
        return False
    return (node.op != "aten_call" or node.attrs["target"] == REPLAY
            or _operator_returns_alias(node.attrs["target"], node.attrs["overload"]))


def computed_here(node: Node) -> bool:
    """Whether a call, or the call that it is a result of, is computed by kernels of ours (``attention``, ``grouped``),
    or is a launch of one of the program's, which write into memory of ours."""
    call = node.inputs[0] if node.op == "getitem" else node
    return call.op == "aten_call" and (call.attrs["target"] in COMPUTED_HERE or is_launched(call))


def is_launched(call: Node) -> bool:
    """Whether a library call is a kernel of the program's that a plan launches by itself."""
    if call.attrs["target"] != OPERATOR:
        return False
    spec = spec_of(call.attrs["args"][0])
    return isinstance(spec, Launch) and code_of(spec, capability=capability_of(device_of(call))) is not None


def device_of(call: Node) -> torch.device:
    """Where a call is done."""
    return next(t.device for t in (*call.types, *(i.type for i in call.inputs)) if t is not None)


def out_form(node: Node) -> str | None:
    """The overload of a library call that writes into a given tensor, or None."""
    if node.op != "aten_call" or node.several or not devices.backend(node.type.device).memory:
        return None
    return op_info(node.attrs["target"]).out_form if node.attrs["overload"] == "" else None
