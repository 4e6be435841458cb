"""Sums over columns that a kernel over rows takes along, as it is made for a GPU: by the loops' interpreter, and built
for sm_90."""

import pytest
import torch
from codegen_graphs import compare, compile_reference, moved, trace

from jit.codegen import loops, reference
from jit.graph.interpret import evaluate

CUDA = torch.device("cuda", 0)


def norm_gradients(dims):
    """The gradients of a norm over the last dimension, and of its weight and bias."""
    def fn(b, x, g, w):
        xs, gs = b.opmath(x), b.opmath(g)
        t = b.mul(gs, b.opmath(w))
        dx = b.sub(t, b.mul(xs, b.sum(b.mul(t, xs), [len(dims)], True)))
        return (b.cast(dx, x.type.dtype), b.cast(b.sum(b.mul(gs, xs), dims, False), w.type.dtype),
                b.mul(b.sum(gs, dims, False), 2.0))
    return fn


def compiled(fn, tensors, dynamic=()):
    graph = trace(fn, tensors, dynamic)
    want = evaluate(graph, tensors)
    ours = compile_reference(moved(graph, CUDA))
    return ours, want


def totals(ours):
    return [k for k in ours.loops.values() if any(isinstance(s, loops.Total) for s in k.body)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1024, 64), (1021, 96), (8, 256, 40), (3, 700, 33)])
def test_gradients_of_norms(shape, dtype):
    x, g, w = torch.randn(shape, dtype=dtype) / 8, torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    ours, want = compiled(norm_gradients(list(range(len(shape) - 1))), [x, g, w])
    (kernel,) = totals(ours)
    assert len(ours.launches) == 2 and sum(isinstance(s, loops.Total) for s in kernel.body) == 2
    compare(reference.run_plan(ours, x, g, w), want)


def test_rows_of_any_number():
    x, g, w = torch.randn(1024, 64), torch.randn(1024, 64), torch.randn(64)
    graph = trace(norm_gradients([0]), [x, g, w], [(0, 0), (1, 0)])
    ours = compile_reference(moved(graph, CUDA))
    assert totals(ours)
    for rows in (1024, 1021, 5, 1500):
        given = [torch.randn(rows, 64) / 8, torch.randn(rows, 64), w]
        want = evaluate(trace(norm_gradients([0]), given), given)
        compare(reference.run_plan(ours, *given, rows), want)


def test_not_of_other_rows():
    """Sums over some of the dimensions that are rows, of rows that do not fit, and what rows read of such a sum."""
    def some(b, x):
        return b.sum(x, [0], False), b.sub(x, b.sum(x, [2], True))

    def wide(b, x):
        return b.sum(x, [0], False), b.sub(x, b.sum(x, [1], True))

    def read(b, x):
        return b.mul(b.sum(b.mul(x, b.sum(x, [0], True)), [1], True), x)

    for fn, shape in ((some, (1024, 8, 64)), (wide, (256, 32768)), (read, (1024, 64))):
        x = torch.randn(shape)
        ours, want = compiled(fn, [x])
        assert not totals(ours)
        got = reference.run_plan(ours, x)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_it_is_built_for_sm_90(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from jit import config
    from jit.codegen.triton import compile as triton_compile
    from jit.codegen.triton import emit

    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    x = torch.randn(1021, 768, dtype=torch.bfloat16)
    ours, _ = compiled(norm_gradients([0]), [x, x, torch.randn(768, dtype=torch.bfloat16)])
    built = triton_compile.build_sources({k.name: emit.emit(k) for k in ours.loops.values()}, 90)
    assert all(b.cubin[:4] == b"\x7fELF" for b in built.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [768, 4096, 8192])
def test_loads_in_flight_fit_next_to_a_processor(width, dtype, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from jit import config, devices
    from jit.codegen.triton import compile as triton_compile
    from jit.codegen.triton import emit

    def gradients(b, x, g, w):
        return norm_gradients([0])(b, x, g, w)[:2]

    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    x = torch.zeros(1024, width, dtype=dtype)
    ours, _ = compiled(gradients, [x, x, x[0]])
    assert totals(ours)
    built = triton_compile.build_sources({k.name: emit.emit(k) for k in ours.loops.values()}, 90)
    assert all(b.shared <= devices.cuda.H200.local for b in built.values())
