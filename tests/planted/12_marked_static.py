"""A size that varies was marked as static."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile  # here
def total(x):
    return (x * 2).sum()


for size in range(2, 16):
    x = torch.randn(size, 8)
    if not CURED:
        jit.mark_static(x, 0)
    total(x)
print("done")
