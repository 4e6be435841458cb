"""There is no such variable."""

import os
import sys

CURED = len(sys.argv) > 1
if not CURED:
    os.environ["JIT_CACHE_LIMITS"] = "3"

import torch  # noqa: E402

import jit  # noqa: E402  # here


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
