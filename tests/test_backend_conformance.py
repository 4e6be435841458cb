"""The same graphs through everything that runs them: C++, Triton, another kind of device, the interpreter of loops, and
op by op.

A case is a program on tensors; each runner is compared with eager in values, dtypes, strides and what inputs hold
afterwards.
"""

import dataclasses
import functools

import interpreter
import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import compare, moved
from graph_harness import clone_inputs, flatten, trace
from pretended_device import PLACE, Pretend, on_host

from jit import devices
from jit.codegen import Options, compile_graph, reference
from jit.graph import dims, philox
from jit.graph.build import Builder
from jit.graph.ir import Graph, Output, TensorType
from jit.graph.passes import SCHEDULED, STANDARD, run_passes
from jit.graph.shape_env import ShapeEnv
from jit.graph.verify import verify

CASES = {}


@dataclasses.dataclass
class Case:
    """``program`` on ``tensors()``. ``dynamic``: sizes are symbols; ``build(b, *nodes)`` makes the graph of what no
    program can write."""

    program: object
    tensors: object
    dynamic: bool = False
    build: object = None


def case(*shapes, dtype=torch.float32, dynamic=False, tensors=None, build=None):
    """Decorator: a program on random tensors of these shapes, or on what ``tensors`` gives."""

    def made():
        g = torch.Generator().manual_seed(3)
        if tensors is not None:
            return tensors(g)
        if not dtype.is_floating_point:
            return [torch.randint(-9, 10, s, generator=g).to(dtype) for s in shapes]
        return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes]

    def add(program):
        CASES[program.__name__] = Case(program, made, dynamic, build)
        return program

    return add


def indexed(g):
    return [torch.randn(6, 23, generator=g), torch.tensor([[0, 5, -1], [3, -6, 2]]),
            torch.randint(23, (6, 4), generator=g)]


@case((7, 33), (7, 33))
def pointwise(x, y):
    z = x * 0.3 + y / 7 - 2
    return F.gelu(z) * torch.tanh(y), (z.exp() + 1).log().clamp(0.1, 3), torch.where(x > y, x, -y)


@case((5, 40), (5, 40), dtype=torch.float16)
def pointwise_halves(x, y):
    return F.silu(x) * y, x + 0.1, (x * y).float().sqrt()


@case((3, 11), dtype=torch.float64)
def pointwise_doubles(x):
    return torch.sin(x) + x.abs().sqrt(), torch.erf(x)


@case((6, 17), (6, 17), dtype=torch.int32)
def integers(x, y):
    d = torch.where(y == 0, 3, y)
    return x // d, x % d, (x * y) ^ 5, x.abs() << 2, torch.minimum(x, y), x.bool() & (y > 0)


@case((4, 1, 19), (6, 1), ())
def broadcast(x, y, s):
    return x + y, (x - s) * y, x.expand(4, 6, 19) + 1


@case((9, 70))
def rows(x):
    return x.sum(1), x.amax(1, keepdim=True), x.argmax(1), x.mean(-1), x.var(1), (x > 1.5).any(1)


@case((50, 24))
def columns(x):
    return x.sum(0), x.amin(0), x.argmin(0), x.prod(0), x - x.mean(0)


@case((13, 31))
def everything(x):
    return x.sum(), x.max(), (x * x).mean(), (x < 9).all(), x.std()


@case((3, 30000))
def long_rows(x):
    return x.sum(1), x.softmax(-1)


@case((2500, 24))
def long_columns(x):
    return x.sum(0), x.var(0)


@case((6, 21, 18))
def middle(x):
    return x.sum(1), x.sum((0, 2)), x.amax((0, 1))


@case((4, 90))
def scan(x):
    return x.cumsum(1), x.cumsum(0) * 2


@case((7, 45), (45,), (45,))
def norms(x, w, c):
    return x.softmax(1), x.log_softmax(0), F.layer_norm(x, (45,), w, c), F.rms_norm(x, (45,), w, 1e-5)


@case((4, 48), (48,), dtype=torch.float16)
def norms_of_halves(x, w):
    return x.softmax(-1), F.layer_norm(x, (48,), w)


@case(tensors=indexed)
def indexing(x, at, places):
    return x[at], x.gather(1, places), F.embedding(at % 6, x), x[:, places[0]], x[at, 2]


@case(tensors=lambda g: [torch.randn(8, 29, generator=g), torch.arange(8) * 5 % 29])
def cross_entropy(x, target):
    return F.cross_entropy(x, target, reduction="none"), F.cross_entropy(x, target)


@case((5, 26))
def casts(x):
    y = x * 40
    return (y.half().float(), y.to(torch.int8), y.bool(), y.double() / 3, y.long().float(), (y > 0).float(),
            y.to(torch.uint8) if False else y.to(torch.int32))


@case((6, 14, 10))
def views(x):
    return (x.transpose(0, 2) + 1, x[1:4, ::2, -3:] * 2, x.permute(2, 0, 1).reshape(10, 84).sum(1), x.flip(1) + x,
            x.t() if x.dim() == 2 else x.mT, x.unfold(1, 4, 3).sum(-1))


@case((12, 20), (12, 20))
def copies(x, y):
    return (x.t().contiguous(), torch.cat([x, y * 2], 1), torch.stack([x, y.relu()]), F.pad(x, (1, 2, 3, 0), value=7.0),
            x.roll(3, 1), x.repeat(2, 1), x.tril())


@case((9, 9), (9, 9), (9,))
def in_place(x, y, z):
    x.mul_(2).add_(y)
    y[2:5, 1:] = 0
    y[:, 0] += z
    z.copy_(x.sum(1))
    return x.t() + y


@case((8, 8))
def in_place_transposed(x):
    x.copy_(x.t().clone() * 3)


@case(tensors=lambda g: [torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.5,
                                       3e38]).repeat(3, 2)])
def extremes(x):
    return (torch.maximum(x, -x), x.amax(1), x.argmin(1), x.sign(), x.relu(), x + x, x.round(), torch.nan_to_num(x),
            x.isfinite(), x.cumsum(1))


@case((5, 24), (24,), dynamic=True)
def symbolic(x, w):
    return ((x + w).softmax(-1), x.sum(0), torch.cat([x, x * 2]), x[1:, :-1] * 2, x.reshape(-1) + 1, x.t().contiguous(),
            x.mean())


@case((6, 12), dynamic=True)
def symbolic_in_place(x):
    x.sub_(x.mean(1, keepdim=True))
    return x * x.shape[0]


@case((0, 5), (3, 0), (3, 5))
def empty(x, y, z):
    return x.sum(0), y.sum(1), x.exp(), torch.cat([x, z]), y + 1, x.t().contiguous(), z[3:] * 2, y.cumsum(0)


@case(())
def without_dimensions(x):
    return x + 1, x.exp().sum(), x.expand(3) * 2


@case((4, 6), (6, 8))
def products(x, y):
    return torch.relu(x @ y).sum(1), (x @ y) * 2


def _bits(b, key, x):
    counter = b.reshape(b.iota(x.type.numel, 0, 1, device=x.type.device), x.type.shape)
    narrow = b.emit("random_bits", (key, counter), {}, torch.int32)
    return (narrow, b.emit("random_bits", (key, b.add(counter, 1 << 33)), {}, torch.int64),
            b.where(b.ge(narrow, 0), x, 0.0))


@case(tensors=lambda g: [torch.tensor(0x6A09E667F3BCC909), torch.randn(5, 30, generator=g)], build=_bits)
def random_bits(key, x):
    counter = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    narrow = philox.random_bits(key, counter, torch.int32)
    return narrow, philox.random_bits(key, counter + (1 << 33)), torch.where(narrow >= 0, x, 0.0)


# what runs them


def captured(found: Case, tensors) -> Graph:
    if found.build is None:
        return trace(found.program, *clone_inputs(tensors), dynamic=found.dynamic)[0]
    b = Builder(ShapeEnv())
    inputs = [b.node("input", (), {"index": i},
                     TensorType.contiguous(tuple(t.shape), t.dtype, t.device)) for i, t in enumerate(tensors)]
    return verify(Graph(inputs, b.nodes, [Output(o) for o in found.build(b, *inputs)], b.env))


def compiled(graph, **options):
    return compile_graph(run_passes(graph, (*STANDARD, *SCHEDULED)), Options(**options))


def cpp(found, tensors):
    return compiled(captured(found, tensors)).call(*tensors)


def loops(found, tensors):
    return reference.run_plan(compiled(captured(found, tensors), target="reference"), *tensors)


def op_by_op(found, tensors):
    from jit.backends import compile_eager

    return compile_eager(captured(found, tensors), tensors).native(*tensors)


def pretended(found, tensors):
    import jit.runtime

    devices.register(Pretend())
    try:
        return jit.runtime.load_plan(on_host(compiled(moved(captured(found, tensors), PLACE)).plan))(*tensors)
    finally:
        devices.unregister(Pretend.type)


def triton_interpreted(found, tensors):
    """Needs TRITON_INTERPRET=1 when triton is imported."""
    from jit.codegen.triton import emit, worker

    def run(kernel, buffers, sizes):
        source = emit.emit(kernel, interpret=True)
        programs = dims.evaluate(source.grid, sizes)
        if programs:
            fn, _ = worker.load_function(source.text, source.function)
            fn[(programs,)](*[buffers[b.name] for b in kernel.buffers], *[sizes[n] for n in kernel.sizes])

    graph = moved(captured(found, tensors), torch.device("cuda", 0))
    return reference.run_plan(compiled(graph, target="reference"), *tensors, run_kernel=run)


RUNNERS = {"C++": cpp, "loops": loops, "op by op": op_by_op, "another device": pretended}


def conforms(name, run, place=lambda tensors: tensors):
    """Assert that a runner gives a case's results, and leaves in its inputs what eager leaves there."""
    found = CASES[name]
    theirs, ours = place(found.tensors()), place(found.tensors())
    want = [t for t in flatten(found.program(*theirs)) if isinstance(t, torch.Tensor)]
    compare([*run(found, ours), *ours], [*want, *theirs])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_conforms(runner, name):
    conforms(name, RUNNERS[runner])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_triton_on_a_gpu(name):
    # Whose plans launch what the device's emitter makes
    conforms(name, cpp, lambda tensors: [t.cuda() for t in tensors])


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: a line for each case."""
    for name in CASES:
        try:
            conforms(name, triton_interpreted)
            print(f"ok {name}")
        except Exception as error:
            print(f"FAILED {name}: {type(error).__name__}: {' | '.join(str(error).splitlines()[:12])}")


@pytest.mark.parametrize("name", CASES)
def test_triton_interpreted(name):
    pytest.importorskip("triton")
    assert interpreter.outcomes(__name__)[name] == f"ok {name}"


@pytest.mark.parametrize(
    "device",
    ["cpu", "loops",
     pytest.param("cuda", marks=[pytest.mark.gpu,
                                 pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")])])
def test_sizes_of_other_calls(device):
    """A plan with symbols serves other sizes."""
    found, by_loops = CASES["symbolic"], device == "loops"
    place = torch.device("cpu" if by_loops else device)
    plan = compiled(captured(found, [t.to(place) for t in found.tensors()]),
                    target="reference" if by_loops else "native")
    run = functools.partial(reference.run_plan, plan) if by_loops else plan.call
    for shape in ((5, 24), (60, 33), (2, 700), (500, 1024)):
        x, w = torch.randn(shape, device=place), torch.randn(shape[1], device=place)
        compare(run(x, w), list(found.program(x, w)))


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_index_out_of_range_raises(runner):
    """Where kernels do not stop by themselves."""
    found = CASES["indexing"]
    x, at, places = found.tensors()
    places[4, 1] = 23
    with pytest.raises((IndexError, RuntimeError)):
        RUNNERS[runner](found, [x, at, places])


def test_every_emitter_is_run():
    assert {b.emitter for b in devices.registered() if b.emitter} == {
        "jit.codegen.cpp.target", "jit.codegen.triton.target"}
