"""An operation in compiled code is given two dtypes that do not fit."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@jit.compile
def layer(x, weight):
    y = torch.relu(x)
    return y @ weight  # here


print(layer(torch.randn(2, 3), torch.ones(3, 3, dtype=torch.float32 if CURED else torch.int64)).shape)
