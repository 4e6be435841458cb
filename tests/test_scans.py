"""Running products, extrema and log-sum-exponentials, and sorted short rows: values, ties, NaN, types and gradients."""

import math

import pytest
import torch

import jit
from gpu_texts import compiled_for_gpu, library_calls
from jit.devices import backend

SCANS = {"cumprod": torch.cumprod, "cummax": lambda x, d: tuple(torch.cummax(x, d)),
         "cummin": lambda x, d: tuple(torch.cummin(x, d)), "logcumsumexp": torch.logcumsumexp,
         "several": lambda x, d: torch.cummax(x, d).values * 2 + torch.cumprod(x, d)}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8)
SORTS = {"sort": lambda x: torch.sort(x, dim=-1, stable=True),
         "descending": lambda x: torch.sort(x, dim=-1, stable=True, descending=True),
         "argsort": lambda x: torch.argsort(x, dim=-1, stable=True)}
PICKS = {"kthvalue": lambda x: torch.kthvalue(x, 3, -1), "kept": lambda x: torch.kthvalue(x, 3, -1, True),
         "topk": lambda x: torch.topk(x, 4, -1), "smallest": lambda x: torch.topk(x, 4, -1, False),
         "median": lambda x: torch.median(x, -1)}


def same(got, want, tolerance=None):
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for p, q in zip(got, want, strict=True):
        assert p.dtype is q.dtype and p.shape == q.shape and p.stride() == q.stride()
        allowed = tolerance if p.is_floating_point() else 0
        torch.testing.assert_close(p, q, rtol=allowed, atol=allowed, equal_nan=True)
        if not tolerance and p.is_floating_point():
            assert torch.equal(p.signbit() & ~p.isnan(), q.signbit() & ~q.isnan())


def values(shape, dtype):
    """Few different values, so that there are ties, and all that is special among floats."""
    x = (torch.randn(shape) * 2).round(decimals=1) if dtype.is_floating_point else torch.randint(-3, 4, shape)
    x = x.to(dtype)
    if dtype.is_floating_point and x.numel() > 9:
        x.view(-1)[:7] = torch.tensor([-math.inf, 0.0, -0.0, 1.0, math.inf, -0.0, 0.0]).to(dtype)
        x.view(-1)[-1] = math.nan
        x.view(-1)[x.numel() // 2] = math.nan
    return x


@pytest.fixture
def many_entries():
    with jit.config.patch(cache_limit=100):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, dtype, many_entries):
    fn = SCANS[name]
    if name == "logcumsumexp" and not dtype.is_floating_point:
        return
    compiled = jit.compile(fn)
    for shape in ((5, 7), (3, 200), (2, 3, 33), (70,), (4, 1), (0, 3)):
        for d in range(len(shape)):
            x = values(shape, dtype)
            for view in (x, x.mT.contiguous().mT if x.dim() > 1 else x, x[..., ::2]):
                same(compiled(view, d), fn(view, d), {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 3e-6))


@pytest.mark.parametrize("name", SCANS)
def test_scans_are_one_kernel(name):
    explained = jit.explain(lambda x: SCANS[name](x, 1))(torch.randn(64, 300))
    assert explained.launch_count == 1


@pytest.mark.parametrize("name", SCANS)
def test_gradients_of_scans(name):
    def fn(x):
        made = SCANS[name](x, 1)
        return ((made[0] if isinstance(made, tuple) else made) * torch.arange(x.shape[1])).sum()

    for shape in ((4, 9), (3, 50)):
        x = torch.randn(shape).round(decimals=1).requires_grad_()
        want, = torch.autograd.grad(fn(x), x)
        got, = torch.autograd.grad(jit.compile(fn)(x), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_changed_size():
    compiled = jit.compile(lambda x: torch.cummax(x, 1).values + torch.cumprod(x, 1), dynamic=True)
    for columns in (5, 64, 65, 1000, 1):
        x = torch.randn(3, columns)
        same(compiled(x), torch.cummax(x, 1).values + torch.cumprod(x, 1), 1e-6)


@pytest.fixture
def sorting(monkeypatch):
    """As on a GPU, whose kernels sort short rows, by the graph's Python text."""
    monkeypatch.setattr(type(backend(torch.device("cpu"))), "longest_sorted", 1024)


@pytest.mark.parametrize("name", [*SORTS, *PICKS])
def test_sorted_rows(name, sorting, many_entries):
    fn = {**SORTS, **PICKS}[name]
    compiled = jit.compile(fn, backend="eager")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32):
        for shape in ((5, 9), (3, 130), (2, 3, 17)):
            x = values(shape, dtype)
            if name in PICKS:  # which of equal values is picked is not said
                if math.prod(shape) > 120:
                    continue
                x = (torch.randperm(math.prod(shape)).view(shape) - 20).to(dtype)
                if name == "median" and dtype.is_floating_point:
                    x[0, 2:5] = math.nan
            same(tuple(compiled(x)) if name != "argsort" else compiled(x), tuple(fn(x)) if name != "argsort" else fn(x))


@pytest.mark.parametrize("name", ["sort", "descending", "kthvalue", "topk"])
def test_gradients_of_sorted_rows(name, sorting):
    fn = {**SORTS, **PICKS}[name]
    x = torch.randn(4, 32, requires_grad=True)
    want, = torch.autograd.grad(fn(x)[0].square().sum(), x)
    got, = torch.autograd.grad(jit.compile(fn, backend="eager")(x)[0].square().sum(), x)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_kernels_for_the_gpu(dtype, sorting):
    wide = torch.randn(100, 64).to(dtype)
    for fn in {**SORTS, **PICKS}.values():
        compiled = compiled_for_gpu(fn, wide)
        assert compiled and not library_calls(compiled)
    for name in ("cumprod", "cummax", "logcumsumexp"):
        for shape in ((64, 300), (4, 70000)):
            for d in (0, 1):
                compiled = compiled_for_gpu(lambda x: SCANS[name](x, d), torch.randn(shape).to(dtype))
                assert compiled and not library_calls(compiled)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_a_gpu
@pytest.mark.parametrize("name", ["cummax", "cummin", "cumprod", "logcumsumexp"])
def test_scans_on_a_gpu(name):
    """The sequential order of the CPU says which of equal extremes is named."""
    for shape in ((300, 40), (5, 5000), (2, 70000)):
        x = values(shape, torch.float32) * (0.1 if name == "cumprod" else 1)
        for d in (0, 1):
            got = jit.compile(SCANS[name])(x.cuda(), d)
            same(tuple(t.cpu() for t in got) if isinstance(got, tuple) else got.cpu(), SCANS[name](x, d), 1e-5)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", SORTS)
def test_sorted_rows_on_a_gpu(name, dtype):
    for shape in ((5, 9), (300, 130), (2, 3, 64)):
        x = values(shape, dtype)
        got, want = jit.compile(SORTS[name])(x.cuda()), SORTS[name](x)
        same(got.cpu() if name == "argsort" else tuple(t.cpu() for t in got),
             want if name == "argsort" else tuple(want))


@on_a_gpu
@pytest.mark.parametrize("name", PICKS)
def test_picked_elements_on_a_gpu(name):
    x = torch.randperm(300 * 64).view(300, 64).float()
    same(tuple(t.cpu() for t in jit.compile(PICKS[name])(x.cuda())), tuple(PICKS[name](x)))
