"""Long rows that are added at places that data decide: grouped by place first, and added up row by row. Which programs,
what the kernels compute, by Triton's interpreter, and that they compile for a GPU."""

import math

import interpreter
import pytest
import torch
import torch.nn.functional as F
from gpu_texts import compiled_for_gpu, library_calls

import jit
from jit.codegen.triton.grouped import GroupedLayout
from jit.devices import backend
from jit.graph.grouped import part_sums, place_order, place_ranks, row_sums
from jit.graph.interpret import compile_python
from jit.graph.passes import grouped
from jit.graph.prims import PART

KINDS = ["ranks", "starts", "parts", "rows"]

def on_a_gpu(set_attribute=setattr):
    for device in ("cpu", "cuda"):
        for name in ("atomics", "adds_bags"):
            set_attribute(type(backend(torch.device(device))), name, True)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    on_a_gpu(monkeypatch.setattr)


def places(rows, *shape, most=0.6):
    """Places of which one has many, and the last rows none."""
    found = torch.randint(0, max(rows - 2, 1), shape)
    found[torch.rand(shape) < most] = 1 % rows
    return found


def add(x, i, s):
    return x.index_add(0, i, s)


def put(x, i, s):
    return x.index_put((i - 3,), s * 2, accumulate=True) + 1


def gradient(fn):
    """The gradient of a table, whose loss weighs what is taken from it."""
    def program(w, i, g):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(fn(w, i), w, g)[0]
    return program


def tokens(w, i):
    return F.embedding(i, w)


def bags(w, i):
    return F.embedding_bag(i, w, mode="sum")


def means(w, i):
    return F.embedding_bag(i, w, mode="mean")


def padded(w, i):
    return F.embedding(i, w, padding_idx=1)


def rows(w, i):
    return w.index_select(0, i)


def deep(w, i):
    return w[i]


# What is run, its table, its places and what is added, of which the interpreter does few.
CASES = [
    (add, (7, 64), (900,), (900, 64)), (add, (3, 300), (PART,), (PART, 300)), (add, (1, 64), (700,), (700, 64)),
    (put, (7, 72), (500,), (500, 72)), (gradient(tokens), (9, 96), (5, 60), (5, 60, 96)),
    (gradient(padded), (9, 64), (300,), (300, 64)), (gradient(bags), (9, 64), (100, 8), (100, 64)),
    (gradient(means), (9, 64), (100, 8), (100, 64)), (gradient(rows), (9, 4, 32), (333,), (333, 4, 32)),
    (gradient(deep), (9, 2, 3, 16), (3, 100), (3, 100, 2, 3, 16)),
]


def arguments(case, dtype):
    fn, table, at, added = case
    x, i, s = torch.randn(table).to(dtype), places(table[0], *at), torch.randn(added).to(dtype)
    x[-1], x[0, :9], s.view(-1)[::7] = -0.0, -0.0, -0.0
    return x, i, s


def interpret():
    """In a process of its own, since Triton is told to interpret when it is imported."""
    import attention_simulator as simulator
    from jit.graph.passes import optimize
    torch.manual_seed(0)
    on_a_gpu()
    grouped.LEAST = grouped.LEAST_WIDTH = 1
    for case in CASES:
        for dtype in (torch.float32, torch.float16):
            args = arguments(case, dtype)
            exact = case[0](*(a.double() if a.is_floating_point() else a for a in args))
            graph, examples = simulator.captured(case[0], *args)
            (got,), kinds = simulator.run(grouped.group_rows(optimize(graph)), examples)
            assert [k for k in kinds if k in KINDS] == KINDS, kinds
            wanted = case[0](*args)
            assert got.dtype is dtype and got.stride() == wanted.stride()
            assert torch.equal(got.signbit() & (got == 0), wanted.signbit() & (wanted == 0))
            torch.testing.assert_close(got.double(), exact, rtol=2e-3 if dtype is torch.float16 else 1e-5,
                                       atol=2e-3 if dtype is torch.float16 else 1e-4)
    print("done")


def test_interpreter_agrees_with_eager():
    assert "done" in interpreter.output(__name__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__qualname__}{list(case[1])}")
def test_kernels_compile_for_a_gpu(case, monkeypatch):
    monkeypatch.setattr(grouped, "LEAST", 1)
    monkeypatch.setattr(grouped, "LEAST_WIDTH", 1)
    for dtype in (torch.float32, torch.bfloat16):
        table, at, added = arguments(case, dtype)
        compiled = compiled_for_gpu(case[0], table, at, added)
        layouts = [k.layout for c in compiled for k in c.launches]
        kinds = [layout.parts.kind for layout in layouts if isinstance(layout, GroupedLayout)]
        assert kinds == KINDS * len(compiled)  # of the whole, and its gradient alone


@pytest.fixture
def smaller(monkeypatch):
    """Grouped from fewer additions on."""
    monkeypatch.setattr(grouped, "LEAST", 1 << 22)


def test_what_a_backward_runs(smaller):
    """Neither zeros in single precision nor a pass that rounds them; a bag's gradient is read where it lies."""
    w, i = torch.randn(3000, 256, dtype=torch.bfloat16, requires_grad=True), torch.randint(0, 3000, (1 << 12, 8))
    (compiled,) = compiled_for_gpu(lambda w, i: F.embedding_bag(i, w, mode="sum"), w, i, backward=True)
    assert not library_calls([compiled]) and len(compiled.launches) == 6
    sums = compiled.launches[-1]
    assert {b.dtype for b in sums.buffers if b.role != "in"} == {torch.bfloat16}
    assert not any("float32" in text and "atomic" in text for _, text in compiled.kernels)


@pytest.mark.parametrize("fn", [
    lambda w, i: F.embedding(i, w, padding_idx=5), lambda w, i: F.embedding_bag(i.view(-1, 8), w, mode="mean")])
def test_gradients_are_not_written_again_for_each_place(fn, smaller):
    """A padding row gets nothing, and what a bag's places share is computed once."""
    w, i = torch.randn(300, 256, dtype=torch.bfloat16, requires_grad=True), torch.randint(0, 300, (1 << 15,))
    (compiled,) = compiled_for_gpu(fn, w, i, backward=True)
    written = [math.prod(a.extent for a in k.axes) for k in compiled.launches
               if any(s.stored and k.buffer_of[s.stored].dtype is torch.bfloat16 for s in k.body)]
    assert written and max(written) < i.numel() * 256


def in_place(compiled):
    grouped_rows = any(isinstance(k.layout, GroupedLayout) for c in compiled for k in c.launches)
    return not grouped_rows and any("atomic" in text for c in compiled for _, text in c.kernels)


def test_short_sums_are_added_in_place(smaller):
    w, i = torch.randn(300, 256, requires_grad=True), torch.randint(0, 300, (3000,))
    assert in_place(compiled_for_gpu(lambda w, i: F.embedding(i, w), w, i, backward=True))


def test_tables_of_which_little_is_changed_are_added_to_in_place(smaller):
    """Of zeros all is written in any case."""
    x, i, s = torch.randn(1 << 15, 256), torch.randint(0, 300, (1 << 14,)), torch.randn(1 << 14, 256)
    assert in_place(compiled_for_gpu(add, x, i, s))
    assert not in_place(compiled_for_gpu(lambda i, s: s.new_zeros(1 << 15, 256).index_add(0, i, s), i, s))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__qualname__}{list(case[1])}")
def test_graphs_print_as_python(case, monkeypatch):
    monkeypatch.setattr(grouped, "LEAST", 1)
    monkeypatch.setattr(grouped, "LEAST_WIDTH", 1)
    monkeypatch.setattr(type(backend(torch.device("cpu"))), "groups_rows", True)
    args, graphs = arguments(case, torch.float32), []

    def run(graph, examples):
        graphs.append(grouped.group_rows(graph))
        return compile_python(graphs[-1])

    torch.testing.assert_close(jit.compile(case[0], backend=run)(*args), case[0](*args), rtol=1e-5, atol=1e-4)
    assert any(n.op == "aten_call" and n.attrs["target"] == "jit::row_sums" for g in graphs for n in g.nodes)


def test_meaning():
    x, i, s = torch.randn(5, 6), places(5, 400), torch.randn(400, 6)
    for wrap, at in ((False, i), (True, i - 5)):
        counts, ranks, starts = place_ranks(at, 5, wrap, None)
        order = place_order(at, ranks, starts, wrap, None)
        parts = part_sums(s, order, at, starts, counts, wrap, 6)
        assert parts.shape == (-(-400 // PART), 6)
        torch.testing.assert_close(row_sums(x, s, order, starts, counts, parts, [5, 6], x.dtype), x.index_add(0, i, s))
        torch.testing.assert_close(row_sums(None, s, order, starts, counts, parts, [5, 6], torch.float16),
                                   torch.zeros(5, 6).index_add(0, i, s).half())
    with pytest.raises(IndexError):
        place_ranks(i, 2, False, None)
    kept = i != 1
    counts, ranks, starts = place_ranks(i, 5, False, 1)
    order = place_order(i, ranks, starts, False, 1)
    parts = part_sums(s, order, i, starts, counts, False, 6)
    torch.testing.assert_close(row_sums(x, s, order, starts, counts, parts, [5, 6], x.dtype),
                               x.index_add(0, i[kept], s[kept]))
