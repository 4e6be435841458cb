"""Stretches of a graph that are repeated, as the layers of a deep network, are compiled once (``jit/graph/repeats.py``,
``jit/codegen/stamping.py``)."""

import os
import subprocess
import sys
import threading

import jit
import pytest
import torch
from jit import compiling, in_parts
from jit.graph import repeats
from torch import nn
from torch.nn import functional as F

LAYERS = 24


@pytest.fixture
def found(monkeypatch):
    """(how many windows, nodes of each) of each graph that was divided into parts."""
    seen = []

    def watched(graph):
        repeat = repeats.find(graph)
        if repeat is not None:
            window = max(repeat.windows, key=lambda part: len(part.reads))
            seen.append((len(window.reads), sum(n.op != "input" for n in window.graph.nodes)))
        return repeat

    monkeypatch.setattr(in_parts, "find", watched)
    return seen


class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down, self.h = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), h

    def forward(self, x, mask=None):
        b, t, d = x.shape
        q, k, v = [y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, 2)]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(torch.tanh(h) * torch.sigmoid(h) + 0.1 * h.sin() * h.cos())


def blocks(n=LAYERS, make=Block):
    torch.manual_seed(0)
    return nn.ModuleList(make() for _ in range(n)).eval()


def chained(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def with_mask(layers, x):
    mask = (torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[1])).float().log()
    for layer in layers:
        x = layer(x, mask)
    return x.softmax(-1)


def each_result(layers, x):
    found = [x]
    for layer in layers:
        found.append(layer(found[-1]))
    return found


def summed(layers, x):
    total = torch.zeros(())
    for layer in layers:
        x = layer(x)
        total = total + x.square().mean() + 1
    return x, total


def far_back(layers, x):
    """What goes on from one layer to the next is more than one tensor."""
    y = x * 0.5
    for layer in layers:
        x, y = layer(x) + y, x.tanh()
    return x, y, x.t() if x.dim() == 2 else x.transpose(1, 2)


def skips(layers, x):
    """Each reads what was made two layers ago: no windows of one layer."""
    before = [x, x]
    for layer in layers:
        before.append(layer(before[-1]) + before[-3 if len(before) > 2 else -1])
    return before[-1]


PROGRAMS = {"chained": chained, "mask": with_mask, "each": each_result, "summed": summed, "back": far_back,
            "skips": skips}


def close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4, equal_nan=True)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype


LAYOUTS = {
    "plain": lambda: torch.randn(2, 5, 16), "another": lambda: torch.randn(3, 7, 16),
    "transposed": lambda: torch.randn(5, 2, 16).transpose(0, 1), "sliced": lambda: torch.randn(2, 9, 32)[:, ::2, 8:24],
    "expanded": lambda: torch.randn(1, 5, 16).expand(2, 5, 16), "empty": lambda: torch.randn(0, 5, 16),
}


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_values(found, name):
    layers, program = blocks(), PROGRAMS[name]
    compiled = jit.compile(lambda x: program(layers, x), dynamic=False)
    for layout in LAYOUTS.values():
        x = layout()
        close(compiled(x), program(layers, x))
    assert found or name == "skips"
    assert all(count >= LAYERS - 4 for count, _ in found)


@torch.no_grad()
def test_each_has_its_own_parameters(found):
    layers = blocks()
    compiled, x = jit.compile(lambda x: chained(layers, x)), torch.randn(2, 5, 16)
    compiled(x)
    assert found
    for k in (0, 1, 11, LAYERS - 2, LAYERS - 1):
        before = compiled(x)
        layers[k].up.weight.mul_(-3)
        layers[k].norm.bias.add_(1)
        close(compiled(x), chained(layers, x))
        assert not torch.allclose(compiled(x), before)
    layers[5].down = nn.Linear(32, 16)
    close(compiled(x), chained(layers, x))


@torch.no_grad()
def test_shared_and_alternating(found):
    """One layer done again and again, and two kinds in turns: a window is of both."""
    torch.manual_seed(0)
    one, other = Block().eval(), nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.LayerNorm(16)).eval()
    x = torch.randn(2, 5, 16)
    for layers in ([one] * LAYERS, [one, other] * LAYERS):
        close(jit.compile(lambda x: chained(layers, x))(x), chained(layers, x))  # noqa: B023
    assert len(found) == 2 and found[1][1] > found[0][1]


@torch.no_grad()
def test_one_that_differs_ends_them(found):
    layers = blocks(2 * LAYERS)
    layers[10].h, layers[LAYERS + 15].up = 4, nn.Linear(16, 32, bias=False)
    x = torch.randn(2, 5, 16)
    close(jit.compile(lambda x: chained(layers, x))(x), chained(layers, x))
    ((count, _),) = found
    assert 16 <= count <= LAYERS + 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_dtypes(found, dtype):
    layers = blocks().to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    got, expected = jit.compile(lambda x: chained(layers, x))(x), chained(layers, x)
    assert found and got.dtype == dtype
    torch.testing.assert_close(got, expected, atol=0.2 if dtype is torch.bfloat16 else 1e-9, rtol=0)


def numbers(layers, x):
    for k, layer in enumerate(layers):
        x = layer(x) * (1 + k / 100)
    return x


def written(layers, x):
    for layer in layers:
        x = layer(x)
        layers[0].up.bias.add_(1)
    return x


@pytest.mark.parametrize("program", [numbers, written])
@torch.no_grad()
def test_what_is_not_taken_apart(found, program):
    """Other numbers in each layer, and changes of tensors that were there before."""
    ours, theirs = blocks(make=lambda: Block()), blocks(make=lambda: Block())
    for layer in (*ours, *theirs):
        for p in layer.parameters():
            p.mul_(0.5)
    x = torch.randn(2, 5, 16)
    got, expected = jit.compile(lambda x: program(ours, x))(x), program(theirs, x)
    assert not found
    close(got, expected)


@torch.no_grad()
def test_the_format_of_images_is_chosen_for_the_whole(monkeypatch, found):
    """Windows would go from one format to the other and back."""
    taken, real = [], in_parts.repeat_of
    monkeypatch.setattr(in_parts, "repeat_of", lambda graph: taken.append(real(graph)) or taken[-1])
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 8)) for _ in range(48)]
    x = torch.randn(2, 8, 6, 6)
    close(jit.compile(lambda x: chained(layers, x))(x), chained(layers, x))
    assert found and taken == [None]


@torch.no_grad()
def test_not_with_symbols_and_not_where_it_is_switched_off(found):
    layers, x = blocks(), torch.randn(2, 5, 16)
    close(jit.compile(lambda x: chained(layers, x), dynamic=True)(x), chained(layers, x))
    with jit.config.patch(siblings=False):
        close(jit.compile(lambda x: chained(layers, x))(x), chained(layers, x))
    assert not found


@torch.no_grad()
def test_kernels_are_those_of_few_layers(found):
    """As many as a network of few layers has; no kernel more is launched for each layer than in the whole."""
    def compiled_of(n):
        layers = blocks(n)
        plans = []
        real = compiling.compile_plain

        def seen(*args):
            plans.append(real(*args))
            return plans[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiling, "compile_plain", seen)
            jit.compile(lambda x: chained(layers, x))(torch.randn(2, 5, 16))
        return plans[0]

    deep, few = compiled_of(LAYERS), compiled_of(4)
    with jit.config.patch(siblings=False):
        whole = compiled_of(LAYERS)
    assert len(found) == 1
    assert len(deep.kernels) <= len(few.kernels) + 2 and deep.launches == whole.launches


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.scale = nn.Embedding(7, 16), nn.Linear(16, 16)

    def forward(self, x, i):
        return self.scale(x + self.table(i)).tanh()


@torch.no_grad()
def test_errors_inside(found):
    torch.manual_seed(0)
    layers = [Table() for _ in range(4 * LAYERS)]

    def program(x, i):
        for layer in layers:
            x = layer(x, i[0])
        return x

    compiled, x = jit.compile(program), torch.randn(3, 16)
    good, bad = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 9, 3]])
    close(compiled(x, good), program(x, good))
    assert found
    for _ in range(2):
        with pytest.raises(IndexError, match="out of range"):
            compiled(x, bad)
        close(compiled(x, good), program(x, good))


@torch.no_grad()
def test_threads(found):
    layers = blocks()
    compiled = jit.compile(lambda x: chained(layers, x))
    inputs = [torch.randn(2, 5, 16) for _ in range(4)]
    compiled(inputs[0])
    wrong = []

    def work(x):
        expected = chained(layers, x)
        wrong.extend(1 for _ in range(20) if not torch.allclose(compiled(x), expected, atol=1e-4))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found and not wrong


# -- with gradients ---------------------------------------------------------------------------------------------------


@pytest.fixture
def differentiated(monkeypatch):
    """Whether each graph with gradients of which a part is repeated was compiled in parts."""
    seen, real = [], in_parts.with_gradients

    def watched(*args):
        made = real(*args)
        seen.append(made is not None)
        return made

    monkeypatch.setattr(in_parts, "with_gradients", watched)
    return seen


def trained(program, leaves, *args):
    """The loss, and its gradients."""
    for leaf in leaves:
        leaf.grad = None
    loss = program(*args)
    loss.backward()
    return loss.detach(), [leaf.grad for leaf in leaves]


def same_training(compiled, program, leaves, *args):
    (loss, expected), (ours, got) = trained(program, leaves, *args), trained(compiled, leaves, *args)
    torch.testing.assert_close(ours, loss, atol=1e-4, rtol=1e-4)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 + 1e-4 * b.abs().max().item(), rtol=1e-3)
        assert a.stride() == b.stride()


LOSSES = {
    "chained": lambda layers, x: chained(layers, x).square().mean(),
    "mask": lambda layers, x: with_mask(layers, x).square().sum(),
    "each": lambda layers, x: sum(y.mean() for y in each_result(layers, x)),
    "summed": lambda layers, x: summed(layers, x)[1] / 10,
    "back": lambda layers, x: sum(y.square().mean() for y in far_back(layers, x)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(found, differentiated, name):
    layers, program = blocks(), LOSSES[name]
    compiled = jit.compile(lambda x: program(layers, x), dynamic=False)
    for layout in ("plain", "another", "transposed", "sliced"):
        x = LAYOUTS[layout]()
        same_training(compiled, lambda x: program(layers, x), list(layers.parameters()), x)
    assert found and any(differentiated) or name in ("each", "summed", "back")


@pytest.mark.parametrize("make", [Block, Plain])
def test_gradients_of_the_input_too(differentiated, make):
    """What is found before the layers and in the first one is added up, in whichever layouts these are."""
    layers = blocks(make=make)

    def program(x):
        return chained(layers, x).square().mean()

    compiled = jit.compile(program, dynamic=False)
    for layout in ("plain", "another", "transposed", "sliced", "expanded"):
        x = LAYOUTS[layout]().requires_grad_()
        (loss, expected), (ours, got) = [trained(fn, [x, *layers.parameters()], x) for fn in (program, compiled)]
        torch.testing.assert_close(ours, loss, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-3)
    assert differentiated and all(differentiated)


class Language(nn.Module):
    """With one table for what goes in and what comes out."""

    def __init__(self):
        super().__init__()
        self.table, self.layers, self.norm = nn.Embedding(11, 16), blocks(), nn.LayerNorm(16)

    def forward(self, i):
        return F.cross_entropy((self.norm(chained(self.layers, self.table(i))) @ self.table.weight.t()).flatten(0, 1),
                               i.flatten())


def test_what_several_parts_read(differentiated):
    """Their gradients are added up: of a table, and of one layer that is done again and again."""
    model, i = Language(), torch.randint(0, 11, (2, 5))
    same_training(jit.compile(model), model, list(model.parameters()), i)
    one, x = blocks(1)[0], torch.randn(2, 5, 16)

    def program(x):
        return chained([one] * LAYERS, x).square().mean()

    same_training(jit.compile(program), program, list(one.parameters()), x)
    assert differentiated == [True, True]


@pytest.mark.parametrize("which", ["biases", "first", "some", "before"])
def test_frozen(found, which):
    model, i = Language(), torch.randint(0, 11, (2, 5))
    for k, layer in enumerate(model.layers):
        for name, p in layer.named_parameters():
            if which == "biases" and "bias" in name or which == "first" and k < 4 or which == "some" and k % 5 == 0:
                p.requires_grad_(False)
    if which in ("before", "first"):
        model.table.weight.requires_grad_(False)
    leaves = [p for p in model.parameters() if p.requires_grad]
    same_training(jit.compile(model), model, leaves, i)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_trained_for_some_steps(differentiated):
    losses = []
    for compiled in (False, True):
        torch.manual_seed(1)
        model, i = Language(), torch.randint(0, 11, (2, 5))
        step, optimizer = jit.compile(model) if compiled else model, torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = step(i)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert differentiated == [True]
    torch.testing.assert_close(losses[:5], losses[5:], atol=1e-4, rtol=1e-4)


def test_backward_again(differentiated):
    layers, x = blocks(), torch.randn(2, 5, 16)
    compiled, leaves = jit.compile(lambda x: chained(layers, x).square().mean()), list(layers.parameters())
    loss = compiled(x)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    close(torch.autograd.grad(loss, leaves), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves)
    loss = compiled(x)
    with torch.no_grad():
        layers[7].up.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert differentiated == [True]


@pytest.mark.parametrize("written", ["input", "result"])
def test_what_the_program_writes_before_the_backward(written):
    """Memory that it has, of which what goes on between layers is a view: as in eager, error or not."""
    layers = blocks()

    def program(x):
        y = (x * 2).transpose(0, 1) if written == "result" else x.view(2, 5, 16)
        shown = y.transpose(0, 1)
        return chained(layers, y).square().mean(), shown.detach() if written == "result" else shown.sum().detach()

    def outcome(fn):
        x = torch.linspace(-1, 1, 160).reshape(2, 5, 16).clone()
        loss, other = fn(x)
        (x if written == "input" else other).mul_(-3)
        try:
            return torch.autograd.grad(loss, list(layers.parameters()))
        except RuntimeError as error:
            return str(error)[:20]

    expected, got = outcome(program), outcome(jit.compile(program))
    assert type(expected) is type(got)
    if isinstance(expected, tuple):
        close(got, expected)


def test_second_derivatives(differentiated):
    layers, x = blocks(make=Plain).double(), torch.randn(2, 3, 16, dtype=torch.float64)
    leaves = [layers[0].up.weight, layers[11].norm.weight, layers[LAYERS - 1].down.weight]

    def twice(program):
        grads = torch.autograd.grad(program(x), leaves, create_graph=True)
        return grads, torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)

    expected = twice(lambda x: chained(layers, x).square().mean())
    close(twice(jit.compile(lambda x: chained(layers, x).square().mean())), expected)
    assert differentiated[0]


def test_half_types_and_results_beside_the_loss(found):
    layers, x = blocks().bfloat16(), torch.randn(2, 5, 16, dtype=torch.bfloat16)

    def program(x):
        y = chained(layers, x)
        return y.float().square().mean(), y

    (loss, y), (expected, wanted) = jit.compile(program)(x), program(x)
    torch.testing.assert_close((loss, y), (expected, wanted), atol=0.2, rtol=0.05)
    assert y.requires_grad and found
    (y.float().sum() + loss).backward()
    assert all(p.grad is not None for p in layers.parameters())


SCRIPT = """
import torch, jit
from jit.frame.dispatch import captures_so_far
from test_repeated_layers import blocks
layers = torch.nn.Sequential(*blocks())
with torch.no_grad():
    print(jit.compile(layers)(torch.ones(2, 5, 16)).double().sum().item(), captures_so_far())
"""


def test_a_second_process_has_it_too(tmp_path):
    environment = {**os.environ, "JIT_CACHE_DIR": str(tmp_path), "JIT_ENTRY_CACHE": "1",
                   "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    printed = [subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True,
                              timeout=300, check=True).stdout.split() for _ in range(2)]
    assert [count for _, count in printed] == ["1", "0"] and printed[0][0] == printed[1][0]
