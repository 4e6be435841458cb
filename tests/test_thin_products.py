"""Products with a vector as sums of products, in one kernel with what makes the matrix: by C++, by Triton's interpreter
and for sm_90 without a GPU."""

import re

import interpreter
import pytest
import torch
import torch.nn.functional as F
from codegen_graphs import moved
from graph_harness import clone_inputs, trace
from thin_programs import PROGRAMS

import jit
from jit import devices
from jit.codegen import Options, compile_graph, loops, reference
from jit.codegen.planner import Planner
from jit.codegen.triton import emit, tiling, worker
from jit.codegen.triton.compile import compile_triton
from jit.graph import dims
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

SEVERAL = ["int8", "int8_factor_behind", "int4_stacked", "int4_in_halves", "int4_signed", "two_bits", "gated"]
FOLDED = ["int4_stacked", "int4_in_halves", "int4_in_words", "two_bits", "uint8_with_zeros"]
NORMS = ["of_a_norm", "of_a_norm_with_weight"]  # one kernel on GPUs alone
ONE_KERNEL = sorted(set(PROGRAMS) - set(NORMS))
HALVES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def made(name, k=128, n=40, dtype=torch.float32, seed=3, rows=1):
    torch.manual_seed(seed)
    fn, (x, *others) = PROGRAMS[name](k, n, dtype)
    return fn, [torch.cat([x * (i + 1) for i in range(rows)]), *others]


def doubled(tensors):
    return [t.double() if t.is_floating_point() else t for t in tensors]


def near(got, fn, tensors):
    """Whether a result is as exact as eager's, to a rounding, and laid out alike."""
    eager, exact = fn(*tensors), fn(*doubled(tensors))
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    error, theirs = (((t.double() - exact).norm() / exact.norm()).item() for t in (got, eager))
    assert error <= max(3 * theirs, HALVES[got.dtype]), (error, theirs)


def scheduled(name, device=None, **sizes):
    fn, tensors = made(name, **sizes)
    graph = run_passes(trace(fn, *clone_inputs(tensors))[0], STANDARD)
    return run_passes(graph if device is None else moved(graph, device), SCHEDULED), fn, tensors


def calls(plan):
    return [s for s in plan.steps if s.kind == "aten"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype):
    for k, n in ((128, 40), (64, 1), (1024, 70)):
        graph, fn, tensors = scheduled(name, k=k, n=n, dtype=dtype)
        compiled = compile_graph(graph)
        assert not calls(compiled.plan)
        assert len(compiled.launches) == 1 or name not in ONE_KERNEL
        near(compiled.call(*tensors)[0], fn, tensors)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_say_what_they_mean(name):
    graph, fn, tensors = scheduled(name)
    compiled = compile_graph(graph, Options(target="reference"))
    for kernel in compiled.loops.values():
        loops.verify(kernel)
    near(reference.run_plan(compiled, *tensors)[0], fn, tensors)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_nothing_is_divided_or_chosen_by_position(name):
    """Neither in an address nor among joined parts; but of rows that are joined."""
    if name == "int4_as_rows_of_groups":
        return
    graph, *_ = scheduled(name)
    (kernel,) = compile_graph(graph, Options(target="reference")).launches
    assert "//" not in kernel.text() and "%" not in kernel.text() and "where(" not in kernel.text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_by_default(name):
    """On other tensors, layouts and sizes in one entry's life, with gradients of the vector."""
    fn, tensors = made(name, dtype=torch.bfloat16)
    ours = jit.compile(fn, fullgraph=True)
    for seed in (3, 4):
        tensors = made(name, dtype=torch.bfloat16, seed=seed)[1]
        near(ours(*tensors), fn, tensors)
    wide = [t.expand(2, *t.shape)[0] if t.dim() < 2 else torch.stack([t, t], -1)[..., 1] for t in tensors]
    near(ours(*wide), fn, wide)
    fn, tensors = made(name)
    mine, theirs = ([t.clone().requires_grad_(t.is_floating_point() and t.itemsize > 1) for t in tensors]
                    for _ in range(2))
    jit.compile(fn, fullgraph=True)(*mine).square().sum().backward()
    fn(*theirs).square().sum().backward()
    for a, b in zip(mine, theirs):
        assert a.grad is None and b.grad is None or (a.grad - b.grad).norm() <= 1e-5 * b.grad.norm()


def test_other_products_stay_with_the_library():
    """Of two rows with as many bytes, with a factor, of doubles, and of a matrix that is there."""
    w, x = torch.randn(8, 16), torch.randn(1, 16)
    for fn, args in ((lambda x, w: x @ (w * 2).t(), (torch.randn(2, 16), w)),
                     (lambda x, w: torch.addmm(x[:, :8], x, (w * 2).t(), alpha=0.5), (x, w)),
                     (lambda x, w: x @ (w * 2).t(), (x.double(), w.double())), (lambda x, w: x @ w.t(), (x, w))):
        graph = run_passes(trace(fn, *args)[0], (*STANDARD, *SCHEDULED))
        compiled = compile_graph(graph)
        assert len(calls(compiled.plan)) == 1
        assert torch.allclose(compiled.call(*args)[0], fn(*args))


def test_a_matrix_that_is_wanted_too():
    def fn(x, w, s):
        m = w.to(x.dtype) * s
        return x @ m.t(), m

    x, w, s = torch.randn(1, 64), torch.randint(-100, 100, (8, 64), dtype=torch.int8), torch.rand(8, 1)
    got, m = jit.compile(fn, fullgraph=True)(x, w, s)
    want, n = fn(x, w, s)
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-3) and torch.equal(m, n)


def test_values_that_no_number_is():
    """Infinities and NaN of the vector and of factors come through as in eager."""
    fn, tensors = made("int4_stacked")
    for place, value in ((0, torch.inf), (0, torch.nan), (2, torch.inf)):
        given = clone_inputs(tensors)
        given[place].view(-1)[1] = value
        assert torch.equal(jit.compile(fn)(*given).isnan(), fn(*given).isnan())
        assert torch.equal(jit.compile(fn)(*given).isinf(), fn(*given).isinf())


@pytest.mark.parametrize("name", SEVERAL)
def test_a_few_vectors(name):
    for rows, k, n in ((2, 128, 24), (5, 96, 6), (16, 64, 40)):
        graph, fn, tensors = scheduled(name, rows=rows, k=k, n=n)
        compiled = compile_graph(graph)
        assert not calls(compiled.plan) and len(compiled.launches) == 1
        near(compiled.call(*tensors)[0], fn, tensors)
    assert calls(compile_graph(scheduled(name, rows=17)[0]).plan)


# -- Triton ----------------------------------------------------------------------------------------------------------

DEVICE = torch.device("cuda", 0)
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INTERPRETED = [(128, 24), (96, 6), (1024, 70)]


def gpu_kernels(name, **sizes):
    graph, fn, tensors = scheduled(name, DEVICE, **sizes)
    planner = Planner(graph, Options())
    planner.schedule()
    assert not [s for s in planner.steps if type(s).__name__ == "CallLibrary"]
    return planner.launches, fn, tensors


@pytest.mark.parametrize("name", PROGRAMS)
def test_for_a_gpu(name):
    for sizes in ({"k": 4096, "n": 1024}, {"k": 96, "n": 34}):
        kernels, *_ = gpu_kernels(name, dtype=torch.bfloat16, **sizes)
        kind = "outer" if name == "int8_by_columns" else "thin"  # columns alone are what other reductions are
        assert kind in [tiling.tile(k).kind for k in kernels] and compile_triton(kernels)


@pytest.mark.parametrize("name", NORMS)
def test_norms_in_front_of_products(name):
    """Whose sums the product's kernel takes: of one vector that nothing else reads, and that is not too long."""
    assert len(gpu_kernels(name, dtype=torch.bfloat16, k=2048, n=512)[0]) == 1
    assert len(gpu_kernels(name, dtype=torch.bfloat16, k=2048, n=512, rows=3)[0]) > 1
    assert len(gpu_kernels(name, dtype=torch.bfloat16, k=16384, n=64)[0]) > 1


@pytest.mark.parametrize("wanted", [False, True])
def test_a_norm_that_is_wanted_too(wanted):
    def fn(x, w):
        y = F.rms_norm(x, (x.shape[-1],))
        z = F.linear(y, w.to(x.dtype))
        return (z, y) if wanted else z

    x, w = torch.randn(1, 2048, dtype=torch.bfloat16), torch.randint(-9, 9, (512, 2048), dtype=torch.int8)
    graph = run_passes(moved(run_passes(trace(fn, x, w)[0], STANDARD), DEVICE), SCHEDULED)
    planner = Planner(graph, Options())
    planner.schedule()
    assert len(planner.launches) == 1 + wanted


@pytest.mark.parametrize("name", SEVERAL)
def test_a_few_vectors_for_a_gpu(monkeypatch, name):
    monkeypatch.setattr(devices.cuda.Cuda, "most_vectors", 16)
    for rows in (2, 5, 16):
        kernels, *_ = gpu_kernels(name, dtype=torch.bfloat16, k=1024, n=256, rows=rows)
        assert "thin" in [tiling.tile(k).kind for k in kernels] and compile_triton(kernels)
    graph, *_ = scheduled(name, DEVICE, rows=17)
    planner = Planner(graph, Options())
    planner.schedule()
    assert [s for s in planner.steps if type(s).__name__ == "CallLibrary"]


def text_of(name, rows, dtype=torch.bfloat16, **options):
    (kernel,), *_ = gpu_kernels(name, dtype=dtype, k=1024, n=256, rows=rows)
    return emit.emit(kernel, **options).text


@pytest.mark.parametrize("rows", [2, 16])
@pytest.mark.parametrize("name", [*SEVERAL, "int8_by_columns", "uint8_with_zeros", "int4_in_words", "float8"])
def test_a_few_vectors_of_halves_are_multiplied_by_matrix_units(name, rows):
    """From addresses that are aligned and from others; float32 is added up by the threads."""
    for dtype in (torch.bfloat16, torch.float16):
        kernels, *_ = gpu_kernels(name, dtype=dtype, k=1024, n=2048, rows=rows)
        if name not in ("int8_by_columns", "int4_signed") or rows > 4:  # sums along so few columns are taken in parts
            assert "tl.dot(" in emit.emit(kernels[-1]).text
        assert compile_triton(kernels, aligned={k.name: () for k in kernels})
    monkey = pytest.MonkeyPatch()
    with monkey.context() as m:
        m.setattr(devices.cuda.Cuda, "most_vectors", 16)
        kernels, *_ = gpu_kernels(name, k=1024, n=256, rows=rows)
        assert "tl.dot(" not in "".join(emit.emit(k).text for k in kernels)


def test_factors_of_a_row_are_multiplied_by_behind_its_sum():
    for rows in (1, 4):
        added, *_, finished = [line for line in text_of("int8", rows).splitlines() if "v8_sum" in line][1:]
        assert "v3" not in added and "* (v3 + (v3 - v3))" in finished


@pytest.mark.parametrize("name", FOLDED)
def test_factors_of_groups_follow_the_sums_over_their_parts(name):
    """With what is taken from all numbers; where float32 is kept, each element is multiplied."""
    lines = [line.strip() for line in text_of(name, 1).splitlines()]
    parts = [line for line in lines if re.match(r"v\d+_part0 = tl\.[sf]", line)]
    assert parts and not any(" - " in line for line in parts)
    assert ("_small_word(" in parts[0] or "<< 16" in parts[0]) == (name != "uint8_with_zeros")
    groups = name not in ("two_bits", "uint8_with_zeros")
    assert any(re.match(r"v\d+_sum = tl\.fma\(v\d+_part0 - ", line) for line in lines) == groups
    assert "_part" not in text_of(name, 1, dtype=torch.float32)
    kernels, *_ = gpu_kernels(name, k=1024, n=256, dtype=torch.bfloat16)
    assert compile_triton(kernels)


def test_neighbours_in_a_row_are_read_at_once():
    """By threads they are told apart, for matrix units the parts of the matrix are put side by side."""
    for name, splits in (("int4_stacked", 1), ("two_bits", 3)):
        assert [part.count("tl.split(") for part in text_of(name, 1).split("if _some(")] == [splits, splits]
    assert text_of("int4_stacked", 4).count("tl.join(") == 1 and text_of("two_bits", 4).count("tl.join(") == 3
    assert text_of("int4_stacked", 4).count("tl.dot(") == 1


def was_printed(line):
    printed = interpreter.output(__name__)
    assert line in printed.splitlines(), printed[-3000:]


def test_factors_that_are_no_finite_number():
    """Make the rows that they belong to as eager has them, by Triton's text too: see ``interpret``."""
    was_printed("ok infinite factors")


def interpret():
    """In a process with Triton's interpreter: prints "ok name.dtype" for each whose values are right."""

    def run(kernel, buffers, sizes):
        source = emit.emit(kernel, interpret=True)
        function, _ = worker.load_function(source.text, source.function)
        function[(dims.evaluate(source.grid, sizes),)](*[buffers[b.name] for b in kernel.buffers])

    devices.cuda.Cuda.most_vectors = 16
    for name in PROGRAMS:
        for word, dtype in TYPES.items():
            sizes = INTERPRETED if word == "float32" else INTERPRETED[:1]
            for k, n, rows in [(*s, 1) for s in sizes] + [(96, 6, 3), (128, 24, 16)] * (name in SEVERAL):
                graph, fn, tensors = scheduled(name, DEVICE, k=k, n=n, dtype=dtype, rows=rows)
                plan = compile_graph(graph, Options(target="reference"))
                near(reference.run_plan(plan, *tensors, run_kernel=run)[0], fn, tensors)
            print(f"ok {name}.{word}")
    places = (("int8", 1, 1), ("int8", 3, 1), ("int4_stacked", 1, (1, 0)), ("int4_in_halves", 1, (1, 2)))
    for name, rows, place in places:
        for value in (torch.inf, torch.nan):
            graph, fn, tensors = scheduled(name, DEVICE, k=96, n=6, dtype=torch.bfloat16, rows=rows)
            tensors[2][place] = value
            plan = compile_graph(graph, Options(target="reference"))
            (got,), want = reference.run_plan(plan, *tensors, run_kernel=run), fn(*tensors)
            assert torch.equal(got.isnan(), want.isnan()) and got[:, 1].isnan().all() and not got[:, 0].isnan().any()
    print("ok infinite factors")
    for name in FOLDED:
        for values in ((torch.inf,), (-torch.inf,), (torch.nan,), (torch.inf, -torch.inf), (torch.inf, torch.inf)):
            graph, fn, tensors = scheduled(name, DEVICE, k=128, n=24, dtype=torch.bfloat16)
            tensors[0][0, 5:5 + len(values)] = torch.tensor(values)
            plan = compile_graph(graph, Options(target="reference"))
            (got,), want = reference.run_plan(plan, *tensors, run_kernel=run), fn(*tensors)
            assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got[~got.isnan()], want[~want.isnan()]), name
            assert got.isinf().any() or len(values) == 2 or values[0] != values[0]
    print("ok infinite vectors")


def test_infinite_numbers_in_the_vector():
    """Make the results that eager makes of them, where zeros and factors of groups follow the sums."""
    was_printed("ok infinite vectors")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_by_tritons_interpreter(name, dtype):
    was_printed(f"ok {name}.{dtype}")
