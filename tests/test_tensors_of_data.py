"""``torch.tensor`` of nested lists with tensors, arrays and numbers that are read, in one graph."""

import numpy as np
import pytest
import torch

import jit

PROGRAMS = [
    lambda x, n: torch.tensor(x[0].item()), lambda x, n: torch.tensor([x[0].item(), 2]),
    lambda x, n: torch.tensor([[x[0].item()], [2.0]]), lambda x, n: torch.tensor(n.item()),
    lambda x, n: torch.tensor([n.item(), 1], dtype=torch.float16), lambda x, n: torch.tensor([n.item(), True]),
    lambda x, n: torch.tensor([x[0].double().item() > 0, False]), lambda x, n: torch.as_tensor([n, n + 1]),
    lambda x, n: torch.tensor([n, x[1]]), lambda x, n: torch.tensor((x[0].item(),)),
    lambda x, n: torch.tensor([n.view(1, 1), n.view(1, 1)]), lambda x, n: torch.tensor([n, x[:1].view(1, 1)]),
    lambda x, n: torch.tensor([[x.sum(), 1], [2, x.mean()]]), lambda x, n: torch.tensor((x.max(),)),
    lambda x, n: torch.tensor([np.ones(2), np.zeros(2)]), lambda x, n: torch.tensor([x.numpy(), x.numpy() * 2]),
    lambda x, n: torch.tensor([np.float64(3), 1.5]), lambda x, n: torch.asarray([x.sum().item(), float(n)]),
    lambda x, n: torch.tensor([[n.item(), x.shape[0]], [0, 1]]),
    lambda x, n: x + torch.tensor([v * 2 for v in x.tolist()]),
]


@pytest.mark.parametrize("case", range(len(PROGRAMS)))
def test_as_in_eager(case):
    fn = PROGRAMS[case]
    compiled = jit.compile(fn, fullgraph=True)
    for k in range(3):
        x, n = torch.randn(3), torch.tensor(k)
        want, got = fn(x, n), compiled(x, n)
        assert want.dtype == got.dtype and want.stride() == got.stride()
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("fn", [lambda x: torch.tensor([x, x[:1]]), lambda x: torch.tensor([x, 1]),
                                lambda x: torch.tensor([[1], x])])
def test_what_pytorch_refuses(fn):
    for f in (fn, jit.compile(fn)):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            f(torch.ones(2))
