"""There is no such option."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile(options={"cache_limit" if CURED else "cache_limits": 3})  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
