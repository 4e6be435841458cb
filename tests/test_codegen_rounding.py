"""``config.match_eager_rounding``: half-precision kernels give eager's very bits, whatever has been fused."""

import math

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
    "divisions": lambda x, y: torch.div(x, y, rounding_mode="trunc") + torch.div(x, y, rounding_mode="floor") * 0.3
        + torch.fmod(x, y) + torch.remainder(x, y),
    "logarithms": lambda x, y: torch.xlogy(x, y.abs()) + torch.logaddexp(x, y) * 0.3,
    "losses": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")
        + F.smooth_l1_loss(x, y, reduction="none"),
    "indexed": lambda x, y: (x * 0.3)[:, torch.tensor([3, 1, 2])] * 0.7
        + torch.gather(y * 0.1, 1, torch.zeros(16, 3, dtype=torch.int64)),
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


NUMBERS = {
    "where": lambda x: x / torch.where(x > 5, x, 1e-12),
    "masked_fill": lambda x: x / x.masked_fill(x < 5, 1e-12),
    "clamp_min": lambda x: x / x.clamp_min(1e-12),
    "clamp": lambda x: 1 / x.clamp(-1e-12, 1e-12).abs(),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "full_like": lambda x: x / torch.full_like(x, 1e-12),
    "nan_to_num": lambda x: x / torch.nan_to_num(x / 0, 1e-12),
    "threshold": lambda x: x / torch.nn.functional.threshold(x, 3.0, 1e-12),
    "pad": lambda x: (1 / torch.nn.functional.pad(x, (1, 1), value=1e-12)),
    "index_fill": lambda x: x / x.index_fill(0, torch.tensor([0], device=x.device), 1e-12),
    "a rounded limit": lambda x: (x * 0.1).clamp_min(0.1) * 1024,
}


@pytest.mark.parametrize(
    "device",
    ["cpu",
     pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_among_halves_are_halves(name, dtype, device):
    """A number that becomes an element is rounded to what elements are, and may be zero then."""
    fn = NUMBERS[name]
    compiled = jit.compile(fn)
    for shape in ((2, 3), (4, 5), (3, 4)):
        for x in (torch.arange(-1.0, math.prod(shape) - 1).view(shape), torch.zeros(shape[::-1]).t()):
            x = x.to(device, dtype)
            torch.testing.assert_close(compiled(x), fn(x), equal_nan=True, rtol=0.02, atol=1e-3)
