"""Operations over dtypes and layouts, with infinities, NaN and signed zeros among the values: values, dtypes, strides
and errors of eager."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import jit

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
          torch.bool]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 3e-6, torch.float64: 1e-12}
SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.5, 1e-6, 88.0, 1e4])


def values(dtype, shape, seed=7):
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    x = torch.randn(shape, generator=generator) * 2
    special = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=generator)]
    if not dtype.is_floating_point:
        special = torch.randint(0, 4, shape, generator=generator).float()
        x = (x * 50).abs()
    return torch.where(torch.rand(shape, generator=generator) < 0.4, special, x).to(dtype)


def layouts(dtype):
    yield "scalar", values(dtype, ())
    yield "rows", values(dtype, (3, 5))
    yield "transposed", values(dtype, (5, 3)).t()
    yield "gaps", values(dtype, (6, 10))[::2, 1::2]
    yield "channels_last", values(dtype, (2, 4, 2, 6)).contiguous(memory_format=torch.channels_last)
    yield "empty", values(dtype, (0, 3))
    yield "expanded", values(dtype, (3, 1)).expand(3, 4)


OPS = {
    "floor": torch.floor, "round": torch.round, "trunc": torch.trunc, "bitwise_not": torch.bitwise_not,
    "hypot": lambda x: torch.hypot(x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.3), "threshold": lambda x: F.threshold(x, 1, 5), "root": lambda x: x**0.5,
    "rpow": lambda x: 2**x,
    "logsigmoid": F.logsigmoid, "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]), "instance_norm": F.instance_norm,
    "roll": lambda x: x.roll((1, 2), (0, 1)),
    "norm": lambda x: x.norm(), "norm_dim": lambda x: x.norm(2, -1), "normalize": lambda x: F.normalize(x, dim=-1),
    "l1_of_bool": lambda x: F.l1_loss(x, x > 0),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2), "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "diag_embed": lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1), torch.diag_embed(x, -2, 0, 1),
                             torch.diag_embed(x, 0, 0, -1), torch.diag_embed(x, 1, -1, 0)),
    "diag": lambda x: (torch.diag(x), torch.diag(x, 1), torch.diag(x[0], -1), torch.diagflat(x, 1)),
    "rot90": lambda x: (torch.rot90(x), torch.rot90(x, 2), torch.rot90(x, 3, (1, 0)), torch.rot90(x, -1, (-1, 0)),
                        torch.rot90(x, 4)),
    "stacks": lambda x: (torch.column_stack([x, x]), torch.column_stack([x.reshape(-1)] * 2), torch.dstack([x, x]),
                         torch.block_diag(x, x)),
    "select_scatter": lambda x: (torch.select_scatter(x, x.select(0, 0), 0, -1),
                                 torch.select_scatter(x, x.select(1, 0), 1, 1)),
    "slice_scatter": lambda x: (torch.slice_scatter(x, x[:2], 0, 1, 3), torch.slice_scatter(x, x[:, :1], 1, 2, 3),
                                torch.slice_scatter(x, x[:2], 0, 0, 4, 2)),
    "glu": lambda x: (F.glu(x[:, :4], 1), F.glu(x[:2], 0)), "glu_odd": lambda x: F.glu(x, 0),
    "prelu": lambda x: (F.prelu(x, torch.tensor([0.25], dtype=x.dtype)),
                        F.prelu(x, torch.arange(x.shape[1], dtype=x.dtype)),
                        F.prelu(x, torch.tensor(0.3, dtype=x.dtype))),
    "cosine_similarity": lambda x: (F.cosine_similarity(x, x + 1, dim=-1), F.cosine_similarity(x * 0, x, dim=0)),
    "margins": lambda x: (F.soft_margin_loss(x, x.detach()), F.margin_ranking_loss(x, x + 1, x),
                          F.triplet_margin_loss(x, x + 1, x - 1, swap=True)),
    "poisson": lambda x: (F.poisson_nll_loss(x, x), F.poisson_nll_loss(x, x, log_input=False, reduction="none"),
                          F.poisson_nll_loss(x, x, full=True)),
    "distance": lambda x: (F.pairwise_distance(x, x + 1), F.pairwise_distance(x, x + 1, p=1, keepdim=True)),
    "nansum": lambda x: (x.nansum(), x.nansum(-1, keepdim=True), torch.nansum(x, 0, dtype=torch.float32)),
    "nanmean": lambda x: (x.nanmean(), x.nanmean(-1), torch.nanmean(x, -1, dtype=torch.float64)),
    "sinc": torch.sinc, "logaddexp2": lambda x: torch.logaddexp2(x, x + 1),
    "heaviside": lambda x: (torch.heaviside(x, x + x), torch.heaviside(x, torch.tensor(0.5))),
    "infinite": lambda x: (torch.isposinf(x), torch.isneginf(x), torch.isreal(x)),
}


def same(got, want, where):
    if isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            same(g, w, where)
        return
    assert got.dtype == want.dtype and got.shape == want.shape, where
    assert not want.numel() or got.stride() == want.stride(), (where, got.stride(), want.stride())
    tolerance = TOLERANCE.get(want.dtype, 0)
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True,
                               msg=lambda text: f"{where}: {text}")


@pytest.mark.parametrize("name", OPS)
def test_dtypes_and_layouts(name):
    fn = OPS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            for layout, x in layouts(dtype):
                try:
                    want = fn(x)
                except Exception as error:
                    with pytest.raises((type(error), jit.Unsupported)):
                        jit.compile(fn, backend="eager", fullgraph=True)(x)
                else:
                    same(jit.compile(fn, backend="eager", fullgraph=True)(x), want, (dtype, layout))


DIFFERENTIABLE = ["pixel_shuffle", "pixel_unshuffle", "diag_embed", "diag", "rot90", "select_scatter", "slice_scatter",
                  "prelu", "cosine_similarity", "margins", "poisson", "distance", "nanmean", "sinc", "logaddexp2",
                  "stacks", "glu", "roll", "rms_norm", "logsigmoid"]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_kernels_and_gradients(name):
    fn, shape = OPS[name], (2, 4, 2, 6) if "pixel" in name else (4, 6)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).double()
    x.view(-1)[:2] = 0

    def outcome(f):
        leaf = x.clone().requires_grad_()
        results = f(leaf)
        results = results if isinstance(results, tuple) else (results,)
        sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum()
            for r in results if r.requires_grad).backward()
        return (*[r.detach() for r in results], leaf.grad)

    same(outcome(jit.compile(fn, fullgraph=True)), outcome(fn), name)
