"""Training: a small transformer learns to continue arithmetic sequences, with the same data, in eager, under
torch.compile and under jit.

Run: python examples/training.py [--steps N] [--every N]
The three start from the same weights and see the same batches, so their losses have to follow one curve. The model is
compiled; the loss, ``backward()`` and the optimizer are called as usual.
"""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from _compare import COMPILERS, compiled, device, synchronize

TOLERANCE = 0.02  # difference of two losses, relative to their value, up to which the curves count as one


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Next-token scores, (batch, length) -> (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int = 64, width: int = 128, heads: int = 4, layers: int = 2, length: int = 32):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(steps: int, batch: int = 16, length: int = 33, vocabulary: int = 64):
    """Sequences start, start + step, start + 2 step, ... modulo the vocabulary."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        start, step = (torch.randint(1, vocabulary, (batch, 1), generator=generator) for _ in range(2))
        yield ((start + step * torch.arange(length)) % vocabulary).to(device())


def train(compiler: str, steps: int):
    """-> (losses, seconds of the first step, milliseconds of a later one)."""
    torch.manual_seed(0)
    model = Model().to(device())
    run = compiled(compiler, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, first, begin = [], 0.0, time.perf_counter()
    for step, ids in enumerate(batches(steps)):
        scores = run(ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step == 0:
            synchronize()
            first = time.perf_counter() - begin
            begin = time.perf_counter()
    synchronize()
    return torch.stack(losses).tolist(), first, (time.perf_counter() - begin) / max(steps - 1, 1) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=25, help="steps between two printed losses")
    parser.add_argument("--compilers", type=lambda text: text.split(","), default=list(COMPILERS))
    options = parser.parse_args()

    results = {name: train(name, options.steps) for name in options.compilers}
    print(f"{'step':>6}" + "".join(f"{name:>16}" for name in results))
    for step in sorted({*range(0, options.steps, options.every), options.steps - 1}):
        print(f"{step:>6}" + "".join(f"{losses[step]:>16.4f}" for losses, _, _ in results.values()))
    print(f"{'first':>6}" + "".join(f"{first:>14.2f} s" for _, first, _ in results.values()))
    print(f"{'later':>6}" + "".join(f"{ms:>13.2f} ms" for _, _, ms in results.values()))
    curves = [losses for losses, _, _ in results.values()]
    apart = max((abs(a - b) / max(abs(a), 0.1) for other in curves[1:] for a, b in zip(curves[0], other)), default=0.0)
    print(f"largest difference of two losses: {apart:.2e} of the loss "
          f"({'one curve' if apart <= TOLERANCE else 'the curves part'})")
    sys.exit(apart > TOLERANCE)


if __name__ == "__main__":
    main()
