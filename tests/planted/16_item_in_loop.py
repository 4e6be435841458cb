"""Each round of a loop reads a value of a tensor."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile
def thresholds(x):
    out = []
    for row in x:
        if CURED:
            out.append(torch.where(row.sum() > 0, 1.0, 0.0))
        else:
            out.append(str(row.sum().item()).strip("-"))  # here
    return out


print(len(thresholds(torch.randn(3, 4))))
