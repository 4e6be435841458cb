"""Products on a CUDA device: with one vector and a few, by default, and by programs that stay."""

import pytest
import torch
import torch.nn.functional as F
from graph_harness import clone_inputs, trace
from thin_programs import PROGRAMS

import jit
from jit.codegen import Options, compile_graph
from jit.codegen.template import Candidate
from jit.codegen.templates.triton_product import Blocks
from jit.graph.passes import SCHEDULED, STANDARD, run_passes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROUNDING = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def near(got, fn, tensors):
    eager = fn(*tensors)
    exact = fn(*[t.double() if t.is_floating_point() and t.itemsize > 1 else t for t in tensors]).double()
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    error, theirs = (((t.double() - exact).norm() / exact.norm()).item() for t in (got, eager))
    assert error <= max(2 * theirs, ROUNDING[got.dtype]), (error, theirs)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_vector(name, dtype):
    for k, n in ((128, 40), (1024, 514), (4096, 9000)):
        torch.manual_seed(0)
        fn, tensors = PROGRAMS[name](k, n, dtype)
        given = [t.cuda() for t in tensors]
        near(jit.compile(fn, fullgraph=True)(*given), fn, given)


SEVERAL = sorted(set(PROGRAMS) - {"int8_with_bias_of_three_dimensions", "int8_of_a_vector", "low_rank_added"})


@pytest.mark.parametrize("rows", [2, 3, 5, 16])
@pytest.mark.parametrize("name", SEVERAL)
def test_a_few_vectors(name, rows):
    for k, n, dtype in ((96, 40, torch.bfloat16), (1024, 512, torch.float16), (2048, 9000, torch.bfloat16)):
        fn, (x, *others) = PROGRAMS[name](k, n, dtype)
        given = [t.cuda() for t in (torch.cat([x * ((i + 1) / (16 * rows)) for i in range(rows)]), *others)]
        near(jit.compile(fn, fullgraph=True)(*given), fn, given)


STAYS = [Blocks(128, 128, 64, 4, 3, 2), Blocks(128, 256, 64, 8, 4, 1), Blocks(64, 128, 64, 4, 4, 2)]


@pytest.mark.parametrize("blocks", STAYS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_programs_that_stay(blocks, dtype):
    programs = ((lambda x, w, b: F.gelu(F.linear(x, w, b)), ((500, 760), (1000, 760), (1000,))),
                (lambda x, w, r: torch.tanh(x @ w) + r, ((3000, 256), (256, 520), (3000, 520))),
                (lambda x, w, b: (x.t() @ w).relu() * b, ((256, 512), (256, 1000), (1000,))))
    for fn, shapes in programs:
        tensors = [torch.randn(s, device="cuda", dtype=dtype) * 0.1 for s in shapes]
        graph = run_passes(trace(fn, *clone_inputs(tensors))[0], (*STANDARD, *SCHEDULED))
        plan = compile_graph(graph, Options(choose=lambda call: Candidate(call.candidates[0].template, blocks)))
        assert "make_tensor_descriptor" in plan.kernels[0][1]
        for _ in range(2):
            near(plan.call(*tensors)[0], fn, tensors)


def test_large_products_by_default():
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) * 0.1 for s in ((12608, 768), (3072, 768), (3072,)))

    def fn(x, w, b):
        return F.gelu(F.linear(x, w, b))

    near(jit.compile(fn, fullgraph=True)(x, w, b), fn, [x, w, b])


FORMS = {
    "mm": (lambda a, b: a @ b, ((33, 70), (70, 50))),
    "mm of a transpose": (lambda a, b: a.t() @ b, ((70, 33), (70, 50))),
    "mm by a transpose": (lambda a, b: a @ b.t(), ((33, 70), (50, 70))),
    "mm of slices": (lambda a, b: a[1:, 3:] @ b[3:, 1:], ((34, 73), (73, 51))),
    "mm of a row": (lambda a, b: a[:1] @ b, ((3, 70), (70, 50))),
    "bmm": (lambda a, b: a @ b.transpose(1, 2), ((5, 33, 70), (5, 50, 70))),
    "bmm of one matrix": (lambda a, b: a @ b.expand(len(a), *b.shape), ((5, 33, 70), (70, 50))),
    "a bias": (lambda a, b, c: torch.addmm(c, a, b), ((33, 70), (70, 50), (50,))),
    "a bias at an odd place": (lambda a, b, c: torch.addmm(c[1:][:b.shape[1]], a, b), ((33, 70), (70, 50), (51,))),
    "a residual": (lambda a, b, c: torch.addmm(c, a, b), ((33, 70), (70, 50), (33, 50))),
    "nothing": (lambda a, b: a[:0] @ b, ((33, 70), (70, 50))),
    "sums of nothing": (lambda a, b: a[:, :0] @ b[:0], ((33, 70), (70, 50))),
}


@pytest.mark.parametrize("dtype", [*ROUNDING, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_products_of_the_library(form, dtype):
    fn, shapes = FORMS[form]
    fn = jit.compile(fn, fullgraph=True), fn
    for scale in (1, 4):  # the second sizes are symbols afterwards
        given = [torch.randn([scale * n for n in s], device="cuda", dtype=dtype) for s in shapes]
        got, expected = (f(*given) for f in fn)
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        near = ROUNDING.get(dtype, 1e-12)
        torch.testing.assert_close(got, expected, rtol=2 * near, atol=40 * near)


def test_products_in_tf32_where_it_is_allowed():
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()
    errors = {}
    fn = jit.compile(lambda a, b: a @ b, fullgraph=True)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            errors[allowed] = ((fn(a, b) - exact).norm() / exact.norm()).item()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert errors[False] < 1e-6 and 5e-5 < errors[True] < 1e-3, errors
