"""The gradients of attention of sequences that lie one behind the other (``graph.ops.jagged``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.autodiff.rules import aten_vjp
from jit.graph.ir import Node, TensorType
from jit.graph.ops.jagged import ATTENTION

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr

BACKWARD = ATTENTION + "_backward"


@aten_vjp(ATTENTION)
def attention(b: GradBuilder, out: Node, g: Node, q: Node, k: Node, v: Node, q_offsets: Node, k_offsets: Node,
              scale: float | None) -> tuple:
    types = tuple([TensorType.contiguous(n.shape, n.dtype, n.type.device) for n in (q, k, v)])
    made = b.aten_results(b.aten(BACKWARD, "", (g, q, k, v, q_offsets, k_offsets, scale), types))
    return (*made, None, None, None)


@aten_vjp(BACKWARD)
def again(b: GradBuilder, out: Node, g: tuple, *args: object) -> NoReturn:
    raise Unsupported("double backward of attention", "compute it outside the compiled function", kind="gradient")


# The kernels that GPUs have for all sequences at once: eager's own formulas for their gradients.


@aten_vjp("_efficient_attention_forward")
def efficient(b: GradBuilder, out: Node, g: tuple, q: Node, k: Node, v: Node, bias: Node | None,
              q_offsets: Node | None, k_offsets: Node | None, q_longest: IntExpr | None, k_longest: IntExpr | None,
              dropout_p: float, mask_kind: int, sums: bool = False, scale: float | None = None,
              k_lengths: Node | None = None, window: int | None = None) -> tuple:
    if not sums or bias is not None or k_lengths is not None or window is not None:
        raise Unsupported("the gradient of _efficient_attention_forward with these arguments",
                          "compute it outside the compiled function", kind="gradient")
    if q_offsets is None or k_longest is None:
        q_longest, k_longest = q.shape[1], k.shape[1]
    types = tuple([TensorType.contiguous(n.shape, n.dtype, n.type.device) for n in (q, k, v)])
    args = (g[0], q, k, v, None, b.result(out, 0), q_offsets, k_offsets, q_longest, k_longest, b.result(out, 1),
            dropout_p, b.result(out, 2), b.result(out, 3), mask_kind, False, scale)
    return b.call("_efficient_attention_backward", args, (*types, None))[:3]


@aten_vjp("_flash_attention_forward")
def flash(b: GradBuilder, out: Node, g: tuple, q: Node, k: Node, v: Node, q_offsets: Node | None,
          k_offsets: Node | None, q_longest: IntExpr, k_longest: IntExpr, dropout_p: float, is_causal: bool,
          debug: bool, scale: float | None = None, left: IntExpr | None = None, right: IntExpr | None = None,
          *others: object) -> tuple:
    if q_offsets is None or k_offsets is None or any(o is not None for o in others):
        raise Unsupported("the gradient of _flash_attention_forward with these arguments",
                          "compute it outside the compiled function", kind="gradient")
    types = tuple([layout.empty_like(n.type) for n in (q, k, v)])
    args = (g[0], q, k, v, b.result(out, 0), b.result(out, 1), q_offsets, k_offsets, q_longest, k_longest, dropout_p,
            is_causal, b.result(out, 2), b.result(out, 3), scale, left, right)
    return b.call("_flash_attention_backward", args, types)
