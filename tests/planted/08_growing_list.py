"""A list of tensors that grows from call to call is read as a whole."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


history = []


@jit.compile
def mean_of_all(x):
    return torch.stack(history).mean(0) + x


for _ in range(14):
    history.append(torch.randn(8))
    if CURED:
        history = history[-1:]
    mean_of_all(torch.randn(8))
print("done")
