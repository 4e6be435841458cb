"""Sums of exponentials and positions of extrema over few rows, cut into chunks, against eager."""

import pytest
import torch

import jit
from jit.graph.passes import in_chunks
from jit.devices.cpu import Cpu

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def cut(monkeypatch):
    """Every reduction is cut, into eight chunks where its length allows that; the list of how many nodes were."""
    found = []

    class Counted(in_chunks._InChunks):
        def __init__(self, graph, sums, positions, extrema):
            found.append(len(sums) + len(positions))
            super().__init__(graph, sums, positions, extrema)

    monkeypatch.setattr(in_chunks, "_InChunks", Counted)
    monkeypatch.setattr(Cpu, "cuts_what_waits", True)
    monkeypatch.setattr(Cpu, "splits", lambda self, rows, row, inner: row >= 64)
    monkeypatch.setattr(Cpu, "chunks", lambda self, rows, total, inner, plain=False: 8)
    jit.reset()
    yield found
    jit.reset()


def special(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    flat = x.reshape(shape[0], -1) if len(shape) > 1 else x.reshape(-1, 1)
    for column, values in enumerate([(-INF,), (INF,), (NAN,), (INF, -INF), (NAN, INF), (9.0, 9.0)]):
        if column < flat.shape[1]:
            for k, v in enumerate(values):
                flat[3 + 40 * k, column] = v
    if flat.shape[1] > 7:
        flat[:, 6], flat[:, 7], flat[10:20, 8] = -INF, 2.0, -INF
    return flat.reshape(shape)


FUNCTIONS = {
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "logsumexp kept": lambda x: torch.logsumexp(x, 0, True) * 2,
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "argmax": lambda x: x.argmax(0),
    "argmin kept": lambda x: x.argmin(0, True),
    "max": lambda x: x.max(0),
    "min and sum": lambda x: (*x.min(0), x.sum(0)),
    "of all": lambda x: (x.argmax(), x.argmin(), torch.logsumexp(x.reshape(-1), 0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_columns(name, dtype, cut):
    for shape in ((96, 20), (128, 3), (160,), (128, 4, 5), (97, 20)):
        x, f = special(*shape, dtype=dtype), FUNCTIONS[name]
        got, want = jit.compile(f)(x), f(x)
        for a, b in zip(*((got, want) if isinstance(want, tuple) else ([got], [want]))):
            assert a.dtype is b.dtype and a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5,
                                       atol=2e-2 if dtype is torch.bfloat16 else 1e-5, equal_nan=True)
    assert sum(cut)


@pytest.mark.parametrize("dims", [(1,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_dimensions(dims, cut):
    x = torch.randn(16, 96, 8)
    for v in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x[:, ::2]):
        got = jit.compile(lambda v: torch.logsumexp(v, dims))(v)
        torch.testing.assert_close(got, torch.logsumexp(v, dims), rtol=1e-5, atol=1e-5)
    assert sum(cut)


def test_integers_and_ties(cut):
    x = torch.randint(0, 3, (128, 9))
    f = lambda x: (x.argmax(0), x.argmin(0), x.max(0), x.view(-1).argmax())  # noqa: E731
    got, want = jit.compile(f)(x), f(x)
    # Of equal elements eager takes any in max(dim), and the first in argmax.
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]) and torch.equal(got[3], want[3])
    assert torch.equal(got[2].values, want[2].values) and torch.equal(x.gather(0, got[2].indices[None])[0],
                                                                      want[2].values)
    assert sum(cut)


def test_gradients(cut):
    x = torch.randn(96, 20, requires_grad=True)
    f = lambda x: torch.logsumexp(x, 0).square().sum() + torch.softmax(x, 0)[3].sum()  # noqa: E731
    (got,), (want,) = (torch.autograd.grad(g(x), x) for g in (jit.compile(f), f))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert sum(cut)


def test_other_reductions_are_left(cut):
    x = torch.randn(96, 20)
    jit.compile(lambda x: (x.sum(0), x.amax(0), (x - x.mean(0)).exp().sum(0)))(x)
    assert not sum(cut)
