"""A function of a library breaks the graph."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


import json


def dumped(x):
    return json.dumps({"size": float(x.sum())})  # here


@jit.compile
def step(x):
    y = torch.softmax(x, -1)
    if not CURED:
        dumped(y)
    return y * 2


print(step(torch.randn(4, 4)).sum())
