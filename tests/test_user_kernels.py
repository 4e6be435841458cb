"""Triton kernels of the program's own, on the CPU: their values, in Triton's interpreter, and what is told from their
source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from kernel_programs import PROGRAMS, add, by_helpers, count, gather, make, offset, rows, scale_, tuned  # noqa: E402

from gpu_texts import launched_on_gpu  # noqa: E402

from jit.frame.kernel_writes import writes_of  # noqa: E402
from jit.runtime.user_kernels import OPERATOR  # noqa: E402

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def outcomes():
    """What is wrong with each program, by a process with Triton's interpreter."""
    env = dict(os.environ, TRITON_INTERPRET="1", OMP_NUM_THREADS="2", JIT_STRICT="1",
               PYTHONPATH=os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, str(HERE / "kernel_programs.py")], env=env, capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_in_the_interpreter(outcomes, name):
    assert outcomes[name] == ""


@triton.jit
def stores_where_data_say(x, index, out):
    at = tl.load(index)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def either(a, b, flag, n):
    target = a if flag else b
    for _ in range(n):
        tl.store(target, 1.0)
        target += 1


@triton.jit
def late(a, b, n):
    p = a
    for _ in range(n):
        tl.store(p, 0.0)
        p = b


@triton.jit
def by_block(x, out, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.make_block_ptr(base=out, shape=(n,), strides=(1,), offsets=(0,), block_shape=(BLOCK,), order=(0,))
    tl.store(tl.advance(target, (0,)), tl.load(source))


@triton.jit
def by_descriptor(x, out, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    target = tl.make_tensor_descriptor(out, [n], [1], [BLOCK])
    target.store([0], source.load([0]))


@triton.jit
def prints(x):
    tl.device_print("x", tl.load(x))


@triton.jit
def exchanged(x, lock):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.atomic_xchg(lock, 0)
    tl.store(x, 1.0)


@pytest.mark.parametrize("kernel, written, loud", [
    (add, "out", False), (scale_, "x", False), (offset, "out", False), (rows, "out", False), (by_helpers, "out", False),
    (count, "total", False), (gather, "out", False), (stores_where_data_say, "out", False),
    (late, "a b", False), (by_block, "out", False), (by_descriptor, "out", False), (prints, "", True),
    (exchanged, "lock x", False)], ids=lambda v: getattr(v, "__name__", None))
def test_what_a_kernel_writes(kernel, written, loud):
    found = writes_of(kernel)
    assert set(written.split()) <= found.written
    assert not {"x", "index", "y", "bias", "source"} & found.written - set(written.split())
    assert found.loud == loud


def test_what_a_branch_decides_may_be_written():
    assert {"a", "b"} <= writes_of(either).written


def test_without_a_source_all_may_be_written():
    scope = {"tl": tl}
    exec("def kernel(x, y):\n    tl.store(y, tl.load(x))", scope)
    found = writes_of(scope["kernel"])
    assert found.written == {"x", "y"} and found.loud


# ---- what a GPU would be given


def plan_of(name, n=40, **options):
    return launched_on_gpu(PROGRAMS[name][0], make(n), **options).plan


def called(plan):
    return [step.name for step in plan.steps if step.kind == "aten"]


def kinds(plan):
    return [step.kind for step in plan.steps]


@pytest.mark.parametrize("name", sorted(n for n, (_, _, o) in PROGRAMS.items() if not o and n not in ("strides",)))
def test_a_gpu_launches_kernels_by_itself(name):
    plan = plan_of(name, 36 if name == "by_other_functions" else 40)
    assert "launch" in kinds(plan) and OPERATOR not in called(plan)
    for step in plan.steps:
        if step.kind == "launch":
            assert step.kernel.cubin[:4] == b"\x7fELF"


def test_new_memory_is_written_as_it_is():
    """Nothing is filled, and nothing copied."""
    plan = plan_of("optional_arguments")
    assert kinds(plan) == ["alloc", "launch", "alloc", "launch"]
    first, second = (s for s in plan.steps if s.kind == "launch")
    assert first.kernel.ints == ((0, "i32"),) and first.kernel.order == (0, 1, 2)
    # x, amount (2.5), bias, out, n
    assert second.kernel.ints == ((0, "i32"), (1, "i32")) and second.kernel.order == (0, 3, 1, 2, 4)
    assert plan.regs[second.ints[0]] == ("const", 0x40200000) and plan.regs[second.grid[0]] == ("const", 2)


def test_inputs_and_temporaries_are_written_where_they_lie():
    plan = plan_of("in_place")
    assert kinds(plan) == ["alloc", "alloc", "launch", "launch", "launch"]
    assert [step.kernel.name for step in plan.commit][0] == "scale_" and plan.mutates == (0,)
    assert plan.commit[0].written == (0,)


def test_the_old_content_is_kept_for_others():
    def program(x):
        y = x + 1
        z = y.clone()
        scale_[(2,)](z, 40, 2.0)
        return y, z

    plan = launched_on_gpu(program, make(40)).plan
    outputs = set(plan.outputs)
    assert len(outputs) == 2
    (launch,) = [s for s in plan.steps if s.kind == "launch" and s.kernel.name == "scale_"]
    assert launch.written[0] in outputs


def test_a_view_begins_where_it_does():
    plan = plan_of("a_view_is_written")
    launches = [s for s in plan.steps if s.kind == "launch" and s.kernel.name == "scale_"]
    (view,) = [s for s in plan.steps if s.kind == "view" and s.slot == launches[0].pointers[0]]
    assert plan.regs[view.offset] == ("const", 1)


def test_addresses_that_are_not_aligned_are_compiled_for():
    def fn(x):
        out = torch.empty_like(x)
        add[(4,)](x, x, out, 4096, BLOCK=1024)
        return out

    aligned, loose = (launched_on_gpu(fn, make(4096), unaligned=u).plan for u in (frozenset(), frozenset((0,))))
    cubins = [[s.kernel.cubin for s in p.steps if s.kind == "launch" and s.kernel.name == "add"]
              for p in (aligned, loose)]
    assert cubins[0] != cubins[1] and 0 in aligned.aligned and 0 not in loose.aligned


def test_a_tuner_that_has_still_to_choose_is_called():
    tuned.cache.clear()
    assert "aten" in kinds(plan_of("autotuned"))
    tuned.cache[(40, "torch.float32", "torch.float32")] = tuned.configs[1]
    try:
        plan = plan_of("autotuned")
    finally:
        tuned.cache.clear()
    assert "aten" not in kinds(plan)
    (launch,) = [s for s in plan.steps if s.kind == "launch" and s.kernel.name == "tuned"]
    assert launch.kernel.num_warps == 4 and plan.regs[launch.grid[0]] == ("const", 2)


@triton.jit
def cluster(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


def test_what_needs_more_is_launched_by_triton():
    def program(x):
        out = torch.empty_like(x)
        cluster[(1,)](x, out, BLOCK=32, num_ctas=2)
        return out

    assert "aten" in kinds(launched_on_gpu(program, make(32)).plan)
