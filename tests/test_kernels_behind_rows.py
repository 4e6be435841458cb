"""What reads parts of a normalised row, as it is made for a GPU: it shares the kernel that reduces the row."""

import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import compile_reference, moved
from graph_harness import clone_inputs, trace

from jit import devices
from jit.codegen import reference
from jit.codegen.indexing import size_hint
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def wanted(monkeypatch):
    monkeypatch.setattr(devices.cuda.Cuda, "repeats_behind_rows", True)


def rotary(x, w):
    q = F.rms_norm(x, (x.shape[-1],), w)
    a, b = q.chunk(2, -1)
    return q * w + torch.cat((-b, a), -1) * (w + 1)


def transposed_rotary(x, w):
    q = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    q = q.transpose(0, 1)
    h = q.shape[-1] // 2
    return q * w + torch.cat((-q[..., h:], q[..., :h]), -1) * (w + 1)


def flipped(x, w):
    y = (x - x.amax(-1, keepdim=True)) * w
    return y + y.flip(-1)


def padded(x, w):
    y = x - x.mean(-1, keepdim=True)
    return F.pad(y, (2, 3)) * 2 + F.pad(y * 2, (3, 2))


def halves(x, w):
    a, b = F.layer_norm(x, x.shape[-1:], w).chunk(2, -1)
    return F.gelu(a) * b


def rows_on_top_of_rows(x, w):
    y = x / x.sum(-1, keepdim=True).abs().add(1)
    return torch.cat((y, y * 2), 0), torch.cat((y[1:], y[:1]), 0) + y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn, launches", [(rotary, 1), (transposed_rotary, 1), (flipped, 1), (padded, 2), (halves, 2),
                                          (rows_on_top_of_rows, 3)])
def test_values(fn, launches, dtype, dynamic):
    tensors = [torch.randn(6, 5, 32, dtype=dtype), torch.randn(32, dtype=dtype)]
    graph = run_passes(trace(fn, *clone_inputs(tensors), dynamic=dynamic)[0], (*STANDARD, *SCHEDULED))
    ours = compile_reference(moved(graph, CUDA))
    assert dynamic or len(ours.launches) <= launches
    symbols = graph.env.symbols
    got = reference.run_plan(ours, *tensors, *[size_hint(symbols[n]) for n in ours.int_symbols])
    want = fn(*tensors)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=3e-2 if dtype is torch.bfloat16 else 1e-4,
                                   atol=6e-2 if dtype is torch.bfloat16 else 1e-5)

