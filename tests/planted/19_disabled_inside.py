"""A function that is marked with jit.disable is called in the midst."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def logged(x):
    return x + 1


if not CURED:
    logged = jit.disable(logged, reason="it logs to a server")


@jit.compile
def layer(x):
    y = torch.relu(x)
    return logged(y) * 2  # here


print(layer(torch.randn(4)).shape)
