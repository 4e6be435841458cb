"""The Triton emitter: every kind of kernel through Triton's interpreter against the reference, and cubins for sm_90
without a GPU."""

import dataclasses
import math
import os
import re
import subprocess
import sys

import interpreter
import pytest
import torch

import triton_kernels as zoo
from jit import config as options, devices
from jit.codegen import loops
from jit.codegen.triton import analysis
from jit.codegen.triton import compile as triton_compile
from jit.codegen.triton import emit as triton_emit
from jit.codegen.triton import heuristics, tiling
from jit.graph.shape_env import ShapeEnv

triton = pytest.importorskip("triton")
HALF_TOO = ("bias_gelu swiglu rope unary_functions nan_propagation booleans softmax layer_norm "
            "cross_entropy all_reductions cumsum".split())
HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "cache_dir", str(tmp_path))


def configurations(case):
    """The heuristic's choice and, for reductions, the other ways of doing it."""
    t = tiling.tile(case.kernel)
    base = heuristics.choose(t)
    yield base
    if t.kernel.raxes:
        yield dataclasses.replace(base, looped=True, r=16, x=1, parts=1)
        yield dataclasses.replace(base, looped=True, r=16, x=2, parts=1)
        yield dataclasses.replace(base, looped=True, r=16, x=1, parts=1, unrolled=True)
        if analysis.pieces_allowed(case.kernel):
            yield dataclasses.replace(base, looped=True, r=32, x=1, parts=2)
            yield dataclasses.replace(base, looped=True, r=16, x=4, parts=4, evict=True, through=True)
            if t.kind == "inner" and not case.kernel.sizes:
                yield dataclasses.replace(base, looped=True, r=32, x=1, parts=1, shift=True)
        if not base.looped and not case.kernel.sizes:
            yield dataclasses.replace(base, recompute=True)
        if not case.kernel.sizes:
            yield dataclasses.replace(base, looped=False, x=2, parts=1,
                                      r=heuristics.next_power_of_two(max(2, t.extent("r"))))


def interpret():
    """Runs in a process of its own, with TRITON_INTERPRET=1: prints a line per failure."""
    from jit.codegen.triton import worker

    names = sorted(zoo.CASES)
    for name in names:
        for dtype in (torch.float32, torch.float16) if name in HALF_TOO else (torch.float32,):
            case = zoo.CASES[name](dtype, 1)
            want = case.expected(case.buffers())
            base, *others = configurations(case)
            # Two of the other ways per kernel, all of them over the zoo; the GPU tests do all for each
            turn = names.index(name)
            for config in [base] + [others[(turn + k) % len(others)]
                                    for k in (0, 1) if others and dtype is torch.float32]:
                source = triton_emit.emit(case.kernel, config, interpret=True)
                buffers = case.buffers()
                fn, _ = worker.load_function(source.text, source.function)
                try:
                    fn[(case.grid(source),)](*[buffers[b.name] for b in case.kernel.buffers],
                                             *[case.sizes[n] for n in case.kernel.sizes])
                    zoo.compare(case, buffers, want)
                except Exception as error:
                    print(f"FAILED {name} {dtype} {config}: {type(error).__name__}: {error}\n{source.text}")
    print(f"interpreted {len(names)}")


def test_interpreter_agrees_with_the_reference():
    printed = interpreter.output(__name__)
    assert "FAILED" not in printed, printed[:6000]
    assert f"interpreted {len(zoo.CASES)}" in printed


def test_every_kind_compiles_for_sm_90_without_a_gpu(private_cache):
    kernels = {}
    for name, make in zoo.CASES.items():
        for dtype in (torch.bfloat16, torch.float32):
            kernels[f"{name}_{dtype.itemsize}"] = triton_emit.emit(make(dtype, 8).kernel)
    built = triton_compile.build_sources(kernels, 90)
    assert set(built) == set(kernels)
    for name, c in built.items():
        assert c.cubin[:4] == b"\x7fELF", name
        assert c.source.function.encode() in c.cubin and c.warps >= 1


def test_looped_forms_compile(private_cache):
    sources = {}
    for name in ("softmax", "layer_norm", "all_reductions", "cumsum", "col_softmax", "cross_entropy"):
        case = zoo.CASES[name](torch.float32, 8)
        base = heuristics.choose(tiling.tile(case.kernel))
        config = dataclasses.replace(base, looped=True, r=64, x=2, stages=3, parts=1)
        sources[name] = triton_emit.emit(case.kernel, config)
        config = dataclasses.replace(config, stages=1, unrolled=True)
        sources[name + " written out"] = triton_emit.emit(case.kernel, config)
        assert ("tl.static_range(" in sources[name + " written out"].text) == (not case.kernel.sizes)
    assert all(c.cubin for c in triton_compile.build_sources(sources, 90).values())


def test_negative_zero_keeps_its_sign():
    from jit.codegen.triton import types

    assert "bitcast" in types.constant(-0.0, torch.float32) and "bitcast" not in types.constant(0.0, torch.float32)


def test_integer_constants_are_converted_as_c_does():
    from jit.codegen.triton import types

    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        for value in (-1, 0, 255, 256, -129, 2**31, -(2**63)):
            want = torch.tensor(value).to(dtype).item()
            assert types.literal(value, dtype) == repr(want), (dtype, value)


def test_argument_order_and_divisibility():
    case = zoo.CASES["symbolic_pointwise"](torch.bfloat16, 4)
    source = triton_emit.emit(case.kernel)
    assert source.arguments == ("*bf16", "*bf16", "*bf16", "i64", "i64")
    assert source.divisible == (0, 1, 2)
    signature = re.search(r"def \w+\((.*)\):", source.text).group(1)
    assert signature == "b0, b1, b2, n0, n1"
    some = triton_emit.emit(case.kernel, aligned={case.kernel.buffers[1].name})
    assert some.divisible == (1,)


def test_texts_rely_on_no_sizes():
    env = ShapeEnv()
    rows, columns = (env.symbol(n, ("x", "size", d)) - 1 for d, n in enumerate((65, 97)))  # perhaps 1

    def kernel(reduces):
        b = loops.KernelBuilder("cuda")
        i, j = b.axis(rows), b.axis(columns, "r" if reduces else "p")
        x, y = b.buffer(torch.float32, "in", "x"), b.buffer(torch.float32, "out", "y")
        value = b.compute("neg", b.load(x, i * columns + j), dtype=torch.float32)
        b.store(y, i if reduces else i * columns + j, b.reduce("sum", value) if reduces else value)
        return b.finish("k")

    for k in (kernel(False), kernel(True)):
        triton_emit.emit(k)
        heuristics.choose(tiling.tile(k))
    assert not env.guards


def test_equal_structure_gives_equal_text_and_one_compilation(private_cache):
    def make(names):
        b = loops.KernelBuilder("cuda")
        i = b.axis(1000)
        x, y = b.buffer(torch.float32, "in", names[0]), b.buffer(torch.float32, "out", names[1])
        b.store(y, i, b.compute("neg", b.load(x, i), dtype=torch.float32))
        return b.finish(names[2])

    kernels = [make(("p", "q", "one")), make(("s", "t", "two"))]
    assert triton_emit.emit(kernels[0]).text == triton_emit.emit(kernels[1]).text
    built = triton_compile.compile_triton(kernels)
    assert built["one"].cubin is built["two"].cubin


def test_masks_only_where_the_block_does_not_divide():
    full = zoo.softmax_kernel(torch.float32, 16, 4096).kernel
    assert "mask" not in triton_emit.emit(full).text
    ragged = zoo.softmax_kernel(torch.float32, 16, 4000).kernel
    assert "mask=r_in" in triton_emit.emit(ragged).text


def test_contiguous_axes_become_one_range():
    case = zoo.CASES["bias_gelu"](torch.float32, 1)
    text = triton_emit.emit(case.kernel).text
    assert "tl.load(b0 + x" in text and "x % 40" in text
    assert tiling.tile(zoo.CASES["transpose_add"](torch.float32, 1).kernel).kind == "tile"
    assert tiling.tile(zoo.CASES["col_max"](torch.float32, 1).kernel).kind == "outer"
    assert tiling.tile(zoo.CASES["sum_all"](torch.float32, 1).kernel).extent("r") == 420


def test_wide_indices_only_where_needed():
    def copy(n):
        b = loops.KernelBuilder("cuda")
        i = b.axis(n)
        x, y = b.buffer(torch.int8, "in"), b.buffer(torch.int8, "out")
        b.store(y, i, b.load(x, i))
        return triton_emit.emit(b.finish("k")).text

    assert "int64" not in copy(2**31 - 2**20)
    assert "tl.program_id(0).to(tl.int64)" in copy(2**31 + 5)
    rows = triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 2**21, 2048).kernel).text
    assert "tl.program_id(0).to(tl.int64)" in rows and "r = tl.arange(0, 2048)\n" in rows


def test_long_softmax_reads_its_row_twice():
    text = triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 8, 262144).kernel).text
    assert text.count("for r_start in") == 2 and text.count("tl.load") == 2
    held = triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 8, 32768).kernel).text
    assert "for r_start" not in held and held.count("tl.load") == 1


def test_exact_division_unless_rounded_to_half():
    case = zoo.CASES["float_division"]
    assert "tl.div_rn" in triton_emit.emit(case(torch.float32, 1).kernel).text
    assert "tl.div_rn" not in triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 4, 64).kernel).text
    assert "tl.div_rn" in triton_emit.emit(zoo.softmax_kernel(torch.float32, 4, 64).kernel).text


@pytest.mark.parametrize("rows", [1, 7, 4096, 100000])
@pytest.mark.parametrize("width", [1, 33, 4096, 50257, 131072, 10**7])
def test_heuristics_give_legal_configurations(rows, width):
    for dtype in (torch.bfloat16, torch.float32):
        t = tiling.tile(zoo.softmax_kernel(dtype, rows, width).kernel)
        c = heuristics.choose(t)
        for n in (c.x, c.y, c.r, c.warps):
            assert n >= 1 and n & (n - 1) == 0
        assert c.warps <= 32 and c.x * c.r <= 2**17
        assert c.looped or c.r >= width


def test_odd_rows_are_read_in_aligned_vectors():
    kernel = zoo.softmax_kernel(torch.bfloat16, 1000, 50257, log=True).kernel
    text = triton_emit.emit(kernel).text
    assert text.count("+ row_begin + r_at, mask=r_near") == 2 and "mask=r_whole" in text
    assert "row_begin" not in triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 1000, 50304, log=True).kernel).text
    assert "row_begin" not in triton_emit.emit(kernel, aligned=()).text


def test_logsumexp_is_one_pass_when_looped():
    case = zoo.CASES["logsumexp"](torch.bfloat16, 400)
    assert triton_emit.emit(case.kernel).text.count("for r_start") == 1


def test_an_error_of_the_compiler_names_the_kernel(private_cache):
    from jit.errors import CompileError

    source = triton_emit.emit(zoo.CASES["swiglu"](torch.float32, 1).kernel)
    broken = dataclasses.replace(source, text=source.text.replace("tl.load", "tl.no_such_function"))
    with pytest.raises(CompileError, match="no_such_function"):
        triton_compile.build_sources({"k": broken}, 90)


def test_unsupported_is_said_so():
    from jit.errors import Unsupported

    b = loops.KernelBuilder("cuda")
    i = b.axis(8)
    x, y = b.buffer(torch.complex64), b.buffer(torch.complex64, "out")
    b.store(y, i, b.load(x, i))
    with pytest.raises(Unsupported, match="complex64"):
        triton_emit.emit(b.finish("k"))


def test_workers_end_with_their_parent(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import triton_kernels as zoo, torch\n"
        "from jit.codegen.triton import compile as c, emit as e\n"
        "from jit import config; config.compile_threads = 2\n" "c.build_sources({n: e.emit(zoo.CASES[n](torch.float32, "
        "2).kernel) for n in ('softmax', 'swiglu', 'rope', 'row_sum', 'cumsum', 'col_max')}, 90)\n"
        "import time; time.sleep(0.5); print(*[w.process.pid for w in c.workers.workers().idle])\n"
    )
    env = dict(os.environ, JIT_CACHE_DIR=str(tmp_path), PYTHONPATH=os.path.dirname(HERE))
    done = subprocess.run([sys.executable, "-c", code, HERE], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    pids = [int(p) for p in done.stdout.split()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("name", zoo.CASES)
def test_kernels_of_nothing_are_tiled(name):
    """Of a kernel whose sizes are zero there is a tiling, a configuration and a text."""
    kernel = zoo.CASES[name](torch.float32, 1).kernel
    for group in ("axes", "raxes"):
        for k in range(len(getattr(kernel, group))):
            axes = [dataclasses.replace(a, extent=0) if i == k else a for i, a in enumerate(getattr(kernel, group))]
            empty = dataclasses.replace(kernel, **{group: tuple(axes)})
            assert triton_emit.emit(empty, heuristics.choose(tiling.tile(empty)))


def test_kernels_that_are_launched_early_wait_first(monkeypatch):
    """The wait is the first instruction, and the whole is still a kernel."""
    from jit.codegen.triton import worker

    for most in (0, 1, math.inf):
        monkeypatch.setattr(devices.cuda.Cuda, "launches_early", most)
        for name in list(zoo.CASES)[:3]:
            kernel = zoo.CASES[name](torch.float32, 4).kernel
            source = triton_emit.emit(kernel)
            made = triton_compile.build_sources({kernel.name: source}, 90)[kernel.name]
            few = type(source.grid) is int and source.grid <= most
            assert made.early is (most == math.inf or few) and made.cubin.startswith(b"\x7fELF")
    source = triton_emit.emit(kernel)
    ptx = worker.build(dict(text=source.text, function=source.function, arguments=source.arguments,
                            divisible=source.divisible, capability=90, warps=source.warps, stages=source.stages,
                            early=True, keep_ptx=True))["ptx"]
    body = [line.strip() for line in ptx[ptx.index(".entry"):].partition("{")[2].splitlines()]
    code = [line for line in body if line and not line.startswith((".", "//", "$"))]
    assert code[:2] == ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"]
    with pytest.raises(RuntimeError, match="not in the form"):
        worker.early("nothing")


def test_bfloat16_is_rounded_to_in_pairs():
    """One value at a time takes the units that compute exponentials; what the compiler does in pairs is left to it."""
    from jit.codegen.triton import worker

    for own in (True, False):
        b = loops.KernelBuilder("cuda")
        x, y = b.buffer(torch.bfloat16), b.buffer(torch.bfloat16, "out")
        i = b.axis(4096)
        v = b.load(x, i)
        for _ in range(2):
            w = b.cast(v, torch.float32)
            made = b.compute("exp" if own else "mul", *([w] if own else [w, w]), dtype=torch.float32)
            v = b.cast(made, torch.bfloat16)
        b.store(y, i, v)
        source = triton_emit.emit(b.finish("rounded"))
        assert ("_bfloat16_pairs" in source.text) == own
        ptx = worker.build(dict(text=source.text, function=source.function, arguments=source.arguments,
                                divisible=source.divisible, capability=90, warps=source.warps, stages=source.stages,
                                keep_ptx=True))["ptx"]
        assert "cvt.rn.bf16.f32" not in ptx


@pytest.mark.parametrize("name", ["pairs_in_rows", "pairs_in_long_rows", "pairs_that_begin_anywhere", "pairs_of_bools",
                                  "fours_in_rows", "eights_in_rows"])
def test_interleaved_accesses_are_one_range(name):
    text = triton_emit.emit(zoo.CASES[name](torch.bfloat16, 8).kernel).text
    assert text.count("tl.load") <= 2 and text.count("tl.store") == 1
    assert "tl.split" in text and "tl.join" in text


def test_conditions_on_an_index_leave_vectors_whole(private_cache):
    """Triton reads in vectors under ``x >= 64``, and one by one under ``63 < x``."""
    b = loops.KernelBuilder("cuda")
    x, y = b.buffer(torch.float32), b.buffer(torch.float32, "out")
    i = b.axis(1 << 16)
    beyond = b.compute("lt", b.const(63, torch.int64), b.index(i % 128), dtype=torch.bool)
    b.store(y, i, b.load(x, i, mask=beyond))
    source = triton_emit.emit(loops.verify(b.finish("k")))
    ptx = triton_compile.build_sources({"k": source}, 90, keep_ptx=True)
    assert " >= 64" in source.text and ptx
