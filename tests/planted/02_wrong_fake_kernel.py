"""The fake kernel of a custom operator says another dtype than its kernel gives."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


@torch.library.custom_op("planted::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return (x * x).to(torch.float32 if CURED else torch.float16)


@square.register_fake
def _(x):
    return torch.empty_like(x)


@jit.compile
def loss(x):
    return square(x).sum() + x.sum()  # here


print(loss(torch.randn(64)))
