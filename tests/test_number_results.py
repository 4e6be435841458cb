"""Operators that return numbers beside tensors, inside compiled functions."""

import pytest
import torch

import jit
from jit import explain


@torch.library.custom_op("jit_numbers::counted", mutates_args=())
def counted(x: torch.Tensor) -> tuple[torch.Tensor, int, float]:
    return x * 2, int((x > 0).sum()), 2.5


@counted.register_fake
def _(x):
    return torch.empty_like(x), 0, 0.0


counted.register_autograd(lambda ctx, grad, count, factor: grad * 2, setup_context=lambda ctx, inputs, output: None)

LIBRARY = torch.library.Library("jit_numbers", "FRAGMENT")
LIBRARY.define("shifted(Tensor x, SymInt k) -> (Tensor, SymInt, bool)")
LIBRARY.impl("shifted", lambda x, k: (x.sin() * k, k + x.shape[0], k > 2), "CPU")
LIBRARY.impl("shifted", lambda x, k: (torch.empty_like(x), k + x.shape[0], k > 2), "Meta")
SHAPES = ((3, 4), (5, 4), (7, 4), (0, 4))


def unused(x):
    return torch.ops.jit_numbers.counted(x.sin())[0].cos()


def returned(x):
    y, count, factor = torch.ops.jit_numbers.counted(x.sin())
    return y.cos(), count, factor


def operands(x):
    y, count, factor = torch.ops.jit_numbers.counted(x.sin())
    return y.cos() * count + factor, count, factor


def stored(x):
    kept = {}
    y, kept["count"], _ = torch.ops.jit_numbers.counted(x.cos())
    return y.sin() + 1, kept


def normalised(x):
    made = torch._batch_norm_impl_index(x, None, None, None, None, True, 0.1, 1e-5, False)
    return made[0].sin(), made[4]


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not isinstance(a, tuple) or [type(v) for v in a] == [type(v) for v in b]


@pytest.mark.parametrize("fn", [unused, returned, operands, stored])
@pytest.mark.parametrize("grad", [False, True])
def test_they_are_steps_of_the_graph(fn, grad):
    compiled = jit.compile(fn, fullgraph=True)
    for shape in SHAPES:
        for _ in range(2):
            x = torch.randn(shape, requires_grad=grad)
            other = x.detach().clone().requires_grad_(grad)
            eager, made = fn(x), compiled(other)
            same(eager, made)
            if grad:
                first = [r[0] if isinstance(r, tuple) else r for r in (eager, made)]
                for r in first:
                    r.square().sum().backward()
                same(x.grad, other.grad)


def test_an_operator_that_is_registered_by_hand():
    def fn(x):
        y, k, flag = torch.ops.jit_numbers.shifted(x.cos(), 3)
        return y + k, k, flag

    for shape in SHAPES:
        x = torch.randn(shape)
        same(fn(x), jit.compile(fn)(x))


def test_an_operator_of_pytorch():
    compiled = jit.compile(normalised, fullgraph=True)
    for rows in (4, 6, 9):
        x = torch.randn(rows, 3, 5)
        other = x.clone().requires_grad_()
        x.requires_grad_()
        eager, made = normalised(x), compiled(other)
        same(eager, made)
        for r in (eager, made):
            (r[0] * torch.arange(5.0)).sum().backward()
        same(x.grad, other.grad)


def test_a_number_that_python_needs_is_a_break():
    def fn(x):
        y, count, _ = torch.ops.jit_numbers.counted(x.sin())
        return y[:count // 2] if count > 2 else [y]

    compiled = jit.compile(fn)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(6, 1)
        same(fn(x), compiled(x))
    assert explain(fn)(x).graph_break_count >= 1
