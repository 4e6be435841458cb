"""Half-precision results differ from eager in the last digit."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def program(x):
    return torch.sigmoid(x * 1.7) * x + x / 3


jit.config.match_eager_rounding = CURED
x = torch.randn(4096, dtype=torch.bfloat16)
print("equal:", torch.equal(program(x), jit.compile(program)(x)))
print(jit.verify(program)(x))
