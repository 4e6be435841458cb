"""The gradients of attention of sequences that lie one behind the other (``graph.ops.jagged``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from jit.errors import Unsupported
from jit.graph.autodiff.rules import aten_vjp
from jit.graph.ir import Node, TensorType
from jit.graph.ops.jagged import ATTENTION

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder

BACKWARD = ATTENTION + "_backward"


@aten_vjp(ATTENTION)
def attention(b: GradBuilder, out: Node, g: Node, q: Node, k: Node, v: Node, q_offsets: Node, k_offsets: Node,
              scale: float | None) -> tuple:
    types = tuple([TensorType.contiguous(n.shape, n.dtype, n.type.device) for n in (q, k, v)])
    made = b.aten_results(b.aten(BACKWARD, "", (g, q, k, v, q_offsets, k_offsets, scale), types))
    return (*made, None, None, None)


@aten_vjp(BACKWARD)
def again(b: GradBuilder, out: Node, g: tuple, *args: object) -> NoReturn:
    raise Unsupported("double backward of attention", "compute it outside the compiled region", kind="gradient")
