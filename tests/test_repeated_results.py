"""Networks of repeated layers that give several results with gradients, as those of transformers do (loss, logits, keys
and values of each layer), in parts: whichever of the results get a gradient."""

import jit
import pytest
import torch
from jit import compiling, in_parts
from jit.failures import InternalFailure
from test_repeated_layers import LAYERS, LAYOUTS, differentiated  # noqa: F401
from test_stored import folder  # noqa: F401
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    plain = False  # attention of which PyTorch has second derivatives

    def __init__(self, d=16, h=2):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down, self.h = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), h

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = [y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, 2)]
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v if self.plain else F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), k, v


class Model(nn.Module):
    def __init__(self, n=LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.norm, self.head = nn.ModuleList(Block() for _ in range(n)), nn.LayerNorm(16), nn.Linear(16, 7)

    def forward(self, x):
        caches = []
        for layer in self.layers:
            x, k, v = layer(x)
            caches += [k, v]
        logits = self.head(self.norm(x))
        return logits.square().mean(), logits, *caches


EVERY = tuple(range(2 + 2 * LAYERS))
MASKS = {"loss": (0,), "all": EVERY, "logits": (1,), "loss and logits": (0, 1), "keys": EVERY[2::2],
         "loss and values": (0, *EVERY[3::2]), "loss and one key": (0, 8), "one value": (11,)}


def gradients(fn, model, x, which, leaves=None):
    leaves = [*model.parameters(), x] if leaves is None else leaves
    results = fn(x)
    torch.manual_seed(1)
    chosen = [results[k] for k in which]
    return torch.autograd.grad(chosen, leaves, [torch.randn_like(r) for r in chosen], allow_unused=True)


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, atol=1e-5 + 1e-4 * b.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize("name", MASKS)
def test_gradients(differentiated, name):  # noqa: F811
    model = Model()
    compiled = jit.compile(model, dynamic=False)
    for layout in ("plain", "another", "transposed", "sliced", "expanded"):
        x = LAYOUTS[layout]().requires_grad_()
        for _ in range(2):
            same(gradients(compiled, model, x, MASKS[name]), gradients(model, model, x, MASKS[name]))
    assert differentiated[:2] == [True, True]


def test_values_and_other_results_at_other_calls(differentiated):  # noqa: F811
    model, x = Model(), torch.randn(2, 5, 16, requires_grad=True)
    compiled = jit.compile(model, dynamic=False)
    for a, b in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
    for which in (*MASKS.values(), (), *MASKS.values()):
        if which:
            same(gradients(compiled, model, x, which), gradients(model, model, x, which))
    assert differentiated == [True]


@pytest.mark.parametrize("frozen", ["head", "first", "odd biases", "input"])
def test_what_needs_no_gradient(frozen):
    model, x = Model(), torch.randn(2, 5, 16, requires_grad=frozen != "input")
    for name, p in model.named_parameters():
        p.requires_grad_(not {"head": name.startswith("head"), "first": name.startswith("layers.0."),
                              "odd biases": name.endswith("qkv.bias") and int(name.split(".")[1]) % 2 == 1,
                              "input": False}[frozen])
    leaves = [p for p in [*model.parameters(), x] if p.requires_grad]
    compiled = jit.compile(model, dynamic=False)
    for which in MASKS.values():
        same(gradients(compiled, model, x, which, leaves), gradients(model, model, x, which, leaves))


def outcome(fn, model, x, act):
    """What a program does with the results: gradients, or the error."""
    results = fn(x)
    try:
        act(results)
    except RuntimeError as error:
        return type(error)
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


ACTS = {
    "written logits": lambda r: (r[1].data.mul_(2), r[0].backward()),
    "key written in place": lambda r: (r[6].detach().mul_(2), r[0].backward()),
    "logits written in place": lambda r: (r[1].detach().mul_(2), r[0].backward()),
    "in turns": lambda r: (r[0].backward(retain_graph=True), r[1].sum().backward(retain_graph=True),
                           sum(k.sum() for k in r[2:]).backward()),
    "twice": lambda r: (r[0].backward(), r[0].backward()),
    "freed for another": lambda r: (r[0].backward(), r[2].sum().backward()),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_the_program_does_with_results(name):
    model, x = Model(), torch.randn(2, 5, 16)
    expected, got = [outcome(fn, model, x, ACTS[name]) for fn in (model, jit.compile(model, dynamic=False))]
    assert (type(expected) is type(got)) and (expected == got if isinstance(expected, type) else True)
    if not isinstance(expected, type):
        same(got, expected)


def test_second_derivatives(differentiated, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Block, "plain", True)
    model = Model().double()
    x = torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)

    def twice(fn):
        results = fn(x)
        (g,) = torch.autograd.grad(results[0] + results[5].square().sum(), x, create_graph=True)
        return [g, *torch.autograd.grad(g.square().sum(), [x, model.layers[3].up.weight])]

    same(twice(jit.compile(model, dynamic=False)), twice(model))
    assert differentiated[0]


def test_kept_on_disk(folder, monkeypatch):  # noqa: F811
    """A later form compiles no backward for some of the results that an earlier one has compiled."""
    seen, real = [], in_parts.narrowed_backward

    def narrowed_backward(course, given, *rest):
        seen.append(given)
        return real(course, given, *rest)

    monkeypatch.setattr(in_parts, "narrowed_backward", narrowed_backward)
    model, x = Model(), torch.randn(2, 5, 16, requires_grad=True)
    for expected in ([1, 2, 2], [2, 2, 3], [3, 3, 3]):
        compiled = jit.compile(model, dynamic=False)
        third = MASKS["keys"] if expected[0] > 1 else MASKS["loss"]
        for which, count in zip((MASKS["loss"], MASKS["loss and values"], third), expected):
            same(gradients(compiled, model, x, which), gradients(model, model, x, which))
            assert len(seen) == count


def test_a_gradient_that_cannot_be_in_parts_is_that_for_all_with_zeros(monkeypatch):
    seen, real = [], in_parts.narrowed_backward

    def narrowed_backward(*arguments):
        seen.append(real(*arguments))
        return seen[-1]

    monkeypatch.setattr(in_parts, "narrowed_backward", narrowed_backward)
    model, x = Model(), torch.randn(2, 5, 16, requires_grad=True)
    compiled = jit.compile(model, dynamic=False)
    for which, possible in ((MASKS["loss and one key"], False), (MASKS["loss"], True)):
        same(gradients(compiled, model, x, which), gradients(model, model, x, which))
        assert (seen[-1] is not None) == possible


def test_kernels_that_fail_are_told_and_all_results_serve(monkeypatch):
    model, x = Model(), torch.randn(2, 5, 16, requires_grad=True)
    compiled = jit.compile(model, dynamic=False)
    results = compiled(x)
    monkeypatch.setattr(compiling.in_parts, "narrowed_backward", lambda *a: 1 / 0)
    with jit.config.patch(strict=False), pytest.warns(InternalFailure, match="with zeros"):
        got = torch.autograd.grad(results[0], [x])
    same(got, torch.autograd.grad(model(x)[0], [x]))
