"""Matrix products whose programs stay and have their operands brought by the copy engine: plans and machine code for an
H200 without one; and what is chosen without timing."""

import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import moved
from graph_harness import clone_inputs, trace

from jit.codegen import Options, compile_graph, sure
from jit.codegen.planner import Planner
from jit.codegen.template import Candidate
from jit.codegen.templates.triton_product import Blocks, Matrix, matrices, tiled
from jit.devices.cuda import H200, Cuda
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

DEVICE = torch.device("cuda", 0)
STAYS = [Blocks(128, 128, 64, 4, 3, 2), Blocks(128, 256, 64, 8, 4, 1)]


def bias_gelu(x, w, b):
    return F.gelu(F.linear(x, w, b))


def residual(x, w, r):
    return x @ w + r


def turned(x, w):
    return (x.t() @ w).relu()


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


PROGRAMS = {
    "rows": (bias_gelu, (empty(500, 768), empty(1000, 768), empty(1000)), (False, False)),
    "columns": (residual, (empty(500, 768), empty(768, 1000), empty(500, 1000)), (False, True)),
    "turned": (turned, (empty(768, 512), empty(768, 1000)), (True, True)),
    "half": (bias_gelu, tuple(empty(*s, dtype=torch.float16) for s in ((500, 768), (1000, 768), (1000,))),
             (False, False)),
}


def graph_of(fn, tensors, dynamic=False):
    graph = run_passes(trace(fn, *clone_inputs(list(tensors)), dynamic=dynamic)[0], STANDARD)
    return run_passes(moved(graph, DEVICE), SCHEDULED)


def calls_of(fn, tensors, dynamic=False):
    asked = []
    planner = Planner(graph_of(fn, tensors, dynamic), Options(choose=asked.append, target="reference"))
    planner.schedule()
    return asked


def with_blocks(blocks):
    return lambda call: Candidate(call.candidates[0].template, blocks)


@pytest.mark.parametrize("blocks", STAYS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_for_an_h200(name, blocks):
    pytest.importorskip("triton")
    fn, tensors, sides = PROGRAMS[name]
    (call,) = calls_of(fn, tensors)
    assert tuple(m.turned for m in matrices(tiled(call.kernel))) == sides
    compiled = compile_graph(graph_of(fn, tensors), Options(choose=with_blocks(blocks)))
    (text,) = [text for _, text in compiled.kernels]
    assert text.count("tl.make_tensor_descriptor") == 2
    (launch,) = [s for s in compiled.plan.steps if s.kind == "launch"]
    (scratch,) = [s for s in compiled.plan.steps if s.kind == "temp"]
    assert launch.pointers[-1] == scratch.slot and len(launch.pointers) == len(tensors) + 2
    assert launch.kernel.scratch == 1 and scratch.dtype is torch.uint8


def test_addresses_that_may_be_odd():
    """The threads load the operands then."""
    pytest.importorskip("triton")
    fn, tensors, _ = PROGRAMS["rows"]
    compiled = compile_graph(graph_of(fn, tensors), Options(choose=with_blocks(STAYS[0]), unaligned=frozenset([0])))
    assert "make_tensor_descriptor" not in compiled.kernels[0][1]
    assert [s.kind for s in compiled.plan.steps if s.kind in ("temp", "launch")] == ["launch"]


def test_what_the_copy_engine_takes():
    """Rows at multiples of 16 bytes, and sizes that are known."""
    def of(fn, *tensors, dynamic=False):
        (call,) = calls_of(fn, tensors, dynamic)
        return matrices(tiled(call.kernel))

    def sliced(x, w):
        return (x[:, 8:] @ w).relu()

    assert of(sliced, empty(256, 520), empty(512, 256)) == (Matrix(8, 520, False), Matrix(0, 256, True))
    assert of(sliced, empty(256, 516), empty(508, 256)) is None
    assert of(lambda x, w: (x[:, 4:] @ w).relu(), empty(256, 520), empty(516, 256)) is None
    assert of(lambda x, w: (x[:, ::2] @ w).relu(), empty(256, 512), empty(256, 256)) is None
    assert of(sliced, empty(256, 520), empty(512, 256), dynamic=True) is None


def chosen(fn, *tensors):
    return [sure.choose(call) for call in calls_of(fn, tensors)]


def test_what_is_chosen_without_timing():
    """A result that does not fit in the cache, beside sums that are short."""
    def both(x, w):
        y = x @ w.t()
        return y.relu(), y

    if torch.cuda.is_available() and Cuda().architecture().capability != H200.capability:
        pytest.skip("the numbers are of an H200")
    (found,) = chosen(bias_gelu, empty(12608, 768), empty(3072, 768), empty(3072))
    assert found.configuration == Blocks(128, 128, 64, 4, 3, 2)
    (found,) = chosen(bias_gelu, empty(4096, 4096), empty(11008, 4096), empty(11008))
    assert found.configuration == Blocks(128, 256, 64, 8, 4, 1)
    assert chosen(bias_gelu, empty(2048, 768), empty(3072, 768), empty(3072)) == [None]
    assert chosen(bias_gelu, empty(8192, 8192), empty(8192, 8192), empty(8192)) == [None]
    assert chosen(both, empty(12608, 768), empty(3072, 768)) == [None]
    assert chosen(bias_gelu, *(empty(*s, dtype=torch.float32) for s in ((8192, 768), (4096, 768), (4096,)))) == [None]
