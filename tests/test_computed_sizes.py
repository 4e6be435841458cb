"""Integers that a program computes from sizes by way of floats: one program for all sizes, with eager's results."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit import api, arguments
from jit.frame.dispatch import Settings

SIZES = (50, 60, 70, 81, 94, 33, 64, 57, 120, 41, 7)


def check(fn, limit=2, sizes=SIZES, atol=1e-4, shape=lambda n: (2, 3, n, n + 7)):
    compiled = jit.compile(fn)
    for n in sizes:
        x = torch.randn(shape(n), requires_grad=True)
        want, got = fn(x), compiled(x)
        torch.testing.assert_close(got, want, atol=atol, rtol=1e-4)
        assert got.stride() == want.stride()
        if want.requires_grad:
            grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (want, got)]
            torch.testing.assert_close(grads[1], grads[0], atol=1e-2, rtol=1e-3)
    captures = compiled.on_miss.captures
    assert len(captures) <= limit and not any(c.breaks for c in captures), [c.breaks for c in captures]
    return compiled


@pytest.mark.parametrize("options", [
    dict(scale_factor=1.5, mode="bilinear", align_corners=False), dict(scale_factor=0.7, mode="nearest"),
    dict(scale_factor=0.7, mode="bilinear", align_corners=True), dict(scale_factor=(0.5, 1.3), mode="bicubic"),
    dict(scale_factor=1.5, mode="bilinear", recompute_scale_factor=True), dict(scale_factor=2.0, mode="nearest"),
    dict(scale_factor=0.6, mode="nearest-exact")], ids=str)
def test_images_of_any_size_are_resized_by_a_factor(options):
    check(lambda x: F.interpolate(x, **options))


def test_a_module_that_resizes():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Upsample(scale_factor=0.75), nn.ReLU(), nn.Conv2d(4, 2, 3))
    check(lambda x: net(x))


def test_a_factor_that_follows_from_the_sizes():
    def fit(x):
        h, w = x.shape[-2:]
        factor = min(80 / min(h, w), 160 / max(h, w))
        return F.interpolate(x, scale_factor=factor, mode="bilinear", recompute_scale_factor=True)

    check(fit, 3)


@pytest.mark.parametrize("fn", [math.floor, math.ceil, math.trunc, int, round], ids=lambda f: f.__name__)
def test_each_way_to_round(fn):
    def part(x):
        n, m = fn(x.shape[2] * 0.37), fn(math.sqrt(x.shape[3]) * 1.9 + x.shape[2] / 3)
        return x[:, :, n:].sum((0, 1)) * m + x.new_zeros(m, 1, 1).sum(0) + n

    check(part, 2, atol=1e-2)


def test_an_integer_of_an_integer():
    def halves(x):
        n = int(x.shape[2] * 0.9)
        m = int(n * 0.9)
        return x[:, :, :m] * n + m * 2

    check(halves, 2)


def test_sizes_of_several_tensors_are_numbers():
    def both(x, y):
        return x.new_ones(int(x.shape[0] * 0.5 + y.shape[0] * 0.25))

    compiled = jit.compile(both)
    for n in (8, 12, 9, 20, 31):
        x, y = torch.ones(n), torch.ones(2 * n + 1)
        assert torch.equal(compiled(x, y), both(x, y))


def test_what_is_compared_is_guarded():
    def side(x):
        h, w = x.shape
        return x * 2 if h / 3 < w / 2 else x.t() - h

    compiled = jit.compile(side)
    for h, w in ((6, 9), (7, 9), (12, 3), (8, 20), (30, 10), (6, 4), (9, 6), (10, 6)):
        x = torch.randn(h, w)
        torch.testing.assert_close(compiled(x), side(x))


def test_few_elements_are_left():
    def few(x):
        return x[: int(len(x) * 0.1)].sum() + torch.ones(int(len(x) * 0.1), 1).expand(-1, 3).sum()

    compiled = jit.compile(few)
    for n in (40, 50, 61, 9, 3, 15, 19, 80, 0, 11):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), few(x))


def test_a_slice_and_a_transposed_tensor():
    def cut(x):
        return F.interpolate(x, scale_factor=0.55, mode="nearest") + int(x.size(-1) * 0.55)

    compiled = jit.compile(cut)
    for n in SIZES:
        for x in (torch.randn(1, 2, 2 * n, n)[:, :, ::2], torch.randn(1, 2, n, n + 3).mT,
                  torch.randn(1, 1, n, 1).expand(1, 2, n, n), torch.randn(0, 2, n, n)):
            want, got = cut(x), compiled(x)
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


def test_the_sizes_of_parameters_stay_numbers():
    """What goes on after a break, and has a model as an argument, computes with one size that varies, and not with
    those of its weights."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4)
            self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, 2, 1) for _ in range(6))

        def forward(self, x):
            x = self.norm(x)
            jit.graph_break()
            for layer in self.layers:
                x = layer(x).relu()
            return x.mean((2, 3))

    torch.manual_seed(0)
    net = Net().eval()
    seen = []
    settings = Settings(api._backend(None), on_capture=seen.append, options=arguments.all_options(None, None))
    compiled = api.compiled_with(net, settings)
    with torch.no_grad():
        for n in (64, 80, 100, 130):
            x = torch.randn(2, 4, n, n + 8)
            torch.testing.assert_close(compiled(x), net(x))
    weights = [node.type for c in seen if c.graph is not None for node in c.graph.inputs
               if node.type.shape[-2:] == (3, 3) or node.type.rank == 1]
    assert weights and all(type(n) is int for t in weights for n in t.shape)
