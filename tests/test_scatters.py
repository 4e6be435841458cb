"""Values written to places that data decide, as GPU kernels do it: by the graph's text, by the kernels' meaning, and
compiled for a GPU that is not here."""

import pytest
import torch
import torch.nn.functional as F

import jit
from codegen_graphs import check
from gpu_texts import compiled_for_gpu, library_calls
from jit.devices import backend

AT = torch.tensor([3, 0, 5, 3, 3, 1, 0, 2, 5, 5, 4, 3, 1, 1, 0, 2, 4, 5, 3, 0])
X, SOURCE = torch.randn(6, 8), torch.randn(20, 8)
APART = torch.argsort(torch.rand(6, 8), 1)[:, :5].contiguous()
PLACES = torch.randint(0, 6, (3, 5))
PROGRAMS = {
    "index_add": (lambda x, i, s: x.index_add(0, i, s * 2, alpha=0.5), (X, AT, SOURCE)),
    "index_add_columns": (lambda x, i, s: x.index_add(1, i, s.t()[:6].contiguous()), (X, AT, SOURCE)),
    "index_add_halves": (lambda x, i, s: x.index_add(0, i, s), (X.bfloat16(), AT, SOURCE.bfloat16())),
    "count": (lambda i: torch.zeros(6, dtype=torch.int64, device=i.device).index_add(0, i, torch.ones_like(i)), (AT,)),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), (X, APART, torch.randn(6, 5))),
    "scatter_number": (lambda x, i: x.scatter(0, i, 2.5), (X, PLACES)),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), (X, torch.tensor([3, 1]), SOURCE[:2])),
    "accumulate": (lambda x, i, s: x.index_put((i,), s, accumulate=True), (X, AT, SOURCE)),
    "accumulate_pairs": (lambda x, i, j, s: x.index_put((i - 6, j), s, accumulate=True),
                         (X, AT, AT % 8, torch.randn(20))),
    "accumulate_in_place": (lambda x: x.clone().index_put_((PLACES.clone(),), torch.ones(8), accumulate=True), (X,)),
    "in_between": (lambda x, i, s: (x * 2).index_add(0, i, s) + 1, (X, AT, SOURCE)),
}
WITH_NAN = torch.tensor([[2.0, -0.0, float("nan"), 4.0, -float("inf")]] * 3)
WITH_NAN[1] = torch.tensor([-1.0, -0.0, 3.0, 0.0, float("inf")])
for how in ("amax", "amin", "mean", "sum"):
    kind = torch.bfloat16 if how in ("amax", "amin") else torch.float32  # sums of halves are the library's
    for own in (True, False):
        PROGRAMS[f"reduce_{how}_{own}"] = (
            lambda x, i, s, how=how, own=own: x.detach().scatter_reduce(0, i, s.detach(), how, include_self=own),
            (X, PLACES, WITH_NAN))
        PROGRAMS[f"reduce_columns_{how}_{own}"] = (
            lambda x, i, s, how=how, own=own: x.scatter_reduce(1, i, s.t(), how, include_self=own),
            (X.to(kind), PLACES, torch.randn(7, 4).to(kind)))
        if how != "sum":
            PROGRAMS[f"index_reduce_{how}_{own}"] = (
                lambda x, i, s, how=how, own=own: x.index_reduce(0, i, s, how, include_self=own),
                (X.to(kind), AT, SOURCE.to(kind)))
PROGRAMS |= {
    "put_rows": (lambda x, i, s: x.index_put((i,), s), (X, torch.tensor([3, -1]), SOURCE[:2])),
    "put_a_number": (lambda x, i, j: x.index_put((i, j), x.new_tensor(2.5)), (X, PLACES, PLACES - 3)),
    "set_item": (lambda x, i, s: torch.cat([_with_item(x * 2, i, s), x]), (X, torch.tensor([3, 1]), SOURCE[:2])),
    "put_anywhere": (lambda x, i, s: x.put(i, s), (X, APART[:1].repeat(2, 1) + torch.tensor([[0], [8]]),
                                                   SOURCE[:2, :5])),
    "add_anywhere": (lambda x, i, s: x.put(i - 7, s, accumulate=True), (X, PLACES, SOURCE[:3, :5])),
}


def _with_item(x, i, s):
    x[i] = s
    return x


for own in (True, False):
    PROGRAMS[f"reduce_integers_{own}"] = (
        lambda x, i, s, own=own: x.scatter_reduce(1, i, s, "amin", include_self=own),
        ((X * 9).to(torch.int16), PLACES, (SOURCE * 9).to(torch.int16)))
PROGRAMS["histogram"] = (lambda x: torch.histc(x, 7, -1, 1.5), (torch.cat((SOURCE, WITH_NAN.new_full((1, 8), 1.5))),))
PROGRAMS["histogram_of_nan"] = (lambda x: torch.histc(x, 5, -2, 3), (WITH_NAN.clone(),))
GRADIENTS = {
    "embedding": lambda w, i: F.embedding(i, w), "padding": lambda w, i: F.embedding(i, w, padding_idx=2),
    "index_select": lambda w, i: w.index_select(0, i.view(-1)), "rows": lambda w, i: w[i],
    "pairs": lambda w, i: w[i, i % 8], "bags": lambda w, i: F.embedding_bag(i, w, mode="mean"),
    "weighted": lambda w, i: F.embedding_bag(i, w, mode="sum", per_sample_weights=w[:3, :5]),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(type(backend(torch.device(device))), "atomics", True)
        monkeypatch.setattr(type(backend(torch.device(device))), "adds_bags", True)


def close(got, want):
    assert got.dtype is want.dtype and got.stride() == want.stride()
    tolerance = 2e-2 if want.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    if got.dtype.is_floating_point:
        zeros = (got == 0) & (want == 0)
        assert torch.equal(got.signbit() & zeros, want.signbit() & zeros)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, args = PROGRAMS[name]
    for dynamic in (None, True):
        close(jit.compile(fn, backend="eager", dynamic=dynamic)(*args), fn(*args))
    leaves = [t.clone().requires_grad_() if t.dtype is torch.float32 else t for t in args]
    wanted = [t for t in leaves if t.requires_grad]
    if wanted and not name.startswith(("reduce", "histogram")):
        want = torch.autograd.grad(fn(*leaves).square().sum(), wanted)
        got = torch.autograd.grad(jit.compile(fn, backend="eager")(*leaves).square().sum(), wanted)
        for p, q in zip(got, want, strict=True):
            close(p, q)
    compiled = compiled_for_gpu(fn, *args)
    assert compiled and not library_calls(compiled)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn = GRADIENTS[name]
    w = torch.randn(6, 8, requires_grad=True)
    want, = torch.autograd.grad(fn(w, PLACES).square().sum(), w)
    got, = torch.autograd.grad(jit.compile(fn, backend="eager")(w, PLACES).square().sum(), w)
    close(got, want)
    compiled = compiled_for_gpu(fn, w, PLACES, backward=True)
    assert compiled and not library_calls(compiled)


@pytest.mark.parametrize("combine", ["sum", "set"])
def test_what_the_kernels_mean(combine):
    at, source = (AT, SOURCE) if combine == "sum" else (torch.tensor([4, 1, -2]), SOURCE[:3])
    check(lambda b, x, s, i: b.put(x, (0,), [i], s, combine), X, source, at)
    check(lambda b, x, s, i: b.put(b.mul(x, 2), (0,), [i], b.add(s, 1), combine), X, source, at)
    check(lambda b, x, s, i: b.put(x, (1,), [i], s, combine), torch.randn(3, 6), torch.randn(3, len(at)), at)
    check(lambda b, x, s, i: b.add(b.put(b.full((6, 8), 0, x.dtype, x.device), (0,), [i], s, combine), x),
          X, source, at, dynamic=[(2, 0), (1, 0)])
    check(lambda b, x, s, i: b.scatter(x, 1, i, s, combine), X, torch.randn(6, 5), APART)


@pytest.mark.parametrize("combine", ["max", "min"])
def test_what_extremes_mean(combine):
    x, source = (X * 50).int(), (SOURCE * 50).int()
    check(lambda b, x, s, i: b.put(x, (0,), [i], s, combine, wrap=False), x, source, AT)
    check(lambda b, x, s, i: b.scatter(x, 1, i, s, combine), x, torch.randint(-50, 50, (6, 5)).int(), APART)


def test_reductions_with_gradients_are_the_library():
    x, s = X.clone().requires_grad_(), WITH_NAN.clone().requires_grad_()
    for how in ("amax", "mean", "prod"):
        fn = lambda x, s, how=how: x.scatter_reduce(0, PLACES.clone(), s, how)  # noqa: E731
        want = torch.autograd.grad(fn(x, s).nan_to_num().sum(), (x, s))
        got = torch.autograd.grad(jit.compile(fn, backend="eager")(x, s).nan_to_num().sum(), (x, s))
        for p, q in zip(got, want):
            close(p, q)


def test_sums_of_what_is_repeated():
    check(lambda b, x, s, i, k: b.put(x, (0, 1), [i, k], s, "sum"), X, torch.randn(20), AT, AT % 8)
    check(lambda b, x, s, i: b.put(x, (0,), [i], b.expand(s, (20, 8)), "sum"), X, torch.randn(1, 1), AT)


def test_in_one_order_where_the_program_wants_that():
    torch.use_deterministic_algorithms(True)
    try:
        fn, args = PROGRAMS["index_add"]
        assert library_calls(compiled_for_gpu(fn, *args)) == ["aten::index_add"]
    finally:
        torch.use_deterministic_algorithms(False)


def test_bags_refuse_what_eager_refuses():
    fn = GRADIENTS["bags"]
    with pytest.raises(RuntimeError):
        jit.compile(fn, backend="eager")(torch.randn(6, 8), PLACES + 7)
    args = torch.randn(6, 8), torch.arange(8), torch.tensor([0, 3])
    plain = lambda w, i, offsets: F.embedding_bag(i % 6, w, offsets)  # noqa: E731
    close(jit.compile(plain, backend="eager")(*args), plain(*args))


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_a_gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_a_gpu(name):
    fn, args = PROGRAMS[name]
    if name == "accumulate_in_place":
        fn = lambda x, p, s: x.clone().index_put_((p,), s, accumulate=True)  # noqa: E731
        args = X, PLACES, torch.ones(8)
    close(jit.compile(fn)(*[t.cuda() for t in args]).cpu(), fn(*args))


@on_a_gpu
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_on_a_gpu(name):
    fn = GRADIENTS[name]
    w = torch.randn(6, 8, requires_grad=True)
    want, = torch.autograd.grad(fn(w, PLACES).square().sum(), w)
    on = w.detach().cuda().requires_grad_()
    got, = torch.autograd.grad(jit.compile(fn)(on, PLACES.cuda()).square().sum(), on)
    close(got.cpu(), want)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
def test_many_rows_on_a_gpu(dtype):
    w, at = torch.randn(3000, 512, device="cuda").to(dtype).requires_grad_(), torch.randint(0, 3000, (8192,)).cuda()
    at[:500] = 7
    g = torch.randn(8192, 512, device="cuda").to(dtype)
    exact = torch.zeros(3000, 512, dtype=torch.float64, device="cuda").index_add(0, at, g.double())
    got, = torch.autograd.grad(jit.compile(lambda w, i: F.embedding(i, w))(w, at), w, g)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_product_that_is_scattered_stays_a_call():
    """No template takes it over: a kernel that scatters writes where data say."""
    def program(cache, k, at):
        return cache.index_copy(0, at, k.sin() @ k.cos().T)

    compiled = compiled_for_gpu(program, torch.zeros(64, 64), torch.randn(64, 64), torch.randperm(64))
    assert library_calls(compiled) == ["aten::mm"]


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_distances_of_few_dimensions(p, monkeypatch):
    """Kernels on GPUs; points that coincide have no gradient."""
    monkeypatch.setattr(type(backend(torch.device("cpu"))), "traps", True)
    for first, second in (((5, 3), (7, 3)), ((2, 5, 4), (2, 6, 4)), ((4, 1), (4, 1))):
        a, b = torch.randn(first), torch.randn(second)
        b.view(-1)[: first[-1]] = a.view(-1)[: first[-1]]
        a.requires_grad_(), b.requires_grad_()
        fn = lambda a, b: torch.cdist(a, b, p)  # noqa: E731
        want, got = fn(a, b), jit.compile(fn, backend="eager")(a, b)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        g = torch.randn_like(want)
        for x, y in zip(torch.autograd.grad(got, (a, b), g), torch.autograd.grad(want, (a, b), g)):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    assert not library_calls(compiled_for_gpu(lambda a, b: torch.cdist(a, b, p), torch.randn(5, 3), torch.randn(6, 3)))


def test_gradients_of_selected_rows_are_added_as_eager_adds_them():
    """In the type of the rows, one after the other: halves are eager's to the bit."""
    f = jit.compile(lambda x, i: torch.index_select(x, 0, i) * 2)
    for rows, width in ((9, 4), (40, 33)):
        i = torch.randint(0, rows, (5 * rows,))
        for x in (torch.randn(rows, width).bfloat16(), torch.randn(width, rows).bfloat16().t()):
            a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
            g = torch.randn(5 * rows, width).bfloat16()
            (got,) = torch.autograd.grad(f(a, i), a, g)
            (want,) = torch.autograd.grad(torch.index_select(b, 0, i) * 2, b, g)
            assert torch.equal(got, want) and got.stride() == want.stride()
