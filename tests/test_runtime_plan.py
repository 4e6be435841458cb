"""The plan executor: plans built by hand against eager, errors, pre-bound inputs, re-entrance, and the CPU memory
pool."""

import ctypes
import dataclasses
import gc
import os
import pickle
import signal
import subprocess
import threading
import warnings

import pytest
import torch
from runtime_harness import c, s

from jit.runtime import load_plan, native
from jit.runtime.plan import GpuKernel, Plan
from jit.runtime.steps import (Alloc, Arena, Aten, Call, Check, Const, Copy, Flag,
                               Free, Launch, Reg, Regs, Several, Slot, Slots, Step, Temp, View)

CPU = "cpu"
SOURCE = r"""
#include <cstdint>
extern "C" void add_one(void** p, const int64_t* n) {
    const float* x = (const float*)p[0]; float* y = (float*)p[1];
    for (int64_t i = 0; i < n[0]; ++i) y[i] = x[i] + 1.0f;
}
extern "C" void twice(void** p, const int64_t* n) {
    const float* x = (const float*)p[0]; float* y = (float*)p[1];
    for (int64_t i = 0; i < n[0]; ++i) y[i] = x[i] * 2.0f;
}
extern "C" void refuse(void** p, const int64_t* n) { if (n[0]) *(int32_t*)p[0] = (int32_t)n[0]; }
extern "C" void report(void** p, const int64_t* n) {
    int64_t* y = (int64_t*)p[0];
    for (int i = 0; i < n[0]; ++i) y[i] = n[i + 1];
}
"""


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "k.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(folder / "k.so"), str(folder / "k.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "k.so"))
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            for name in ("add_one", "twice", "report", "refuse")}


def elementwise(address, mutate=False):
    """y = f(x) for a contiguous 1-d float input of any length."""
    if mutate:
        return Plan(1, 0, (("size", 0, 0),), 1, (Call(address, (0, 0), (0,)),), (), mutates=(0,))
    regs = (("size", 0, 0), ("const", 1))
    steps = (Alloc(1, torch.float32, CPU, (0,), (1,)), Call(address, (0, 1), (0,)))
    return Plan(1, 0, regs, 2, steps, (1,))


def test_cpu_kernel(kernels):
    plan = load_plan(elementwise(kernels["add_one"]))
    for n in (0, 1, 8, 1000):
        x = torch.randn(n)
        (y,) = plan(x)
        assert torch.equal(y, x + 1) and y.is_contiguous() and not y.requires_grad
    assert "2 steps" in repr(plan)


def test_plan_is_plain_data(kernels):
    plan = elementwise(kernels["add_one"])
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert load_plan(again)(torch.zeros(3))[0].tolist() == [1, 1, 1]
    kernel = GpuKernel("k", b"\0", 4, ints=((0, "i32"),))
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert "call 0x" in plan.text() and "outputs: %1" in plan.text()


def test_arena_temps_and_free(kernels):
    # y = ((x + 1) * 2 + 1): the two intermediates live in one arena
    regs = (("size", 0, 0), ("const", 1), ("const", 4), ("mul", 0, 2), ("const", 63), ("add", 3, 4), ("const", 64),
            ("floordiv", 5, 6), ("mul", 7, 6), ("const", 0), ("const", 2), ("mul", 8, 10))
    f = torch.float32
    steps = (
        Arena(1, CPU, 11),
        Temp(2, 1, 9, f, CPU, (0,), (1,)),
        Temp(3, 1, 8, f, CPU, (0,), (1,)),
        Call(kernels["add_one"], (0, 2), (0,)),
        Call(kernels["twice"], (2, 3), (0,)),
        Free(2),
        Alloc(4, f, CPU, (0,), (1,)),
        Call(kernels["add_one"], (3, 4), (0,)),
        Free(3),
        Free(1),
    )
    plan = load_plan(Plan(1, 0, regs, 5, steps, (4,)))
    for n in (1, 17, 5000, 100_000):
        x = torch.randn(n)
        assert torch.equal(plan(x)[0], (x + 1) * 2 + 1)


def test_temp_feeds_aten(kernels):
    regs = (("const", 4), ("const", 5), ("const", 1), ("const", 0), ("const", 80), ("const", 20))
    f = torch.float32
    steps = (
        Arena(1, CPU, 4),
        Temp(2, 1, 3, f, CPU, (0, 1), (1, 2)),
        Call(kernels["add_one"], (0, 2), (5,)),
        Aten("aten::mm", "", (Slot(2), Slot(2 + 2)), (3,), None),
    )
    steps = steps[:3] + (View(4, 2, (1, 0), (2, 1), 3),) + steps[3:]
    plan = load_plan(Plan(1, 0, regs, 5, steps, (3,)))
    x = torch.randn(4, 5)
    torch.testing.assert_close(plan(x)[0], (x + 1) @ (x + 1).t())


def test_registers(kernels):
    regs = (
        ("size", 0, 1), ("stride", 0, 0), ("int", 0), ("const", 3), ("add", 0, 2), ("sub", 2, 0), ("mul", 0, 3),
        ("floordiv", 5, 3), ("mod", 5, 3), ("max", 0, 2), ("min", 0, 2), ("const", 11), ("const", 1), ("const", 10),
    )  # fmt: skip
    steps = (Alloc(1, torch.int64, CPU, (13,), (12,)),
             Call(kernels["report"], (1,), (13, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10)))
    plan = load_plan(Plan(1, 1, regs, 2, steps, (1,)))
    x = torch.empty(2, 7)
    for k in (-4, 2, 50):
        got = plan(x, k)[0].tolist()
        d = k - 7
        assert got == [7, 7, k, 7 + k, d, 21, d // 3, d % 3, max(7, k), min(7, k)]


def test_kernels_report_errors(kernels):
    plan = load_plan(Plan(0, 1, (("int", 0),), 1, (Flag(0), Call(kernels["refuse"], (0,), (0,)),
                                                   Check(0, "index out of range")), ()))
    assert plan(0) == ()
    with pytest.raises(IndexError, match="out of range"):
        plan(1)
    with pytest.raises(RuntimeError, match="out of range"):
        plan(2)
    assert plan(0) == ()


def test_division_by_zero_raises():
    plan = load_plan(Plan(1, 0, (("size", 0, 0), ("const", 4), ("floordiv", 1, 0)), 1, (), (0,)))
    assert plan(torch.zeros(2))[0] is not None
    with pytest.raises(RuntimeError, match="divides"):
        plan(torch.zeros(0))


def test_aten_addmm():
    steps = (Aten("aten::addmm", "", (s(0), s(1), s(2), c(2), c(0.5)), (3,), None),)
    plan = load_plan(Plan(3, 0, (), 4, steps, (3,)))
    b, x, w = torch.randn(5), torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    (y,) = plan(b, x, w)
    torch.testing.assert_close(y, torch.addmm(b, x, w, beta=2, alpha=0.5))
    assert not y.requires_grad


ATEN = [
    ("aten::cat", "", (Slots((0, 1)), c(-1)), lambda x, y: torch.cat([x, y], -1)),
    ("aten::index", "Tensor", (s(0), Slots((None, 2))), lambda x, y: x[:, torch.tensor([1, 0, 2])]),
    ("aten::sum", "dim_IntList", (s(0), c((1,)), c(True), c(torch.float64)),
     lambda x, y: x.sum(1, keepdim=True, dtype=torch.float64)),
    ("aten::sum", "dim_IntList", (s(0), c(None), c(False), c(None)), lambda x, y: x.sum()),
    ("aten::add", "Tensor", (s(0), c(2), c(1)), lambda x, y: x + 2),
    ("aten::mul", "Scalar", (s(0), Reg(0)), lambda x, y: x * 3),
    ("aten::full", "", (Regs((0, 1)), c(1.5), c(torch.float32), c(torch.strided), c(torch.device("cpu")), c(False)),
     lambda x, y: torch.full((3, 4), 1.5)),
    ("aten::full", "", (Several((Reg(0), c(7))), c(2), c(torch.int64), c(None), c("cpu"), c(None)),
     lambda x, y: torch.full((3, 7), 2)),
    ("aten::to", "dtype", (s(0), c(torch.float16), c(False), c(True), c(torch.contiguous_format)),
     lambda x, y: x.to(torch.float16, copy=True)),
    ("aten::div", "Tensor_mode", (s(0), s(1), c("floor")), lambda x, y: torch.div(x, y, rounding_mode="floor")),
    ("aten::avg_pool1d", "", (s(0), c(2), c(()), c(0), c(False), c(True)),
     lambda x, y: torch.nn.functional.avg_pool1d(x, 2)),
    ("aten::quantile", "scalar", (s(0), c(0.5), c(None), c(False), c("linear")), lambda x, y: torch.quantile(x, 0.5)),
    ("aten::roll", "", (s(0), Reg(0), c(1)), lambda x, y: torch.roll(x, 3, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", ATEN, ids=[a[0] + "." + a[1] for a in ATEN])
def test_aten_arguments(case):
    name, overload, args, eager = case
    steps = (Aten(name, overload, args, (3,), None),)
    plan = load_plan(Plan(3, 0, (("size", 0, 0), ("size", 0, 1)), 4, steps, (3,)))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    (got,) = plan(x, y, torch.tensor([1, 0, 2]))
    want = eager(x, y)
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_several_results_and_unwanted_ones():
    steps = (Aten("aten::topk", "", (s(0), c(2), c(-1), c(True), c(True)), (None, 1), None),
             Aten("aten::split", "Tensor", (s(0), c(2), c(1)), (2, 3), None))
    plan = load_plan(Plan(1, 0, (), 4, steps, (1, 2, 3)))
    x = torch.randn(3, 4)
    index, left, right = plan(x)
    assert torch.equal(index, x.topk(2).indices) and torch.equal(left, x[:, :2]) and torch.equal(right, x[:, 2:])


def test_undefined_result_is_none():
    args = (s(0), s(0), s(0), c(None), c(None), c([0]), c([1]), c([0]), c([1]), c(False))
    steps = (Aten("aten::native_layer_norm_backward", "",
              (s(0), s(0), c([4]), s(1), s(1), c(None), c(None), c([True, False, False])), (2, 3, 4), None),)
    del args
    plan = load_plan(Plan(2, 0, (), 5, steps, (2, 3, 4)))
    dx, dw, db = plan(torch.randn(3, 4), torch.ones(3, 1))
    assert dx.shape == (3, 4) and dw is None and db is None


def test_expected_layout_is_made():
    regs = (("const", 3), ("const", 4), ("const", 1))
    want = ((0, 1), (2, 0))  # column major
    steps = (Aten("aten::relu", "", (s(0),), (1,), (want,)),)
    plan = load_plan(Plan(1, 0, regs, 2, steps, (1,)))
    x = torch.randn(3, 4)
    (y,) = plan(x)
    assert y.stride() == (1, 3) and torch.equal(y, x.relu())
    column = torch.randn(4, 3).t()
    assert plan(column)[0].stride() == (1, 3)
    with pytest.raises(RuntimeError, match="predicted"):
        plan(torch.randn(3, 5))


def test_eager_errors_come_through():
    plan = load_plan(Plan(2, 0, (), 3, (Aten("aten::mm", "", (s(0), s(1)), (2,), None),), (2,)))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        plan(torch.randn(2, 3), torch.randn(2, 3))
    plan = load_plan(Plan(1, 0, (), 2, (Aten("aten::select", "int", (s(0), c(0), c(9)), (1,), None),), (1,)))
    with pytest.raises(IndexError):
        plan(torch.randn(2))


def test_warnings_come_through():
    plan = load_plan(Plan(1, 0, (), 2,
                          (Aten("aten::std", "correction", (s(0), c(None), c(1), c(False)), (1,), None),), (1,)))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        plan(torch.randn(1))


def test_views_of_inputs_are_views():
    regs = (("const", 2), ("const", 3), ("const", 6), ("const", 1))
    plan = load_plan(Plan(1, 0, regs, 3, (View(1, 0, (0, 1), (1, 3), 1), View(2, 1, (1,), (3,), 0)), (0, 1, 2)))
    x = torch.arange(12.0)
    same, v, w = plan(x)
    assert same is x
    assert v._base is x and torch.equal(v, x[3:9].view(2, 3)) and torch.equal(w, x[5:8])
    before = v._version
    x.add_(1)
    assert v._version == before + 1 and v[0, 0] == 4 and w[0] == 6
    leaf = torch.arange(12.0, requires_grad=True)
    _, v, _ = plan(leaf)
    v.sum().backward()
    assert leaf.grad.sum() == 6


def test_view_of_strided_input():
    regs = (("const", 2), ("const", 1), ("const", 0), ("const", 6))
    plan = load_plan(Plan(1, 0, regs, 3, (View(1, 0, (0, 0), (3, 1), 0),
                                          Aten("aten::clone", "", (s(1), c(None)), (2,), None)), (2,)))
    x = torch.arange(24.0).view(4, 6)
    assert torch.equal(plan(x[1:, 1:])[0], x[1:, 1:].as_strided((2, 2), (6, 1), 7 + 2))


def test_mutation_bumps_versions(kernels):
    x = torch.zeros(8)
    plan = load_plan(elementwise(kernels["add_one"], mutate=True))
    assert plan(x) == () and x.tolist() == [1] * 8 and x._version == 1
    copy = load_plan(Plan(2, 0, (), 2, (Copy(0, 1),), ()))
    copy(x, torch.full((8,), 5.0))
    assert x.tolist() == [5] * 8 and x._version == 2
    regs = (("const", 4), ("const", 1), ("const", 2))
    through_view = load_plan(Plan(2, 0, regs, 3, (View(2, 0, (0,), (1,), 2), Copy(2, 1)), (0,)))
    (back,) = through_view(x, torch.full((4,), 7.0))
    assert back is x and x.tolist() == [5, 5, 7, 7, 7, 7, 5, 5] and x._version == 3
    with torch.inference_mode():
        inference = torch.zeros(8)
        plan(inference)
        assert inference.tolist() == [1] * 8


def test_same_output_twice_is_one_object(kernels):
    data = elementwise(kernels["add_one"])
    a, b, x = load_plan(Plan(data.n_inputs, 0, data.regs, 2, data.steps, (1, 1, 0)))(t := torch.zeros(2))
    assert a is b and x is t


def test_below_autograd_and_autocast():
    plan = load_plan(Plan(2, 0, (), 3, (Aten("aten::mm", "", (s(0), s(1)), (2,), None),), (2,)))
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (y,) = plan(x, w)
    assert y.dtype == torch.float32 and y.grad_fn is None
    assert (x @ w).requires_grad and torch.is_grad_enabled()


def test_arguments_are_checked(kernels):
    plan = load_plan(elementwise(kernels["add_one"]))
    for bad in ((), (torch.zeros(1), 1), ("x",), (None,)):
        with pytest.raises(TypeError):
            plan(*bad)
    with pytest.raises(TypeError):
        plan(torch.zeros(1), x=1)
    with pytest.raises(TypeError):
        load_plan(Plan(0, 1, (), 0, (), ()))("x")


@dataclasses.dataclass(frozen=True)
class Nothing(Step):
    kind = "nothing"


BAD = [
    Plan(1, 0, (("size", 1, 0),), 1, (), ()),
    Plan(1, 0, (("add", 0, 1),), 1, (), ()),
    Plan(1, 0, (("wild", 0),), 1, (), ()),
    Plan(2, 0, (), 1, (), ()),
    Plan(1, 0, (), 1, (Nothing(),), ()),
    Plan(1, 0, (("const", 1),), 2, (Alloc(0, torch.float32, "cpu", (0,), (0,)),), ()),
    Plan(1, 0, (("const", 1),), 2, (Alloc(1, "float32", "cpu", (0,), (0,)),), ()),
    Plan(1, 0, (("const", 1),), 2, (Alloc(1, torch.float32, "cpu", (0,), ()),), ()),
    Plan(1, 0, (), 1, (Call(0, (), ()),), ()),
    Plan(1, 0, (), 2, (Aten("aten::no_such_thing", "", (), (1,), None),), ()),
    Plan(1, 0, (), 2, (Aten("aten::relu", "", (), (1,), None),), ()),
    Plan(1, 0, (), 2, (Aten("aten::relu", "", (Const("x"),), (1,), None),), ()),
    Plan(1, 0, (), 2, (), (7,)),
    Plan(1, 0, (), 2, (Launch(GpuKernel("k", b"", 4, cluster=2), (), (), (0, 0, 0)),), ()),
]


@pytest.mark.parametrize("plan", BAD, ids=range(len(BAD)))
def test_bad_data_raises(plan):
    with pytest.raises((ValueError, TypeError)):
        load_plan(plan)


def test_bound_inputs(kernels):
    n = native()
    plan = load_plan(Plan(3, 0, (), 4, (Aten("aten::addmm", "", (s(0), s(1), s(2), c(1), c(1)), (3,), None),),
                          (3,)))
    b, x, w = torch.randn(5), torch.randn(3, 4), torch.nn.Parameter(torch.randn(4, 5))
    bound = n.bind(plan, {0: b, 2: w})
    assert torch.equal(bound(x)[0], torch.addmm(b, x, w.detach()))
    assert bound.bound[2] is w and "2 bound" in repr(bound)
    with torch.no_grad():
        w.mul_(2)
    assert torch.equal(bound(x)[0], torch.addmm(b, x, w.detach()))
    w2 = torch.nn.Parameter(torch.randn(4, 5))
    bound.rebind({2: w2})
    assert torch.equal(bound(x)[0], torch.addmm(b, x, w2.detach()))
    assert torch.equal(plan(b, x, w)[0], torch.addmm(b, x, w.detach()))
    with pytest.raises(ValueError):
        bound.rebind({1: x})
    with pytest.raises(TypeError):
        n.bind(plan, {0: 1})
    with pytest.raises(TypeError):
        bound(b, x, w)


def test_outputs_outlive_the_plan(kernels):
    n = native()
    plan = load_plan(elementwise(kernels["add_one"]))
    x = torch.arange(100_000.0)
    outs = [plan(x)[0] for _ in range(4)]
    del plan
    gc.collect()
    n.release_pool()
    for y in outs:
        assert torch.equal(y, x + 1)
    outs[0].resize_(200_000)
    assert torch.equal(outs[0][:100_000], x + 1)


def test_pool_reuses_and_is_bounded(kernels):
    n = native()
    plan = load_plan(elementwise(kernels["add_one"]))
    limit = n.pool_stats()["limit"]
    try:
        n.release_pool()
        assert n.pool_stats()["cached_bytes"] == 0
        x = torch.randn(1 << 18)
        y = plan(x)[0]
        assert y.data_ptr() % 64 == 0
        first = y.data_ptr()
        del y
        stats = n.pool_stats()
        assert stats["cached_blocks"] == 1 and stats["cached_bytes"] >= 1 << 20
        y = plan(x)[0]
        assert y.data_ptr() == first and n.pool_stats()["hits"] == stats["hits"] + 1
        z = plan(x)[0]  # y is alive: other memory
        assert z.data_ptr() != first and torch.equal(y, z)
        n.set_pool_limit(3 << 20)
        many = [plan(x)[0] for _ in range(6)]
        del many, y, z
        stats = n.pool_stats()
        assert 0 < stats["cached_bytes"] <= 3 << 20
        n.set_pool_limit(0)
        assert n.pool_stats()["cached_bytes"] == 0
        del x
        y = plan(torch.randn(1 << 18))[0]
        del y
        assert n.pool_stats()["cached_blocks"] == 0
        small = [plan(torch.zeros(k))[0] for k in range(1, 40)]
        assert all(t.data_ptr() % 64 == 0 for t in small)
    finally:
        n.set_pool_limit(limit)


def test_pool_survives_fork_and_threads(kernels):
    plan = load_plan(elementwise(kernels["add_one"]))
    x = torch.randn(1 << 16)
    first, last = (x + 1)[[0, -1]].tolist()
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            plan(x)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    [t.start() for t in threads]
    try:
        for _ in range(5):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                signal.alarm(20)
                # nothing parallel here: libgomp's threads do not survive a fork
                done = [plan(x)[0] for _ in range(3)]
                os._exit(0 if all(y[-1].item() == last and y[0].item() == first for y in done) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        [t.join() for t in threads]


def test_outputs_freed_on_other_threads(kernels):
    plan = load_plan(elementwise(kernels["add_one"]))
    x = torch.arange(1 << 15, dtype=torch.float32)
    queue, errors = [], []

    def consume(items):
        while items:
            y = items.pop()
            if y[-1] != x[-1] + 1:
                errors.append(y)

    for _ in range(20):
        queue = [plan(x)[0] for _ in range(16)]
        threads = [threading.Thread(target=consume, args=(queue,)) for _ in range(3)]
        [t.start() for t in threads]
        fresh = [plan(x)[0] for _ in range(8)]
        [t.join() for t in threads]
        assert all(torch.equal(y, x + 1) for y in fresh)
    assert not errors


def test_threads_hammer_plans(kernels):
    fine = load_plan(elementwise(kernels["add_one"]))
    product = load_plan(Plan(1, 0, (), 2, (Aten("aten::mm", "", (s(0), s(0)), (1,), None),), (1,)))
    errors = []

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        try:
            for i in range(60):
                x = torch.randn(1000 * (1 + (seed + i) % 40), generator=g)
                assert torch.equal(fine(x)[0], x + 1)
                m = torch.randn(8, 8, generator=g)
                torch.testing.assert_close(product(m)[0], m @ m)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


def test_many_slots_and_inputs(kernels):
    count = 60
    regs = (("size", 0, 0), ("const", 1))
    steps = []
    for i in range(count):
        steps += [Alloc(count + i, torch.float32, CPU, (0,), (1,)),
                  Call(kernels["add_one"], (i, count + i), (0,))]
    plan = load_plan(Plan(count, 0, regs, 2 * count, tuple(steps), tuple(range(count, 2 * count))))
    xs = [torch.randn(5) for _ in range(count)]
    for x, y in zip(xs, plan(*xs), strict=True):
        assert torch.equal(y, x + 1)
