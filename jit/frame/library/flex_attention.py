"""``torch.nn.attention.flex_attention``: attention whose scores and mask are functions of the program's, of the indices
of a score, which are followed as functions under four maps (``values.batched``).

PyTorch's Python code around it, with its checks, is followed as any other; what is replaced is the operator that it
calls. Its computation is recorded as eager's: products in float32, the functions, a softmax of which rows without
anything are zeros, and a product. ``graph.passes.attention`` makes one kernel of it where that is possible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from ...errors import Unsupported
from ..tables import on_name
from ..values import batched
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options", "score_mod_other_buffers",
         "mask_mod_other_buffers")


@on_name(torch_private.FLEX_ATTENTION)
def flex_attention(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The operator's three results: attention, (B, H, M, V), and of each row the logarithm of the sum of exponentials
    and the largest score, both to the base 2."""
    given = dict(zip(NAMES, args[1:])) | kwargs
    query, key, value = (given[name] for name in NAMES[:3])
    others = [v for name in NAMES[7:] if name in given for v in given[name].items_list(s)]
    if others or batched.active(s) or any(t.levels for t in (query, key, value)):
        raise Unsupported("flex_attention inside a transform", kind="functorch")
    if s.tracer.autocast:
        raise Unsupported("flex_attention under autocast", "cast query, key and value", kind="functorch")
    mask_mod = given["block_mask"].items_list(s)[-1]
    scores, indices, value = s.inline(s.wrap_raw(_scores), [query, key, value, given["scale"]], {}).items_list(s)
    levels = (0, 1, 2, 3)
    places = tuple(indices.items_list(s))
    mapped = [batched.BatchedValue(index, (level,)) for index, level in zip(places, levels)]
    with s.journal.temporarily(s, "maps", levels), s.journal.temporarily(s, "scalars_index", places):
        kept = mask_mod.call(s, mapped, {})
        modified = given["score_mod"].call(s, [batched.BatchedValue(scores, levels), *mapped], {})
        found = [_whole(s, v, levels) for v in (kept, modified)]
    return s.inline(s.wrap_raw(_attention), [*found, scores, query, value], {})


@on_name(torch_private.FLEX_MATRIX)
def matrix(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Lists of blocks as a matrix, which PyTorch makes row by row under a map."""
    return s.inline(s.wrap_raw(_matrix), args, kwargs)


@on_name(torch_private.FLEX_LISTS)
def lists(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A matrix of blocks as lists, which PyTorch does with a note for its own compiler."""
    return s.inline(s.wrap_raw(_lists), args, kwargs)


def _lists(dense_mask):
    dense_mask = dense_mask.to(dtype=torch.int32)
    order = torch.argsort(dense_mask, dim=-1, descending=True, stable=True)
    return (dense_mask.sum(dim=-1).to(torch.int32, memory_format=torch.contiguous_format),
            order.to(torch.int32, memory_format=torch.contiguous_format))


def _matrix(num_blocks_in_row, col_indices, num_cols=None):
    columns = col_indices.shape[-1] if num_cols is None else num_cols
    listed = torch.arange(col_indices.shape[-1], device=col_indices.device) < num_blocks_in_row.unsqueeze(-1)
    places = torch.where(listed, col_indices, columns).unsqueeze(-1)
    return (places == torch.arange(columns, device=places.device)).any(-2).to(torch.int32)


def _whole(s: Session, result: Value, levels: tuple[int, ...]) -> Value:
    """What one of the functions gives for all indices, with an axis for each, of size one where it does not vary."""
    if not result.is_tensor or batched.rank(s, result):
        batched.refuse("a function of flex_attention that gives no scalar tensor")
    tensor = batched.align(s, result, levels, 0)
    if result.levels or tensor.handle(s).shape:
        return tensor
    return s.record(torch.Tensor.reshape, [tensor, TupleValue([Constant(1)] * len(levels))], {})


def _scores(query, key, value, scale):
    """(scores before the functions, (B, H, M, N) in float32 or float64; the indices along each axis; the values of each
    head)"""
    groups, batch = query.size(1) // key.size(1), query.size(0)
    if not (batch == key.size(0) or (batch > 1 and key.size(0) == 1)):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.size(0)}")
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    heads = []
    for x in (key, value):
        if groups != 1:
            x = x.unsqueeze(2).expand(-1, -1, groups, -1, -1).reshape(x.size(0), query.size(1), x.size(2), x.size(3))
        heads.append(x.expand(batch, -1, -1, -1))
    scores = (query.to(dtype) @ heads[0].to(dtype).transpose(-2, -1)) * scale
    return scores, tuple([torch.arange(0, n, device=query.device) for n in scores.shape]), heads[1]


def _attention(kept, modified, scores, query, value):
    none = torch.full((), -math.inf, dtype=scores.dtype, device=scores.device)
    scores = torch.where(kept, modified, none).expand(scores.shape)
    largest = torch.amax(scores, -1, True)
    empty = largest == -math.inf
    exps = torch.exp(scores - torch.where(empty, 0.0, largest))
    total = torch.sum(exps, -1, True)
    weights = exps / torch.where(empty, 1.0, total)
    out = weights.to(query.dtype) @ value.to(query.dtype)
    lse = torch.where(empty, -math.inf, torch.log(total) + largest).squeeze(-1)
    # Laid out as the query is, with the last dimension innermost.
    order = sorted(range(3), key=lambda d: query.stride(d), reverse=True)
    places = [order.index(d) for d in range(3)]
    out = out.permute(*order, 3).contiguous().permute(*places, 3)
    return out, lse / math.log(2), largest.squeeze(-1) / math.log(2)
