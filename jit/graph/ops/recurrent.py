"""Result types of recurrent layers, which stay library calls, over sizes that may be symbols: a sequence of another
length needs no graph of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jit.graph.ir import TensorType
from jit.graph.registry import extern

if TYPE_CHECKING:
    from jit.graph.dims import IntExpr


def _like(x: TensorType, shape: tuple[IntExpr, ...]) -> TensorType:
    return TensorType.contiguous(shape, x.dtype, x.device)


def _typed(x: TensorType, args: tuple, packed: bool, n_states: int) -> tuple:
    """(the output, states...). ``args``: [batch sizes of a packed sequence,] states, params, has_biases, layers,
    dropout, train, bidirectional[, batch_first]."""
    hx, _, _, _, _, _, bidirectional, *rest = args[1:] if packed else args
    states = hx if isinstance(hx, (tuple, list)) else (hx,)
    if (len(states) != n_states or x.rank != (2 if packed else 3)
            or any(h.rank != 3 or h.dtype is not x.dtype for h in states)):
        return NotImplemented
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    if packed or not rest[0]:
        out = _like(x, (*x.shape[:-1], width))
    else:  # computed step by step, and transposed
        batch, steps, _ = x.shape
        out = _like(x, (steps, batch, width))
        out = out.replace(shape=(batch, steps, width), strides=(out.strides[1], out.strides[0], out.strides[2]))
    return (out, *(_like(h, h.shape) for h in states))


@extern("lstm")
def lstm(x: TensorType, *args: object) -> tuple:
    packed = isinstance(args[0], TensorType)
    return _typed(x, args, packed, 2)


@extern("gru", "rnn_tanh", "rnn_relu")
def one_state(x: TensorType, *args: object) -> tuple:
    packed = isinstance(args[1], TensorType)
    return _typed(x, args, packed, 1)
