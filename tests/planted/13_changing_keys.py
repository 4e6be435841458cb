"""The keys of a dict are other ones at each call."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile  # here
def added(parts):
    return sum(parts.values())


for step in range(12):
    added({("part" if CURED else f"part {step}"): torch.randn(8), "rest": torch.randn(8)})
print("done")
