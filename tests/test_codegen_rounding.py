"""``config.match_eager_rounding``: half-precision kernels give eager's very bits, whatever has been fused."""

import pytest
import torch
import torch.nn.functional as F

import jit
from jit import config

torch.manual_seed(0)
X, Y = torch.randn(16, 24), torch.randn(16, 24)

CALLS = {
    "chain": lambda x, y: ((x * y + y) * 3 - x).sigmoid() * y,
    "polynomial": lambda x, y: x * 0.1 + x * x * 0.2 + x * x * x * 0.3,
    "full": lambda x, y: x * torch.full_like(x, 0.1) + torch.arange(24, dtype=x.dtype) * 0.3,
    "sum_then_more": lambda x, y: x - x.sum(1, keepdim=True) * 0.37,
    "mean_then_more": lambda x, y: (x - x.mean(0)) * (y.mean(0) * 1.7),
    "maximum_then_more": lambda x, y: (x - x.amax(1, keepdim=True)).exp() * y,
    "cumsum_then_more": lambda x, y: x.cumsum(1) * 0.3 + y,
    "softmax_then_more": lambda x, y: x.softmax(-1) * y + x.softmax(0),
    "norms": lambda x, y: F.layer_norm(x, (24,)) * y + F.gelu(x) * 0.7,
    "moved": lambda x, y: torch.cat([x * 0.1, y * 0.3], 1)[:, ::2] * 0.7 + (x * y).t().contiguous().t() * 0.3,
    "where": lambda x, y: torch.where(x > 0, x * 0.3, y * 0.7) * 1.1 + F.pad(x * 0.3, (1, 1))[:, 1:-1],
    "divisions": lambda x, y: torch.div(x, y, rounding_mode="trunc") + torch.div(x, y, rounding_mode="floor") * 0.3 + torch.fmod(x, y) + torch.remainder(x, y),
    "logarithms": lambda x, y: torch.xlogy(x, y.abs()) + torch.logaddexp(x, y) * 0.3,
    "losses": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none") + F.smooth_l1_loss(x, y, reduction="none"),
    "indexed": lambda x, y: (x * 0.3)[:, torch.tensor([3, 1, 2])] * 0.7 + torch.gather(y * 0.1, 1, torch.zeros(16, 3, dtype=torch.int64)),
    "in_place": lambda x, y: x.mul(0.3).add_(y).mul_(0.7).sub_(0.1),
}


@pytest.fixture
def exact():
    config.match_eager_rounding = True
    jit.reset()
    yield
    config.match_eager_rounding = False
    jit.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CALLS)
def test_bits(name, dtype, exact):
    fn = CALLS[name]
    x, y = X.to(dtype), Y.to(dtype)
    want, got = fn(x.clone(), y.clone()), jit.compile(fn, fullgraph=True)(x, y)
    assert want.dtype == got.dtype
    off = (want != got) & ~(want.isnan() & got.isnan())
    assert not off.any(), f"{int(off.sum())} of {off.numel()} differ, by {float((want - got).abs().max())}"
