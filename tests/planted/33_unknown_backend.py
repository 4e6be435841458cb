"""There is no such backend."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile(backend="jit" if CURED else "inductor")  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
