"""A list of tensors that grows from call to call is read as a whole."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


history = []
total = torch.zeros(8)


@jit.compile
def mean_of_all(x):
    if CURED:
        return total + x
    return torch.stack(history).mean(0) + x  # here


for _ in range(14):
    history.append(torch.randn(8))
    total = total + history[-1]
    mean_of_all(torch.randn(8))
print("done")
