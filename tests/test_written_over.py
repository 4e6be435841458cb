"""Inputs that a program writes over after it has read them: kernels read all old values before they store new ones in
the same memory."""

import pytest
import torch
import torch.nn.functional as F

import jit

from sweeps.database import difference


def replaced(x, y):
    before = y + x
    y.copy_(x)
    return F.leaky_relu(before, 0.1), y.neg()


def swapped(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def filled(x, y):
    doubled = y * 2
    y.fill_(3)
    x.zero_()
    return doubled, x + y


def of_another(x, y):
    total = (x * y).exp()
    y.copy_(x * 2)
    x.copy_(total)
    return total.sum(-1), y.sum(-1)


def with_sums(x, y):
    before = y - y.mean(-1, keepdim=True)
    y.copy_(x)
    return before, y.sum(0)


def selected(x, y):
    before = torch.where(y > 0, x, y)
    y.masked_fill_(x > 0, 1)
    return before, before * y


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [replaced, swapped, filled, of_another, with_sums, selected],
                         ids=lambda p: p.__name__)
def test_written_over(program, dynamic):
    compiled = jit.compile(program, dynamic=dynamic)
    for shape in ((4, 9), (2, 9), (64, 18), (1, 5), (3, 0), (17, 33)):
        for place in (lambda t: t, lambda t: torch.cat([t, t, t], 1)[:, : t.shape[1]],
                      lambda t: t.t().contiguous().t()):
            seen = []
            for fn in (program, compiled):
                torch.manual_seed(0)
                x, y = place(torch.randn(shape)), place(torch.randn(shape))
                seen.append((fn(x, y), x, y))
            assert not difference(*seen)


def test_detached_results_of_one_memory():
    """Several detached views of a value that is no result itself: they share memory, and none requires grad."""
    def views(x):
        detached = (x * 2).detach()
        return detached, detached.t()

    def and_their_sum(x):
        value = x[x[:, 0].argsort()]
        detached = value.detach()
        return detached, detached.t(), detached[1:], (detached + value).sum()

    def beside_a_view(x):
        value = x.exp()
        return value.detach(), value.detach()[1:], value.t()

    for program in (views, and_their_sum, beside_a_view):
        compiled = jit.compile(program)
        for size in (4, 6, 3):
            x = torch.randn(size, size, requires_grad=True)
            seen = []
            for fn in (program, compiled):
                results = fn(x)
                shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in results
                          for b in results]
                seen.append((results, [r.requires_grad for r in results], [r.is_leaf for r in results], shared))
            assert not difference(*seen)
    compiled = jit.compile(views)
    results = compiled(torch.ones(3, 3, requires_grad=True))
    results[0][0, 1] = 7
    assert results[1][1, 0] == 7


def test_sums_into_nothing():
    """Index writes and products of tensors that hold one number or none."""
    def added(x, y, i):
        return torch.zeros_like(x.sum()).index_add(0, i, y[i])

    for y in (torch.ones(1, 5, requires_grad=True), torch.ones(3, requires_grad=True),
              torch.ones(1, requires_grad=True)):
        told = []
        for fn in (added, jit.compile(added)):
            try:
                told.append(torch.autograd.grad(fn(y, y, torch.tensor([0])), y)[0])
            except (RuntimeError, IndexError) as error:
                told.append(error)
        assert not difference(*told)

    def product(x, y):
        return x.t() @ y.prod(-1)

    for size in ((0, 4), (2, 4)):
        told = []
        for fn in (product, jit.compile(product)):
            try:
                told.append(fn(*(torch.ones(size, dtype=torch.uint8),) * 2))
            except RuntimeError as error:  # of nothing some releases make zeros
                told.append(error)
        assert not difference(*told)

    def constants(y):
        y.zero_()
        return torch.lerp(y, y, 0.25), torch.addcmul(y, y, y, value=0.5)

    for y in (torch.ones(3), torch.ones(2, 2, dtype=torch.float16)):
        assert not difference(constants(y.clone()), jit.compile(constants)(y.clone()))


def test_windows_that_overlap():
    def f(x):
        windows = x.unfold(-1, 2, 1)
        before = windows.exp()
        windows[1:].mul_(2)
        return before, windows

    compiled = jit.compile(f, dynamic=True)
    for n in (4, 6, 9):
        x = torch.rand(n, n + 1)
        y = x.clone()
        torch.testing.assert_close(compiled(y), f(x))
        torch.testing.assert_close(y, x, rtol=0, atol=0)
