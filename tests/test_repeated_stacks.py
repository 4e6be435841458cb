"""Several stacks of layers in one graph, such as an encoder and a decoder, and what all layers of a stack share and
gradients go to: each stack is compiled once."""

import jit
import pytest
import torch
from jit import in_parts
from jit.frame.dispatch import Settings
from jit.graph import repeats
from test_stored import folder  # noqa: F401
from torch import nn
from torch.nn import functional as F

LAYERS, D, H = 20, 16, 2


@pytest.fixture
def stacks(monkeypatch):
    """How often each part is done, of each graph that was divided, and whether its gradients were."""
    seen, with_gradients = [], in_parts.with_gradients

    def watched(graph):
        repeat = repeats.find(graph)
        if repeat is not None:
            seen.append([len(part.reads) for part in repeat.parts])
        return repeat

    def both(*args):
        made = with_gradients(*args)
        seen.append(made is not None)
        return made

    monkeypatch.setattr(in_parts, "find", watched)
    monkeypatch.setattr(in_parts, "with_gradients", both)
    return seen


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x, other, bias=None):
        b, t, _ = x.shape
        q, k, v = [f(y).view(b, -1, H, D // H).transpose(1, 2)
                   for f, y in ((self.q, x), (self.k, other), (self.v, other))]
        scores = q @ k.transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.norm2 = nn.LayerNorm(D), Attention(), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x, bias):
        y = self.norm(x)
        x = x + self.attention(y, y, bias)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(Encoder):
    def __init__(self):
        super().__init__()
        self.norm3, self.cross = nn.LayerNorm(D), Attention()

    def forward(self, x, bias, other):
        x = super().forward(x, bias)
        return x + self.cross(self.norm3(x), other)


class Both(nn.Module):
    """As T5 is: the bias is a table's rows, seen another way, and one for all layers of a stack."""

    def __init__(self, encoders=LAYERS, decoders=LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(Encoder() for _ in range(encoders))
        self.decoder = nn.ModuleList(Decoder() for _ in range(decoders))
        self.near, self.far, self.head = nn.Embedding(8, H), nn.Embedding(8, H), nn.Linear(D, 5)

    def biases(self, table, t):
        at = torch.arange(t)
        return table((at[None] - at[:, None]).abs().clamp(max=7)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x, y):
        bias = self.biases(self.near, x.shape[1])
        for layer in self.encoder:
            x = layer(x, bias)
        bias = self.biases(self.far, y.shape[1])
        for layer in self.decoder:
            y = layer(y, bias, x)
        return self.head(y), x, bias


LAYOUTS = {"plain": lambda t: torch.randn(2, t, D), "transposed": lambda t: torch.randn(t, 2, D).transpose(0, 1),
           "sliced": lambda t: torch.randn(2, 2 * t, D)[:, ::2],
           "expanded": lambda t: torch.randn(1, t, D).expand(2, t, D)}


def close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert a.stride() == b.stride()


@torch.no_grad()
def test_values(stacks):
    model = Both()
    compiled = jit.compile(model)
    for layout in LAYOUTS.values():
        x, y = layout(6), layout(4)
        for _ in range(2):
            close(compiled(x, y), model(x, y))
    assert stacks
    assert all(sum(times > 1 for times in found) == 2 and min(t for t in found if t > 1) >= LAYERS - 2
               for found in stacks)


LOSSES = {"one": lambda logits, x, bias: logits.square().mean(),
          "two": lambda logits, x, bias: logits.square().mean() + x.sin().sum(),
          "all": lambda logits, x, bias: logits.sum() + x.square().mean() + bias.square().sum()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("encoders, decoders", [(LAYERS, LAYERS), (2, LAYERS), (LAYERS, 2)])
def test_gradients(stacks, loss, encoders, decoders):
    model = Both(encoders, decoders)
    compiled = jit.compile(model)
    for name in ("plain", "transposed", "plain"):
        x, y = (LAYOUTS[name](t).requires_grad_() for t in (6, 4))
        inputs = [*model.parameters(), x, y]
        expected = torch.autograd.grad(LOSSES[loss](*model(x, y)), inputs, allow_unused=True)
        got = torch.autograd.grad(LOSSES[loss](*compiled(x, y)), inputs, allow_unused=True)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=2e-3)
    assert stacks[1] is True


def test_some_results(stacks):
    """Backwards of one result after the other, with what each of them keeps."""
    model = Both()
    compiled = jit.compile(model)
    x, y = torch.randn(2, 6, D, requires_grad=True), torch.randn(2, 4, D)
    inputs = [x, *model.parameters()]
    for k in (0, 1, 2, 0):
        got, expected = [torch.autograd.grad(m(x, y)[k].square().sum(), inputs, allow_unused=True)
                         for m in (compiled, model)]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=2e-3)
    assert stacks[1] is True


def test_bfloat16(stacks):
    model = Both().bfloat16()
    wide = Both().double()
    wide.load_state_dict(model.state_dict())
    compiled = jit.compile(model)
    x, y = torch.randn(2, 6, D).bfloat16(), torch.randn(2, 4, D).bfloat16()

    def errors(m):
        got = torch.autograd.grad(LOSSES["all"](*m(x, y)).float(), list(model.parameters()))
        exact = torch.autograd.grad(LOSSES["all"](*wide(x.double(), y.double())), list(wide.parameters()))
        return sum(((a.double() - b).norm() / (b.norm() + 1e-3)).item() for a, b in zip(got, exact, strict=True))

    assert errors(compiled) < 1.3 * errors(model) + 0.1
    assert stacks[1] is True


def test_kept_on_disk(stacks, folder, monkeypatch):  # noqa: F811
    """Another form finds the entry and puts a backward for another result together."""
    model = Both()
    x, y = torch.randn(2, 6, D), torch.randn(2, 4, D)
    parameters = list(model.parameters())
    monkeypatch.setattr(Settings, "compile_graph", counted := Counted(Settings.compile_graph))
    for k in (0, 1, 2):
        got, expected = [torch.autograd.grad(m(x, y)[k].square().sum(), parameters, allow_unused=True)
                         for m in (jit.compile(model), model)]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=2e-3)
    assert counted.times == 1 and stacks[1] is True


class Counted:
    def __init__(self, method):
        self.method, self.times = method, 0

    def __get__(self, owner, cls):
        def call(*args, **kwargs):
            self.times += 1
            return self.method(owner, *args, **kwargs)

        return call


class PostNorm(nn.Module):
    """A layer whose first operation shows what comes in otherwise."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(D, 2 * D), nn.Linear(2 * D, D), nn.LayerNorm(D)

    def forward(self, x, memory=None):
        y = x.transpose(0, 1)
        h = self.up(y)
        h = self.down(torch.tanh(h) * torch.sigmoid(h) + 0.1 * h.sin() * h.cos()).transpose(0, 1)
        return self.norm(x + h if memory is None else x + h * memory.mean(1, keepdim=True))


@pytest.mark.parametrize("memory", ["none", "another", "the same"])
@pytest.mark.parametrize("train", [True, False])
def test_the_first_layer_reads_what_the_program_has(stacks, memory, train):
    """Which it may write to before the backward: where eager's goes through, so does this one, with the same result."""
    torch.manual_seed(0)
    layers = nn.ModuleList(PostNorm() for _ in range(24))

    def program(x, other):
        for layer in layers:
            x = layer(x, other)
        return x

    def outcome(fn, x, other):
        other = {"none": None, "another": other, "the same": x}[memory]
        y = fn(x, other)
        if not train:
            return y, None
        if x.is_leaf and not x.requires_grad:
            with torch.no_grad():
                x.mul_(-3)
        try:
            return y.detach(), torch.autograd.grad(y.square().sum(), list(layers.parameters()))
        except RuntimeError as error:
            return y.detach(), str(error)[:40]

    compiled = jit.compile(program, dynamic=False)
    for make in (lambda: torch.randn(3, 5, D), lambda: torch.randn(5, 3, D).transpose(0, 1),
                 lambda: torch.randn(2, 4, D)):
        x, other = make(), make()
        with torch.set_grad_enabled(train):
            expected, got = outcome(program, x.clone(), other.clone()), outcome(compiled, x.clone(), other.clone())
        torch.testing.assert_close(got[0], expected[0], atol=1e-4, rtol=1e-3)
        if isinstance(expected[1], tuple):
            torch.testing.assert_close(got[1], expected[1], atol=1e-4, rtol=1e-3)
    assert [counts for counts in stacks if isinstance(counts, list)][0][1] >= 22
    assert not train or True in stacks
