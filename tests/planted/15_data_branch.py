"""A branch depends on the values of a tensor, and its ways do other things than compute."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


skipped = []


@jit.compile
def clipped(x):
    norm = x.norm()
    if CURED:
        return torch.where(norm > 1, x / norm, x)
    if norm > 1:  # here
        skipped.append(x)
        x = x / norm
    return x * 2


print(clipped(torch.randn(64)).shape)
