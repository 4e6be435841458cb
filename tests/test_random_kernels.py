"""Random numbers that kernels make: the bits, the distributions, and masks that a backward makes again."""

import math

import interpreter
import pytest
import torch
from frame_harness import all_equal
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import jit
from jit.graph import philox

pytestmark = pytest.mark.usefixtures("kernel_numbers")

N = 40000
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


# the bits


@pytest.mark.parametrize("counter, key, words", [
    ((0x00000000, 0x00000000), 0x00000000, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
])  # fmt: skip
def test_known_answers(counter, key, words):
    """Those of Random123, the reference implementation of Philox."""
    low, high = (torch.tensor(w) for w in counter)
    bits = philox.random_bits(torch.tensor(key), low | high << 32)
    assert (bits.item() & 0xFFFFFFFF, bits.item() >> 32 & 0xFFFFFFFF) == words
    narrow = philox.random_bits(torch.tensor(key), low | high << 32, torch.int32)
    assert narrow.dtype is torch.int32 and narrow.item() & 0xFFFFFFFF == words[0]
    # A seed's upper half is a part of the counter
    upper = philox.random_bits(torch.tensor(key | 5 << 32), low | (high - 5 & 0xFFFFFFFF) << 32)
    assert upper.item() == bits.item()


def both(fn, *args, **options):
    """Results of the kernels and of the graph op by op."""
    out = []
    for backend in ("jit", "eager"):
        torch.manual_seed(7)
        out.append((jit.compile(fn, backend=backend, fullgraph=True, **options)(*args), torch.rand(3)))
    (got, after), (want, after_eager) = out
    assert torch.equal(after, after_eager)
    return got, want


def test_kernels_make_the_bits_of_the_definition():
    def program(x):
        return (torch.rand(70, 11), torch.rand_like(x), torch.rand(9, dtype=torch.float64),
                torch.rand(33, dtype=torch.bfloat16), torch.randint(-5, 70, (99,)),
                torch.randint(-(2**40), 2**41, (99,)), torch.empty(65).bernoulli_(0.3), F.dropout(x, 0.4),
                F.dropout(x.t(), 0.4), torch.randint_like(x, 9))

    got, want = both(program, torch.randn(31, 17))
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype and g.stride() == w.stride() and torch.equal(g, w)


def test_one_seed_call_for_all_draws_of_a_graph():
    def program(x):
        return F.dropout(F.dropout(x, 0.5) + torch.rand_like(x), 0.5) + torch.randn_like(x)

    compiled, x = jit.compile(program, fullgraph=True), torch.randn(8, 8)
    compiled(x)
    with torch.profiler.profile() as seen:
        compiled(x)
    assert [e.name for e in seen.events() if e.name.startswith("aten::")].count("aten::randint") == 1


# the distributions


def normal_cdf(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


DRAWS = {  # name -> (draw, distribution function, mean, deviation)
    "rand": (lambda n, dtype: torch.rand(n, dtype=dtype), lambda x: x, 0.5, 12**-0.5),
    "uniform_": (lambda n, dtype: torch.empty(n, dtype=dtype).uniform_(-2, 2), lambda x: (x + 2) / 4, 0, 4 * 12**-0.5),
    "randn": (lambda n, dtype: torch.randn(n, dtype=dtype), normal_cdf, 0, 1),
    "normal_": (lambda n, dtype: torch.empty(n, dtype=dtype).normal_(2, 0.5), lambda x: normal_cdf((x - 2) * 2), 2,
                0.5),
    "normal": (lambda n, dtype: torch.normal(torch.ones(n, dtype=dtype), 3.0), lambda x: normal_cdf((x - 1) / 3), 1, 3),
    "exponential_": (lambda n, dtype: torch.empty(n, dtype=dtype).exponential_(2.0), lambda x: 1 - torch.exp(-2 * x),
                     0.5, 0.5),
}


def distance(sample, cdf):
    """Kolmogorov and Smirnov's statistic times sqrt(n): above 1.95 with probability 0.001."""
    x = sample.double().sort().values
    n, p = x.numel(), cdf(x)
    steps = torch.arange(n, dtype=torch.float64) / n
    return max((p - steps).max().item(), (steps + 1 / n - p).max().item()) * math.sqrt(n)


def faults(name, sample):
    """What is wrong with a sample of a distribution of ``DRAWS``: each with a probability of about 0.001 where nothing
    is."""
    _, cdf, mean, deviation = DRAWS[name]
    x, found = sample.double(), []
    n = x.numel()
    if not abs(x.mean().item() - mean) < 3.3 * deviation / math.sqrt(n) + 2e-3 * deviation * (
        sample.dtype is torch.bfloat16):
        found.append(f"mean {x.mean().item()}")
    spread = {"exponential_": 8.0}.get(name, 2.0)  # of the variance's estimate, in units of the variance
    if not abs(x.var().item() / deviation**2 - 1) < 3.3 * math.sqrt(spread / n) + 4e-3 * (
        sample.dtype is torch.bfloat16):
        found.append(f"variance {x.var().item()}")
    if sample.dtype.itemsize >= 4 and not distance(x, cdf) < 1.95:  # halves have ties
        found.append(f"distance {distance(x, cdf)}")
    standard = (x - mean) / deviation
    for lag in (1, 2, 16, 1000):
        together = (standard[lag:] * standard[:-lag]).mean().item()
        if not abs(together) < 3.3 / math.sqrt(n - lag) + 1e-5:
            found.append(f"lag {lag}: {together}")
    return found


def test_the_cosine_of_a_turn():
    from codegen_graphs import trace

    from jit.graph.interpret import evaluate
    from jit.graph.ops.random import _turned

    words = torch.cat([torch.arange(-(1 << 31), 1 << 31, 1 << 18), torch.tensor([1, -1, (1 << 31) - 1])])
    (got,) = evaluate(trace(_turned, [words.int()]), [words.int()])
    want = torch.cos(2 * math.pi * words.double() * 2.0**-32)
    assert got.dtype is torch.float32 and (got.double() - want).abs().max() < 3e-7


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name, dtype):
    compiled = jit.compile(lambda: DRAWS[name][0](N, dtype), fullgraph=True)
    first, second = compiled(), compiled()
    assert first.dtype is dtype and first.isfinite().all()
    assert not faults(name, first) and not faults(name, second)
    x, y = ((v.double() - v.double().mean()) / v.double().std() for v in (first, second))
    assert abs((x * y).mean().item()) < 3.3 / math.sqrt(N), "draws of two calls are related"
    if name == "rand":
        assert first.min() >= 0 and first.max() < 1
    if name == "exponential_":
        assert first.min() > 0


def test_what_the_statistics_would_find():
    torch.manual_seed(0)
    x = torch.rand(N)
    assert not faults("rand", x)
    assert faults("rand", x**1.05) and faults("rand",
                                              x * 0.98) and faults("rand", x.view(-1, 2)[:, :1].expand(-1, 2).flatten())
    assert faults("randn", torch.randn(N) * 1.05) and faults("exponential_", torch.rand(N))
    assert any("distance" in f for f in faults("randn", (torch.rand(N) - 0.5) * math.sqrt(12)))
    counts = torch.bincount(torch.randint(0, 10, (N,)), minlength=10)
    assert chi_square(counts) < 1 and chi_square(counts + torch.arange(10) * 40) > 1


def chi_square(counts):
    """The statistic over its quantile of 0.999, by Wilson and Hilferty's approximation: above 1 with probability
    0.001."""
    expected, k = counts.sum().item() / counts.numel(), counts.numel() - 1
    return ((counts - expected).double().square().sum().item() / expected) / (
        k * (1 - 2 / (9 * k) + 3.09 * math.sqrt(2 / (9 * k))) ** 3)


@pytest.mark.parametrize("low, high, dtype", [(0, 10, torch.int64), (-3, 4, torch.int8), (5, 261, torch.int32),
                                              (0, 7, torch.float32), (-(2**61), 2**61, torch.int64)])
def test_integers(low, high, dtype):
    x = jit.compile(lambda: torch.randint(low, high, (N,), dtype=dtype), fullgraph=True)()
    assert x.dtype is dtype and low <= x.min() and x.max() < high
    k = min(high - low, 16)
    place = ((x.double() - low) * (k / (high - low))).floor().long()
    if (high - low) % k == 0:
        assert chi_square(torch.bincount(place, minlength=k)) < 1


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-3])
def test_masks_have_their_rate(p):
    kept, pairs = jit.compile(lambda x: (F.dropout(x, p) != 0, F.dropout(x, p) != 0), fullgraph=True)(torch.ones(4 * N))
    bound = 3.3 * math.sqrt(p * (1 - p) / (4 * N))
    assert abs(kept.double().mean().item() - (1 - p)) < bound and abs(pairs.double().mean().item() - (1 - p)) < bound
    x, y = (v.double() - (1 - p) for v in (kept, pairs))
    assert abs((x * y).mean().item()) < 3.3 * p * (1 - p) / math.sqrt(4 * N), "two masks are related"
    ones = jit.compile(lambda x: x.bernoulli_(p), fullgraph=True)(torch.empty(4 * N))
    assert abs(ones.double().mean().item() - p) < bound


def test_certain_masks():
    never, always = (
        jit.compile(lambda x: (x.clone().bernoulli_(0.0), torch.bernoulli(x, 1)), fullgraph=True)(torch.empty(4 * N)))
    assert not never.any() and always.all()
    x = torch.ones(50, requires_grad=True)
    y, same = jit.compile(lambda x: (F.dropout(x, 1.0), F.dropout(x, 0)))(x)
    assert not y.any() and torch.equal(same, x) and not torch.autograd.grad(y.sum(), x)[0].any()


def test_given_memory_and_a_rate_that_changes():
    compiled = jit.compile(lambda out, p: (torch.rand(30, 40, out=out), F.dropout(torch.ones(9000), p)), fullgraph=True)
    for p in (0.2, 0.3, 0.4):
        out = torch.empty(30, 40)
        got, y = compiled(out, p)
        assert got is out and not faults("rand", out.flatten()) and abs((y == 0).float().mean().item() - p) < 0.02


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: the kernels that a GPU would get, on a sample of each
    distribution."""
    from jit.codegen import Options, compile_graph
    from jit.codegen.triton import emit, heuristics, tiling, worker
    from jit.graph.build import Builder
    from jit.graph.shape_env import ShapeEnv
    from jit.graph.ir import Graph, Output, TensorType
    from jit.graph.ops import random

    n, device = 6000, torch.device("cuda", 0)
    makes = {"rand": random.uniform, "randn": random.normal, "exponential": random.exponential,
             "keep": lambda b, shape, dtype, device: random.keep(b, shape, device, 0.7),
             "integers": lambda b, shape, dtype, device: random.integers(b, 0, 10, shape, torch.int64, device)}
    for name, make in makes.items():
        for dtype in (torch.float32, torch.float64) if name.startswith("rand") else (torch.float32,):
            b = Builder(ShapeEnv())
            key = b.node("input", (), {"index": 0}, TensorType.contiguous((), torch.int64, device))
            philox.seed = lambda b, device: key
            out = make(b, (n,), dtype, device)
            compiled = compile_graph(Graph([key], b.nodes, [Output(out)], b.env), Options(target="reference"))
            (kernel,) = compiled.loops.values()
            source = emit.emit(kernel, heuristics.choose(tiling.tile(kernel)), interpret=True)
            fn, _ = worker.load_function(source.text, source.function)
            buffers = [torch.tensor([-8765432109876543210 + 17]) if k.role == "in" else torch.zeros(n, dtype=k.dtype)
                       for k in kernel.buffers]
            fn[(source.grid,)](*buffers)
            found = next(v for v, k in zip(buffers, kernel.buffers) if k.role == "out")
            if name == "keep":
                wrong = abs(found.double().mean().item() - 0.7) > 3.3 * math.sqrt(0.21 / n)
            elif name == "integers":
                wrong = found.min() < 0 or found.max() > 9 or chi_square(torch.bincount(found, minlength=10)) > 1
            else:
                wrong = faults("exponential_", found * 0.5) if name == "exponential" else faults(name, found)
            print("FAILED" if wrong else "ok", name, dtype, wrong)


def test_distributions_of_gpu_kernels():
    pytest.importorskip("triton")
    printed = interpreter.output(__name__)
    assert printed.count("ok") == 7 and "FAILED" not in printed, printed


# seeds


def test_the_same_seed_gives_the_same_numbers():
    compiled = jit.compile(lambda x: (F.dropout(x, 0.5), torch.randn(3)), fullgraph=True)
    x = torch.ones(300)
    torch.manual_seed(3)
    first, second, after = compiled(x), compiled(x), torch.rand(4)
    torch.manual_seed(3)
    assert all_equal(first, compiled(x)) and all_equal(second, compiled(x))
    assert torch.equal(after, torch.rand(4)), "what eager draws afterwards"
    assert not torch.equal(first[0], second[0]) and not torch.equal(first[1], second[1])
    with torch.random.fork_rng():
        torch.manual_seed(3)
        assert torch.equal(first[0], compiled(x)[0])


def test_what_stays_with_the_library():
    """A generator that the program gives, probabilities in a tensor, and distributions without an expansion: eager's
    numbers."""
    def program(x, g):
        return (torch.rand(5, generator=g), torch.empty(4).normal_(generator=g), torch.bernoulli(x, generator=g),
                torch.randperm(9, generator=g), torch.multinomial(x, 3, generator=g),
                torch.randint(7, (3,), generator=g), torch.poisson(x, generator=g))

    x = torch.rand(20)
    want = program(x, torch.Generator().manual_seed(5))
    got = jit.compile(program)(x, torch.Generator().manual_seed(5))
    assert all_equal(want, got)
    torch.manual_seed(2)
    want = torch.bernoulli(x), torch.randperm(5), torch.empty(3).cauchy_()
    torch.manual_seed(2)
    assert all_equal(want, jit.compile(lambda x: (torch.bernoulli(x), torch.randperm(5), torch.empty(3).cauchy_()))(x))


@pytest.mark.parametrize("fn",
                         [lambda: torch.randint(5, 5, (2,)), lambda: torch.empty(3).uniform_(2, 1),
                          lambda: torch.empty(3).normal_(0, -1), lambda: torch.empty(3).exponential_(0.0),
                          lambda: torch.randint(0, 300, (2,), dtype=torch.int8), lambda: torch.empty(3).bernoulli_(1.5),
                          lambda: F.dropout(torch.ones(3), 1.5), lambda: torch.rand(2, dtype=torch.int64)])
def test_bad_arguments_raise_as_in_eager(fn):
    with pytest.raises(Exception) as want:
        fn()
    with pytest.raises(want.type) as got:
        jit.compile(fn)()
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("dynamic", [None, True])
def test_small_draws_are_those_of_eager(dynamic, monkeypatch):
    """On the CPU, below a size that a guard tells from larger ones where it is symbolic: the numbers depend on seed and
    size alone."""
    monkeypatch.undo()

    def program(x):
        return F.dropout(x, 0.5) * torch.rand_like(x), torch.randint(0, 9, x.shape)

    def draws(fn, n):
        torch.manual_seed(4)
        return fn(torch.ones(n))

    compiled, other = (jit.compile(program, fullgraph=True, dynamic=dynamic) for _ in range(2))
    for n in (1000, 1500, 900, 1023, 1024, 3000):
        got, want = draws(compiled, n), draws(program, n)
        assert torch.equal(got[0], want[0]) == torch.equal(got[1], want[1]) == (n < 1024)
    for n in (3000, 1024, 900):
        assert all_equal(draws(other, n), draws(compiled, n))


def test_an_empty_tensor_and_one_of_no_dimensions():
    compiled = jit.compile(lambda x: (F.dropout(x, 0.5), torch.rand(0, 3), torch.rand(()), torch.randn(()),
                                      torch.randint(3, ())), fullgraph=True)
    dropped, empty, *scalars = compiled(torch.ones(0, 4))
    assert dropped.shape == (0, 4) and empty.shape == (0, 3) and all(s.shape == () for s in scalars)


# a backward makes the mask again


def saved(fn, *args):
    """(the result, the tensors that it keeps for its backward)."""
    kept = []

    def pack(t):
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        return fn(*args), kept


DROPOUTS = {
    "dropout": lambda x: F.dropout(x, 0.3), "transposed": lambda x: F.dropout(x.transpose(1, 2), 0.3).transpose(1, 2),
    "native": lambda x: torch.native_dropout(x, 0.3, True)[0], "twice": lambda x: F.dropout(F.dropout(x, 0.2), 0.3),
    "channels": lambda x: F.dropout1d(x, 0.4), "inplace": lambda x: F.dropout(x * 1.0, 0.5, inplace=True),
    "module": nn.Dropout(0.25),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPOUTS)
def test_no_mask_is_saved_and_the_gradient_has_that_of_the_output(name):
    fn = DROPOUTS[name]
    compiled = jit.compile(fn, fullgraph=True)
    x = (torch.rand(8, 50, 60) + 0.5).requires_grad_()
    y, kept = saved(compiled, x)
    assert sum(t.nbytes for t in kept) <= 32, [t.shape for t in kept]
    torch.manual_seed(99)
    torch.rand(1000)  # the generator is elsewhere by now
    (g,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0), retain_graph=True)
    assert torch.equal(g == 0, y == 0) and 0.05 < (y == 0).float().mean() < 0.7
    torch.testing.assert_close(g, y.detach() / x.detach() * 2, rtol=1e-5, atol=0)
    assert torch.equal(g, torch.autograd.grad(y, x, torch.full_like(y, 2.0))[0]), "each backward makes the same mask"


def test_alpha_dropout_has_the_gradient_of_its_mask():
    compiled = jit.compile(lambda x: F.alpha_dropout(x, 0.3, training=True), fullgraph=True)
    x = torch.randn(80, 90, requires_grad=True)
    y, kept = saved(compiled, x)
    alpha, p = 1.7580993408473766, 0.3
    scale = ((alpha * alpha * p + 1) * (1 - p)) ** -0.5
    dropped = (y.detach() - (-alpha * scale + alpha * scale * p)).abs() < 1e-6
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g == 0,
                       dropped) and torch.allclose(g[~dropped],
                                                   torch.tensor(scale)) and abs(dropped.float().mean() - p) < 0.02
    assert sum(t.nbytes for t in kept) <= 32


def test_a_block_saves_less_by_its_masks():
    layers = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 32), nn.Dropout(0.5))
    x = torch.randn(512, 32)

    def program(x):
        return x + layers(x)

    sizes = {}
    for fallback in (True, False):
        with jit.config.patch(fallback_random=fallback):
            jit.reset()
            y, kept = saved(jit.compile(program, fullgraph=True), x)
            sizes[fallback] = sum(t.nbytes for t in kept if t.shape != (32, 32))
            y.sum().backward()
    assert sizes[True] - sizes[False] >= 2 * 512 * 32 - 64, sizes


@pytest.mark.parametrize("how", ["plain", "checkpoint", "autocast", "symbolic", "attention"])
def test_gradients_are_those_of_the_formula(how):
    """Against eager with the mask read off the compiled result."""
    w = torch.randn(24, 24, requires_grad=True)

    def block(x, drop):
        return drop(torch.tanh(x @ w), 0) * drop(x, 1)

    masks = []

    def drop(x, k):
        y = F.dropout(x, 0.4)
        masks.append(y != 0)
        return y

    def program(x):
        masks.clear()
        if how == "checkpoint":
            y = checkpoint(block, x, drop, use_reentrant=False)
        elif how == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                y = block(x, drop)
        elif how == "attention":
            weights = F.dropout((x @ w @ x.t()).softmax(-1), 0.4)
            masks.extend([weights != 0, x > -1e9])
            y = weights @ x
        else:
            y = block(x, drop)
        return y, *masks

    def formula(x, first, second):
        if how == "attention":
            return ((x @ w @ x.t()).softmax(-1) * first / 0.6) @ x
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            return torch.tanh(x @ w) * (first * (1 / 0.6)) * (x * (second * (1 / 0.6)))

    compiled = jit.compile(program, fullgraph=True, dynamic=True if how == "symbolic" else None)
    for rows in (40, 40, 56) if how == "symbolic" else (40,):
        x = torch.randn(rows, 24, requires_grad=True)
        y, first, second = compiled(x)
        got = torch.autograd.grad(y.float().square().sum(), [x, w])
        want = torch.autograd.grad(formula(x, first, second).float().square().sum(), [x, w])
        tolerance = 3e-2 if how == "autocast" else 1e-5
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_without_gradients_the_masks_are_the_same():
    compiled = jit.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)
    x = torch.ones(50, 50)
    torch.manual_seed(1)
    with torch.no_grad():
        plain = compiled(x)
    torch.manual_seed(1)
    assert torch.equal(plain, compiled(x.requires_grad_()).detach())


def test_a_second_derivative_has_the_same_mask():
    compiled = jit.compile(lambda x: F.dropout(x, 0.5) * x, fullgraph=True)
    x = (torch.rand(300) + 0.5).requires_grad_()
    y = compiled(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.manual_seed(99)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(g, 2 * y / x)
    torch.testing.assert_close(h, (y != 0) * 4.0)


def test_gradients_inside_the_program():
    @jit.compile(fullgraph=True)
    def step(x, w):
        y = F.dropout(x @ w, 0.5)
        (g,) = torch.autograd.grad(y.sum(), w)
        return y.detach(), g

    x, w = torch.rand(20, 7) + 0.1, (torch.rand(7, 9) + 0.1).requires_grad_()
    y, g = step(x, w)
    torch.testing.assert_close(g, x.t() @ ((y != 0) * 2.0))


def test_kernels_are_exact_as_far_as_verify_can_tell():
    def program(x):
        return F.dropout(torch.tanh(x), 0.3) * torch.randn_like(x) + torch.rand_like(x).exp()

    report = jit.verify(program)(torch.randn(30, 20, requires_grad=True))
    assert report.ok and report.checked > 10 and all("fallback_random" in u for u in report.unchecked), str(report)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_draws_inside_a_map(randomness):
    """Functions that run inside PyTorch's own map run in eager: what an operator draws there is another number for each
    element."""
    compiled = jit.compile(torch.vmap(lambda x: F.dropout(x, 0.5) * torch.rand(2000), randomness=randomness))
    out = compiled(torch.ones(3, 2000))
    assert torch.equal(out[0], out[1]) == (randomness == "same") and 0.4 < (out != 0).float().mean() < 0.6
    inner = jit.compile(lambda: torch.rand(2000) * 2)
    inner()
    out = torch.vmap(lambda x: x * inner(), randomness=randomness)(torch.ones(3))
    assert torch.equal(out[0], out[1]) == (randomness == "same")


def test_a_mask_of_the_programs_own_function_is_made_again():
    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = (torch.rand_like(x) >= 0.3) / 0.7
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = torch.ones(50, 60, requires_grad=True)
    y, kept = saved(jit.compile(lambda x: Drop.apply(x), fullgraph=True), x)
    assert sum(t.nbytes for t in kept) <= 32 and torch.equal(torch.autograd.grad(y.sum(), x)[0], y)


def test_attention_saves_no_mask():
    q, k, v = (torch.randn(2, 4, 64, 32, requires_grad=True) for _ in range(3))
    y, kept = saved(jit.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2), fullgraph=True),
                    q, k, v)
    assert sum(t.nbytes for t in kept if t.dtype is torch.bool) <= 2 * 4 * 64
    y.sum().backward()
