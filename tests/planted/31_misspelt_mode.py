"""A mode is misspelt."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile(mode="reduce-overhead" if CURED else "reduce_overhead")  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
