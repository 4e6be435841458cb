"""The backward of an autograd function raises."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if not CURED and g.dim() == 0:
            raise RuntimeError("no gradient for a number")  # here
        return g * 2


@jit.compile
def loss(x):
    return Doubled.apply(torch.sin(x).sum()) * 1


x = torch.randn(4, requires_grad=True)
loss(x).backward()
print(x.grad.shape)
