"""Capturing asks PyTorch's kernels about small tensors, and not those for tensors without data, which load PyTorch's
own compiler: a second and more of each process."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out, self.act = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64), nn.GELU()

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 4, 16).transpose(1, 2) for y in self.qkv(self.norm(x)).split(64, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        return x + self.act(F.dropout(self.out(y), P, self.training))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(99, 64), nn.Embedding(40, 64)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, i):
        x = self.blocks(self.table(i) + self.places(torch.arange(i.shape[1])))
        return F.cross_entropy((x @ self.table.weight.t()).flatten(0, 1), i.flatten())

model, i = Model(), torch.randint(0, 99, (3, 33))
import jit
if not TRAIN:
    model.eval().requires_grad_(False)
loss = jit.compile(model)(i)
if TRAIN:
    loss.backward()
print(*sorted(name for name in ("torch._dynamo", "torch._inductor", "sympy", "torch.fx.experimental.symbolic_shapes")
              if name in sys.modules))
"""


@pytest.mark.parametrize("train, p", [(False, 0.0), (True, 0.0), (True, 0.1)])
def test_nothing_of_pytorchs_compiler_is_loaded(train, p):
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("TRAIN", str(train)).replace("P,", f"{p},")],
                          env={**os.environ, "JIT_STRICT": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == []
