"""What tensors of the jagged layout are computed with: sequences that lie one behind the other, told apart by a tensor
of offsets. Between them and sequences padded to one length PyTorch's operators convert; attention of each sequence is
one operator of ours (``runtime/native/sequences.cpp``), where PyTorch computes with a tensor for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from jit.errors import Unsupported
from jit.graph.ir import TensorType
from jit.graph.number_results import type_of
from jit.graph.registry import extern, python_function

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr
    from jit.graph.handles import TensorHandle
    from jit.graph.tracer import Tracer

ATTENTION = "jit::attention_of_sequences"


@extern("_jagged_to_padded_dense_forward")
def to_padded(values: TensorType, offsets: Sequence[TensorType], max_lengths: Sequence[IntExpr],
              padding_value: float = 0.0) -> TensorType:
    if len(offsets) != 1 or len(max_lengths) != 1 or values.rank != 2 or offsets[0].rank != 1:
        return NotImplemented
    return TensorType.contiguous((offsets[0].shape[0] - 1, max_lengths[0], values.shape[1]), values.dtype,
                                 values.device)


@extern("_padded_dense_to_jagged_forward")
def from_padded(dense: TensorType, offsets: Sequence[TensorType], total_L: IntExpr | None = None) -> TensorType:
    if len(offsets) != 1 or total_L is None or dense.rank != 3:
        return NotImplemented
    return TensorType.contiguous((total_L, dense.shape[2]), dense.dtype, dense.device)


def attention_of_sequences(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_offsets: torch.Tensor,
                           k_offsets: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Of rows (rows, heads, width), each sequence with that of the same place. It is a step of a graph; what is done
    here, for one sequence, tells what autograd keeps for it."""
    weights = torch.matmul(q.transpose(0, 1), k.permute(1, 2, 0)).softmax(-1)
    return torch.matmul(weights, v.transpose(0, 1)).transpose(0, 1)


@python_function(attention_of_sequences)
def _attention(t: Tracer, q: TensorHandle, k: TensorHandle, v: TensorHandle, q_offsets: TensorHandle,
               k_offsets: TensorHandle, scale: float | None) -> TensorHandle:
    if q.type.is_empty or k.type.is_empty or v.type.is_empty:
        raise Unsupported("attention of sequences without elements, which eager refuses", kind="unknown-function")
    type_ = TensorType.contiguous((*q.shape[:2], v.shape[2]), q.dtype, q.device)
    made = t.builder.aten(ATTENTION, "", (q.node, k.node, v.node, q_offsets.node, k_offsets.node, scale), type_)
    return t.fresh(made, t.grad_enabled and any(h.requires_grad for h in (q, k, v)))


@extern("_efficient_attention_forward")
def efficient_attention(q: TensorType, k: TensorType, v: TensorType, bias: TensorType | None,
                        q_offsets: TensorType | None, k_offsets: TensorType | None, q_longest: IntExpr | None,
                        k_longest: IntExpr | None, dropout_p: float, mask_kind: int, sums: bool = False,
                        *rest: object) -> tuple:
    """A GPU's kernel for rows (1, rows, heads, width) of all sequences. Its sums have room for whole blocks of the
    longest."""
    if q.rank != 4 or q_offsets is not None and q_longest is None:
        return NotImplemented
    n, rows, heads, _ = q.shape
    places, longest = (n, rows) if q_offsets is None else (q_offsets.shape[0] - 1, q_longest)
    room = (longest + 31) // 32 * 32 if sums else 0
    state = TensorType.contiguous((), torch.int64, q.device)
    return (TensorType.contiguous((n, rows, heads, v.shape[3]), q.dtype, q.device),
            TensorType.contiguous((places, heads, room), torch.float32, q.device), state, state,
            type_of("int"), type_of("int"))
