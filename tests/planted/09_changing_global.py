"""A global variable is another one at each call."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


temperature = 1


@jit.compile  # here
def scaled(x):
    if temperature == 1000:
        return x
    return x.reshape(temperature, -1) if x.dim() == 1 else x


for step in range(12):
    temperature = 1 if CURED else step % 12 + 1
    scaled(torch.randn(27720))
print("done")
