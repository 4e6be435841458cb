"""Triton kernels of the program's own on a GPU: their values, launched by plans, and which kernels are launched so."""

import pytest
import torch

triton = pytest.importorskip("triton")
import kernel_programs  # noqa: E402
from kernel_programs import PROGRAMS, add, compare, grid_of, make, scale_, tuned  # noqa: E402

import jit  # noqa: E402
from jit import compiling  # noqa: E402
from jit.runtime.user_kernels import OPERATOR  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def plans(monkeypatch):
    """The plans that are made."""
    made, real = [], compiling.begin

    def seen(*args, **kwargs):
        finish = real(*args, **kwargs)

        def finished():
            compiled = finish()
            made.append(compiled.plan)
            return compiled

        return finished

    monkeypatch.setattr(compiling, "begin", seen)
    return made


def called(plan):
    return [step.name for step in plan.steps if step.kind == "aten"]


def kinds(plan):
    return [step.kind for step in plan.steps]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    assert compare(name, "cuda") == ""


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {"autotuned"}))
def test_kernels_are_launched_by_the_plan(plans, name):
    fn, sizes, options = PROGRAMS[name]
    jit.compile(fn, fullgraph=True)(make(sizes[0], "cuda", options.get("grad", False)))
    assert plans and all(OPERATOR not in called(plan) for plan in plans)
    assert any("launch" in kinds(plan) for plan in plans)


def test_a_choice_is_made_by_the_autotuner_and_then_launched_by_the_plan(plans):
    tuned.cache.clear()
    compiled, x = jit.compile(PROGRAMS["autotuned"][0], fullgraph=True), make(1000, "cuda")
    first = compiled(x)[0]
    assert "aten" in kinds(plans[-1]) and len(tuned.cache) == 1
    second = compiled(x)[0]
    assert "aten" not in kinds(plans[-1]) and len(plans) == 2
    torch.testing.assert_close(first, second)
    compiled(x)
    assert len(plans) == 2


def test_addresses_that_are_not_aligned():
    def program(x):
        out = torch.empty_like(x)
        add[grid_of(x.numel())](x, x, out, x.numel(), BLOCK=128)
        scale_[(triton.cdiv(x.numel(), 32),)](x[1:], x.numel() - 1, 2.0)
        return out

    compiled = jit.compile(program, fullgraph=True)
    for start in 0, 1, 4, 3:
        x = make(1024, "cuda")[start:]
        y = make(1024, "cuda")[start:]
        torch.testing.assert_close(program(x), compiled(y))
        torch.testing.assert_close(x, y)


def test_sizes_that_change_compile_a_few_times(plans):
    def program(x, k):
        out = torch.empty_like(x)
        add[grid_of(x.numel())](x, x, out, x.numel(), BLOCK=128)
        scale_[(triton.cdiv(x.numel(), 32),)](out, x.numel(), k)
        return out

    compiled = jit.compile(program, fullgraph=True)
    for n in (64, 80, 96, 1024, 57, 33, 1000, 999, 4096, 5, 17, 48):
        torch.testing.assert_close(compiled(make(n, "cuda"), 2.0), make(n, "cuda") * 4)
    assert len(plans) <= 3


def test_on_another_stream_and_in_a_graph_of_the_programs():
    compiled = jit.compile(kernel_programs.helper, fullgraph=True)
    x = make(4096, "cuda")
    expected = compiled(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        again = compiled(x)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(again, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = compiled(x)
    recorded.zero_()
    graph.replay()
    torch.testing.assert_close(recorded, expected)


@torch.library.triton_op("jit_kernels_gpu::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[grid_of(x.numel())](x, x, out, x.numel(), BLOCK=128)
    return out


twice.register_autograd(lambda ctx, grad: grad * 2)


def test_kernels_in_triton_op_are_launched_by_the_plan(plans):
    compiled = jit.compile(lambda x: twice(x.sin()) + 1, fullgraph=True)
    x = make(1000, "cuda", grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    assert plans and all("aten" not in kinds(plan) for plan in plans)
