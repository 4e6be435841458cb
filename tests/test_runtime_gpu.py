"""Launching cubins from plans. Compiling needs no GPU; the tests marked gpu do."""

import threading

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

import jit  # noqa: E402
from jit.runtime import load_plan  # noqa: E402
from jit.runtime.plan import GpuKernel, GradSpec, Plan, load_differentiable  # noqa: E402
from jit.runtime.steps import Alloc, Arena, Aten, Const, Copy, Launch, Regs, Slot, Temp, Vjp, Wanted  # noqa: E402

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


def add_count(x, y, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(y + offset, tl.load(x + offset, mask=mask) + n.to(tl.float32), mask=mask)


def multiply(x, y, z, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(z + offset, tl.load(x + offset, mask=mask) * tl.load(y + offset, mask=mask), mask=mask)


def wide_product(x, y, z, N: tl.constexpr):
    # two N x N float32 operands go through shared memory
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision="tf32x3"))


def compiled(function, signature, constants, types, warps=4):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    capability = 90
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        capability = major * 10 + minor
    source = ASTSource(triton.jit(function), signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    return GpuKernel(made.metadata.name, made.asm["cubin"], warps, made.metadata.shared, types)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    import os

    os.environ.setdefault("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    pointers = {"x": "*fp32", "y": "*fp32"}
    return {
        "i32": compiled(add_count, {**pointers, "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 256}, ((0, "i32"),)),
        "i64": compiled(add_count, {**pointers, "n": "i64", "BLOCK": "constexpr"}, {"BLOCK": 256}, ((0, "i64"),)),
        "multiply": compiled(multiply, {**pointers, "z": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 256},
                             ((0, "i32"),)),
        "dot": compiled(wide_product, {**pointers, "z": "*fp32", "N": "constexpr"}, {"N": 128}, (), 8),
    }


def grid_of():
    """Registers: 0 the size of input 0, 1 one, 5 the number of blocks of 256."""
    return (("size", 0, 0), ("const", 1), ("const", 255), ("add", 0, 2), ("const", 256), ("floordiv", 3, 4))


def elementwise(kernel):
    steps = (Alloc(1, torch.float32, CUDA, (0,), (1,)), Launch(kernel, (0, 1), (0,), (5, 1, 1)))
    return Plan(1, 0, grid_of(), 2, steps, (1,))


def test_loads_without_a_gpu(kernels):
    assert kernels["dot"].shared > 48 << 10
    plan = load_plan(elementwise(kernels["i32"]))
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match="(?i)cuda|gpu"):
            plan(torch.zeros(3))


class TestOnGpu:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("kind", ["i32", "i64"])
    def test_sizes(self, kernels, kind):
        plan = load_plan(elementwise(kernels[kind]))
        for n in (0, 1, 255, 256, 257, 100_000):
            x = torch.randn(n, device="cuda")
            assert torch.equal(plan(x)[0], x + n)

    def test_shared_memory_above_48_kb(self, kernels):
        regs = (("const", 128), ("const", 1))
        plan = load_plan(Plan(2, 0, regs, 3, (Alloc(2, torch.float32, "cuda", (0, 0), (0, 1)),
                                              Launch(kernels["dot"], (0, 1, 2), (), (1, 1, 1))), (2,)))
        x, y = torch.randn(128, 128, device="cuda"), torch.randn(128, 128, device="cuda")
        torch.testing.assert_close(plan(x, y)[0], (x.double() @ y.double()).float(), rtol=1e-4, atol=1e-3)

    def test_arena_and_aten_on_one_stream(self, kernels):
        regs = grid_of() + (("const", 4), ("mul", 0, 6), ("const", 0))
        steps = (
            Arena(1, CUDA, 7),
            Temp(2, 1, 8, torch.float32, CUDA, (0,), (1,)),
            Launch(kernels["i32"], (0, 2), (0,), (5, 1, 1)),
            Aten("aten::sum", "", (Slot(2), Const(None)), (3,), None),
        )
        plan = load_plan(Plan(1, 0, regs, 4, steps, (3,)))
        x = torch.randn(10_000, device="cuda", dtype=torch.float32)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (y,) = plan(x)
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(y, (x + 10_000).sum())

    def test_new_thread(self, kernels):
        plan = load_plan(elementwise(kernels["i32"]))
        x, out = torch.randn(1000, device="cuda"), []
        thread = threading.Thread(target=lambda: out.append(plan(x)[0]))
        thread.start()
        thread.join()
        assert torch.equal(out[0], x + 1000)

    def test_cuda_graph(self, kernels):
        plan = load_plan(elementwise(kernels["i32"]))
        x = torch.randn(1000, device="cuda")
        plan(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (y,) = plan(x)
        x.fill_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, torch.full_like(x, 1002))

    def test_second_device(self, kernels):
        if torch.cuda.device_count() < 2:
            pytest.skip("one device")
        plan = load_plan(elementwise(kernels["i32"]))
        for device in ("cuda:1", "cuda:0", "cuda:1"):
            x = torch.randn(1000, device=device)
            (y,) = plan(x)
            assert y.device == x.device and torch.equal(y, x + 1000)
        assert torch.cuda.current_device() == 0

    def test_bad_cubin_says_so(self):
        plan = load_plan(elementwise(GpuKernel("k", b"not a cubin\0", 4, ints=((0, "i32"),))))
        with pytest.raises(RuntimeError, match="cuModuleLoadData"):
            plan(torch.zeros(3, device="cuda"))

    def test_int_too_large_for_the_kernel(self, kernels):
        regs = (("int", 0), ("const", 1))
        plan = load_plan(Plan(1, 1, regs, 1, (Launch(kernels["i32"], (0, 0), (0,), (1, 1, 1)),), ()))
        with pytest.raises(RuntimeError, match="32 bits"):
            plan(torch.zeros(3, device="cuda"), 1 << 40)

    def test_constant_plan_without_inputs(self, kernels):
        regs = (("const", 256), ("const", 1))
        steps = (
            Aten("aten::zeros", "",
             (Regs((0,)), Const(torch.float32), Const(None), Const(CUDA), Const(None)), (0,), None),
            Alloc(1, torch.float32, CUDA, (0,), (1,)),
            Launch(kernels["i32"], (0, 1), (0,), (1, 1, 1)),
        )
        assert torch.equal(load_plan(Plan(0, 0, regs, 2, steps, (1,)))()[0], torch.full((256,), 256.0, device="cuda"))


def square(kernels):
    """y = x * x with an extra copy of x, which the backward reads; its gradient is 2 x t."""
    fresh = lambda slot: Alloc(slot, torch.float32, CUDA, (0,), (1,))  # noqa: E731
    times = lambda *slots: Launch(kernels["multiply"], slots, (0,), (5, 1, 1))  # noqa: E731
    forward = Plan(1, 0, grid_of(), 3, (fresh(1), fresh(2), times(0, 0, 1), Copy(2, 0)), (1, 2))
    twice = Aten("aten::add", "Tensor", (Slot(2), Slot(2), Const(1)), (3,), None)
    backward = Plan(2, 0, grid_of(), 4, (fresh(2), times(0, 1, 2), twice), (3,))
    return load_differentiable(forward, backward, GradSpec(1, (0,), (0,), (("extra", 0),), (0,)))


def test_differentiable_loads_without_a_gpu(kernels):
    assert "differentiable" in repr(square(kernels))


class TestGradientsOnGpu:
    pytestmark = needs_gpu

    def test_gradient(self, kernels):
        f = square(kernels)
        for n in (1, 257, 100_000):
            x, t = torch.randn(n, device="cuda", requires_grad=True), torch.randn(n, device="cuda")
            (y,) = f(x)
            y.backward(t)
            torch.testing.assert_close(x.grad, 2 * x.detach() * t)
            before = x.grad.clone()
            f(x)[0].backward(t)
            torch.testing.assert_close(x.grad, 2 * before)

    def test_tangents_of_other_layouts(self, kernels):
        f = square(kernels)
        x = torch.randn(1000, device="cuda", requires_grad=True)
        f(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
        unaligned = torch.randn(1001, device="cuda")[1:]
        for t in (unaligned, torch.randn(2000, device="cuda")[::2]):
            (g,) = torch.autograd.grad(f(x)[0], x, t)
            torch.testing.assert_close(g, 2 * x.detach() * t)

    def test_side_stream(self, kernels):
        f = square(kernels)
        side = torch.cuda.Stream()
        x = torch.randn(1 << 22, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = f(x)[0].sum()
        loss.backward()
        torch.cuda.synchronize()
        torch.testing.assert_close(x.grad, 2 * x.detach())

    def test_threads(self, kernels):
        f, errors = square(kernels), []

        def work():
            try:
                x = torch.randn(10_000, device="cuda", requires_grad=True)
                for _ in range(20):
                    x.grad = None
                    f(x)[0].sum().backward()
                    torch.testing.assert_close(x.grad, 2 * x.detach())
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors

    def test_saved_memory_is_freed_in_time(self, kernels):
        f = square(kernels)
        n = 1 << 22
        x = torch.randn(n, device="cuda", requires_grad=True)
        t = torch.ones(n, device="cuda")
        (y,) = f(x)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        (g,) = torch.autograd.grad(y, x, t)
        # the product and its double were made; the saved copy went before the second was
        assert torch.cuda.max_memory_allocated() - held <= 4 * n + 4096
        assert torch.cuda.memory_allocated() - held <= 4096
        torch.testing.assert_close(g, 2 * x.detach())

    def test_replayed_operator(self):
        step = Vjp("aten::logcumsumexp", "", (Wanted(0), Const(0)), (0,), (1,), (2,), None)
        forward = Plan(1, 0, (), 2, (Aten("aten::logcumsumexp", "", (Slot(0), Const(0)), (1,), None),),
                       (1,))
        f = load_differentiable(forward, Plan(2, 0, (), 3, (step,), (2,)),
                                GradSpec(1, (0,), (0,), (("input", 0),), (0,)))
        x, t = torch.randn(60, device="cuda", requires_grad=True), torch.randn(60, device="cuda")
        f(x * 1)[0].backward(t)
        torch.testing.assert_close(x.grad, torch.autograd.grad(x.logcumsumexp(0), x, t)[0])

    def test_second_device(self, kernels):
        if torch.cuda.device_count() < 2:
            pytest.skip("one device")
        f = square(kernels)
        for device in ("cuda:1", "cuda:0"):
            x = torch.randn(1000, device=device, requires_grad=True)
            f(x)[0].sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_current_gpu_is_asked_for():
    def where(x):
        return x * 2 + torch.cuda.current_device()

    program = jit.compile(where, fullgraph=True)
    x = torch.randn(5, device="cuda")
    before = torch.cuda.current_device()
    try:
        for number in [*range(torch.cuda.device_count()), before]:
            torch.cuda.set_device(number)
            for _ in range(2):
                torch.testing.assert_close(program(x), where(x))
    finally:
        torch.cuda.set_device(before)
