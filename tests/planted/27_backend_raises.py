"""A backend of the user's raises."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def backend(graph, examples):
    if not CURED:
        raise KeyError("no rule for tanh")  # here
    return lambda *tensors: [torch.tanh(tensors[0])]


@jit.compile(backend=backend)
def program(x):
    return torch.tanh(x)


print(program(torch.randn(4)).shape)
