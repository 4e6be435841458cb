"""Layers that draw random numbers are compiled once, too: the numbers are those of the whole graph, drawn in the order
of the program, and a backward makes the same ones again."""

import re

import jit
import pytest
import torch
from test_repeated_layers import LAYERS, Block, found
from torch import nn
from torch.nn import functional as F

assert found  # a fixture


class Dropping(Block):
    """As layers of transformers are: behind the attention and behind the feed-forward net, and noise of other
    kinds."""

    p, kind = 0.25, "dropout"

    def forward(self, x):
        h = x + F.dropout(torch.tanh(self.out(self.norm(x))), self.p)
        y = self.down(F.gelu(self.up(self.norm2(h))))
        if self.kind == "noise":
            y = y * (1 + 0.1 * torch.rand_like(y)) + 0.1 * torch.randn_like(y)
        elif self.kind == "bernoulli":
            y = y * torch.bernoulli(torch.full_like(y, 0.7))
        return h + F.dropout(y, self.p)


class Net(nn.Module):
    def __init__(self, n=LAYERS, kind="dropout", p=0.25):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(Dropping() for _ in range(n)), nn.Linear(16, 8)
        for layer in self.layers:
            layer.kind, layer.p = kind, p

    def forward(self, x):
        x = F.dropout(x, 0.1)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.dropout(x, 0.1))


def run(call, model, x, grad, seed=5):
    """The result, the gradients, and what is drawn next."""
    torch.manual_seed(seed)
    if not grad:
        with torch.no_grad():
            return call(x), torch.rand(3)
    result = call(x)
    drawn = torch.rand(3)
    inputs = [*model.parameters(), *([x] if x.requires_grad else [])]
    gradients = torch.autograd.grad(result.square().mean(), inputs, allow_unused=True)
    return (result, drawn, *[g for g in gradients if g is not None], torch.rand(3))


def same_numbers(found, model, x, grad, atol):
    """What parts draw is what the whole graph draws, the same for the same seed, and another for another one."""
    parts = jit.compile(lambda x: model(x))
    got = [run(parts, model, x, grad, seed) for seed in (5, 5, 6)]
    assert len(found) == 1 and found[0][0] >= LAYERS - 2
    with jit.config.patch(siblings=False):
        whole = jit.compile(lambda x: model(x))
        expected = [run(whole, model, x, grad, seed) for seed in (5, 5, 6)]
    assert len(found) == 1
    torch.testing.assert_close(got, expected, atol=atol, rtol=1e-3)
    torch.testing.assert_close(got[0], got[1], atol=atol, rtol=1e-4)
    assert not torch.equal(got[0][0], got[2][0])


SHAPES = [(2, 5, 16), (8, 40, 16)]  # drawn by PyTorch, and by kernels


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "large"])
@pytest.mark.parametrize("kind", ["dropout", "noise", "bernoulli"])
def test_the_numbers_of_the_whole(found, grad, shape, kind):
    model, x = Net(kind=kind), torch.randn(*shape, requires_grad=grad)
    same_numbers(found, model, x, grad, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True])
def test_small_draws_are_those_of_eager(found, grad):
    model, x = Net(), torch.randn(2, 5, 16)
    torch.testing.assert_close(run(jit.compile(lambda x: model(x)), model, x, grad), run(model, model, x, grad),
                               atol=1e-4, rtol=1e-3)
    assert found


def test_eager_numbers(found, eager_numbers):
    model, x = Net(), torch.randn(8, 40, 16)
    torch.testing.assert_close(run(jit.compile(lambda x: model(x)), model, x, True), run(model, model, x, True),
                               atol=1e-4, rtol=1e-3)
    assert found


def test_layouts(found):
    model, x = Net(), torch.randn(8, 40, 16)
    compiled = jit.compile(lambda x: model(x))
    base = run(compiled, model, x, True)
    for same in (x.transpose(0, 1).contiguous().transpose(0, 1), torch.cat([x, x], -1)[..., :16]):
        torch.testing.assert_close(run(compiled, model, same, True), base, atol=1e-4, rtol=1e-3)


def test_different_layers_drop_different_elements(found):
    """Each layer has a seed of its own."""
    class Adding(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.layers = [], nn.ModuleList(Dropping() for _ in range(LAYERS))

        def forward(self, x):
            masks = []
            for layer in self.layers:
                x = layer(x)
                y = F.dropout(torch.ones_like(x), 0.5)
                masks.append(y[0])
                x = x * y
            return torch.stack(masks)

    with torch.no_grad():
        masks = jit.compile(Adding())(torch.randn(8, 40, 16)).flatten(1) != 0
    assert found
    equal = [(a == b).float().mean().item() for k, a in enumerate(masks) for b in masks[:k]]
    assert max(equal) < 0.65 and min(equal) > 0.35


@pytest.mark.parametrize("grad", [False, True])
def test_kernels_are_the_same_ones(grad):
    """How many kernels are compiled does not grow with the layers, where there are too few to take the graph apart."""
    counts = [kernels_of(Net(n), torch.randn(8, 40, 16), grad) for n in (3, 9)]
    assert counts[0] == counts[1] > 0


def kernels_of(model, x, grad):
    """How many kernels of different text one call needs."""
    from jit.backends import compile_native
    from jit.frame.dispatch import Settings, make_dispatcher

    texts = []

    def compile(*args, **kwargs):
        plan = compile_native(*args, **kwargs)
        texts.extend(re.sub(r"\bk\d+\b", "k", text) for _, text in plan.kernels)
        return plan

    with torch.set_grad_enabled(grad):
        make_dispatcher(lambda x: model(x), Settings(compile))(x)
    return len(set(texts))
