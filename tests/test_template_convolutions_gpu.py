"""Convolutions on a CUDA device: every program of ``convolution_programs`` in several block sizes, and nets as they are
compiled by default, with their gradients, as exact as eager's against float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from convolution_programs import PROGRAMS
from graph_harness import clone_inputs, trace
from test_template_convolutions import with_blocks
from test_templates_gpu import near, tensors_of

import jit
from jit.codegen import Options, compile_graph
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype):
    found = PROGRAMS[name]
    given = [t.cuda() for t in found(dtype)]
    eager = tensors_of(found, clone_inputs(given))
    truth = tensors_of(found, [t.double() for t in given])
    graph = trace(found.fn, *clone_inputs(given))[0]
    for channels_last in (False, True):
        for turn in range(3):
            plan = compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)),
                                 Options(choose=with_blocks(turn), channels_last=channels_last))
            arguments = clone_inputs(given)
            near([*plan.call(*arguments), *arguments], eager, truth)


class Net(torch.nn.Module):
    """A stem, a bottleneck, a convolution of each channel by itself and one of patches."""

    def __init__(self, width=64):
        super().__init__()
        nn = torch.nn
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(width, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1),
                                   nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, width, 1), nn.BatchNorm2d(width))
        self.each = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.down = nn.Conv2d(width, 2 * width, 2, 2)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(self.inner(x) + x)
        return self.down(F.gelu(self.each(x)))


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [False, True])
def test_nets_by_default(training, format):
    torch.manual_seed(0)
    net = Net().cuda().to(torch.bfloat16).train(training)
    other, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    ours = jit.compile(net)
    for size in (64, 48):
        x = torch.randn(16, 3, size, size, device="cuda", dtype=torch.bfloat16).to(memory_format=format)
        results = []
        for model, call, given in ((net, ours, x), (other, other, x), (exact, exact, x.double())):
            model.zero_grad()
            y = call(given)
            y.square().mean().backward()
            results.append([y, *(p.grad for p in model.parameters())])
        for mine, theirs, truth in zip(*results, strict=True):
            error, eager = ((t.double() - truth).norm() / truth.norm() for t in (mine, theirs))
            assert error <= 2 * eager + 1e-3
            assert mine.stride() == theirs.stride()
