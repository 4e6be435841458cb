"""Kernels go when the last plan that uses them has gone; caches that changing shapes fill have a bound; the pool's
statistics and garbage collection."""

import gc
import linecache

import pytest
import torch

import jit
from jit.codegen import cpp
from jit.frame import decode
from jit.graph import aten, refusals
from jit.recent import Recent
from jit.runtime import native


def loaded() -> set:
    """The kernel libraries in this process's memory."""
    with open("/proc/self/maps") as f:
        paths = {line.split(None, 5)[5].strip() for line in f if line.count(" ") > 5 and "/kernels/" in line}
    return {p for p in paths if p.rpartition("/")[2].strip("0123456789abcdef") in ("", " (deleted)")}


def fresh(k):
    """A function with kernels that no other has, compiled."""
    return jit.compile(lambda x: (x * (3.25 + k)).sin() + (0.125 - k), dynamic=False)


def collect():
    for _ in range(3):
        gc.collect()


def test_libraries_of_plans_that_are_gone():
    jit.reset()
    collect()
    before = loaded()
    functions = [fresh(k + 0.01171875) for k in range(6)]
    x = torch.arange(64.0)
    want = [fn(x) for fn in functions]
    own = loaded() - before
    assert len(own) == 6
    cpp.forget()  # the plans alone keep them now
    assert loaded() - before == own
    for fn, w in zip(functions, want, strict=True):
        assert torch.equal(fn(x), w)
    del functions[3:]
    del fn
    collect()
    assert len(loaded() - before) == 3
    assert torch.equal(functions[0](x), want[0])
    jit.reset()
    collect()
    assert loaded() <= before
    assert torch.equal(functions[0](x), want[0])  # is compiled again


def test_a_backward_keeps_its_kernels():
    jit.reset()
    collect()
    before = loaded()
    fn = jit.compile(lambda x: (x * 7.01953125).sin().exp() * x)
    x = torch.linspace(-1, 1, 64).requires_grad_()
    y = fn(x)
    jit.reset()
    del fn
    collect()
    assert loaded() - before
    y.sum().backward()
    plain = x.detach().clone().requires_grad_()
    ((plain * 7.01953125).sin().exp() * plain).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad)
    del y
    collect()
    assert loaded() <= before


def test_kernels_that_are_not_used_leave(monkeypatch):
    monkeypatch.setattr(cpp, "_addresses", Recent(4))
    collect()
    before = loaded()
    x = torch.arange(64.0)
    for k in range(12):
        x.add_(1)
        y = (x * (5.5 + k + 0.00390625)).sin() + (0.25 - k)
        torch.testing.assert_close(fresh_of(5.5 + k + 0.00390625, 0.25 - k)(x), y)
        collect()
        assert len(loaded() - before) <= 5


def fresh_of(a, b):
    return jit.compile(lambda x: (x * a).sin() + b, dynamic=False)


def test_two_thousand_shapes():
    """Many functions at many shapes leave no more behind than a bound, and not their code, graphs or shapes."""

    def one(n):
        x = torch.ones(n % 997 + 2, n % 13 + 1)
        fn = jit.compile(lambda x: torch.linalg.vector_norm(x, dim=0) + torch.special.entr(x).sum() + x.argmax(0),
                         dynamic=False, backend="eager")
        fn(x)

    def sizes():
        collect()
        caches = {"types": len(aten._meta_cache), "refusals": len(refusals._found), "decoded": len(decode._cache),
                  "texts": sum(k.startswith("<jit graph") for k in linecache.cache)}
        return caches, len(gc.get_objects())

    for n in range(50):
        one(n)
    before, objects = sizes()
    for n in range(2000):
        one(n)
    caches, after = sizes()
    assert (caches["types"] <= 4096 and caches["texts"] <= 1000 and caches["decoded"] - before["decoded"] < 100
            and caches["refusals"] < 5000), (before, caches)
    assert after - objects < 60_000, (objects, after)


def test_pool_statistics_while_garbage_is_collected():
    """Making the result may collect garbage, and with it tensors whose memory comes back to the pool."""
    fn = jit.compile(lambda x: x + 1)
    x = torch.ones(1 << 15)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle = [fn(x)]
            cycle.append(cycle)
            del cycle
            assert native().pool_stats()["limit"] > 0
    finally:
        gc.set_threshold(*threshold)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_modules_on_a_gpu():
    x = torch.arange(4096.0, device="cuda")
    jit.reset()
    collect()
    before = native().loaded_gpu_modules()
    functions = [fresh(k + 0.0107421875) for k in range(4)]
    want = [fn(x) for fn in functions]
    assert native().loaded_gpu_modules() == before + 4
    del functions[1:]
    collect()
    assert native().loaded_gpu_modules() == before + 1
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = functions[0](x)
    jit.reset()
    del functions
    collect()
    graph.replay()  # what a CUDA graph launches stays
    torch.cuda.synchronize()
    assert torch.equal(y, want[0])


def test_the_least_recently_used_leaves():
    cache = Recent(3)
    for k in range(3):
        cache[k] = k * k
    assert cache.get(0) == 0 and cache.get(7) is None
    cache[3] = 9
    cache[3] = 10
    assert list(cache) == [2, 0, 3] and cache.get(3) == 10
