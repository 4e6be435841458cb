"""On a GPU too, stretches of a graph that are repeated are compiled once: values, gradients, layouts, and the launches
of a plan that is recorded into a CUDA graph."""

import jit
import pytest
import torch
from jit import in_parts
from test_repeated_layers import LAYERS, LAYOUTS, PROGRAMS, Block, Plain, blocks, chained, found  # noqa: F401

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def close(got, expected, **tolerance):
    tolerance = tolerance or {"atol": 1e-3, "rtol": 1e-3}
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype


@pytest.fixture(autouse=True)
def default_device():
    with torch.device("cuda"):
        yield


@pytest.mark.parametrize("name", ["chained", "each", "back"])
@torch.no_grad()
def test_values(found, name):  # noqa: F811
    layers, program = blocks(), PROGRAMS[name]
    compiled = jit.compile(lambda x: program(layers, x), dynamic=False)
    for layout in LAYOUTS.values():
        x = layout()
        for _ in range(4):
            close(compiled(x), program(layers, x))
    assert found and all(count >= LAYERS - 4 for count, _ in found)


@pytest.mark.parametrize("make", [Block, Plain])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_gradients(found, make, dtype):  # noqa: F811
    layers = blocks(make=make).to(dtype)
    wide = blocks(make=make).double()
    wide.load_state_dict(layers.state_dict())

    def loss(layers, x):
        return chained(layers, x).float().square().mean()

    compiled = jit.compile(loss, dynamic=False)
    for layout in LAYOUTS.values():
        x = layout().to(dtype)
        if not x.numel():
            continue
        given = [*layers.parameters()]
        for x_ in (x, x.detach().requires_grad_()):
            asked = [*given, x_] if x_.requires_grad else given
            for _ in range(3):
                got = torch.autograd.grad(compiled(layers, x_), asked)
            eager = torch.autograd.grad(loss(layers, x_), asked)
            x_wide = x_.detach().double().requires_grad_(x_.requires_grad)
            exact = torch.autograd.grad(loss(wide, x_wide), [*wide.parameters(), *[x_wide] * x_.requires_grad])
            for g, e, t in zip(got, eager, exact, strict=True):
                scale = t.abs().max().clamp_min(1e-6)
                theirs = ((e.double() - t).abs().max() / scale).item()
                ours = ((g.double() - t).abs().max() / scale).item()
                slack = max(1e-5, 2 * torch.finfo(dtype).eps)
                assert ours <= 3 * theirs + slack and g.dtype == e.dtype, (tuple(t.shape), ours, theirs)
    assert found


@torch.no_grad()
def test_each_has_its_own_parameters(found):  # noqa: F811
    layers, x = blocks(), torch.randn(2, 5, 16)
    compiled = jit.compile(lambda x: chained(layers, x), dynamic=False)
    close(compiled(x), chained(layers, x))
    for at in (0, 7, LAYERS - 1):
        layers[at].up.weight.mul_(1.5)
        close(compiled(x), chained(layers, x))
    assert found


def test_a_step_of_training(found):  # noqa: F811
    """Many steps, in which parameters change and gradients are let go of."""
    layers, same = blocks(), blocks()
    same.load_state_dict(layers.state_dict())

    def loss(layers, x):
        return chained(layers, x).square().mean()

    compiled = jit.compile(loss, dynamic=False)
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.01) for m in (layers, same))
    for _ in range(6):
        x = torch.randn(2, 5, 16)
        for fn, m, optimizer in ((compiled, layers, ours), (loss, same, theirs)):
            optimizer.zero_grad()
            fn(m, x).backward()
            optimizer.step()
    close([*layers.parameters()], [*same.parameters()])
    assert found


@torch.no_grad()
def test_recorded_into_a_cuda_graph(found):  # noqa: F811
    layers = blocks()
    compiled = jit.compile(lambda x: chained(layers, x), dynamic=False, mode="reduce-overhead")
    for k in range(8):
        x = torch.randn(2, 5, 16) * k
        close(compiled(x).clone(), chained(layers, x))
    assert found


@torch.no_grad()
def test_in_a_stream_of_its_own(found):  # noqa: F811
    layers, stream = blocks(), torch.cuda.Stream()
    compiled = jit.compile(lambda x: chained(layers, x), dynamic=False)
    with torch.cuda.stream(stream):
        for _ in range(4):
            x = torch.randn(2, 5, 16)
            close(compiled(x), chained(layers, x))
    assert found


@torch.no_grad()
def test_memory_is_let_go_of(found):  # noqa: F811
    layers, x = blocks(), torch.randn(64, 128, 16)
    compiled = jit.compile(lambda x: chained(layers, x), dynamic=False)
    whole = jit.compile(lambda x: chained(layers, x) + 0, dynamic=False)
    most = {}
    for name, fn in (("parts", compiled), ("whole", whole)):
        with pytest.MonkeyPatch.context() as patch:
            if name == "whole":
                patch.setattr(in_parts, "find", lambda graph: None)
            for _ in range(4):
                fn(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fn(x)
        torch.cuda.synchronize()
        most[name] = torch.cuda.max_memory_allocated() - before
    assert found and most["parts"] <= 1.25 * most["whole"] + (1 << 20), most
