"""Triton kernels of the program's own, on the CPU: their values, in Triton's interpreter, and what is told from their
source."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from kernel_programs import PROGRAMS, add, by_helpers, count, gather, offset, rows, scale_  # noqa: E402

from jit.frame.kernel_writes import writes_of  # noqa: E402

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
