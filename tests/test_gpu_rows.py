"""Memory-bound functions on a CUDA device, at the sizes at which configurations change, against eager in float64."""

import pytest
import torch
import torch.nn.functional as F

import jit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WIDTHS = (64, 100, 1000, 2048, 3000, 4096, 5120, 8192, 16384, 20000, 32768, 50257, 131072)


def rms_norm(x, w):
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


ROWS = {
    "softmax": lambda x, w: torch.softmax(x, -1),
    "log_softmax": lambda x, w: torch.log_softmax(x, -1),
    "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w, w),
    "rms_norm": rms_norm,
    "residual": lambda x, w: F.layer_norm(x + w, x.shape[-1:]),
    "variance": lambda x, w: x.float().var(-1),
    "mean of squares": lambda x, w: x.float().square().mean(-1),
    "argmax": lambda x, w: x.argmax(-1),
}
COLUMNS = {
    "sum": lambda x: x.float().sum(0),
    "max": lambda x: x.amax(0),
    "variance": lambda x: x.float().var(0),
    "mean and variance": lambda x: (x.float().mean(0), x.float().var(0)),
    "all": lambda x: x.float().sum(),
    "softmax": lambda x: torch.softmax(x, 0),
    "middle": lambda x: x.unflatten(0, (-1, 8)).float().sum(1),
    "transposed": lambda x: x.t() + 1,
}


def agree(function, *given, tolerance):
    with torch.no_grad():
        got = jit.compile(function)(*given)
        want = function(*[g.double() if g.is_floating_point() else g for g in given])
    pairs = list(zip(got, want)) if isinstance(got, tuple) else [(got, want)]
    for a, b in pairs:
        if not b.is_floating_point():
            assert torch.equal(a, b)
            continue
        assert (a.double() - b.double()).norm() <= tolerance * b.double().norm() + 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", sorted(ROWS))
def test_rows(name, dtype):
    for width in WIDTHS:
        for rows in (3, max((1 << 24) // width, 300)):
            x, w = torch.randn(rows, width, device="cuda", dtype=dtype), torch.randn(width, device="cuda", dtype=dtype)
            x += 3  # a mean that is not small beside the deviation
            agree(ROWS[name], x, w, tolerance=1e-2 if dtype is torch.bfloat16 else 2e-5)
        jit.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_columns(name, dtype):
    for shape in ((16384, 4096), (64, 1 << 18), (1 << 18, 64), (800, 1000), (4096, 21), (5000, 3001), (64, 65536)):
        if name == "middle" and shape[0] % 8:
            continue
        x = torch.randn(shape, device="cuda", dtype=dtype) + 0.5
        agree(COLUMNS[name], x, tolerance=8e-3 if dtype is torch.bfloat16 else 2e-5)
    jit.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_group_norms(form, dtype):
    for shape, groups in (((8, 64, 32, 32), 32), ((3, 96, 7, 9), 4), ((64, 512, 16, 16), 32)):
        x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=form)
        w, b = (torch.randn(shape[1], device="cuda", dtype=dtype) for _ in range(2))
        agree(lambda x, w, b: F.silu(F.group_norm(x, groups, w, b)), x, w, b,
              tolerance=1e-2 if dtype is torch.bfloat16 else 1e-5)
    jit.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_norms(dtype):
    def gradients(function, *given):
        leaves = [g.detach().requires_grad_() for g in given]
        y = function(*leaves)
        return torch.autograd.grad(y, leaves, torch.ones_like(y) + y.detach() / 2)

    def norm(x, w, b):
        return F.layer_norm(x, x.shape[-1:], w, b)

    for rows, width in ((4096, 768), (1021, 1000), (16384, 4096), (700, 8192), (100000, 64)):
        given = [torch.randn(shape, device="cuda", dtype=dtype) for shape in ((rows, width), (width,), (width,))]
        for function, of in ((norm, given), (rms_norm, given[:2]), (lambda x, b: F.gelu(x + b), given[:2])):
            got = gradients(jit.compile(function), *of)
            want = gradients(function, *[g.double() for g in of])
            for a, b in zip(got, want):
                assert (a.double() - b).norm() <= (2e-2 if dtype is torch.bfloat16 else 2e-5) * b.norm()
    jit.reset()
