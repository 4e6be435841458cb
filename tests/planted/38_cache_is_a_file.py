"""The folder of the cache is a file."""

import os
import sys

CURED = len(sys.argv) > 1
if not CURED:
    os.environ["JIT_CACHE_DIR"] = "/dev/full"

import torch  # noqa: E402

import jit  # noqa: E402


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)  # here
