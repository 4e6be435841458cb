"""A pass of the user's replaces an operation by a wrong one."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def scaled(x):
    return torch.tanh(x * 3) + 1


def pattern(x):
    return x * 3


def replacement(x):  # here
    return x + x + x if CURED else x + x


triple = jit.passes.Replacement(pattern, replacement, [(torch.randn(4),)])
print(jit.verify(scaled, passes=[triple])(torch.randn(64)))
