"""Layers that draw random numbers are compiled once on a GPU, too."""

import jit
import pytest
import torch
from test_repeated_layers import LAYERS, found
from test_repeated_random import Net, kernels_of, run

assert found  # a fixture
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["dropout", "noise"])
def test_the_numbers_of_the_whole(found, grad, kind):
    model, x = Net(kind=kind).cuda(), torch.randn(8, 40, 16, device="cuda", requires_grad=grad)
    parts = jit.compile(lambda x: model(x))
    got = [run(parts, model, x, grad, seed) for seed in (5, 5, 6)]
    assert len(found) == 1 and found[0][0] >= LAYERS - 2
    with jit.config.patch(siblings=False):
        whole = jit.compile(lambda x: model(x))
        expected = [run(whole, model, x, grad, seed) for seed in (5, 5, 6)]
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(got[0], got[1], atol=1e-4, rtol=1e-4)
    assert not torch.equal(got[0][0], got[2][0])


@pytest.mark.parametrize("grad", [False, True])
def test_kernels_are_the_same_ones(grad):
    counts = [kernels_of(Net(n).cuda(), torch.randn(8, 40, 16, device="cuda"), grad) for n in (3, 9)]
    assert counts[0] == counts[1] > 0
