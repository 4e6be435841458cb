"""A function that torch.compile has compiled is called."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def activation(x):
    return torch.sin(x)


if not CURED:
    activation = torch.compile(activation, backend="eager")


@jit.compile
def layer(x):
    y = x * 2
    return activation(y) + 1


print(layer(torch.randn(4)).shape)
