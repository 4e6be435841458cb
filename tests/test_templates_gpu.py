"""Templates on a CUDA device: values of every program of ``template_programs`` in several block sizes, gradients, and
what timing leaves behind. ``pytest -s`` prints how long the candidates take at a few sizes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from graph_harness import clone_inputs, flatten, trace
from template_programs import PROGRAMS

import jit
from jit import devices
from jit.codegen import Options, compile_graph, timing
from jit.codegen.template import Candidate
from jit.codegen.templates.triton_product import Blocks
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BLOCKS = [Blocks(16, 16, 32, 4, 1), Blocks(16, 64, 64, 4, 3), Blocks(64, 32, 32, 4, 2), Blocks(64, 128, 32, 8, 3)]
UNIT = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float64: 2.0**-52}


@pytest.fixture
def private_cache(tmp_path):
    timing._known.clear()
    with jit.config.patch(cache_dir=str(tmp_path)):
        yield
    timing._known.clear()


@pytest.fixture
def chosen(monkeypatch):
    """Compiled programs use templates wherever they can, with the configuration of the least cost; gives the calls."""
    asked = []

    def choose(call, plan):
        asked.append(call)
        return min(call.candidates, key=lambda c: c.cost)

    monkeypatch.setattr(timing, "choose", choose)
    with jit.config.patch(templates=True):
        yield asked


def tensors_of(found, args):
    """Results, and what is in the arguments afterwards."""
    return [t for t in flatten(found.fn(*args)) if isinstance(t, torch.Tensor)] + args


def near(got, eager, truth):
    """Whether values are about as exact as eager's: their errors against float64 are at most three times the larger of
    eager's and a rounding of the largest value."""
    for mine, other, exact in zip(got, eager, truth, strict=True):
        assert mine.dtype is other.dtype and mine.shape == other.shape
        if mine.dtype is torch.bool:
            assert (mine != other).float().mean() < 0.02
            continue
        error, theirs = ((t.double() - exact.double()).abs().max().item() if t.numel() else 0.0 for t in (mine, other))
        most = exact.double().abs().max().item() if exact.numel() else 0.0
        assert error <= 3 * max(theirs, UNIT.get(mine.dtype, 0.0) * most / 2), (error, theirs, most, mine.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype):
    found = PROGRAMS[name]
    given = [t.cuda() for t in found(dtype)]
    eager = tensors_of(found, clone_inputs(given))
    truth = tensors_of(found, [t.double() if t.is_floating_point() else t.clone() for t in given])
    graph = trace(found.fn, *clone_inputs(given), dynamic=found.dynamic)[0]
    for blocks in BLOCKS[: 4 if found.taken else 1]:
        asked = []

        def choose(call, b=blocks, asked=asked):
            asked.append(call)
            return Candidate(call.candidates[0].template, b)

        plan = compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)), Options(choose=choose))
        assert len(asked) == found.taken_in_triton(dtype)
        ours = clone_inputs(given)
        near([*plan.call(*ours), *ours], eager, truth)


@pytest.mark.parametrize("shape", [(300, 200, 500), (1000, 1024, 129), (129, 70, 1000), (64, 4100, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_larger_sizes(chosen, shape, dtype):
    m, k, n = shape

    def program(x, w, b, r):
        return F.gelu(F.linear(x, w, b), approximate="tanh") + r

    args = [torch.randn(s, device="cuda", dtype=dtype) for s in ((m, k), (n, k), (n,), (m, n))]
    near([jit.compile(program, fullgraph=True)(*args)], [program(*args)], [program(*[a.double() for a in args])])
    assert len(chosen) == (dtype is not torch.float32 or k <= 1024)


def test_at_odd_addresses(chosen):
    """Of which nothing may be assumed."""

    def program(x, w):
        return (x @ w).relu()

    base = torch.randn(64 * 64 + 1, device="cuda", dtype=torch.bfloat16)
    x, w = base[1:].view(64, 64), torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    for args in ((x, w), (w, x)):
        near([jit.compile(program, fullgraph=True)(*args)], [program(*args)],
             [program(*[a.double() for a in args])])


def test_other_sizes(chosen):
    def program(x, w):
        return (x @ w).tanh()

    ours = jit.compile(program, fullgraph=True, dynamic=True)
    for m, k, n in ((64, 64, 64), (100, 33, 7), (1000, 256, 70), (3, 600, 512)):
        args = [torch.randn(s, device="cuda", dtype=torch.float16) for s in ((m, k), (k, n))]
        near([ours(*args)], [program(*args)], [program(*[a.double() for a in args])])


def test_gradients(chosen):
    net = torch.nn.Sequential(torch.nn.Linear(64, 256, bias=False), torch.nn.GELU(),
                              torch.nn.Linear(256, 64, bias=False)).cuda()
    exact, x = copy.deepcopy(net).double(), torch.randn(128, 64, device="cuda")
    eager = copy.deepcopy(net)
    for model, given in ((jit.compile(net, fullgraph=True), x), (eager, x), (exact, x.double())):
        model(given).square().mean().backward()
    near([p.grad for p in net.parameters()], [p.grad for p in eager.parameters()],
         [p.grad for p in exact.parameters()])
    assert len(chosen) == 2


def test_timing_leaves_nothing_behind(private_cache):
    """No random number, no memory, no other stream."""

    def program(x, w, b):
        return F.silu(torch.addmm(b, x, w))

    args = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((512, 512), (512, 512), (512,))]
    program(*args)  # the library keeps some memory for good
    torch.cuda.synchronize()
    state, stream = torch.cuda.get_rng_state(), torch.cuda.current_stream()
    allocated = torch.cuda.memory_allocated()
    ours = jit.compile(program, fullgraph=True, options={"templates": True})
    got = ours(*args)
    near([got], [program(*args)], [program(*[a.double() for a in args])])
    del got
    assert torch.equal(torch.cuda.get_rng_state(), state) and torch.cuda.current_stream() == stream
    assert torch.cuda.memory_allocated() <= allocated + (1 << 20)
    (seconds,) = timing._known.values()
    assert timing.LIBRARY in seconds and len(seconds) > 3 and all(0 < s < 1e-2 for s in seconds.values())


def test_while_a_cuda_graph_is_recorded(private_cache):
    """Nothing can be timed then: the library serves."""
    graph = torch.cuda.CUDAGraph()
    kind = devices.of_type("cuda")
    x = torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        x.add_(1)
        assert kind.seconds(lambda: None, x.device) is None


SIZES = [  # rows, length, columns, dtype, what follows
    (4096, 4096, 4096, torch.bfloat16, "bias_gelu"),
    (4096, 1024, 4096, torch.bfloat16, "bias_gelu"),
    (8192, 768, 3072, torch.bfloat16, "bias_gelu"),
    (4096, 4096, 1024, torch.bfloat16, "residual"),
    (2048, 512, 512, torch.bfloat16, "bias_gelu"),
    (1024, 128, 512, torch.bfloat16, "bias_gelu"),
    (16, 4096, 4096, torch.bfloat16, "swiglu"),
    (2048, 4096, 11008, torch.bfloat16, "swiglu"),
    (16384, 64, 1024, torch.float16, "residual"),
    (1024, 1024, 1024, torch.float32, "bias_gelu"),
]


def bias_gelu(x, w, b, r, v):
    return F.gelu(F.linear(x, w, b))


def residual(x, w, b, r, v):
    return F.linear(x, w) + r


def swiglu(x, w, b, r, v):
    return F.silu(F.linear(x, w)) * F.linear(x, v)


@pytest.mark.parametrize("m, k, n, dtype, name", SIZES)
def test_times(private_cache, m, k, n, dtype, name):
    """Values, and a line to read: nothing is asserted about speed."""
    program = globals()[name]
    args = [torch.randn(s, device="cuda", dtype=dtype) * 0.1 for s in ((m, k), (n, k), (n,), (m, n), (n, k))]
    seconds = devices.of_type("cuda").seconds
    eager = min(seconds(lambda: program(*args), args[0].device) for _ in range(3))
    times = {}
    for mode in (False, True):
        ours = jit.compile(program, fullgraph=True, options={"templates": mode})
        near([ours(*args)], [program(*args)], [program(*[a.double() for a in args])])
        times[mode] = min(seconds(lambda f=ours: f(*args), args[0].device) for _ in range(3))
    found = min(timing._known.values(), key=lambda seconds: min(seconds.values()))  # of one or two products
    candidates = {c: s for c, s in found.items() if c != timing.LIBRARY}
    best, library = min(candidates, key=candidates.get), found[timing.LIBRARY]
    print(f"\n{m}x{k}x{n} {str(dtype)[6:]} {name}: eager {1e6 * eager:.1f} us, default {1e6 * times[False]:.1f}, with "
          f"templates {1e6 * times[True]:.1f} ({eager / times[True]:.2f}x eager, {times[False] / times[True]:.2f}x "
          f"default); library + loops {1e6 * library:.1f}, best template {1e6 * candidates[best]:.1f} "
          f"({library / candidates[best]:.2f}x): {best}")
    print("    " + ", ".join(f"{c.removeprefix('triton product ')}: {1e6 * s:.1f}" for c, s in candidates.items()))
