"""Sizes that are computed from others and come to one, or to nothing, broadcast as such."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import jit

# name -> (a function of an (n, m) tensor whose result has a last dimension that depends on m, the m for which it is 1)
PROGRAMS = {
    "slice": (lambda x: x[:, 2:], 3),
    "diff": (lambda x: x.diff(), 2),
    "convolution": (lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 3))[:, 0], 3),
    "convolution in two dimensions": (lambda x: F.conv2d(x[:, None, None], torch.ones(1, 1, 1, 3))[:, 0, 0], 3),
    "pooling": (lambda x: F.max_pool1d(x[:, None], 3, 1)[:, 0], 3),
    "negative padding": (lambda x: F.pad(x, (-1, -1)), 3),
    "interpolation": (lambda x: F.interpolate(x[:, None], scale_factor=0.5)[:, 0], 2),
    "as_strided": (lambda x: x.as_strided((x.shape[0], x.shape[1] - 2), (x.shape[1], 1)), 3),
    "arange": (lambda x: torch.arange(x.shape[1] - 2)[None] + x[:, 2:], 3),
    "zeros": (lambda x: torch.zeros(x.shape[0], x.shape[1] - 2) + x[:, 2:], 3),
    "chunk": (lambda x: x.chunk(2, -1)[1], 2),
    "unflatten": (lambda x: x[:, : x.shape[1] // 2 * 2].unflatten(1, (2, x.shape[1] // 2))[:, 0], 2),
    "overlapping windows": (lambda x: x.unfold(-1, 3, 1)[..., 0], 3),
    "windows": (lambda x: x.unfold(-1, 2, 2).sum(-1), 2),
    "frequencies": (lambda x: torch.fft.rfft(x).real[:, 1:], 2),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_become_one(name, dynamic):
    made, one = PROGRAMS[name]

    def f(x, w):
        return made(x) + w

    for sizes in ((one, one + 3, one, one + 1), (8, one, 6)):
        jit.reset()
        compiled = jit.compile(f, dynamic=dynamic)
        for m in sizes:
            x = torch.randn(3, m)
            last = made(x).shape[-1]
            for w in (torch.randn(3, 5 if last == 1 else last), torch.randn(3, 1), torch.randn(5, 1, 1)):
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", "jit: .*failed")
                    got, want = compiled(x, w), f(x, w)
                torch.testing.assert_close(got, want)
                assert got.stride() == want.stride()
