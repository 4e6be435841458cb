"""On a CUDA device, against eager: numbers that are counted, and long rows added at places that data decide."""

import pytest
import torch
import torch.nn.functional as F
from test_frame_guesses import captures_of

import jit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("places", [1, 5, 100, 128, 129, 1000, 1024, 4096])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_counts(places, dtype):
    def fn(i):
        return torch.bincount(i, minlength=places)

    compiled, captured = captures_of(fn, None)
    most = min(places, 256 if dtype is torch.uint8 else places)
    for n in (3, 100, 5000, 70001, 1 << 20):
        for i in (torch.randint(0, most, (n,), device="cuda"), torch.full((n,), most - 1, device="cuda"),
                  torch.randn(n, device="cuda").abs().mul(most / 8).long().clamp(max=most - 1)):
            got, want = compiled(i.to(dtype)), fn(i.to(dtype))
            assert torch.equal(got, want) and got.dtype is want.dtype and got.stride() == want.stride()
    assert len(captured) <= 3 and not any(c.breaks for c in captured)


def test_numbers_that_are_not_below():
    def fn(i):
        return torch.bincount(i, minlength=1000)

    compiled = jit.compile(fn)
    good = torch.randint(0, 1000, (10000,), device="cuda")
    for bad in (1000, 5000, -1, 1234, -(1 << 40), 1001):
        i = good.clone()
        i[77] = bad
        if bad < 0:
            with pytest.raises(RuntimeError) as want:
                fn(i)
            with pytest.raises(RuntimeError) as got:
                compiled(i)
            assert str(got.value) == str(want.value)
        else:
            assert torch.equal(compiled(i), fn(i))
        assert torch.equal(compiled(good), fn(good))


@pytest.mark.parametrize("bins", [100, 128, 300, 1000])
def test_histograms(bins):
    x = torch.randn(1 << 20, device="cuda")
    x[::1000] = float("nan")
    fn = lambda x: torch.histc(x, bins, -3, 3)  # noqa: E731
    torch.testing.assert_close(jit.compile(fn)(x), fn(x), rtol=0, atol=2)


def bags(mode):
    return lambda w, i: F.embedding_bag(i.view(-1, 8), w, mode=mode)


TABLES = {
    "tokens": lambda w, i: F.embedding(i, w), "padded": lambda w, i: F.embedding(i, w, padding_idx=7),
    "rows": lambda w, i: w.index_select(0, i), "indexed": lambda w, i: w[i - 3000],
    "bags": bags("sum"), "means": bags("mean"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_gradients_of_tables(name, dtype):
    """Of which some rows get nothing, most a few, and three very much."""
    fn = TABLES[name]
    for width in (256, 300, 1024):
        w = torch.randn(3000, width, device="cuda").to(dtype).requires_grad_()
        at = torch.randint(0, 2900, ((1 << 24) // width // 8 * 8 + 4096,), device="cuda")
        at[:3000], at[5000:9000:2], at[-1000:] = 7, 11, 0
        out = fn(w, at)
        g = torch.randn_like(out)
        exact = torch.zeros(3000, width, dtype=torch.float64, device="cuda")
        each = g.double().repeat_interleave(at.numel() // g.shape[0], 0)
        each = each / 8 if name == "means" else each
        exact.index_add_(0, at, each)
        if name == "padded":
            exact[7] = 0
        found, = torch.autograd.grad(jit.compile(fn)(w, at), w, g)
        scale = torch.zeros_like(exact).index_add_(0, at, each.abs()).amax()  # by which sums are rounded
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=float(scale) * tolerance / 50 + 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_rows_added_to_a_table(dtype):
    x, s = torch.randn(1024, 1024, device="cuda").to(dtype), torch.randn(16384, 1024, device="cuda").to(dtype)
    at = torch.randint(0, 1000, (16384,), device="cuda")
    at[::3] = 5
    x[1010] = -0.0
    got = jit.compile(lambda x, i, s: x.index_add(0, i, s))(x, at, s)
    exact = x.double().index_add(0, at, s.double())
    tolerance = 8e-3 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=1e-2 if dtype is torch.bfloat16 else 1e-3)
    assert got[1010].signbit().all()
