"""Group norms as they are made for a GPU: what follows the reduction of a group shares its kernel."""

import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import compare, compile_reference, moved
from graph_harness import clone_inputs, trace

from jit import devices
from jit.codegen import reference
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def wanted(monkeypatch):
    monkeypatch.setattr(devices.cuda.Cuda, "refines_views", True)


def norm(x, w, b):
    return F.group_norm(x, 4, w, b)


def norm_then(x, w, b):
    return F.silu(F.group_norm(x, 4, w, b)) + x


def norm_of_pixels(x, w, b):
    return F.group_norm(x, 2, w, b).mean((2, 3))


def several(x, w, b):
    y = F.group_norm(x, 4, w, b)
    return y, y * 2, y.transpose(1, 2)


def compiled(fn, tensors, dynamic=False):
    graph = run_passes(trace(fn, *clone_inputs(tensors), dynamic=dynamic)[0], (*STANDARD, *SCHEDULED))
    return compile_reference(moved(graph, CUDA))


def flat(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8, 5, 6), (2, 8, 7), (2, 16, 2, 3, 4), (1, 4, 6, 6)])
@pytest.mark.parametrize("fn, launches", [(norm, 1), (norm_then, 1), (several, 1), (norm_of_pixels, 2)])
def test_one_kernel(fn, launches, shape, dtype):
    if fn is norm_of_pixels and len(shape) != 4:
        pytest.skip("of images")
    given = [torch.randn(shape, dtype=dtype), torch.randn(shape[1], dtype=dtype), torch.randn(shape[1], dtype=dtype)]
    layouts = [given[0]]
    if len(shape) == 4:
        layouts.append(given[0].to(memory_format=torch.channels_last))
        layouts.append(given[0].transpose(2, 3))
    for x in layouts:
        tensors = [x, *given[1:]]
        ours = compiled(fn, tensors)
        assert shape == (1, 4, 6, 6) or not x.is_contiguous() or len(ours.launches) <= launches + (fn is several)
        got = reference.run_plan(ours, *tensors)
        compare(got, flat(fn(*tensors)))


def test_sizes_that_vary():
    tensors = [torch.randn(3, 8, 5, 6), torch.randn(8), torch.randn(8)]
    ours = compiled(norm_then, tensors, dynamic=True)
    got = reference.run_plan(ours, *tensors, *[s for s in (3, 8, 5, 6)][: len(ours.int_symbols)])
    compare(got, flat(norm_then(*tensors)))


def test_a_result_is_a_tensor_of_its_own():
    tensors = [torch.randn(3, 8, 5, 6), torch.randn(8), torch.randn(8)]
    ours = compiled(norm, tensors)
    assert [s.kind for s in ours.plan.steps].count("view") == 0, ours.plan.text()
