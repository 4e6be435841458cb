"""Pooling, resizing, padding, sampling and unfolding on a CUDA device, against eager."""

import pytest
import torch
import torch.nn.functional as F

import jit
from jit import devices

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PROGRAMS = {
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "largest": lambda x: F.max_pool2d(x, 3, 2, 1),
    "positions": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "separated": lambda x: F.max_pool2d(x, 5, 1, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (5, 14)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, (37, 20), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "smoothed": lambda x: F.interpolate(x, (15, 20), mode="bilinear", antialias=True),
    "reflected": lambda x: F.pad(x, (2, 3, 1, 2), mode="reflect"),
    "circular": lambda x: F.pad(x, (2, 3, 1, 2), mode="circular"),
    "columns": lambda x: F.unfold(x, 3, padding=1),
    "samples": lambda x: F.grid_sample(x, x[:, :2].tanh().permute(0, 2, 3, 1), padding_mode="border",
                                       align_corners=False),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(monkeypatch, name, last):
    limits = devices.of_type("cuda").window_limits
    monkeypatch.setattr(type(devices.of_type("cuda")), "window_limits",
                        {**limits, **dict.fromkeys(("sample", "smoothed", "smoothed back", "shares"), 64)})
    f, generator = PROGRAMS[name], torch.Generator().manual_seed(1)
    x = torch.randn(4, 20, 28, 30, generator=generator).cuda()
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    got, want = jit.compile(f)(mine), f(theirs)
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    g = torch.randn(want[0].shape, generator=generator).cuda()
    got[0].backward(g)
    want[0].backward(g)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("images", [7, 40])
def test_means_of_uneven_shares(images, dtype):
    """Of windows of three or four elements: whose third of a vector belongs to the next one is computed in 16 bits."""
    x = torch.randn(images, 64, 56, 56, device="cuda", dtype=dtype)
    got, want = jit.compile(lambda x: F.adaptive_avg_pool2d(x, 20))(x), F.adaptive_avg_pool2d(x, 20)
    torch.testing.assert_close(got, want)
