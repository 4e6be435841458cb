"""Activation checkpoints of compiled functions, and compiled functions with checkpoints that are no part of a graph."""

import os

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import jit


class Block(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.norm, self.up, self.down, self.breaks = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), breaks

    def forward(self, x):
        h = self.norm(x)
        if self.breaks:
            os.stat("/")
        return x + self.down(torch.nn.functional.gelu(self.up(h)).sin())


class Twice(nn.Module):
    def __init__(self, breaks, **how):
        super().__init__()
        self.first, self.second, self.how = Block(breaks), Block(breaks), how

    def forward(self, x):
        return checkpoint(self.second, checkpoint(self.first, x, **self.how), **self.how) * 2


def gradients(fn, module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = fn(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *[p.grad for p in module.parameters()]]


def same(fn, compiled, module, calls=6, sizes=(2, 2, 5, 3, 7, 1)):
    for k in range(calls):
        x = torch.randn(sizes[k % len(sizes)], 8)
        for a, b in zip(gradients(fn, module, x), gradients(compiled, module, x)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


WAYS = [{"use_reentrant": False}, {"use_reentrant": True}, {"use_reentrant": False, "early_stop": False},
        {"use_reentrant": False, "preserve_rng_state": False}]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("breaks", [False, True])
def test_checkpoints_around_compiled_modules(how, breaks):
    torch.manual_seed(0)
    block = Block(breaks)
    compiled = jit.compile(block)
    same(lambda x: checkpoint(block, checkpoint(block, x, **how), **how),
         lambda x: checkpoint(compiled, checkpoint(compiled, x, **how), **how), block, calls=12)


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("breaks", [False, True])
def test_checkpoints_in_compiled_modules(how, breaks):
    torch.manual_seed(0)
    module = Twice(breaks, **how)
    same(module, jit.compile(module), module, calls=12)


def test_sequences_of_checkpoints():
    torch.manual_seed(0)
    layers = nn.Sequential(*[Block(k == 1) for k in range(4)])

    def f(x):
        return checkpoint_sequential(layers, 2, x, use_reentrant=False)

    same(f, jit.compile(f), layers)


def test_what_a_hook_for_saved_tensors_raises_is_raised_once():
    """A hook that has raised is not called again for the same call."""
    seen = []

    def pack(t):
        seen.append(t.shape)
        if len(seen) == 2:
            raise ValueError("enough")
        return t

    x = torch.randn(3, requires_grad=True)
    compiled = jit.compile(lambda x: (x.sin() * x.cos()).exp().sum())
    compiled(x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(ValueError, match="enough"):
        compiled(x), compiled(x)
    assert len(seen) == 2
