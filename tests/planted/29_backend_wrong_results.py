"""A backend of the user's gives too many results."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


def backend(graph, examples):  # here
    def run(x):
        y = torch.tanh(x)
        return [y] if CURED else [y, y]

    return run


@jit.compile(backend=backend)
def program(x):
    return torch.tanh(x)


print(program(torch.randn(4)).shape)
