"""Random numbers on a CUDA device: the bits, the distributions, masks made again, seeds and states, CUDA graphs."""

import pytest
import torch
from frame_harness import all_equal
import torch.nn.functional as F
from torch import nn

import jit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from test_random_eager import PROGRAMS, ROUNDED  # noqa: E402
from test_random_kernels import DRAWS, FLOATS, faults, saved  # noqa: E402

N = 40000


def seeded(fn, *args, seed=7):
    torch.manual_seed(seed)
    return fn(*args)


def test_kernels_make_the_bits_of_the_definition():
    """Those of the graph op by op. One draw each: kernels take the seeds of several at once, and a GPU's generator then
    gives others."""
    options = {"device": "cuda"}
    draws = (lambda x: torch.rand(70, 11, **options), torch.rand_like,
             lambda x: torch.rand(9, dtype=torch.float64, **options),
             lambda x: torch.rand(33, dtype=torch.bfloat16, **options),
             lambda x: torch.randint(-5, 70, (99,), **options),
             lambda x: torch.randint(-(2**40), 2**41, (99,), **options), lambda x: F.dropout(x, 0.4),
             lambda x: F.dropout(x.t(), 0.4))
    x = torch.randn(31, 17, device="cuda")
    for draw in draws:
        got, want = (seeded(jit.compile(draw, fullgraph=True, backend=b), x) for b in ("jit", "eager"))
        assert got.is_cuda and got.dtype is want.dtype and got.stride() == want.stride() and torch.equal(got, want)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name, dtype):
    def draw():
        with torch.device("cuda"):
            return DRAWS[name][0](N, dtype)

    compiled = jit.compile(draw, fullgraph=True)
    for x in (compiled(), compiled()):
        assert x.is_cuda and x.dtype is dtype and x.isfinite().all() and not faults(name, x.cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dropout_saves_no_mask(dtype):
    compiled = jit.compile(lambda x: F.dropout(x, 0.3), fullgraph=True)
    x = (torch.rand(64, 1000, device="cuda") + 0.5).to(dtype).requires_grad_()
    y, kept = saved(compiled, x)
    assert sum(t.nbytes for t in kept) <= 32
    torch.manual_seed(99)
    for _ in range(2):
        (g,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0), retain_graph=True)
        assert torch.equal(g == 0, y == 0) and 0.28 < (y == 0).float().mean() < 0.32
        torch.testing.assert_close(g, torch.where(y == 0, 0.0, 2 / 0.7).to(dtype))


def test_a_block_in_which_rows_are_reduced():
    """Dropout, a residual and a norm in one kernel, whose backward makes the mask again."""
    norm = nn.LayerNorm(512, device="cuda")

    def block(x, h):
        dropped = F.dropout(h, 0.25)
        return norm(x + dropped), dropped != 0

    x, h = (torch.randn(128, 512, device="cuda", requires_grad=True) for _ in range(2))
    y, mask = jit.compile(block, fullgraph=True)(x, h)
    want = norm(x + h * mask / 0.75)
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    g = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, [x, h, norm.weight], g), torch.autograd.grad(want, [x, h, norm.weight], g)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


# Their programs make CPU tensors, or eager has no form on the device that is repeatable
ON_CPU = ("poisson", "rrelu", "distributions")


@pytest.mark.usefixtures("eager_numbers")
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ON_CPU])
def test_the_numbers_are_those_of_eager(name):
    def run(fn):
        torch.manual_seed(11)
        x = torch.randn(6, 8, device="cuda", requires_grad=True)
        torch.manual_seed(12)
        with torch.device("cuda"):
            out = fn(x)
        outs = out if isinstance(out, tuple) else (out,)
        loss = [o.double().square().sum() for o in outs if o.requires_grad]
        return [o.detach() for o in outs], torch.autograd.grad(sum(loss), x) if loss else [], torch.cuda.get_rng_state()

    fn = PROGRAMS[name].cuda() if isinstance(PROGRAMS[name], nn.Module) else PROGRAMS[name]
    try:
        (want, gradients, state), (got, found, after) = run(fn), run(jit.compile(fn))
    finally:
        if isinstance(fn, nn.Module):
            fn.cpu()
    assert torch.equal(state, after), "the generator afterwards"
    tolerance = 6e-2 if name == "autocast" else 1e-4
    for w, g in zip([*want, *gradients], [*got, *found], strict=True):
        assert w.dtype is g.dtype and w.shape == g.shape
        if w.is_floating_point():
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance * max(1.0, w.abs().max().item()))
            assert name in ROUNDED or torch.equal(w == 0, g == 0)
        else:
            assert torch.equal(w, g)


def seed_inside(x):
    a = torch.rand(5, device="cuda")
    torch.manual_seed(3)
    b = F.dropout(x, 0.5)
    torch.cuda.manual_seed(4)
    c = torch.rand(5, device="cuda")
    torch.cuda.manual_seed_all(4)
    return a, b, c, torch.rand(5, device="cuda")


def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.rand(4, device="cuda"), torch.rand(4)
    state = torch.cuda.get_rng_state()
    b = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    return *a, b, torch.rand(4, device="cuda"), torch.rand(4)


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("fn", [seed_inside, forked])
def test_seeds_and_states(fn, fallback):
    x = torch.ones(3000, device="cuda")
    with jit.config.patch(fallback_random=fallback):
        compiled = jit.compile(fn, fullgraph=True)
        first = [*seeded(compiled, x), torch.rand(3), torch.rand(3, device="cuda")]
        again = [*seeded(compiled, x), torch.rand(3), torch.rand(3, device="cuda")]
    assert all_equal(first, again)
    if fallback:
        want = [*seeded(fn, x), torch.rand(3), torch.rand(3, device="cuda")]
        assert all_equal(first, want)
    assert torch.equal(first[2], first[3])


def test_replays_of_a_cuda_graph_draw_anew():
    compiled = jit.compile(lambda x: F.dropout(x, 0.5), fullgraph=True)
    x = torch.ones(4000, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        seen.append(y.clone())
    assert all(0.4 < (v != 0).float().mean() < 0.6 for v in seen)
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
