"""A backend of the user's returns no callable."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def backend(graph, examples):  # here
    return (lambda *tensors: [torch.tanh(tensors[0])]) if CURED else None


@jit.compile(backend=backend)
def program(x):
    return torch.tanh(x)


print(program(torch.randn(4)).shape)
