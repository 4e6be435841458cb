"""What the planner needs to know of an operator of the library: its arguments, and whether its result may be memory of
an argument."""

from __future__ import annotations

import functools

from .. import torch_private
from ..graph.ir import operator

REPLAY = "jit::vjp"  # the target of a library call that stands for the gradient of another


@functools.lru_cache(4096)
def _arguments(op) -> tuple:
    return tuple(torch_private.schema(op).arguments)


def arguments_of(target: str, overload: str) -> tuple:
    """The arguments in the schema of an operator."""
    return _arguments(operator(target, overload))


# Composite operators of the library that are known to give new memory. Others may return an argument without saying so
# in their schema.
_FRESH = frozenset("""linear matmul scaled_dot_product_attention conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d cross_entropy_loss layer_norm batch_norm
group_norm instance_norm embedding einsum _convolution""".split())


@functools.lru_cache(4096)
def _operator_returns_alias(target: str, overload: str) -> bool:
    if target.removeprefix("aten::") in _FRESH:
        return False
    if not target.startswith(("aten::", "prims::")):
        return True  # whatever its schema says
    if any(r.alias_info is not None for r in torch_private.schema(operator(target, overload)).returns):
        return True
    name = f"{target}.{overload}" if overload else target
    return torch_private.has_kernel_for_key(name, "CompositeImplicitAutograd")


def returns_alias(node) -> bool:
    """Whether a library call's result may share memory with an argument."""
    if node.op == "aten_call" and node.attrs["target"] == "aten::einsum" and len(node.inputs) == 1:
        return True  # a permutation of its operand
    return (node.op != "aten_call" or node.attrs["target"] == REPLAY
            or _operator_returns_alias(node.attrs["target"], node.attrs["overload"]))
