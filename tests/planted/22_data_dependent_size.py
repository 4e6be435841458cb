"""The size of an intermediate tensor depends on values."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile
def positive_sum(x):
    if CURED:
        return torch.where(x > 0, x, 0).sum() * 2
    chosen = x[x > 0]
    return chosen.reshape(chosen.numel(), 1).sum() * 2  # here


print(positive_sum(torch.randn(8)).shape)
