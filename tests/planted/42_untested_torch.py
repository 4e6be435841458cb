"""This PyTorch is newer than those that were tested."""

import os
import sys

CURED = len(sys.argv) > 1
import torch  # noqa: E402

if not CURED:
    torch.__version__ = "3.7.0"

import jit  # noqa: E402


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
