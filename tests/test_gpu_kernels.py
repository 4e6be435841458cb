"""Emitted kernels on a CUDA device: every kind and dtype against the reference interpreter, and against torch at real
sizes."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

import triton_kernels as zoo

import jit
from jit.codegen import loops
from jit.codegen.triton import analysis
from jit.codegen.triton import compile as triton_compile
from jit.codegen.triton import emit as triton_emit
from jit.codegen.triton import heuristics, tiling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def variants(case):
    made = tiling.tile(case.kernel)
    base = heuristics.choose(made)
    yield "chosen", base
    if made.kernel.raxes:
        yield "looped", dataclasses.replace(base, looped=True, r=64, x=1, parts=1)
        yield "looped rows", dataclasses.replace(base, looped=True, r=32, x=4, stages=3, parts=1, shift=False)
        yield "written out", dataclasses.replace(base, looped=True, r=64, x=1, parts=1, stages=1, unrolled=True)
        if analysis.pieces_allowed(case.kernel):
            yield "looped pieces", dataclasses.replace(base, looped=True, r=256, x=1, parts=4)
        if not base.looped and not any(isinstance(s, loops.Scan) for s in case.kernel.body):
            yield "recomputed", dataclasses.replace(base, recompute=True)


@pytest.fixture(scope="module")
def built():
    """All kernels of the zoo, built at once."""
    sources, cases = {}, {}
    for name, make in zoo.CASES.items():
        for dtype in DTYPES:
            case = make(dtype, 8)
            for variant, config in variants(case):
                key = name, dtype, variant
                cases[key], sources[key] = case, triton_emit.emit(case.kernel, config)
    return cases, triton_compile.build_sources(sources, triton_compile.capability_of())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", sorted(zoo.CASES))
def test_agrees_with_the_reference(built, name, dtype):
    import gpu_launch

    cases, compiled = built
    case = next(c for k, c in cases.items() if k[:2] == (name, dtype))
    buffers = case.buffers()
    want = case.expected(buffers)
    for key, c in compiled.items():
        if key[:2] == (name, dtype):
            tensors = {n: t.cuda() for n, t in buffers.items()}
            names = case.kernel.sizes
            gpu_launch.Launcher(c)([tensors[b.name] for b in case.kernel.buffers], [case.sizes[n] for n in names],
                                   names)
            torch.cuda.synchronize()
            try:
                zoo.compare(case, tensors, want)
            except AssertionError as error:
                raise AssertionError(f"{key[2]}: {error}\n{c.source.text}") from None


def run(kernel, *tensors, config=None):
    import gpu_launch

    source = triton_emit.emit(kernel, config)
    c = triton_compile.build_sources({"k": source}, triton_compile.capability_of())["k"]
    gpu_launch.Launcher(c)(tensors)


@pytest.mark.parametrize("shape", [(1000, 4096), (64, 32768), (17, 65536), (5, 131072), (3, 50257), (8192, 100), (3, 1),
                                   (2, 1000003), (9, 5001), (5, 4099)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_softmax_of_all_widths(shape, dtype):
    x = torch.randn(shape, device="cuda").to(dtype) * 4
    x[0, 0] = float("-inf")
    x[-1] = x[-1] * 30
    for log in (False, True):
        y = torch.full_like(x, 77)
        run(zoo.softmax_kernel(dtype, *shape, log=log).kernel, x, y)
        want = (torch.log_softmax if log else torch.softmax)(x.double(), -1)
        tol = dict(rtol=2e-5, atol=1e-5) if dtype is torch.float32 else dict(rtol=8e-3, atol=1e-3)
        torch.testing.assert_close(y.double(), want, equal_nan=True, **tol)


def test_rows_of_infinities_and_nans():
    for width in (512, 262144):
        x = torch.randn(6, width, device="cuda")
        x[0] = float("-inf")
        x[1, 5], x[2, 7], x[3, :100] = float("inf"), float("nan"), float("-inf")
        y = torch.empty_like(x)
        run(zoo.softmax_kernel(torch.float32, 6, width).kernel, x, y)
        torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True)


UNARY = ("neg abs sign ceil floor round trunc sqrt rsqrt reciprocal exp exp2 expm1 log log2 "
         "log10 log1p sin cos tan asin acos atan sinh cosh "
         "tanh asinh acosh atanh erf erfc erfinv lgamma sigmoid relu").split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["f32", "f64", "bf16"])
def test_unary_functions_over_their_range(dtype):
    """All in one kernel; float32 within a few units in the last place of float64 arithmetic."""
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, 3e38]
    x = torch.cat([torch.tensor(special, dtype=torch.float64), torch.randn(40000, dtype=torch.float64),
                   torch.randn(20000, dtype=torch.float64) * 20,
                   torch.rand(20000, dtype=torch.float64) * 1e-3]).to(dtype).cuda()
    n = x.numel()
    b = zoo.B()
    i = b.axis(n)
    source = b.buffer(dtype)
    v = b.wide(source, i)
    outs = [b.buffer(dtype, "out") for _ in UNARY]
    for o, f in zip(outs, UNARY):
        b.put(o, i, b.do(f, v))
    results = [torch.full_like(x, 77) for _ in UNARY]
    run(loops.verify(b.finish("k")), x, *results)
    wrong = []
    for f, got in zip(UNARY, results, strict=True):
        fn = torch.special.erfinv if f == "erfinv" else getattr(torch, f)
        want = fn(x.double() if dtype is not torch.float64 else x.cpu()).cpu()
        rtol, atol = {torch.float32: (4e-6, 1e-6), torch.float64: (1e-12, 1e-13), torch.bfloat16: (8e-3, 2e-5)}[dtype]
        if f in ("sin", "cos", "tan", "lgamma") and dtype is torch.float32:
            atol = 1e-5
        want = want.to(dtype).double()
        got = got.double().cpu()
        same = torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
        if not same.all():
            k = (~same).nonzero()[0].item()
            wrong.append(
                f"{f}({x[k].item()!r}) = {got[k].item()!r}, not {want[k].item()!r}; {int((~same).sum())} of {n}")
    assert not wrong, "\n".join(wrong)


def test_binary_functions_like_eager():
    names = (
        "add sub mul div floor_div trunc_div fmod remainder pow maximum minimum fmax fmin atan2 copysign hypot".split())
    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.0, 3.0])
    pairs = torch.cartesian_prod(special, special)
    a = torch.cat([pairs[:, 0], torch.randn(50000) * 5, torch.randint(-50, 50, (50000,)) / 4.0]).cuda()
    b_ = torch.cat([pairs[:, 1], torch.randn(50000) * 3, torch.randint(1, 12, (50000,)) / 4.0]).cuda()
    n = a.numel()
    b = zoo.B()
    i = b.axis(n)
    p, q = b.buffer(torch.float32), b.buffer(torch.float32)
    v, w = b.load(p, i), b.load(q, i)
    outs = [b.buffer(torch.float32, "out") for _ in names]
    for o, f in zip(outs, names):
        b.put(o, i, b.do(f, v, w))
    results = [torch.full_like(a, 77) for _ in names]
    run(loops.verify(b.finish("k")), a, b_, *results)
    eager = dict(floor_div=lambda x, y: torch.div(x, y, rounding_mode="floor"),
                 trunc_div=lambda x, y: torch.div(x, y, rounding_mode="trunc"))
    wrong = []
    for f, got in zip(names, results):
        want = eager.get(f, getattr(torch, f, None))(a, b_)
        same = torch.isclose(got, want, rtol=2e-6, atol=1e-6, equal_nan=True)
        if not same.all():
            k = (~same).nonzero()[0].item()
            wrong.append(f"{f}({a[k].item()!r}, {b_[k].item()!r}) = {got[k].item()!r}, not {want[k].item()!r}; "
                         f"{int((~same).sum())} of {n}")
    assert not wrong, "\n".join(wrong)


def test_casts_like_eager():
    torch.manual_seed(0)
    x = torch.cat([torch.randn(5000) * 100,
                   torch.tensor([float("inf"), float("nan"), 1e-8, 65520.0, 3.3895314e38, -0.0, 2.5, -2.5])]).cuda()
    targets = [torch.bfloat16, torch.float16, torch.float64, torch.bool]
    b = zoo.B()
    i = b.axis(x.numel())
    v = b.load(b.buffer(torch.float32), i)
    for t in targets:
        b.store(b.buffer(t, "out"), i, b.cast(v, t))
    results = [torch.empty(x.numel(), dtype=t, device="cuda") for t in targets]
    run(loops.verify(b.finish("k")), x, *results)
    for t, got in zip(targets, results):
        torch.testing.assert_close(got, x.to(t), rtol=0, atol=0, equal_nan=True)


def test_more_than_2_to_the_31_elements():
    n = 2**31 + 4096
    x = torch.randint(-100, 100, (n,), dtype=torch.int8, device="cuda")
    y = torch.full_like(x, 77)
    b = zoo.B()
    i = b.axis(n)
    p, q = b.buffer(torch.int8), b.buffer(torch.int8, "out")
    b.put(q, i, b.do("neg", b.load(p, i)))
    run(loops.verify(b.finish("k")), x, y)
    assert torch.equal(y, -x)


def test_launch_works_inside_a_graph():
    import gpu_launch

    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    source = triton_emit.emit(zoo.softmax_kernel(torch.bfloat16, 64, 4096).kernel)
    launcher = gpu_launch.Launcher(triton_compile.build_sources({"k": source}, triton_compile.capability_of())["k"])
    prepared = launcher.prepare([x, y])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher.launch(prepared)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1), rtol=8e-3, atol=1e-4)


def test_memory_beyond_an_argument_at_any_address():
    """A copy of an argument to an aligned place would not have what lies between its rows."""
    def f(x, i):
        y = x.as_strided((2, 9), (9, 1))
        return y, y[i, i], y + 1, y.clone(), x.as_strided((2, 9), (9, 1), 3).sum()

    compiled = jit.compile(f)
    i = torch.tensor([1, 1, 0], device="cuda")
    for first in (2, 0, 3, 1):
        memory = torch.arange(24.0, device="cuda").view(2, 12)
        x = memory[:, first : first + 9]
        torch.testing.assert_close(compiled(x, i), f(x, i))


def test_arguments_at_any_address_are_written():
    def f(x):
        x.mul_(2)
        return x.sum(-1)

    compiled = jit.compile(f)
    for first in (0, 1, 2, 4, 5):
        found = []
        for call in (f, compiled):
            memory = torch.arange(240.0, device="cuda").view(2, 120)
            found.append((call(memory[:, first : first + 9]), memory))
        torch.testing.assert_close(found[1], found[0])


def test_library_results_that_begin_where_an_argument_did():
    """Some operators give memory like an argument's, from the same place on; kernels read it in whole vectors."""
    operators = (lambda x, v: torch.diagonal_scatter(x, v), lambda x, v: torch.select_scatter(x, v, 0, 1),
                 lambda x, v: torch.slice_scatter(x, x[1:3] * 2, 0, 0, 2))

    def f(x, v):
        results = [g(x, v) for g in operators]
        return results, [r.sum(0) for r in results], [r * 2 + 1 for r in results]

    compiled = jit.compile(f)
    for first in (0, 3, 1, 4, 2):
        memory = torch.arange(8 * 8.0 + 8, device="cuda")
        x = memory[first : first + 64].view(8, 8)
        torch.testing.assert_close(compiled(x, memory[:8]), f(x, memory[:8]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_constants_that_whole_numbers_cannot_hold(dtype):
    """The device's conversion says what they become; a compiler that knows the constant makes anything of it."""
    def f(x):
        return (F.mse_loss(x, x).long(), torch.full((3,), math.nan, dtype=x.dtype, device=x.device).long(),
                torch.full((2, 2), -math.inf, dtype=x.dtype, device=x.device).int() + 1)

    compiled = jit.compile(f)
    for rows in (0, 0):
        x = torch.empty(rows, 4, device="cuda", dtype=dtype)
        for a, b in zip(f(x), compiled(x), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_values_that_whole_numbers_cannot_hold(dtype):
    targets = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
               torch.uint64)

    def f(x):
        return [v.to(t) for t in targets for v in (x * 1, x * math.nan, x.abs().sqrt().neg())]

    compiled = jit.compile(f)
    x = torch.tensor([math.nan, math.inf, -math.inf, 3e9, -3e9, 1e19, -1e19, 300.7, -300.7, -1.5, 1e30, 7e4, -7e4, 1.9,
                      2.0**63, 2.0**32 + 5]).to("cuda", dtype)
    for given in (x.view(4, 4), x.view(4, 4).t(), x.view(2, 8)[:, 1:6], x[:0].view(0, 4), x[3].expand(5, 2)):
        for a, b in zip(f(given), compiled(given), strict=True):
            assert torch.equal(a, b), (a, b)


def test_gradients_where_any_index_reads_nothing():
    """Rows without elements are read at any index, and the gradient's writes of nothing do not end the process."""
    def f(x, i):
        return x[i].exp()

    compiled = jit.compile(f)
    for rows, columns, index in ((5, 4, [1, 0]), (4, 3, [3, 3, 2]), (3, 0, [3]), (3, 0, [1, 7])):
        x, i = torch.randn(rows, columns, device="cuda"), torch.tensor(index, device="cuda")
        gradients = []
        for g in (f, compiled):
            leaf = x.clone().requires_grad_()
            g(leaf, i).sum().backward()
            gradients.append(leaf.grad)
        torch.cuda.synchronize()
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["default", "eager"])
def test_values_that_are_checked_on_the_device(backend, dynamic):
    def f(i, x):
        return (F.one_hot(i, 4) * x).sum(0) + 1

    compiled = jit.compile(f, dynamic=dynamic, fullgraph=True, backend=None if backend == "default" else backend)
    for n in (3, 5, 7, 0):
        i, x = torch.arange(n, device="cuda") % 4, torch.randn(4, device="cuda")
        torch.testing.assert_close(compiled(i, x), f(i, x))
