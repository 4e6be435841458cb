"""Processes that compile kernels for GPUs, and what becomes of a kernel at which they end. No GPU is needed."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch

import jit
import triton_kernels as zoo
from jit import backends, config as options, failures
from jit.codegen.cpp import target as cpp_target
from jit.codegen.triton import compile as triton_compile
from jit.codegen.triton import emit as triton_emit
from jit.codegen.triton import target as cuda_target, worker, workers
from jit.errors import CompileError

pytest.importorskip("triton")
NAMES = ("swiglu", "rope", "row_sum", "cumsum", "col_max", "softmax")
ABORT = "import os\nos.abort()\n"  # as an assertion of LLVM does


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A cache and processes of the test's own."""
    monkeypatch.setattr(options, "cache_dir", str(tmp_path))
    monkeypatch.setattr(options, "compile_threads", 2)
    mine = workers.Workers()
    monkeypatch.setattr(workers, "_pool", mine)
    yield mine
    mine.close()


def source(name="swiglu", before=""):
    made = triton_emit.emit(zoo.CASES[name](torch.float32, 2).kernel)
    return dataclasses.replace(made, text=before + made.text)


def built(sources):
    return triton_compile.build_sources(dict(sources), 90)


def test_the_kernel_that_a_process_begins_with_can_be_built(monkeypatch):
    assert worker.build(worker.FIRST)["cubin"]
    monkeypatch.setattr(worker, "build", lambda job: jobs.append(job) or 1 / 0)
    jobs = []
    worker.warm_up()  # if it cannot be, the first job will tell
    assert jobs == [worker.FIRST]


def within(seconds, call):
    """What ``call`` gives, in a thread, so that a wait without an end is a failure of the test."""
    out = []

    def run():
        try:
            out.append(call())
        except Exception as error:
            out.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert out, f"not done in {seconds} seconds"
    return out[0]


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_kernel_that_ends_its_compiler_is_an_error(others, fresh):
    good = {name: source(name) for name in NAMES[:others]}
    error = within(60, lambda: built({"k": source("softmax", ABORT), **good}))
    assert isinstance(error, CompileError) and "signal Aborted, signal Aborted" in str(error), error
    assert "os.abort()" in str(error)  # its text
    assert fresh.count == len(fresh.idle)
    # What was built beside it is kept, and there are processes for what follows
    real, asked = workers.begin, []
    workers.begin = lambda jobs: asked.append(len(jobs)) or real(jobs)
    try:
        made = within(60, lambda: built(good | {"k": source("softmax")}))
    finally:
        workers.begin = real
    assert asked == [1] and set(made) == {*good, "k"} and all(c.cubin[:4] == b"\x7fELF" for c in made.values())
    assert not fresh.broken


def test_a_process_that_is_ended_from_outside_is_replaced(fresh, tmp_path):
    mark = tmp_path / "once"
    before = (f"import os, signal\nif not os.path.exists({str(mark)!r}):\n    open({str(mark)!r}, 'w').close()\n"
              "    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert within(60, lambda: built({"k": source(before=before)}))["k"].cubin
    assert mark.exists() and not fresh.broken


def test_an_idle_process_that_has_ended_is_replaced(fresh):
    within(60, lambda: built({"k": source()}))
    one, = fresh.idle
    one.process.kill()
    one.process.wait()
    assert within(60, lambda: built({"k": source("rope")}))["k"].cubin
    assert one not in fresh.idle and fresh.count == len(fresh.idle) == 1


@pytest.mark.parametrize("program", ["/no/such/program", "/bin/false"])
def test_without_processes_kernels_are_compiled_here(program, fresh, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    made = within(60, lambda: built({name: source(name) for name in NAMES[:3]}))
    assert all(c.cubin for c in made.values())
    assert fresh.broken and fresh.count == 0


def test_more_threads_than_processes(fresh):
    answers = []
    threads = [threading.Thread(target=lambda name=name: answers.append(built({name: source(name)})), daemon=True)
               for name in NAMES]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert sorted(name for a in answers for name in a) == sorted(NAMES)
    assert fresh.count == len(fresh.idle) <= 2


def test_after_the_end_kernels_are_compiled_here(fresh):
    within(60, lambda: built({"k": source()}))
    fresh.close()
    assert within(60, lambda: built({"k": source("rope")}))["k"].cubin


def test_an_interrupt_from_the_keyboard_leaves_them_alone(fresh):
    within(60, lambda: built({"k": source()}))
    one, = fresh.idle
    one.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert within(60, lambda: built({"k": source("rope")}))["k"].cubin
    assert fresh.idle == [one]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forked children")
def test_a_forked_child_has_its_own():
    code = ("import os, sys; sys.path.insert(0, sys.argv[1]); import torch, triton_kernels as zoo\n"
            "from jit.codegen.triton import compile as c, emit as e, workers as w\n"
            "cases = [e.emit(zoo.CASES[n](torch.float32, 2).kernel) for n in ('swiglu', 'rope', 'row_sum')]\n"
            "def run(i): return c.build_sources({'k': cases[i]}, 90)['k'].cubin\n"
            "run(0); before = w.workers(); child = os.fork()\n"
            "if not child:\n    ok = run(1) and w.workers() is not before; os._exit(0 if ok else 1)\n"
            "assert os.waitpid(child, 0)[1] == 0; assert run(2) and w.workers() is before\n")
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join([os.path.dirname(here), *sys.path])
    env = dict(os.environ, JIT_CACHE_DIR=options.cache_dir, PYTHONPATH=path)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, here], env=env, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_program_goes_on_in_eager(monkeypatch):
    """The kernels of a function, as far as the target's, which cannot run here: one warning, or an error if strict."""
    monkeypatch.setattr(cpp_target, "begin_kernels",
                        lambda *args, **kwargs: lambda: built({"k": source(before=ABORT)}))
    x = torch.randn(5, 7)

    def f(x):
        return (x * 2).sin().sum(1)

    monkeypatch.setattr(options, "strict", False)
    failures.forget()
    compiled = jit.compile(f)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), f(x))
    told = [str(w.message) for w in told if issubclass(w.category, failures.InternalFailure)]
    assert len(told) == 1 and "signal Aborted" in told[0], told
    monkeypatch.setattr(options, "strict", True)
    with pytest.raises(CompileError, match="signal Aborted"):
        jit.compile(lambda x: (x * 3).cos().sum(1))(x)


def test_processes_that_are_started_ahead(fresh, monkeypatch):
    """While a program is captured that will need them: all but one of those that there may be, once."""
    monkeypatch.setattr(options, "compile_threads", 3)
    cuda_target.expects_kernels()
    end = time.monotonic() + 20
    while len(fresh.idle) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    first = {one.process.pid for one in fresh.idle}
    assert len(first) == 2 == fresh.count
    cuda_target.expects_kernels()
    assert "cubin" in dir(within(60, lambda: built({"a": source()}))["a"])
    assert {one.process.pid for one in fresh.idle} == first and fresh.count == 2


def test_ends_at_once_while_a_process_is_starting(fresh):
    cuda_target.expects_kernels()
    end = time.monotonic() + 20
    while not fresh.idle and time.monotonic() < end:
        time.sleep(0.001)
    begin = time.monotonic()
    fresh.close()
    assert time.monotonic() - begin < 0.5 and fresh.count == 0


def test_processes_that_cannot_be_started_ahead_are_told_of_later(fresh, monkeypatch):
    def none():
        raise OSError("none left")

    monkeypatch.setattr(workers, "_Worker", none)
    cuda_target.expects_kernels()
    end = time.monotonic() + 20
    while any(t.name == "jit-compile" for t in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)
    assert fresh.count == 0 and not fresh.idle and not fresh.broken
    assert within(60, lambda: built({"a": source()}))["a"].cubin  # by threads of this process


def test_a_capture_on_the_cpu_starts_none(fresh):
    jit.compile(lambda x: x + 1)(torch.ones(3))
    assert fresh.count == 0 and not fresh.ahead


def test_captures_tell_of_each_device_that_they_use(monkeypatch):
    seen = []
    monkeypatch.setattr(backends.compile_native, "expects", seen.append)
    jit.compile(lambda x, y: x * 2 + y)(torch.ones(3), torch.ones(3))
    assert seen == [torch.device("cpu")]
    jit.compile(lambda x: x * 3, backend="eager")(torch.ones(3))
    assert len(seen) == 1


def test_what_takes_longest_is_begun_first():
    jobs = [{"text": "a" * n, "stages": stages} for n, stages in ((5, 1), (2, 3), (9, 1), (4, 3))]
    order = []
    batch = workers._Batch(jobs)
    batch.serve(lambda job: order.append(job) or {"of": job})
    assert order == [jobs[3], jobs[1], jobs[2], jobs[0]] and [r["of"] for r in batch.results] == jobs
