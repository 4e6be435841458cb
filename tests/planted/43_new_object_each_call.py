"""A new object is stored for each call."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


class Settings:
    def __init__(self):
        self.scale = torch.ones(8)


settings = Settings()


@jit.compile  # here
def scaled(x):
    return x * settings.scale


for step in range(12):
    if CURED:
        settings.scale.fill_(step)
    else:
        settings = Settings()
    scaled(torch.randn(8))
print("done")
