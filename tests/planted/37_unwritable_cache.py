"""The folder of the cache cannot be written."""

import os
import sys

CURED = len(sys.argv) > 1
if not CURED:
    os.environ["JIT_CACHE_DIR"] = "/proc/jit"

import torch  # noqa: E402

import jit  # noqa: E402


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)  # here
