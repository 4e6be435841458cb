"""Losses that add up over all rows what reads results of rows, as they are made for a GPU."""

import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import compare, compile_reference, moved
from graph_harness import clone_inputs, trace

from jit import devices
from jit.codegen import loops, reference
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def wanted(monkeypatch):
    monkeypatch.setattr(devices.cuda.Cuda, "sums_by_rows", True)


def divergence(a, b):
    return F.kl_div(F.log_softmax(a, -1), F.softmax(b, -1), reduction="batchmean")


def logged(a, b):
    return F.kl_div(torch.log_softmax(a.float(), -1), torch.log_softmax(b.float(), -1), log_target=True)


def of_one(a, b):
    return (torch.softmax(a, -1) * b).sum(), (a - a.mean(-1, keepdim=True)).square().sum((0, 1))


def of_columns(a, b):
    return (torch.softmax(a, 0) * b).sum()


def compiled(fn, tensors, dynamic=False):
    graph = run_passes(trace(fn, *clone_inputs(tensors), dynamic=dynamic)[0], (*STANDARD, *SCHEDULED))
    return compile_reference(moved(graph, CUDA))


@pytest.mark.parametrize("fn", [divergence, logged, of_one, of_columns])
@pytest.mark.parametrize("shape", [(7, 33), (300, 64), (3, 5, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(fn, shape, dtype):
    tensors = [torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)]
    ours = compiled(fn, tensors)
    got, want = reference.run_plan(ours, *tensors), fn(*tensors)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=3e-2 if dtype is torch.bfloat16 else 2e-5, atol=2e-5)


def test_the_tensors_are_read_by_one_kernel():
    tensors = [torch.randn(300, 64), torch.randn(300, 64)]
    ours = compiled(divergence, tensors)
    assert len(ours.launches) == 2
    first, last = ours.launches
    assert {b.role for b in last.buffers} == {"in", "out"} and len(last.buffers) == 2
    assert sum(isinstance(s, loops.Reduce) for s in first.body) == 5


def test_rows_of_any_number():
    tensors = [torch.randn(30, 64), torch.randn(30, 64)]
    ours = compiled(logged, tensors, dynamic=True)
    sizes = {n: s for n, s in zip(ours.int_symbols, (30, 64))}
    compare(reference.run_plan(ours, *tensors, *sizes.values()), (logged(*tensors),))
