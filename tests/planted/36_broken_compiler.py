"""CXX names something that does not compile."""

import os
import sys

CURED = len(sys.argv) > 1
if not CURED:
    os.environ["CXX"] = "/bin/false"

import torch  # noqa: E402

import jit  # noqa: E402


@jit.compile  # here
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
