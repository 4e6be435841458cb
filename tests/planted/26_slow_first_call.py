"""The first call takes long."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def program(x):
    for _ in range(1 if CURED else 300):
        x = torch.sin(x) * 1.5  # here
    return x


print(jit.explain(program)(torch.randn(4)))
