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


OF_PYTORCH = """
import sys
import torch
from torch import nn
import jit

torch.manual_seed(0)
x, image = torch.randn(2, 32, 256), torch.randn(4, 64, 28, 28)
PROGRAMS = {
    "encoder": (nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), (x,)),
    "decoder": (nn.TransformerDecoderLayer(256, 4, 1024, batch_first=True), (x, x)),
    "attention": (nn.MultiheadAttention(256, 4, batch_first=True), (x, x, x)),
    "packed": (lambda x: nn.functional.linear(x, torch.ones(768, 256)).unflatten(-1, (3, 256)).unbind(-2), (x,)),
    "convolution": (nn.Conv1d(32, 64, 3), (x,)),
    "images": (nn.Sequential(nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                             nn.AdaptiveAvgPool2d(7), nn.Upsample(scale_factor=2)), (image,)),
    "others": (lambda x: (x.topk(3)[0].sum() + torch.fft.rfft(x).abs().mean() + torch.cdist(x, x).sum()
                          + x.cumsum(1).std(-1).sum() + nn.functional.normalize(x, dim=-1).tril().sum()), (x,)),
}
program, given = PROGRAMS[NAME]
if isinstance(program, nn.Module):
    program.train(TRAIN)
given = [g.clone().requires_grad_(TRAIN) for g in given]
with torch.set_grad_enabled(TRAIN):
    result = jit.compile(program)(*given)
if TRAIN:
    sum(t.sum() for t in (result if isinstance(result, tuple) else (result,)) if t.requires_grad).backward()
print(*sorted(name for name in ("torch._dynamo", "torch._inductor", "sympy", "torch.fx.experimental.symbolic_shapes")
              if name in sys.modules))
"""


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["encoder", "decoder", "attention", "packed", "convolution", "images", "others"])
def test_nor_for_what_is_larger_or_made_of_others(name, train):
    script = OF_PYTORCH.replace("NAME", repr(name)).replace("TRAIN", str(train))
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "JIT_STRICT": "1"}, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == []
