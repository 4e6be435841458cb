"""Indices that data decide, on the C++ kernels: made from comparisons, and out of range. Nothing is read at an index
that is not in range, and what eager raises is raised; the programs run in a process of their own, where a signal is
seen.
"""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import jit

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HUGE = (10**12, -(10**12), 2**63 - 1, -(2**63), 2**31, 100_000)


def _outcome(f, args):
    """The result, gradients of the floating point arguments with it, or the exception's type and text."""
    args = [a.clone().requires_grad_(a.is_floating_point() and a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in args]
    try:
        out = f(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return (out.detach(), *(torch.autograd.grad(out.double().square().sum(), wanted) if wanted else ()))


def _differs(want, got) -> bool:
    if isinstance(want[0], str) or isinstance(got[0], str):
        return want != got
    return len(want) != len(got) or not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
                                            and a.dtype is b.dtype for a, b in zip(want, got))


def _compare(name, f, calls):
    """A line for each call whose outcome differs from eager's, of one compiled function that sees them all."""
    compiled = jit.compile(f)
    for args in calls:
        want, got = _outcome(f, args), _outcome(compiled, args)
        if _differs(want, got):
            print(f"{name} {[tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]}: "
                  f"{want} in eager, {got} compiled")


# made from comparisons


COMPARISONS = {
    "cast": lambda x, t: t[(x > 5).long()],
    "not_equal": lambda x, t: t[(x != 5).long()] * x,
    "times_two": lambda x, t: t[2 * (x > 5).long()],
    "shifted": lambda x, t: t[(x > 5).long() << 1],
    "where": lambda x, t: t[torch.where(x > 5, 1, 0)],
    "where_of_others": lambda x, t: t[torch.where(x > 5, 5, 4)],
    "negative": lambda x, t: t[-(x > 5).long()],
    "minus": lambda x, t: t[(x > 5).long() - 1],
    "sum": lambda x, t: t[(x > 5).long() + (x > 9).long()],
    "sum_of_bools": lambda x, t: t[(x > 5) * 1 + (x > 9) * 2],
    "int32": lambda x, t: F.embedding((x > 5).int(), t.view(-1, 2)).sum(-1),
    "uint8": lambda x, t: t[(x > 5).to(torch.uint8).long()],
    "float": lambda x, t: t[(x > 5).float().long()],
    "logic": lambda x, t: t[((x > 5) & ~(x > 20)).long()],
    "bucketize": lambda x, t: t[torch.bucketize(x, torch.tensor([3.0, 30.0]))],
    "cumsum": lambda x, t: t[(x % 100 == 0).cumsum(0)],
    "argmax": lambda x, t: t[torch.stack([x, 8 - x, x * 0 + 5], -1).argmax(-1)] + 1,
    "sorted": lambda x, t: x[x.sort(descending=True).indices] * t[0],
    "sign": lambda x, t: t[torch.sign(x - 9).long() + 1],
    "isnan": lambda x, t: t[torch.isnan(x / (x - 9) * 0).long()],
    "class_weights": lambda x, t: (t[(x > 5).long()] * x).sum(),
    "gather": lambda x, t: torch.gather(x.view(-1, 1).expand(-1, 4) * t[:4], 1, (x > 6).long().view(-1, 1)),
    "labels": lambda x, t: F.cross_entropy(x.view(-1, 1) * t[:3], (x > 5).long(), reduction="none"),
    "two_indices": lambda x, t: t.view(-1, 2)[(x > 9).long(), (x > 5).long()],
    "embedded_rows": lambda x, t: F.embedding((x > 5).long(), t.view(-1, 4)),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_an_index_made_from_a_comparison(name):
    f = COMPARISONS[name]
    compiled, table = jit.compile(f), torch.arange(16.0) * 10 + 3
    for n in (64, 67, 1000, 33):  # the sizes are symbols from the second on
        for x in (torch.arange(1.0, n + 1), torch.randn(2 * n)[::2] * 9):
            torch.testing.assert_close(compiled(x, table), f(x, table), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bfloat16],
                         ids=str)
def test_comparisons_of_other_types(dtype):
    f = lambda x, t: (t[(x > 5).long()], t[torch.where(x != 9, 1, 0)])
    x, table = (torch.arange(130) % 17).to(dtype), torch.arange(4.0).to(dtype)
    for got, want in zip(jit.compile(f)(x, table), f(x, table), strict=True):
        assert torch.equal(got, want)


# out of range


def _at(bad, *rest):
    return torch.tensor([0, bad, *rest])


def rows(n, w, grad=True):
    return torch.randn(n, w).requires_grad_(grad)


# name -> (program, the size that the index is for -> its arguments but the index, which comes last)
PROGRAMS = {
    "item": (lambda x, i: x[i] * 2, lambda n: (rows(n, 3),)),
    "vector": (lambda x, i: x[i] * 2, lambda n: (torch.randn(n),)),
    "total": (lambda x, i: (x[i] + 1).sum(), lambda n: (rows(n, 70),)),
    "row_sums": (lambda x, i: (x[i] * x[i]).sum(-1), lambda n: (rows(n, 70),)),
    "column": (lambda x, i: x[:, i] + 1, lambda n: (rows(3, n),)),
    "of_a_slice": (lambda x, i: x[:, 1:][i] + 1, lambda n: (rows(n, 5),)),
    "of_a_transpose": (lambda x, i: x.t()[i] + 1, lambda n: (rows(5, n),)),
    "of_a_product": (lambda x, i: (x * 2).exp()[i] + 1, lambda n: (rows(n, 5),)),
    "two": (lambda x, i: x[i, i] + 1, lambda n: (rows(n, n),)),
    "apart": (lambda x, i: x[i, :, i] + 1, lambda n: (torch.randn(n, 2, n),)),
    "of_halves": (lambda x, i: x[i] + 1, lambda n: (torch.randn(n, 4).bfloat16(),)),
    "of_bools": (lambda x, i: ~x[i], lambda n: (torch.randn(n) > 0,)),
    "joined": (lambda x, i: torch.cat([x[i], x[:1]]) + 1, lambda n: (rows(n, 4),)),
    "small_type": (lambda x, i: x[i.clamp(-2**31, 2**31 - 1).int()] + 1, lambda n: (rows(n, 4),)),
    "embedding": (lambda w, i: F.embedding(i, w) + 1, lambda n: (rows(n, 33),)),
    "embedding_with_padding": (lambda w, i: F.embedding(i, w, padding_idx=0) + 1, lambda n: (rows(n, 4),)),
    "embedding_bag": (lambda w, i: F.embedding_bag(i.view(1, -1), w) + 1, lambda n: (rows(n, 4),)),
    "index_select": (lambda x, i: x.index_select(0, i) + 1, lambda n: (rows(n, 4),)),
    "gather": (lambda x, i: x.gather(0, i.view(-1, 1).expand(-1, 4)) + 1, lambda n: (rows(n, 4),)),
    "gather_along_rows": (lambda x, i: x.gather(1, i.view(1, -1).expand(3, -1)) + 1, lambda n: (rows(3, n),)),
    "index_select_of_columns": (lambda x, i: x.index_select(1, i) + 1, lambda n: (rows(3, n),)),
    "embedding_of_a_matrix": (lambda w, i: F.embedding(i.view(1, -1), w) + 1, lambda n: (rows(n, 4),)),
    "class_numbers": (lambda x, i: F.one_hot(i, x.shape[0]) * 2, lambda n: (torch.randn(n),)),
    "take": (lambda x, i: x.take(i) + 1, lambda n: (torch.randn(n),)),
    "take_along_dim": (lambda x, i: x.take_along_dim(i.view(-1, 1), 0) + 1, lambda n: (rows(n, 4),)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[: i.shape[0]], i), lambda n: (rows(5, n),)),
    "cross_entropy_of_each": (lambda x, i: F.cross_entropy(x[: i.shape[0]], i, reduction="none", ignore_index=1),
                              lambda n: (rows(5, n),)),
    "cross_entropy_weighted": (lambda x, w, i: F.cross_entropy(x[: i.shape[0]], i, w),
                               lambda n: (rows(5, n), torch.rand(n))),
    "cross_entropy_smoothed": (lambda x, i: F.cross_entropy(x[: i.shape[0]], i, label_smoothing=0.1),
                               lambda n: (rows(5, n),)),
    "nll_loss": (lambda x, i: F.nll_loss(x[: i.shape[0]], i), lambda n: (rows(5, n),)),
    "nll_loss_2d": (lambda x, i: F.nll_loss(x.view(1, -1, 1, 5)[..., : i.shape[0]], i.view(1, 1, -1)),
                    lambda n: (rows(n, 5),)),
    "index_add": (lambda x, i: x.index_add(0, i, x[: i.shape[0]]) + 1, lambda n: (torch.randn(n, 4),)),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[: i.shape[0]]) + 1, lambda n: (torch.randn(n, 4),)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 5.0) + 1, lambda n: (torch.randn(n, 4),)),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(4)) + 1, lambda n: (torch.randn(n, 4),)),
    "index_put_added": (lambda x, i: x.index_put((i,), torch.ones(4), accumulate=True) + 1,
                        lambda n: (torch.randn(n, 4),)),
    "scatter": (lambda x, i: x.scatter(0, i.view(-1, 1), 5.0) + 1, lambda n: (torch.randn(n, 4),)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i.view(-1, 1), x) + 1, lambda n: (torch.randn(n, 4),)),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i.view(-1, 1), x, "amax") + 1, lambda n: (torch.randn(n, 4),)),
}


def out_of_range():
    """Prints what differs, over several sizes in one function's life: good indices, then one behind the end, one before
    the start, and huge ones."""
    torch.manual_seed(0)
    for name, (f, make) in PROGRAMS.items():
        print("at", name, flush=True)
        calls = [(*make(n), _at(n - 1, 1)) for n in (4, 6)]
        calls += [(*make(n), _at(bad, 1)) for n in (6, 9) for bad in (n, -1, -n - 1)]
        calls += [(*make(9), _at(bad)) for bad in HUGE] + [(*make(5), _at(4))]
        _compare(name, f, calls)
    for name, f, shape in EMPTY:
        print("at", name, flush=True)
        _compare(name, f,
                 [(torch.randn(shape), torch.tensor(i, dtype=torch.int64)) for i in ([0], [0, 0], [5, 1], [-1], [])])
    print("end")


EMPTY = [
    ("item_of_nothing", lambda x, i: x[i] + 1, (0,)),
    ("rows_of_nothing", lambda x, i: x[i] + 1, (0, 5)),
    ("nothing_of_rows", lambda x, i: x[i] + 1, (5, 0)),
    ("embedding_of_nothing", lambda w, i: F.embedding(i, w), (0, 4)),
    ("index_select_of_nothing", lambda x, i: x.index_select(0, i) + 1, (0, 4)),
    ("gather_of_nothing", lambda x, i: x.gather(0, i) + 1, (0,)),
    ("take_of_nothing", lambda x, i: x.take(i) + 1, (0,)),
    ("computed_nothing", lambda x, i: (x * 2).exp()[i] + 1, (0,)),
    ("slice_of_nothing", lambda x, i: x[2:][i] + 1, (2, 3)),
]


def test_an_index_out_of_range_is_eagers_error_and_reads_nothing():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": ROOT})
    lines = [line for line in done.stdout.splitlines() if not line.startswith("at ")]
    assert done.returncode == 0 and lines == ["end"], (f"{lines}\n"
                                                       f"last: {done.stdout.splitlines()[-1:]}\n{done.stderr[-2000:]}")


@pytest.mark.parametrize("name, fn", [
    ("two dimensions", lambda x, i, n: x.sin()[:, :n][i, i] * 2),
    ("one dimension", lambda x, i, n: x.sin()[:, :n][:, i] * 2),
    ("rows", lambda x, i, n: x.sin()[:n][i] * 2),
    ("gather", lambda x, i, n: x.sin()[:, :n].gather(1, i[None].expand(x.shape[0], -1)) * 2),
    ("of a flip", lambda x, i, n: x.repeat(2, 1)[:, :n].flip(0)[i, i].exp()),
])
def test_parts_of_nothing(name, fn):
    """Elements of a part that is empty, though the tensor behind it is not, in calls among others."""
    compiled = jit.compile(fn, dynamic=True)
    for rows, n, index in ((4, 3, [0, 2]), (4, 0, [0, 2]), (5, 0, []), (5, 2, [1, 1]), (4, 0, [0]), (4, 1, [-1])):
        x, i = torch.randn(rows, 7), torch.tensor(index, dtype=torch.int64)
        results = []
        for run in (fn, compiled):
            try:
                results.append(run(x, i, n))
            except (IndexError, RuntimeError) as error:
                results.append(type(error))
        want, got = results
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got is want


@pytest.mark.parametrize("fn", [
    lambda x, i: x[i], lambda x, i: x[:, i], lambda x, i: x[i, 0:0],
    lambda x, i: x[i, torch.zeros(0, dtype=torch.long)], lambda x, i: x.sin()[i].sum(),
    lambda x, i: x.clone().index_fill_(0, i, 2), lambda x, i: put(x.clone(), i),
    lambda x, i: put(x.clone(), (i, slice(0, 0))), lambda x, i: x[(i > 0).long()],
], ids=["item", "column", "no part", "no places", "sum", "fill", "put", "put nothing", "comparison"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_item_of_nothing_is_inside(fn, dynamic):
    """A 0-dim index is checked as an int is, also where no element is read at it."""
    compiled = jit.compile(fn, dynamic=dynamic)
    for shape in ((3, 4), (5, 4), (1, 0), (3, 0), (0, 3), (0, 0)):
        for k in (0, -1, 1, 3, -4, 7):
            x, i, found = torch.randn(shape), torch.tensor(k), []
            for run in (fn, compiled):
                try:
                    found.append(run(x, i))
                except (IndexError, RuntimeError) as error:
                    found.append((type(error), str(error)))
            want, got = found
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want)
            else:
                assert got == want, (shape, k)


def put(x, index):
    x[index] = 1.5
    return x


if __name__ == "__main__":
    out_of_range()
