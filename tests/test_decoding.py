"""What a token's decoding consists of beside products: attention of a few queries with a mask, caches that are written
where they lie, positions in long rows, launches side by side. By the reference interpreter and Triton's."""

import math

import interpreter
import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import moved
from graph_harness import clone_inputs, trace

import jit
from jit import devices
from jit.codegen import Options, compile_graph, reference
from jit.codegen.planner import Planner
from jit.codegen.triton.compile import compile_triton
from jit.graph.passes import SCHEDULED, STANDARD, run_passes
from jit.graph.passes.few_queries import attend_few_queries
from jit.graph.passes.long_positions import cut_long_positions

SWITCHES = "launches_side_by_side", "fuses_few_queries"
DEVICE = torch.device("cuda", 0)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    for name in SWITCHES:
        monkeypatch.setattr(devices.cuda.Cuda, name, True)


@pytest.fixture
def kernels_write_where_data_say(monkeypatch):
    monkeypatch.setattr(type(devices.of_type("cpu")), "atomics", True)


def graph_of(fn, *tensors, passes=()):
    graph = run_passes(trace(fn, *clone_inputs(tensors))[0], STANDARD)
    return run_passes(moved(graph, DEVICE), (*passes, *SCHEDULED))


def targets(graph):
    return [n.attrs["target"] for n in graph.nodes if n.op == "aten_call"]


# -- attention -------------------------------------------------------------------------------------------------------

ATTENTION = {  # (batch, heads, heads that share keys, queries, keys, width, of values), shape of the mask
    "one": ((1, 8, 8, 1, 96, 32, 32), (1, 96)),
    "grouped": ((2, 8, 2, 1, 64, 16, 24), (2, 1, 1, 64)),
    "of a head each": ((1, 4, 2, 1, 70, 32, 32), (4, 1, 70)),
    "several": ((1, 2, 2, 5, 128, 32, 32), (5, 128)),
    "in pieces": ((1, 4, 2, 1, 1024, 16, 16), (1, 1024)),
    "in pieces of heads": ((1, 2, 2, 3, 512, 16, 16), (1, 2, 3, 512)),
}


def attention(name, kind="bool", seed=0, layout=False):
    torch.manual_seed(seed)
    (batch, heads, shared, rows, keys, width, values), shape = ATTENTION[name]
    q, k, v = (torch.randn(batch, n, m, w).half() for n, m, w in (
        (heads, rows, width), (shared, keys, width), (shared, keys, values)))
    if layout:
        k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    mask = torch.rand(shape) < 0.6
    if kind == "nothing":
        mask[..., 0, :] = False
    if kind == "floats":
        mask = torch.randn(shape).half()
    if kind == "smallest":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float16).min).half()
    grouped = heads != shared
    return (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3, enable_gqa=grouped),
            (q, k, v, mask))


def interpret():
    import attention_simulator as simulator

    devices.cuda.Cuda.fuses_few_queries = True
    for name in ATTENTION:
        for kind in ("bool", "nothing", "floats", "smallest"):
            fn, args = attention(name, kind, layout=kind == "floats")
            graph, given = simulator.captured(fn, *args)
            graph = run_passes(graph, (attend_few_queries, *SCHEDULED))
            assert targets(graph) == ["jit::attention"], (name, kind)
            (got, *_), _ = simulator.run(graph, given)
            eager, exact = fn(*args), fn(*[t.double() if t.is_floating_point() else t for t in args])
            assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride()), name
            assert (got.double() - exact).norm() <= 1.5e-3 * exact.norm(), (name, kind)
    print("done")


def test_attention_of_a_few_queries():
    assert "done" in interpreter.output(__name__)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_compiles_for_sm_90(name):
    fn, args = attention(name)
    graph = graph_of(fn, *[t.bfloat16() if t.is_floating_point() else t for t in args], passes=(attend_few_queries,))
    planner = Planner(graph, Options())
    planner.schedule()
    planner.compile_kernels()
    assert targets(graph) == ["jit::attention"]


def test_other_attention_is_the_librarys():
    """Of many queries, without a mask, causal, with dropout, of float32, or of queries whose group is not one's."""
    q, k, v, m = (torch.randn(1, 2, n, 16).half() for n in (17, 64, 64, 64))
    sdpa = F.scaled_dot_product_attention
    for fn in (lambda q, k, v, m: sdpa(q, k, v, m[0, 0, :17, :1].expand(17, 64)),
               lambda q, k, v, m: sdpa(q[:, :, :1], k, v),
               lambda q, k, v, m: sdpa(q[:, :, :1], k, v, is_causal=True),
               lambda q, k, v, m: sdpa(q[:, :, :1].float(), k.float(), v.float(), m[:, :, :1, :1].float())):
        assert "jit::attention" not in targets(graph_of(fn, q, k, v, m, passes=(attend_few_queries,)))
    k, v = k[:, :1], v[:, :1]
    grouped = graph_of(lambda q, k, v, m: sdpa(q[:, :, :3], k, v, m[:, :, :3, :1].expand(1, 2, 3, 64), enable_gqa=True),
                       q, k, v, m, passes=(attend_few_queries,))
    assert "jit::attention" not in targets(grouped)


# -- caches ----------------------------------------------------------------------------------------------------------


def cached(cache, new, at):
    cache.index_copy_(1, at, new * 2)
    return cache.sum(-1)


def twice(cache, new, at):
    cache.index_copy_(1, at, new * 2)
    cache.index_copy_(1, at + 1, new)
    return cache + 1


def of_itself(cache, new, at):
    cache.index_copy_(1, at, cache[:, 1:3] + new)
    return cache + 0


def old_too(cache, new, at):
    old = cache.exp()
    cache.index_copy_(1, at, new)
    return old, cache * 2


CACHES = {cached: (2, 1), old_too: (None, 1), twice: (None, 0), of_itself: (3, 0)}  # launches, inputs that they write


@pytest.mark.parametrize("fn", CACHES, ids=lambda f: f.__name__)
def test_a_cache_is_written_where_it_lies(fn, kernels_write_where_data_say):
    cache, new, at = torch.randn(2, 8, 4), torch.randn(2, 2, 4), torch.tensor([5, 3])
    graph = graph_of(fn, cache, new, at)
    compiled = compile_graph(graph, Options(target="reference"))
    launches, direct = CACHES[fn]
    assert launches in (None, len(compiled.launches))
    assert len(compiled.plan.mutates) == direct
    wanted = cache.clone()
    expected = fn(wanted, new, at)
    given = cache.clone()
    got = reference.run_plan(compiled, given, new, at)
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,)):
        assert torch.equal(a, b)
    assert torch.equal(given, wanted)


# -- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_positions_in_long_rows(dtype):
    torch.manual_seed(0)
    for fn in (lambda x: x.argmax(-1), lambda x: x.argmin(-1, keepdim=True), lambda x: x.max(-1).indices):
        for size in ((1, 32064), (3, 2, 20480)):
            x = (torch.randn(size) * 3).to(dtype)  # with many equal elements
            graph = graph_of(fn, x)
            assert any(n.op == "gather" for n in graph.nodes)
            compiled = compile_graph(graph, Options(target="reference"))
            tensors = [x, torch.zeros_like(x)]
            if dtype.is_floating_point:
                x = x.clone()
                x[..., 9000], x[..., 19000] = math.nan, math.nan
                tensors.append(x)
            for t in tensors:
                got, want = reference.run_plan(compiled, t)[0], fn(t)
                assert torch.equal(got, want) and got.stride() == want.stride()


def test_positions_that_are_not_cut():
    """In many rows, short ones, across the memory, of a prime length, or of bools."""
    for fn, x in ((lambda x: x.argmax(-1), torch.randn(200, 16384)), (lambda x: x.argmax(-1), torch.randn(1, 512)),
                  (lambda x: x.argmax(0), torch.randn(20480, 2)), (lambda x: x.argmax(-1), torch.randn(1, 20483))):
        graph = moved(run_passes(trace(fn, x)[0], STANDARD), DEVICE)
        assert cut_long_positions(graph) is graph or not any(n.op == "gather" for n in cut_long_positions(graph).nodes)


# -- launches --------------------------------------------------------------------------------------------------------


SIZES = ((1, 1024), (512, 1024), (128, 1024), (256, 1024), (96, 1024))


def layer(x, q, k, v, w):
    a, b, c = (F.linear(x, t) for t in (q, k, v))
    y = torch.tanh(a[:, :64]) + b[:, :64].sum()
    return F.linear(x, w) + 1, y, c[:, :32].cos().cumsum(-1)


def planned(fn, *tensors, **options):
    planner = Planner(graph_of(fn, *tensors), Options(**options))
    planner.schedule()
    return planner


def test_products_that_read_one_vector_are_one_launch():
    x, *weights = (torch.randn(s).bfloat16() for s in SIZES)
    planner = planned(layer, x, *weights)
    kinds = [type(k.layout).__name__ for k in planner.launches]
    assert "SideBySide" in kinds and len(planner.launches) == len(planner.steps)
    (joined, *_) = [k for k in planner.launches if k.layout is not None]
    assert len(joined.layout.parts) >= 3
    made = compile_triton([k for k in planner.launches if k.layout is not None][:1])
    assert all("program = tl.program_id(0)" in c.source.text for c in made.values())


def test_what_reads_the_other_is_launched_behind_it():
    x, w, v = torch.randn(1, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16(), torch.randn(64, 1024).bfloat16()
    planner = planned(lambda x, w, v: F.linear(F.linear(x, w), v), x, w, v)
    assert [k.layout for k in planner.launches] == [None, None]


def test_memory_is_held_by_all_of_a_launch(monkeypatch):
    """A temporary that one kernel reads last is not the memory of what another of the launch writes."""
    x, *weights = (torch.randn(s).bfloat16() for s in SIZES)
    planner = planned(layer, x, *weights)
    for step, time in zip(planner.steps, planner.times):
        found = [a for a in step.arguments if a.kind in ("temp", "alloc")]
        assert all(a.first <= time <= a.last for a in found)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu():
    torch.manual_seed(0)
    for name in ATTENTION:
        for kind in ("bool", "nothing", "floats", "smallest"):
            fn, args = attention(name, kind)
            args = [t.cuda() for t in args]
            got, exact = jit.compile(fn, fullgraph=True)(*args), fn(*[t.double() if t.is_floating_point() else t
                                                                      for t in args])
            assert (got.double() - exact).norm() <= 1.5e-3 * exact.norm(), (name, kind)
    for fn in CACHES:
        compiled = jit.compile(fn, fullgraph=True, mode="reduce-overhead")
        mine, theirs, new = torch.randn(2, 64, 40).cuda(), None, torch.randn(2, 2, 40).cuda()
        theirs = mine.clone()
        for i in range(6):
            at = torch.tensor([5 + i, 3], device="cuda")
            got, want = compiled(mine, new, at), fn(theirs, new, at)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(mine, theirs)
    x = torch.randn(1, 128256, device="cuda").bfloat16()
    assert torch.equal(jit.compile(lambda x: x.argmax(-1))(x), x.argmax(-1))
    tensors = [torch.randn(s, device="cuda").bfloat16() / 32 for s in SIZES]
    for mode in (None, "reduce-overhead"):
        compiled = jit.compile(layer, fullgraph=True, mode=mode)
        for _ in range(5):
            for a, b in zip(compiled(*tensors), layer(*tensors)):
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
