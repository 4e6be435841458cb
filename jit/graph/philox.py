"""Random numbers as a function of a seed and a counter, so that kernels make them where they are read, and a backward
makes the same ones again.

A draw takes one seed, an int64 number, from PyTorch's generator of the device: a node with an effect, which runs in
program order and whose value is what a backward saves. The numbers are Philox2x32-10 of counters under the key seed:
the key's word is the lower half of the seed, and its upper half is added to the counter's upper word. Of the tensor
drawn, in row-major order, element number i has the 64 bits of counter i where it needs so many; where 32 do, elements
2 i and 2 i + 1 have the two words of counter i, which kernels compute once for both.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011. Half the
multiplications of Philox4x32-10, which Triton and cuRAND have, and no word of the result is thrown away where 64 bits
are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jit.graph.dims import ceil_div, product
from jit.graph.ir import Node, TensorType

if TYPE_CHECKING:
    from jit.graph.build import Builder
    from jit.graph.dims import IntExpr

MULTIPLIER, WEYL, ROUNDS = 0xD256D193, 0x9E3779B9, 10
_WORD = (1 << 32) - 1
_ALL = -(1 << 63), (1 << 63) - 1


def random_bits(seed: torch.Tensor, counter: torch.Tensor, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """What the prim means, on eager tensors of int64 that broadcast: 64 bits as int64, or the lower 32 of them as
    int32."""
    left, right = counter & _WORD, ((counter >> 32) + (seed >> 32)) & _WORD
    for r in range(ROUNDS):
        key = (seed + r * WEYL) & _WORD
        wide = left * MULTIPLIER
        left, right = ((wide >> 32) & _WORD) ^ key ^ right, wide & _WORD
    return (left | (right << 32)).to(dtype)


def seed(b: Builder, device: torch.device) -> Node:
    """A seed of a draw, a 0-dim int64 tensor."""
    t = TensorType.contiguous((1,), torch.int64, device)
    return b.reshape(b.aten("aten::randint", "low", (*_ALL, (1,), torch.int64, None, device, None), t, impure=True), ())


def is_seed(node: Node) -> bool:
    """Whether a node takes one seed from a generator."""
    return node.impure and node.attrs.get("target") == "aten::randint" and node.attrs["args"][:3] == (*_ALL, (1,))


def bits(b: Builder, shape: tuple[IntExpr, ...], device: torch.device, dtype: torch.dtype = torch.int32, key=None,
         stream: int = 0, streams: int = 1) -> Node:
    """Random bits of ``shape``. Of one seed ``key`` there may be several ``streams`` of 64 bits, counted from 0, that
    are independent."""
    if dtype is torch.int32:
        words, odd = pairs(b, shape, device)
        return b.where(odd, b.cast(b.shr(words, 32), dtype), b.cast(words, dtype))
    counter = b.reshape(b.iota(product(shape), stream, streams, device=device), shape)
    return b.emit("random_bits", (seed(b, device) if key is None else key, counter), {}, dtype)


def pairs(b: Builder, shape: tuple[IntExpr, ...], device: torch.device) -> tuple[Node, Node]:
    """(64 bits that every two neighbouring elements of ``shape`` have together, whether an element is the second)."""
    count = product(shape)
    half = ceil_div(count, 2)

    def of_both(part: Node) -> Node:  # of an index, which is simplified with others, and no arithmetic on a number
        whole = b.reshape(b.expand(part, (half, 2)), (half * 2,))
        return b.reshape(b.slice(whole, 0, 0, count), shape)

    counter = of_both(b.unsqueeze(b.iota(half, device=device), 1))
    odd = of_both(b.unsqueeze(b.iota(2, device=device), 0))
    return b.emit("random_bits", (seed(b, device), counter), {}, torch.int64), b.ne(odd, 0)
