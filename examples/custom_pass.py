"""Passes of your own: an operation of a model is replaced by an operator that you have written, and another by cheaper
arithmetic.

The program is not touched: ``jit.compile(model, passes=[...])`` changes what is captured of it. The result is compared
with a model that was rewritten by hand.
"""

import argparse

import torch
import torch.nn.functional as F

import jit
from jit import passes


@torch.library.custom_op("custom_pass_example::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Stands for a kernel that you have: here it is three calls of PyTorch."""
    rms_norm.calls += 1
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


rms_norm.calls = 0
rms_norm.register_fake(lambda x, weight: torch.empty_like(x))


def norm_as_written(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(norm_as_written(x, self.weight))))


# 1. A pattern and what stands for it, both as plain functions. The tensors say for which dtypes and numbers of
# dimensions. The operator has no gradient
#    of its own, so that the gradient stays that of the pattern.
ours = passes.Replacement(norm_as_written, rms_norm, (torch.ones(2, 2, 2), torch.ones(2)),
                          name="rms_norm", keep_gradient=True)


# 2. A function of the graph. Nodes have ``op``, ``inputs``, ``shape``, ``dtype``, and new ones come from calling
# functions of PyTorch on them.
def cheaper_gelu(graph):
    for node in graph.nodes:
        if node.op == "normal_cdf":
            graph.replace(node, graph.call(lambda x: 0.5 + 0.5 * torch.tanh(0.7978846 * (x + 0.044715 * x**3)),
                                           *node.inputs, before=node))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--width", type=int, default=64)
    width = p.parse_args().width
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model, x = Block(width).to(device), torch.randn(4, 16, width, device=device)

    def by_hand(x):
        h = F.linear(norm_as_written(x, model.weight), model.up.weight, model.up.bias)
        return x + F.linear(F.gelu(h, approximate="tanh"), model.down.weight, model.down.bias)

    plain, changed = jit.compile(model), jit.compile(model, passes=[ours, cheaper_gelu])
    y = changed(x)
    gradient = torch.autograd.grad(y.sum(), model.weight)[0]
    wanted = torch.autograd.grad(by_hand(x).sum(), model.weight)[0]
    print(f"calls of the operator: {rms_norm.calls}")
    print(f"largest difference from the model rewritten by hand: {(y - by_hand(x)).abs().max():.1e}, of its gradient "
          f"{(gradient - wanted).abs().max():.1e}")
    print(f"from the model as it is: {(y - plain(x)).abs().max():.1e}")
    print("--- captured, after both passes")
    jit.logs.enable("passes")
    with torch.no_grad():
        jit.compile(model, passes=[ours, cheaper_gelu])(x)


if __name__ == "__main__":
    main()
