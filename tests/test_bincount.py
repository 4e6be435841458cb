"""``torch.bincount`` with ``minlength`` as GPUs count: numbers are taken to be below that, and the call is done in
eager where one is not. By the graph's text, with the CPU in the place of a GPU, and compiled for one that is not here.
"""

import pytest
import torch
from gpu_texts import compiled_for_gpu, library_calls
from test_frame_guesses import captures_of

import jit
from jit.codegen.triton import emit
from jit.codegen.triton.tiling import tile
from jit.devices import backend

FORMS = {
    "function": lambda i: torch.bincount(i, minlength=50),
    "method": lambda i: i.bincount(None, 50),
    "in_between": lambda i: (i + 1).bincount(minlength=52) * 2 + 1,
    "twice": lambda i: (torch.bincount(i, minlength=50), torch.bincount(i // 2, minlength=30)),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(type(backend(torch.device(device))), "atomics", True)


def numbers(n, high=50, dtype=torch.int64):
    return torch.randint(0, high, (n,)).to(dtype)


def same(got, want):
    for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
        assert torch.equal(g, w) and g.dtype is w.dtype and g.stride() == w.stride() and g.device == w.device
        assert g.untyped_storage().nbytes() == w.untyped_storage().nbytes() and g._base is None


@pytest.mark.parametrize("name", FORMS)
def test_one_graph_for_all_sizes(name):
    compiled, captured = captures_of(FORMS[name])
    for n in (300, 7, 1000, 12, 50, 301):
        i = numbers(n)
        same(compiled(i), FORMS[name](i))
    assert len(captured) <= 2 and not any(c.breaks for c in captured)
    called = library_calls(compiled_for_gpu(FORMS[name], numbers(5000)))
    assert not called


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_dtypes(dtype):
    def fn(i):
        return torch.bincount(i, minlength=300)

    i = numbers(500, 127, dtype)
    same(jit.compile(fn, backend="eager", fullgraph=True)(i), fn(i))
    assert not library_calls(compiled_for_gpu(fn, i))


def test_numbers_that_are_not_below():
    """A longer result, or an error, as in eager; and after a few of them the library is called at once."""
    def fn(i, log):
        log.append(len(log))
        return torch.bincount(i, minlength=50) + 1

    compiled, captured = captures_of(fn)
    calls = [numbers(40), torch.tensor([3, 60]), torch.tensor([1 << 40, 3]), numbers(30), torch.tensor([3, -1]),
             *[torch.tensor([k, 70 + k]) for k in range(12)], numbers(20), torch.tensor([-5, 2])]
    calls[2] = torch.tensor([(1 << 20) + 3, 3])  # its low bits are a number below
    ours, theirs = [], []
    for i in calls:
        outcome = []
        for f, log in ((compiled, ours), (fn, theirs)):
            try:
                outcome.append(f(i, log))
            except RuntimeError as error:
                outcome.append(str(error))
        if isinstance(outcome[1], str):
            assert outcome[0] == outcome[1]
        else:
            same(*outcome)
        assert ours == theirs
    assert not captured[0].breaks and any(c.breaks for c in captured) and len(captured) <= 6


def test_wide_numbers_are_not_cut():
    def fn(i):
        return torch.bincount(i, minlength=5)

    i = torch.tensor([1, (1 << 32) + 2])  # beyond what memory holds: eager's error
    compiled = jit.compile(fn, backend="eager")
    assert compiled(torch.tensor([1, 2])).tolist() == [0, 1, 1, 0, 0]
    with pytest.raises(RuntimeError):
        compiled(i)


def test_where_graphs_cannot_be_run_again():
    def fn(x, i):
        x.add_(1)
        return torch.bincount(i, minlength=5), x * 2

    compiled = jit.compile(fn, backend="eager")
    for i in (torch.tensor([1, 2, 2]), torch.tensor([7]), torch.tensor([0, 4])):
        ours, theirs = torch.zeros(2), torch.zeros(2)
        for p, q in zip(compiled(ours, i), fn(theirs, i), strict=True):
            assert torch.equal(p, q)
        assert torch.equal(ours, theirs)


def test_what_stays_with_the_library():
    i, w = numbers(100), torch.rand(100)
    left = [lambda i: torch.bincount(i), lambda i: torch.bincount(i, minlength=0),
            lambda i: torch.bincount(i, w, 50), lambda i: torch.bincount(i, minlength=1 << 20),
            lambda i: torch.bincount(i.to(torch.bool).to(torch.uint8), minlength=0)]
    for fn in left:
        same(jit.compile(fn, backend="eager")(i), fn(i))
    for bad in (lambda i: torch.bincount(i.float(), minlength=5), lambda i: torch.bincount(i.view(2, 50), minlength=5),
                lambda i: torch.bincount(i, minlength=-1)):
        with pytest.raises(RuntimeError) as want:
            bad(i)
        with pytest.raises(RuntimeError) as got:
            jit.compile(bad, backend="eager")(i)
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_on_a_processor_the_library_counts(dtype, monkeypatch):
    monkeypatch.setattr(type(backend(torch.device("cpu"))), "atomics", False)

    def fn(i, by):
        i = i * by
        return torch.bincount(i, minlength=300) * 2, i

    compiled, captured = captures_of(fn)
    for n in (40, 41, 7, 300, 1):
        i = numbers(n, 100, dtype)
        same(compiled(i, 1), fn(i, 1))
    assert not any(c.breaks for c in captured) and len(captured) <= 3
    for values in ([3, 120], [-1, 4]):  # beyond, and refused
        i = torch.tensor(values).to(dtype)
        if values[0] > 0 or dtype is torch.uint8:
            same(compiled(i, 1), fn(i, 1))
        else:
            with pytest.raises(RuntimeError) as want:
                fn(i, 1)
            with pytest.raises(RuntimeError) as got:
                compiled(i, 1)
            assert str(got.value) == str(want.value)
    if dtype.itemsize > 1:
        i = torch.tensor([3, 290]).to(dtype)
        same(compiled(i, 2), fn(i, 2))


def test_on_a_processor_where_inputs_are_changed(monkeypatch):
    monkeypatch.setattr(type(backend(torch.device("cpu"))), "atomics", False)

    def update(total, i):
        total += torch.bincount(i, minlength=9)
        return total.sum()

    compiled, captured = captures_of(update)
    ours, theirs = torch.zeros(9, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)
    for n in (30, 31, 50, 8, 9):
        i = numbers(n, 9)
        assert torch.equal(compiled(ours, i), update(theirs, i)) and torch.equal(ours, theirs)
    assert not any(c.breaks for c in captured)
    for f, total in ((compiled, ours), (update, theirs)):
        with pytest.raises(RuntimeError):
            f(total, torch.tensor([20]))
    assert torch.equal(ours, theirs)


def test_in_deterministic_mode():
    def fn(i):
        return torch.bincount(i, minlength=50)

    torch.use_deterministic_algorithms(True)
    try:
        i = numbers(100)
        same(jit.compile(fn, backend="eager", fullgraph=True)(i), fn(i))
    finally:
        torch.use_deterministic_algorithms(False)


def texts(n, places, interpret=False):
    compiled = compiled_for_gpu(lambda i: torch.bincount(i, minlength=places), numbers(n))
    return [emit.emit(k, interpret=interpret).text for k in compiled[0].launches if tile(k).kind == "counts"]


def test_where_it_is_counted():
    """In memory next to the processor; in registers where that is interpreted; few numbers, or very many places, where
    the counts are."""
    for places in (5, 1000):
        (text,), (interpreted,) = texts(1 << 16, places), texts(1 << 16, places, interpret=True)
        assert "tl.histogram" not in text and "red.shared" in text
        assert "tl.histogram" in interpreted and "red.shared" not in interpreted
    assert not texts(1500, 1000)


def test_sizes_that_are_symbols_compile():
    for places in (100, 1000):
        i = numbers(1 << 16)
        jit.mark_dynamic(i, 0)
        compiled = compiled_for_gpu(lambda i, places=places: torch.bincount(i, minlength=places), i)
        assert any(k.sizes for k in compiled[0].launches) and not library_calls(compiled)


def test_two_counts_are_two_launches():
    """Each has memory of its own."""
    compiled = compiled_for_gpu(lambda i, j: (torch.bincount(i, minlength=1000), torch.bincount(j, minlength=500)),
                                numbers(10000), numbers(9000))
    assert sum("jit_counts" in text for _, text in compiled[0].kernels) == 2


def test_memory_is_part_of_the_kernel():
    compiled = compiled_for_gpu(lambda i: torch.bincount(i, minlength=1000), numbers(1 << 16))
    kernels = [s.kernel for s in compiled[0].plan.steps if s.kind == "launch" and b"jit_counts" in s.kernel.cubin]
    assert len(kernels) == 1
