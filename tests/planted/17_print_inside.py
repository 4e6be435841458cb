"""A tensor is printed in compiled code by a function that formats it."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


import pprint


@jit.compile
def shown(x):
    y = torch.sin(x)
    if not CURED:
        pprint.pprint(y)  # here
    return y * 2


print(shown(torch.randn(2)).shape)
