"""This version of Python is not supported."""

import sys

CURED = len(sys.argv) > 1
if not CURED:
    sys.version_info = (3, 10, 4, "final", 0)

import torch  # noqa: E402

import jit  # noqa: E402


@jit.compile  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
