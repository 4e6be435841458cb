"""What the tests of training steps share: a small model, and a comparison of results and states."""

import pytest
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def same(got, want, rtol=2e-5, atol=2e-6):
    if isinstance(want, torch.Tensor):
        assert got.dtype is want.dtype and got.requires_grad == want.requires_grad
        torch.testing.assert_close(got.detach(), want.detach(), rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for k in want:
            same(got[k], want[k], rtol, atol)
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w, rtol, atol)
    elif isinstance(want, float):
        assert type(got) is float and got == pytest.approx(want, rel=rtol)
    else:
        assert got == want and type(got) is type(want), (got, want)
