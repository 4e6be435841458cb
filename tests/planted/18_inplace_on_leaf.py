"""A leaf that requires gradients is changed in place."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


weight = torch.zeros(4, requires_grad=True)


@jit.compile
def update(gradient):
    if CURED:
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
    else:
        weight.sub_(0.1 * gradient)  # here
    return weight.sum()


print(update(torch.ones(4)))
