"""Operators that have no kernel for tensors without data, and random ones: their types are asked of the CPU's kernels,
and a size that follows from values is not taken for one that follows from sizes."""

import pytest
import torch
from torch.nn import functional as F

import jit
from jit.graph.probe import StandIns

WHOLE = {
    "binomial": lambda x: torch.binomial(torch.full_like(x, 5.0), x.abs().clamp(0, 1)),
    "dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 0.5),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 0.5),
    "poisson": lambda x: torch.poisson(x.abs()),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "masked softmax": lambda x: torch._masked_softmax(x, x > 0),
    "sampled and rated": lambda x: torch.distributions.Dirichlet(x.abs() + 0.5).rsample(),
    "one-hot": lambda x: F.one_hot((x.abs() * 2).long().clamp(0, 3), 4),
    "a category": lambda x: torch.distributions.OneHotCategorical(logits=x).sample((2,)),
}
OF_VALUES = {
    "bincount": lambda i: torch.bincount(i, minlength=4), "of weights": lambda i: torch.bincount(i, i.double(), 9),
    "unique": lambda i: torch.unique_consecutive(i), "repeated": lambda i: torch.repeat_interleave(i),
    "where": lambda i: torch.nonzero(i - 1), "chosen": lambda i: torch.masked_select(i, i > 2),
    "classes": lambda i: F.one_hot(i),
}


def run(fn, x, grad):
    torch.manual_seed(0)
    x = x.clone().requires_grad_(grad)
    made = fn(x)
    gradient = None
    if made.requires_grad:
        try:
            (made * torch.linspace(0.5, 1.5, made.numel()).view(made.shape)).sum().backward()
            gradient = x.grad
        except RuntimeError as error:  # some have no derivative
            gradient = str(error)
    return made, (made.stride(), made.requires_grad, type(gradient)), gradient


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_sizes_that_follow_from_sizes(name, grad, eager_numbers):
    fn = WHOLE[name]
    compiled = jit.compile(fn, fullgraph=True)
    for x in (torch.randn(6, 4), torch.randn(4, 6).t(), torch.randn(5, 4), torch.randn(3, 8)[:, ::2],
              torch.randn(3, 1).expand(3, 4)):
        (made, about, gradient), (expected, *others) = run(compiled, x, grad), run(fn, x, grad)
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert about == others[0]
        if isinstance(gradient, str):
            assert gradient == others[1]
        else:
            torch.testing.assert_close(gradient, others[1], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", OF_VALUES)
def test_sizes_that_follow_from_values(name):
    compiled = jit.compile(OF_VALUES[name])
    for values in ([1, 2, 1], [1, 7, 300], [5], [], list(range(50)), [1, 1, 1]):
        i = torch.tensor(values, dtype=torch.int64)
        try:
            expected = OF_VALUES[name](i)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:30]):
                compiled(i)
            continue
        torch.testing.assert_close(compiled(i), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.bool])
def test_the_values_that_are_tried_fit_every_dtype(dtype):
    made = torch.zeros(3, dtype=dtype)
    for fill in (0, 1, None, 1 << 20):
        StandIns(fill).fill_in(made)
        assert made.isfinite().all()
