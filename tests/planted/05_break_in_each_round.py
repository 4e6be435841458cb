"""A loop breaks the graph in each of its rounds."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


import time


@jit.compile
def rounds(x):
    for _ in range(4):
        x = torch.sin(x) + 1
        if not CURED:
            time.sleep(0)  # here
    return x


print(rounds(torch.randn(8)).sum())
