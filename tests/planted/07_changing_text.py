"""A text is another one at each call."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile  # here
def named(x, name):
    return {name: x * 2}[name]


for step in range(12):
    named(torch.randn(8), "step" if CURED else f"step {step}")
print("done")
