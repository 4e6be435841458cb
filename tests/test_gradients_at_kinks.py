"""Gradients where a function has a corner, a tie, a limit or no finite value: PyTorch's conventions, for each function
that we expand ourselves."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from autodiff_harness import differentiable

import jit

BACKENDS = ["eager", "jit"]
POINTS = [0.0, 1.0, -1.0, 6.0, 3.0, -3.0, 0.5, -0.5, 2.0, -2.0, 20.0, 1e30, -1e30, float("inf"), float("nan"), 0.2]
ONE = torch.ones(64)
NO = torch.zeros(64)
POINTWISE = {
    name: getattr(F, name)
    for name in """relu relu6 hardtanh hardsigmoid hardswish leaky_relu elu selu celu silu mish softplus softsign
tanhshrink hardshrink softshrink logsigmoid glu tanh sigmoid""".split()}
POINTWISE |= {
    name: getattr(torch, name)
    for name in """abs sign floor trunc round sqrt rsqrt log log1p expm1 asin acosh frac erf nan_to_num sinc i0
    rad2deg digamma lgamma reciprocal""".split()}
POINTWISE |= {
    "threshold": lambda x: F.threshold(x, 0.5, 20.0),
    "gelu": lambda x: F.gelu(x.nan_to_num(posinf=7.0)),  # eager's own kernels differ at infinity
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp(max=1),
    "clamp_tensors": lambda x: x.clamp(NO, ONE),
    "clamp_by_itself": lambda x: NO.clamp(x, x * 2),
    "clamp_by_equal": lambda x: x.clamp(x - (x > 0).float(), x + (x < 1).float()),
    "clamp_crossed": lambda x: x.clamp(ONE, NO) + torch.clamp(ONE, x, NO) + torch.clamp(NO, ONE, x),
    "atan2": lambda x: torch.atan2(x, x * 0),
    "pow_0": lambda x: x**0,
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_minus_1": lambda x: x**-1,
    "pow_tensor": lambda x: x.abs() ** x,
    "pow_of_2": lambda x: 2**x,
    "pow_of_0": lambda x: 0.0**x,
    "xlogy": lambda x: torch.xlogy(x, x),
    "maximum": lambda x: torch.maximum(x, NO),
    "minimum": lambda x: torch.minimum(x, NO),
    "fmax": lambda x: torch.fmax(x, NO),
    "fmin": lambda x: torch.fmin(NO, x),
    "fmax_of_nan": lambda x: torch.fmax(NO / NO, x) + torch.fmin(x, NO / NO),
    "where": lambda x: torch.where(x > 0, x.sqrt(), x * 0),
    "fmod": lambda x: torch.fmod(x, 1.5),
    "remainder": lambda x: torch.remainder(x, 1.5),
    "logit": lambda x: torch.logit(x, eps=0.1),
    "hypot": lambda x: torch.hypot(x, x * 0),
    "logaddexp": lambda x: torch.logaddexp(x, x * 0),
    "copysign": lambda x: torch.copysign(x, -x),
    "addcdiv": lambda x: torch.addcdiv(x, x, x),
    "huber": lambda x: F.huber_loss(x, x * 0, reduction="none") + F.huber_loss(NO, x, delta=2.0, reduction="none"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 0, reduction="none")
        + F.smooth_l1_loss(NO, x, beta=2.0, reduction="none"),
    "l1": lambda x: F.l1_loss(x, x * 0, reduction="none") + F.l1_loss(NO, x, reduction="none"),
    "mse": lambda x: F.mse_loss(x, NO, reduction="none"),
    "bce_logits": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()),
    "hinge": lambda x: F.hinge_embedding_loss(x, (x > 0).float() * 2 - 1),
    "margin": lambda x: F.margin_ranking_loss(x, x, ONE),
}
ROWS = {name: (lambda z, name=name: getattr(z, name)())
        for name in "sum mean prod amax amin max min std var norm median trace msort".split()}
ROWS |= {name + "_rows": (lambda z, name=name: getattr(z, name)(1))
         for name in "sum mean prod amax amin std var logsumexp softmax log_softmax cumsum cumprod".split()}
ROWS |= {
    "max_rows": lambda z: z.max(1).values,
    "min_columns": lambda z: z.min(0, keepdim=True).values,
    "median_rows": lambda z: z.median(1).values,
    "norm_1": lambda z: z.norm(1),
    "norm_3": lambda z: z.norm(3),
    "norm_inf": lambda z: z.norm(float("inf")),
    "norm_rows": lambda z: z.norm(dim=1),
    "vector_norm": lambda z: torch.linalg.vector_norm(z, dim=1, keepdim=True),
    "norm_1.5": lambda z: z.norm(1.5, dim=0),
    "normalize": F.normalize,
    "rms_norm": lambda z: F.rms_norm(z, (4,)),
    "cdist": lambda z: torch.cdist(z, z),
    "aminmax": lambda z: sum(torch.aminmax(z)),
    "nanmean": lambda z: z.nanmean(),
    "pairwise_distance": lambda z: F.pairwise_distance(z, z),
    "cosine_similarity": lambda z: F.cosine_similarity(z, z),
    "std_mean": lambda z: torch.std_mean(z, 1)[0],
    "sort": lambda z: z.sort(1)[0],
    "cummax": lambda z: z.cummax(1).values,
    "max_pool": lambda z: F.max_pool1d(z, 2),
    "minus_inf_softmax": lambda z: torch.softmax(z - float("inf"), 1),
    "embedding_padding": lambda z: F.embedding(torch.tensor([0, 1, 1]), z, padding_idx=1),
}
# Which fill the vectors of eager's kernels: of NaN they make something else than their last elements
CASES = [(name, fn, POINTS * 4) for name, fn in POINTWISE.items()]
CASES += [(f"{name}-{kind}", fn, z) for name, fn in ROWS.items()
          for kind, z in (("zeros", [[0.0] * 4] * 3), ("ties", [[1.0, 1, 2, 0], [0, 0, 0, -1], [3, 3, 3, 3]]),
                          ("unbounded", [[float("nan"), 1, 0, 2], [float("inf"), -1, 2, 0], [0, 1, -float("inf"), 3]]))]


# On the eager backend PyTorch itself differentiates the expansion of what is not finite.
@pytest.mark.parametrize("name, fn, points, backend",
                         [pytest.param(*case, backend, id=f"{case[0]}-{backend}") for case in CASES
                          for backend in BACKENDS if not (case[0].endswith("-unbounded") and backend == "eager")])
def test_gradient(name, fn, points, backend):
    if name.startswith("aminmax") and not differentiable(lambda x: torch.aminmax(x).max):
        pytest.skip("this PyTorch has no derivative of it")

    def run(f):
        x = torch.tensor(points, requires_grad=True)
        y = f(x)
        (y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum().backward()
        return y.detach(), x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, got = run(fn), run(jit.compile(fn, backend=backend))
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-5, equal_nan=True)
