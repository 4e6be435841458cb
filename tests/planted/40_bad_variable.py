"""A variable has a value that means nothing."""

import os
import sys

CURED = len(sys.argv) > 1
os.environ["JIT_CACHE_LIMIT"] = "8" if CURED else "many"

import torch  # noqa: E402

import jit  # noqa: E402  # here


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
