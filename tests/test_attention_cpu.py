"""Attention as one kernel on a CPU: which programs become one, and that it gives what eager gives, for every function
of scores and mask, size, layout and dtype."""

import math
import warnings

import pytest
import torch
import torch.nn.attention.flex_attention as module
import torch.nn.functional as F
from test_attention_kernels import PROGRAMS, added, biased, detached, dropped, grouped, masked, over_queries, shifted
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jit

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # eager without PyTorch's compiler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def kernels(compiled, *args):
    return "block_product(" in "".join(jit.explain(compiled)(*args).kernels)


def operands(m=128, n=128, d=32, dv=None, batch=2, heads=4, kv=None, dtype=torch.float32, lay=lambda t: t):
    kv = kv or heads
    shapes = ((batch, heads, m, d), (batch, kv, n, d), (batch, kv, n, dv or d))
    return tuple(lay(torch.randn(s).to(dtype)) for s in shapes)


def error(got, expected):
    got, expected = got.double(), expected.double()
    assert got.shape == expected.shape and torch.equal(got.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert torch.equal(got[infinite], expected[infinite])
    kept = expected.isfinite()
    return float((got[kept] - expected[kept]).norm() / expected[kept].norm().clamp_min(1e-30))


def check(fn, *args, fused=True, compiled=None):
    """Against eager in float64, with eager's strides and dtype."""
    exact = fn(*[t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in args])
    eager, got = fn(*args), (compiled or jit.compile(fn, fullgraph=True))(*args)
    assert got.dtype is eager.dtype and got.stride() == eager.stride() and got.shape == eager.shape
    assert error(got, exact) < max(TOLERANCE[args[0].dtype], 1.5 * error(eager, exact))
    if fused is not None and compiled is None:
        assert kernels(fn, *args) is fused


LAYOUTS = {
    "contiguous": lambda t: t,
    "heads last": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "transposed": lambda t: t.mT.contiguous().mT,
    "sliced": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "every second": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    "expanded": lambda t: t[:, :1].expand(-1, t.shape[1], -1, -1),
    "offset": lambda t: torch.cat([t[..., :1, :], t], -2)[..., 1:, :],
}


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("sizes", [(128, 128, 32, 32), (131, 150, 40, 24), (70, 300, 64, 17)])
def test_programs(fn, sizes):
    m, n, d, dv = sizes
    check(fn, *operands(m, n, d, dv))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layouts_and_dtypes(layout, dtype):
    def fn(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.1 * (j - i) * (h + 1))

    check(fn, *operands(100, 170, dtype=dtype, lay=LAYOUTS[layout]))


BIAS, SLOPES, IDS, FLAGS = torch.randn(600, 700), torch.randn(4), torch.arange(700) // 70, torch.rand(2, 700) > 0.3
TABLE = torch.randn(2 * 700)
SCORES = {
    "none": None,
    "slope": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "bias": lambda s, b, h, i, j: s + BIAS[i, j],
    "relative": lambda s, b, h, i, j: s + TABLE[i - j + 700],
    "capped": lambda s, b, h, i, j: 5 * torch.tanh(s / 5),
    "causal by where": lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
    "causal, never empty": lambda s, b, h, i, j: torch.where((i >= j) | (j == 0), s, torch.finfo(torch.float32).min),
    "of keys alone": lambda s, b, h, i, j: s * FLAGS[b, j],
    "constant": lambda s, b, h, i, j: s * 0 + 1.5,
    "of places alone": lambda s, b, h, i, j: (i * j % 7) * 0.5 + 0.0 * s,
    "integers": lambda s, b, h, i, j: s + ((i ^ j) & 3) - (i % 5 == 0) * 2,
}
MASKS = {
    "none": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 100),
    "documents": lambda b, h, i, j: IDS[i] == IDS[j],
    "padded": lambda b, h, i, j: FLAGS[b, j],
    "by heads": lambda b, h, i, j: (i + j) % (h + 2) == 0,
    "rows of nothing": lambda b, h, i, j: (i >= j) & (i % 3 != 0),
    "nothing": lambda b, h, i, j: i < 0,
}


def flex(score, mask, gqa=False, batch=2, **options):
    blocks = {}

    def fn(q, k, v):
        m, n = q.shape[-2], k.shape[-2]
        if mask is not None and (m, n) not in blocks:
            blocks[m, n] = create_block_mask(mask, batch, 4, m, n, device="cpu")
        return flex_attention(q, k, v, score, blocks.get((m, n)), enable_gqa=gqa, **options)

    return fn


def run(fn, *args):
    """Compiled with the block mask made before."""
    fn(*args)
    return fn


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_functions_of_scores(score, mask):
    args = operands(130, 260)
    check(run(flex(SCORES[score], MASKS[mask]), *args), *args)


@pytest.mark.parametrize("mask", MASKS)
def test_functions_of_masks(mask):
    for m, n in ((256, 256), (300, 200), (65, 513)):
        args = operands(m, n)
        check(run(flex(None, MASKS[mask]), *args), *args)


@pytest.mark.parametrize("mask", [m for m in MASKS if MASKS[m]])
def test_one_compiled_function_at_many_lengths(mask):
    """Sizes become symbols: blocks at the edges, fewer queries than a block, one key more than a block."""
    score = SCORES["slope"]

    def fn(q, k, v, blocks):
        return flex_attention(q, k, v, score, blocks)

    compiled = jit.compile(fn, fullgraph=True)
    for m, n in ((128, 128), (256, 384), (129, 257), (8, 700), (600, 64), (300, 300), (64, 129)):
        args = operands(m, n)
        blocks = create_block_mask(MASKS[mask], 2, 4, m, n, device="cpu")
        expected, eager = fn(*[t.double() for t in args], blocks), fn(*args, blocks)
        assert error(compiled(*args, blocks), expected) < max(3e-6, 1.5 * error(eager, expected)), (m, n)
    assert len(compiled.on_miss.captures) <= 5  # for one block of keys and for several, of queries and of keys


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_heads_that_share_keys(dtype):
    args = operands(90, 140, kv=2, dtype=dtype)
    check(run(flex(SCORES["slope"], MASKS["causal"], True), *args), *args)
    check(grouped, *operands(90, 140, kv=2, dtype=dtype), fused=None if dtype is torch.bfloat16 else True)


def test_one_batch_of_keys_for_all():
    q, k, v = operands(100, 140, batch=3)
    check(run(flex(SCORES["slope"], MASKS["documents"], batch=3), q, k[:1], v[:1]), q, k[:1], v[:1])


@pytest.mark.parametrize("sizes", [(128, 128, 8, 8), (128, 200, 200, 256), (40, 1000, 16, 100), (1000, 40, 256, 9)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_widths(sizes, dtype):
    m, n, d, dv = sizes
    args = operands(m, n, d, dv, 1, 2, dtype=dtype)
    check(run(flex(SCORES["capped"], None, scale=0.21), *args), *args)


def test_what_flex_gives_beside():
    """Eager on a CPU refuses to give sums; programs that spell attention out have them."""
    def fn(q, k, v, mask):
        s = (q @ k.mT).masked_fill(mask, -math.inf)
        largest = torch.amax(s, -1, True)
        empty = largest == -math.inf
        exps = torch.exp(s - torch.where(empty, 0.0, largest))
        total = torch.sum(exps, -1, True)
        out = (exps / torch.where(empty, 1.0, total)) @ v
        return out, torch.where(empty, -math.inf, torch.log(total) + largest)

    q, k, v = operands(200, 260)
    mask = torch.rand(200, 260) < 0.3
    mask[3], q[0, 0, 9, 0] = True, math.nan
    assert kernels(fn, q, k, v, mask)
    for g, e in zip(jit.compile(fn, fullgraph=True)(q, k, v, mask), fn(q, k, v, mask)):
        assert error(g, e) < 3e-6


def test_nan_and_infinities():
    q, k, v = operands(130, 140)
    mask = torch.rand(130, 140) < 0.3
    mask[7] = True
    check(masked, q, k, v, mask)  # a row of NaN
    lowest = torch.where(torch.rand(130, 140) < 0.5, 0.0, torch.finfo(torch.float32).min)
    lowest[5] = torch.finfo(torch.float32).min
    check(added, q, k, v, lowest)
    q[0, 0, 3, 5] = math.nan
    check(PROGRAMS[0], q, k, v)
    k[0, 1, 4] = math.inf
    check(masked, q, k, v, mask)
    k[1, 2, 4] = -math.inf
    v[1, 3, 9] = math.inf
    check(PROGRAMS[0], q, k, v)
    q, k, v = operands(64, 64)
    check(PROGRAMS[0], q * 1e4, k * 1e4, v)  # one weight of 1


def test_empty():
    for m, n in ((0, 64), (64, 64), (64, 0)):
        args = operands(m, n)
        if n:
            compiled = jit.compile(lambda q, k, v: flex_attention(q, k, v), fullgraph=True)
            assert compiled(*args).shape == args[0].shape
    compiled = jit.compile(lambda q, k, v: flex_attention(q, k, v, SCORES["slope"]), fullgraph=True)
    for m in (64, 128, 0):
        q, k, v = operands(m, 64)
        assert compiled(q, k, v).shape == q.shape


def test_indices_out_of_range_raise():
    table = torch.randn(100)

    def fn(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[i + j])

    compiled = jit.compile(fn, fullgraph=True)
    args = operands(40, 50)
    torch.testing.assert_close(compiled(*args), fn(*args))
    with pytest.raises(IndexError):
        fn(*operands(80, 80))
    with pytest.raises(IndexError):
        compiled(*operands(80, 80))


def test_biases():
    q, k, v = operands(130, 140)
    for shape in ((1, 1, 130, 140), (1, 4, 130, 1), (4, 130, 140), (1, 1, 1, 140), (2, 1, 1, 140)):
        check(biased, q, k, v, torch.randn(shape))


@pytest.mark.parametrize("fn", [dropped, over_queries, shifted])
def test_others_keep_their_products(fn):
    with torch.random.fork_rng():
        assert not kernels(fn, *operands())


def test_float64_and_few_queries_keep_their_products():
    assert not kernels(PROGRAMS[0], *operands(dtype=torch.float64))
    assert not kernels(PROGRAMS[0], *operands(1, 2000))
    assert not kernels(PROGRAMS[0], *operands(8, 8, batch=1, heads=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_with_eagers_roundings_keep_their_products(dtype):
    args = operands(dtype=dtype)
    fn = flex(SCORES["slope"], None)
    assert kernels(fn, *args)
    with jit.config.patch(match_eager_rounding=True):
        assert not kernels(fn, *args)


def test_biases_of_other_dtypes():
    q, k, v = operands(70, 90, dtype=torch.float16)
    for bias in (torch.randn(70, 90).half(), torch.randn(4, 70, 1), torch.randint(0, 3, (90,))):
        check(lambda q, k, v, b: torch.softmax((q @ k.mT).float() * 0.2 + b, -1).to(q.dtype) @ v, q, k, v, bias)


def test_with_gradients_the_products_are_kept():
    args = [t.requires_grad_() for t in operands(64, 80)]
    compiled = jit.compile(PROGRAMS[0], fullgraph=True)
    for p in range(2):
        got, expected = (f(*args).square().sum() for f in (compiled, PROGRAMS[0]))
        torch.testing.assert_close(got, expected)
        for g, e in zip(torch.autograd.grad(got, args), torch.autograd.grad(expected, args)):
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        check(detached, *args, fused=None)


def test_inside_transforms_and_writes():
    def fn(q, k, v):
        q = q.clone()
        q.mul_(0.5)
        out = torch.vmap(lambda a, b, c: F.softmax(a @ b.mT, -1) @ c)(q, k, v)
        return out + 1

    check(fn, *operands(100, 128), fused=None)


def test_threads_do_not_change_results():
    args = operands(300, 500)
    compiled = jit.compile(flex(SCORES["slope"], None), fullgraph=True)
    threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 5):
            torch.set_num_threads(n)
            found.append(compiled(*args))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
