"""A Python float is another one at each call."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile  # here
def decayed(x, rate):
    if rate > 10:
        return x
    return x * rate


x = torch.randn(8)
for step in range(12):
    rate = 0.9 ** step
    decayed(x, torch.tensor(rate) if CURED else rate)
print("done")
