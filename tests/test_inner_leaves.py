"""Tensors that a compiled function makes to differentiate with respect to them, with gradients of its parameters
beside: one graph where nobody has them behind the call, and eager where somebody has."""

import pytest
import torch
from torch import nn

import jit

torch.manual_seed(0)
CRITIC = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
GENERATOR = nn.Linear(3, 4)
PARAMETERS = [*CRITIC.parameters(), *GENERATOR.parameters()]
kept: list = []


def penalty(real, noise, mix):
    fake = GENERATOR(noise)
    between = (mix * real + (1 - mix) * fake).detach().requires_grad_()
    slope, = torch.autograd.grad(CRITIC(between).sum(), between, create_graph=True)
    return CRITIC(fake).mean() - CRITIC(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def several(real, noise, mix):
    x = real.clone().requires_grad_()
    out = CRITIC(x)
    slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out, slope, slope.square().sum()


def by_backward(real, noise, mix):
    x = real.detach().clone().requires_grad_(True)
    CRITIC(x).sum().backward()
    return (CRITIC(real) * x.grad.sum(1, keepdim=True)).sum()


def without_history(real, noise, mix):
    with torch.no_grad():
        target = CRITIC(real)
    target.requires_grad_()
    return (CRITIC(real) * target).sum()


def returned(real, noise, mix):
    x = real.clone().requires_grad_()
    return CRITIC(x).sum(), x


def shown_by_a_view(real, noise, mix):
    x = real.clone().requires_grad_()
    return CRITIC(x).sum(), x[0]


def stored(real, noise, mix):
    x = real.clone().requires_grad_()
    kept.append(x)
    return CRITIC(x).sum()


def of_nothing_else(real, noise, mix):
    x = real.clone().requires_grad_()
    return (x * 2).sum()


def run(fn, *args):
    """Results, whether they require grad, and all gradients that a backward through them leaves."""
    kept.clear()
    for p in PARAMETERS:
        p.grad = None
    results = fn(*args)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.square().sum() for r in results).backward()
    return ([r.detach().clone() for r in results], [r.requires_grad for r in results],
            [p.grad for p in PARAMETERS], [t.grad for t in (*kept, *results) if t.is_leaf])


WHOLE = (penalty, several, by_backward, without_history)
EAGER = (returned, shown_by_a_view, stored, of_nothing_else)


@pytest.mark.parametrize("fn", WHOLE + EAGER)
@pytest.mark.filterwarnings("ignore")
def test_as_eager(fn):
    jit.reset()
    before = jit.compile_count()
    compiled = jit.compile(fn)
    for rows in (5, 5, 7, 1):
        args = torch.randn(rows, 8)[:, ::2], torch.randn(3, rows).t(), torch.rand(rows, 1)
        for expected, found in zip(run(fn, *args), run(compiled, *args)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (jit.compile_count() > before) is (fn in WHOLE)
