"""Layers that draw random numbers are compiled once on a GPU, too."""

import pytest
import torch
from test_repeated_layers import found
from test_repeated_random import Net, kernels_of, same_numbers

assert found  # a fixture
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["dropout", "noise"])
def test_the_numbers_of_the_whole(found, grad, kind):
    model, x = Net(kind=kind).cuda(), torch.randn(8, 40, 16, device="cuda", requires_grad=grad)
    same_numbers(found, model, x, grad, atol=1e-3)


@pytest.mark.parametrize("grad", [False, True])
def test_kernels_are_the_same_ones(grad):
    counts = [kernels_of(Net(n).cuda(), torch.randn(8, 40, 16, device="cuda"), grad) for n in (3, 9)]
    assert counts[0] == counts[1] > 0
