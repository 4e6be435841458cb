"""There is no C++ compiler."""

import os
import sys

CURED = len(sys.argv) > 1
import tempfile

if not CURED:
    os.environ.update(PATH="/nowhere", JIT_CACHE_DIR=tempfile.mkdtemp())
    os.environ.pop("CXX", None)

import torch  # noqa: E402

import jit  # noqa: E402


@jit.compile  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
