"""Plans recorded into CUDA graphs, on a GPU. What they decide is tested in ``test_plan_graphs.py``, without one."""

import copy
import ctypes
import gc
import threading

import pytest
import torch
from torch import nn

import jit
from jit.runtime import native

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytest.importorskip("triton")

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def clean():
    yield
    jit.reset()
    gc.collect()


def told():
    """(forward, backwards ..) of the plan that was replayed most."""
    gc.collect()
    plans = [o.recordings for o in gc.get_objects() if type(o) is native().Plan and any(o.recordings)]
    return max(plans, key=lambda p: (p[0] or {}).get("replayed", 0))


def compiled(f):
    return jit.compile(f, mode="reduce-overhead")


def rand(*sizes, **options):
    return torch.randn(*sizes, device=CUDA, **options)


class Net(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + nn.functional.gelu(layer(norm(x)))
        return x, x.sum(-1)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_what_the_gpu_waits_for_is_recorded_by_itself():
    net, seen = Net(depth=12).to(CUDA), []
    f = jit.compile(net)
    for _ in range(12):
        x = rand(8, 64)
        net.zero_grad(set_to_none=True)
        y, z = f(x)
        (y.sum() + z.square().sum()).backward()
        seen.append((y, net.layers[0].weight.grad))
        net.layers[0].weight.grad = None
        y, z = net(x)
        (y.sum() + z.square().sum()).backward()
        same(seen[-1][0], y)
        torch.testing.assert_close(seen[-1][1], net.layers[0].weight.grad, rtol=1e-3, atol=1e-3)
    torch.cuda.synchronize()
    forward, backward, *_ = told()
    assert forward["recorded"] == backward["recorded"] == 1 and min(forward["replayed"], backward["replayed"]) >= 5


def test_what_keeps_the_gpu_busy_is_not():
    w = rand(4096, 4096)

    def long(x):
        for _ in range(16):
            x = torch.tanh(x @ w)
        return x

    f, x = jit.compile(long), rand(4096, 4096)
    with torch.no_grad():
        for _ in range(8):
            f(x)
    gc.collect()
    plans = [o.recordings[0] for o in gc.get_objects() if type(o) is native().Plan and any(o.recordings)]
    assert plans and not any(p["recorded"] for p in plans)


def test_results_are_never_written_again():
    net = Net().to(CUDA)
    f, kept = compiled(net), []
    with torch.no_grad():
        for _ in range(12):
            x = rand(8, 64)
            kept.append((x, f(x)))
        for x, results in kept:
            for got, want in zip(results, net(x)):
                same(got, want)
    assert told()[0]["recorded"] == 1 and told()[0]["replayed"] >= 9


def test_sizes_layouts_and_alignments():
    net = Net().to(CUDA)
    f = jit.compile(net, mode="reduce-overhead", dynamic=True)
    with torch.no_grad():
        for _ in range(5):
            for n in (3, 8, 1, 5):
                base = rand(2 * n * 64 + 1)
                for x in (base[:n * 64].view(n, 64), base[1:n * 64 + 1].view(n, 64), rand(64, n).t(),
                          rand(1, 64).expand(n, 64), rand(n, 128)[:, ::2]):
                    for got, want in zip(f(x), net(x)):
                        same(got, want)


def test_gradients():
    net = Net().to(CUDA)
    other = copy.deepcopy(net)
    f = compiled(net)
    for _ in range(8):
        x = rand(8, 64)
        for call, m in ((f, net), (other, other)):
            m.zero_grad(set_to_none=True)
            y, s = call(x)
            (y.square().mean() + s.mean()).backward()
        for p, q in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    forward, *backwards = told()
    assert forward["replayed"] > 0 and any(b["replayed"] for b in backwards)


def test_several_forwards_before_a_backward():
    f = compiled(lambda x: (x.sin() @ x.exp() @ x.cos() @ x).tanh())
    for _ in range(5):
        xs = [rand(16, 16, requires_grad=True) for _ in range(4)]
        results = [f(x * 0.1) for x in xs]
        for x, y in reversed(list(zip(xs, results))):
            y.sum().backward()
            z = x.detach() * 0.1
            z.requires_grad_()
            (z.sin() @ z.exp() @ z.cos() @ z).tanh().sum().backward()
            torch.testing.assert_close(x.grad, z.grad * 0.1, rtol=1e-3, atol=1e-4)


def test_random_numbers_are_those_of_the_default_mode():
    def program(x):
        for _ in range(4):
            x = nn.functional.dropout(torch.relu(x @ x), 0.3) * 0.1
        return x

    drawn, x = [], rand(64, 64)
    for mode in ("default", "reduce-overhead"):
        f = jit.compile(program, mode=mode)
        torch.manual_seed(7)
        drawn.append([f(x) for _ in range(8)])
    assert all(torch.equal(a, b) for a, b in zip(*drawn))
    assert not torch.equal(drawn[1][6], drawn[1][7])
    assert told()[0]["replayed"] > 0


def test_a_cache_written_in_place():
    def program(cache, k, at):
        cache.index_copy_(0, at, k.sin() @ k.cos().T)
        return ((cache * 2).relu() @ k).softmax(-1)

    f = compiled(program)
    a, b = torch.zeros(64, 64, device=CUDA), torch.zeros(64, 64, device=CUDA)
    for _ in range(8):
        k, at = rand(64, 64), torch.randperm(64, device=CUDA)
        same(f(a, k, at), program(b, k, at))
        same(a, b)
        assert a._version > 0


def test_threads_on_streams_of_their_own():
    net, wrong = Net().to(CUDA), []
    f = compiled(net)

    def run():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(30):
                x = rand(8, 64)
                if not torch.allclose(f(x)[0], net(x)[0], atol=1e-4):
                    wrong.append(x)
        stream.synchronize()

    with torch.no_grad():
        f(rand(8, 64))
    torch.cuda.synchronize()
    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_graph_of_the_users():
    net = Net().to(CUDA)
    f, x = compiled(net), rand(8, 64)
    with torch.no_grad():
        for _ in range(5):
            f(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = f(x)[0]
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        same(y, net(x)[0])
        same(f(x)[0], net(x)[0])


def test_a_step_that_waits_for_the_gpu_is_not_recorded():
    def program(x):
        y = torch.linalg.inv(x @ x.t() + 10 * torch.eye(8, device=x.device))
        return (y @ x).relu().sum(0), y.cumsum(0) @ y

    f = compiled(program)
    for _ in range(6):
        x = rand(8, 8)
        for got, want in zip(f(x), program(x)):
            same(got, want)
    # The process can be used as before, and other plans are recorded.
    g = compiled(lambda x: (x @ x @ x @ x).relu() @ x)
    for _ in range(6):
        x = rand(8, 8)
        torch.testing.assert_close(g(x), (x @ x @ x @ x).relu() @ x, rtol=1e-3, atol=1e-2)
    assert told()[0]["replayed"] > 0


def test_memory_is_given_back():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    net = Net(256).to(CUDA)
    f = compiled(net)
    with torch.no_grad():
        for _ in range(6):
            f(rand(4096, 256))
    del f, net
    jit.reset()
    gc.collect()
    # The library's workspace for the stream that records stays.
    assert torch.cuda.memory_allocated() - before < 80 << 20


def test_optimizer_step():
    net = Net().to(CUDA)
    other = copy.deepcopy(net)
    mine, reference = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (net, other))
    step = compiled(lambda: mine.step())
    for _ in range(8):
        for p, q in zip(net.parameters(), other.parameters()):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        reference.step()
        for p, q in zip(net.parameters(), other.parameters()):
            same(p, q)


@pytest.mark.skipif(not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"), reason="this torch hides its graphs")
@pytest.mark.parametrize("width, value, count, replaced", [(8, 7, 4096, True), (8, 0, 6, False), (16, 515, 20, True),
                                                           (32, 1 << 20, 100_003, True)])
def test_fills_become_kernels(width, value, count, replaced):
    """A fill between two kernels, as the library's products and attention have them, of elements of so many bits."""
    fill = getattr(ctypes.CDLL("libcuda.so.1"), f"cuMemsetD{width}Async")
    fill.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p]
    target = torch.zeros(count + 8, dtype={8: torch.uint8, 16: torch.int16, 32: torch.int32}[width], device="cuda")
    begun, seen = torch.zeros(1, device="cuda"), torch.empty_like(target)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        begun.add_(1)
        assert fill(target.data_ptr(), value, count, torch.cuda.current_stream().cuda_stream) == 0
        seen.copy_(target)
    assert native().replace_fills(graph.raw_cuda_graph()) == replaced
    assert native().replace_fills(graph.raw_cuda_graph()) == 0
    graph.instantiate()
    for _ in range(3):
        target.zero_()
        graph.replay()
        want = torch.full_like(target, value)
        want[count:] = 0
        assert torch.equal(target, want) and torch.equal(seen, want)
    assert begun.item() == 3
