"""A module counts its calls in an attribute, on which the computation depends."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(()) if CURED else 0
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):  # here
        self.calls += 1
        if CURED:
            return self.linear(x) * (self.calls / 10).clamp(max=1)
        return self.linear(x) * min(self.calls / 10, 1)


model = jit.compile(Warmup())
with torch.no_grad():
    for _ in range(14):
        model(torch.randn(2, 8))
print("done")
