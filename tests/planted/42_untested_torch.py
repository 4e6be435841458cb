"""This PyTorch is newer than those that were tested."""

import sys

CURED = len(sys.argv) > 1
import torch  # noqa: E402

if not CURED:
    torch.__version__ = "3.7.0"

import jit  # noqa: E402


@jit.compile  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
