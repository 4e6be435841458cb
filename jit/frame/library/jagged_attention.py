"""Attention of tensors of the jagged layout. PyTorch chooses a kernel in Python, which is followed. Where no kernel
takes all sequences at once it makes a tensor of each, pads them, and puts the results together again; here that is one
operator, which computes sequence by sequence (``graph.ops.jagged``)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from torch.nn.attention import SDPBackend

from ... import torch_private
from ...errors import Unsupported
from ...graph.ops.jagged import attention_of_sequences
from ..tables import on_call, on_function, on_name
from ..values.constant import Constant

if TYPE_CHECKING:
    import torch

    from ..session import Session
    from ..values.base import Value
    from ..values.functions import FunctionValue

ATTENTION = "torch.nested._internal.sdpa"
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Params(NamedTuple):
    """What PyTorch's checks of kernels are given, with names as those have."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any
    dropout: float
    is_causal: bool
    enable_gqa: bool


@on_call(torch_private.SDPAParams)
def params(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.wrap_class(Params).call(s, args, kwargs)


def _checks(fn: Callable) -> None:
    @on_call(fn)
    def usable(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Whether a kernel takes what ``args[0]`` says, by PyTorch's own check on stand-ins."""
        given = [s.asker.to_real(v) for v in args[0].items_list(s)]
        rest = [v.const(s) for v in args[1:]]
        with s.asker.as_program():
            try:
                answer = fn(torch_private.SDPAParams(*given), *rest)
            except (RuntimeError, TypeError) as error:
                raise Unsupported(f"PyTorch's choice of a kernel for attention: {error}",
                                  kind="tensor-layout") from None
        return Constant(answer)


for _fn in torch_private.attention_checks:
    _checks(_fn)


def by_sequences(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool,
                 scale: float | None, enable_gqa: bool, choose: Callable, view: Callable,
                 dummy: Callable) -> torch.Tensor | None:
    """None for what is left to PyTorch's own code."""
    if (query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or query._ragged_idx != 2 or dropout_p != 0.0
        or enable_gqa or key._offsets is not value._offsets or query._lengths is not None or key._lengths is not None
        or query._size[1] != key._size[1] or key._size[1] != value._size[1] or query._size[3] != key._size[3]):
        return None
    if choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) != SDPBackend.MATH:
        return None
    made = attention_of_sequences(*[t.transpose(1, 2).values() for t in (query, key, value)], query._offsets,
                                  key._offsets, scale)
    whole = view(made, query._offsets, dummy(), None, 1, None, None)
    # The tensors whose sizes are the least and the greatest length, which nothing here depends on: an entry is to hold
    # for all lengths.
    whole._metadata_cache.update(query._metadata_cache)
    return whole.transpose(1, 2)


@on_function(attention_of_sequences)
def recorded(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.record(attention_of_sequences, args, kwargs)


@on_name((ATTENTION, "jagged_scaled_dot_product_attention"))
def attention(s: Session, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    own = sys.modules[ATTENTION]
    bound = s.calls.bind(fn, args, kwargs)
    given = [bound[n] for n in NAMES]
    given[:4] = s.wrap_raw(own._autocast).call(s, given[:4], {}).items_list(s)
    s.wrap_raw(own._validate_sdpa_input).call(s, given[:7], {})
    used = own._select_sdp_backend, torch_private.view_from_jagged, sys.modules[torch_private.NESTED]._nt_view_dummy
    found = s.inline(s.wrap_raw(by_sequences), [*given, *map(s.wrap_raw, used)], {})
    return s.inline(fn, given, {}) if found.is_nothing(s) else found
