"""Gradients of recurrent layers, CTC and bags of embeddings from what the forward has kept, in place of a second
forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NoReturn

import torch

from jit.devices import backend
from jit.errors import Unsupported
from jit.graph import layout
from jit.graph.autodiff.dropout import dropped
from jit.graph.autodiff.recorded import recorded
from jit.graph.autodiff.rules import aten_vjp, training_form
from jit.graph.autodiff.vjps_reductions import embedding_gradient
from jit.graph.ir import Node, TensorType

if TYPE_CHECKING:
    from jit.graph.autodiff.rules import GradBuilder
    from jit.graph.dims import IntExpr

# recurrent layers

_LSTM = 2  # the number of its kind in torch's list of recurrent layers


@training_form("lstm")
def lstm(b: GradBuilder, node: Node, x: Node, state: tuple[Node, ...], params: tuple[Node, ...], has_biases: bool,
         num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool = False) -> object:
    """(T, N, F) -> (T, N, H) and the last states, layer by layer as the CPU's library takes it; it gives what its
    backward reads. Source: aten/src/ATen/native/mkldnn/RNN.cpp."""
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    values = (x, *state, *params)
    if (node.attrs["overload"] != "input" or not train or len(params) != num_layers * directions * each
        or not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available()
            or any(not backend(v.type.device).onednn or v.type.dtype is not torch.float32 or v.type.is_symbolic
                   for v in values) or x.type.numel == 0):
        return recorded(b, node, x, state, params, has_biases, num_layers, dropout, train, bidirectional,
                        *(() if len(node.attrs["args"]) < 9 else (batch_first,)))
    first_hidden, first_cell = state
    hidden = first_hidden.type.shape[-1]
    given = b.contiguous(b.transpose(x, 0, 1) if batch_first else x)
    hiddens, cells = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = list(params[at * each: (at + 1) * each])
            if not has_biases:
                weights += [b.zeros(w.type) for w in weights]
            h, c = (b.contiguous(b.select(v, 0, at)) for v in state)
            out, hy, cy = _layer(b, given, weights, h, c, direction > 0,
                                 hidden, num_layers, has_biases, bidirectional, batch_first)
            outputs.append(out)
            hiddens.append(b.unsqueeze(hy, 0))
            cells.append(b.unsqueeze(cy, 0))
        given = outputs[0] if directions == 1 else b.cat(outputs, 2)
        if dropout and layer < num_layers - 1:
            given = dropped(b, given, dropout)
    return (b.transpose(given, 0, 1) if batch_first else given), b.cat(hiddens, 0), b.cat(cells, 0)


def _layer(b: GradBuilder, x: Node, weights: list[Node], h: Node, c: Node, *rest: int) -> tuple[Node, ...]:
    reverse, hidden, *options = rest
    types = [TensorType.contiguous((*x.type.shape[:2], hidden), x.type.dtype, x.type.device), *(v.type for v in (h, c))]
    settings = (reverse, (), _LSTM, hidden, *options, True)
    # How much the library keeps is its own affair: it is asked.
    example = torch.ops.aten.mkldnn_rnn_layer(*(torch.zeros(v.type.shape) for v in (x, *weights, h, c)),
                                              *[list(s) if isinstance(s, tuple) else s for s in settings])[3]
    types.append(TensorType.contiguous(tuple(example.shape), example.dtype, x.type.device))
    return b.call("mkldnn_rnn_layer", (x, *weights, h, c, *settings), tuple(types))[:3]


@aten_vjp("mkldnn_rnn_layer")
def layer_vjp(b: GradBuilder, out: Node, g: tuple, x: Node, w0: Node, w1: Node, w2: Node, w3: Node, h: Node, c: Node,
              reverse: bool, sizes: tuple[IntExpr, ...], mode: int, hidden: int, layers: int, has_biases: bool,
              bidirectional: bool, batch_first: bool, train: bool) -> tuple[Node, ...]:
    values = (x, w0, w1, w2, w3, h, c)
    results = [b.result(out, i) for i in range(4)]
    args = (*values, *results[:3], *(None if v is None else b.contiguous(v) for v in g[:3]),
            reverse, mode, hidden, layers, has_biases, train, bidirectional, sizes, batch_first, results[3])
    return b.call("mkldnn_rnn_layer_backward", args,
                  tuple(TensorType.contiguous(v.type.shape, v.type.dtype, v.type.device) for v in values))


@aten_vjp("mkldnn_rnn_layer_backward")
def layer_vjp_again(b: GradBuilder, out: Node, g: tuple[Node | None, ...], *args: Node | None) -> NoReturn:
    raise Unsupported("double backward of a recurrent layer", kind="gradient")


# CTC


@training_form("ctc_loss")
def ctc_loss(b: GradBuilder, node: Node, log_probs: Node, targets: Node, input_lengths: tuple[int, ...],
             target_lengths: tuple[int, ...], blank: int = 0, reduction: int = 1, zero_infinity: bool = False) -> Node:
    """(T, N, C) -> (N,), or their mean or sum. Source: aten/src/ATen/native/LossCTC.cpp."""
    t = log_probs.type
    if (node.attrs["overload"] != "IntList" or not backend(t.device).ctc_loss_in_parts or t.is_symbolic
        or not target_lengths or targets.type.device != t.device):
        return NotImplemented
    x = log_probs if t.rank == 3 else b.unsqueeze(log_probs, 1)
    times, batch, _ = x.type.shape
    if len(target_lengths) != batch:
        return NotImplemented
    types = tuple(TensorType.contiguous(s, t.dtype, t.device) for s in ((batch,),
                                                                        (batch, times, 2 * max(target_lengths) + 1)))
    loss = b.call("_ctc_loss", (x, b.cast(targets, torch.int64), tuple(input_lengths),
                                tuple(target_lengths), blank, zero_infinity), types)[0]
    if zero_infinity:
        loss = b.where(b.eq(loss, float("inf")), 0.0, loss)
    if reduction == 1:
        parts = [b.div(b.slice(loss, 0, k, 1), max(n, 1)) for k, n in enumerate(target_lengths)]
        return b.div(b.reduce("sum", b.cat(parts, 0) if len(parts) > 1 else parts[0], (0,), False), batch)
    if reduction == 2:
        return b.reduce("sum", loss, (0,), False)
    return loss if t.rank == 3 else b.drop_dim(loss, 0)


@aten_vjp("_ctc_loss")
def ctc_vjp(b: GradBuilder, out: Node, g: tuple[Node, None], log_probs: Node, targets: Node,
            input_lengths: tuple[int, ...], target_lengths: tuple[int, ...], blank: int,
            zero_infinity: bool) -> tuple[Callable, ...]:
    made = TensorType.contiguous(log_probs.type.shape, log_probs.type.dtype, log_probs.type.device)
    args = (g[0], log_probs, targets, input_lengths, target_lengths, b.result(out, 0),
            b.result(out, 1), blank, zero_infinity)
    return (lambda: b.call("_ctc_loss_backward", args, made),)


# bags of embeddings

_SUM, _MEAN = 0, 1


@aten_vjp("embedding_bag", "_embedding_bag")
def embedding_bag(b: GradBuilder, out: Node, g: tuple[Node, None, None, None], table: Node, at: Node, offsets: Node,
                  by_frequency: bool = False, mode: int = 0, sparse: bool = False, weights: Node | None = None,
                  last_offset: bool = False, padding: int | None = None) -> object:
    """Each row that was read gets its bag's gradient, times its weight or divided by the size of the bag."""
    if padding is None:
        padding = -1
    elif padding < 0 and out.attrs["target"] == "aten::embedding_bag":  # a row from the end; else it is none
        padding = padding + table.type.shape[0]
    if (by_frequency or mode not in (_SUM, _MEAN) or mode == _MEAN and padding >= 0
        or g[0] is None or at.type.rank != 1 or any(v is not None for v in g[1:])):
        return NotImplemented
    if at.type.is_empty or offsets.type.is_empty:
        return NotImplemented
    count = at.type.shape[0]
    order = b.iota(count, device=at.type.device)
    starts = b.contiguous(b.cast(offsets, torch.int64))
    bag = b.sub(b.call("searchsorted", (starts, order, False, True, None, None), order.type, "Tensor"), 1)
    rows = b.index(g[0], (0,), (bag,))
    index = b.cast(at, torch.int64)

    def of_table() -> Node:
        scaled = rows
        if weights is not None:
            scaled = b.mul(rows, b.unsqueeze(weights, 1))
        elif mode == _MEAN:
            ends = b.slice(starts, 0, 1, starts.type.shape[0] - 1)
            if not last_offset:
                ends = b.cat([ends, b.full((1,), count, torch.int64, at.type.device)], 0)
            sizes = b.sub(ends, b.slice(starts, 0, 0, ends.type.shape[0]))
            scaled = b.div(rows, b.unsqueeze(b.cast(b.index(sizes, (0,), (bag,)), rows.type.dtype), 1))
        return embedding_gradient(b, scaled, index, table.type, padding, False)

    def of_weights() -> Node:
        found = b.reduce("sum", b.mul(rows, b.index(table, (0,), (index,))), (1,), False)
        return b.where(b.eq(index, padding), 0, found) if padding >= 0 else found

    return of_table, None, None, None, None, None, None if weights is None else of_weights


# scans


def _reversed_logcumsumexp(b: GradBuilder, x: Node, dim: int) -> Node:
    flipped = b.flip(x, (dim,))
    return b.flip(b.call("logcumsumexp", (flipped, dim), layout.empty_like(flipped.type)), (dim,))


@aten_vjp("logcumsumexp")
def logcumsumexp(b: GradBuilder, out: Node, g: Node, x: Node, dim: int) -> tuple[Callable, ...]:
    """``exp(x) cumsum(g exp(-y))`` from behind, in logarithms, positive and negative gradients apart."""
    if not x.type.rank or x.type.dtype is not out.type.dtype:
        return NotImplemented
    d = dim % x.type.rank
    lowest = torch.finfo(g.type.dtype).min

    def entry() -> Node:
        size = b.log(b.abs(g))
        signed = [b.where(b.binary(sign, g, b.lift(0, g)), size, lowest) for sign in ("gt", "lt")]
        positive, negative = (b.exp(b.add(_reversed_logcumsumexp(b, b.sub(s, out), d), x)) for s in signed)
        return b.sub(positive, negative)

    return (entry,)
