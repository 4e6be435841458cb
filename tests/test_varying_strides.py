"""Slices of tensors that grow: strides that are another at each call are symbols, not an entry each."""

import torch

import jit


def count(fn):
    return len(fn.on_miss.captures)


def test_a_slice_of_ever_wider_tensors_is_compiled_twice():
    @jit.compile
    def f(x, w):
        return (x @ w).relu() + x.sum(), x.t(), torch.zeros_like(x), x.stride()

    w = torch.randn(6, 6)
    for width in (9, 10, 11, 30, 6, 12, 6, 7):
        base = torch.randn(5, width)
        x = base[:, :6]
        found, view, zeros, strides = f(x, w)
        torch.testing.assert_close(found, (x @ w).relu() + x.sum())
        assert view._base is base and view.stride() == x.t().stride() and strides == x.stride()
        assert zeros.stride() == torch.zeros_like(x).stride()
    assert count(f) <= 3  # contiguous ones apart


def test_a_dim_of_size_one_has_any_stride_at_once():
    @jit.compile
    def f(x):
        return x.tanh() * 2, x.stride(0), torch.empty_like(x).stride(), x[0]

    for width in (9, 10, 11, 30):
        base = torch.randn(4, width)
        x = base[:1, :1]
        found, stride, like, view = f(x)
        assert torch.equal(found, x.tanh() * 2) and found.stride() == (x.tanh() * 2).stride()
        assert stride == width and like == torch.empty_like(x).stride() and view.stride() == x[0].stride()
        assert view._base is base
    assert count(f) == 1


def test_with_gradients():
    @jit.compile
    def f(x, w):
        return ((x * w).sin() @ w.t()).sum()

    for width in (7, 8, 9, 20):
        for rows in (1, 3):
            base, w = torch.randn(rows, width, requires_grad=True), torch.randn(1, 5, requires_grad=True)
            other, v = base.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
            f(base[:, :5], w).backward()
            ((other[:, :5] * v).sin() @ v.t()).sum().backward()
            torch.testing.assert_close(base.grad, other.grad)
            torch.testing.assert_close(w.grad, v.grad)
    assert count(f) <= 4


def test_overlapping_and_transposed_ones():
    @jit.compile
    def f(x):
        return x.contiguous() + 1

    for stride in ((8, 1), (9, 1), (1, 8), (10, 1), (3, 1), (0, 1), (5, 2), (11, 2), (1, 1)):
        x = torch.arange(60.).as_strided((4, 3), stride)
        assert torch.equal(f(x), x + 1) and f(x).stride() == (3, 1)


def test_a_view_requires_grad_as_its_base_does():
    @jit.compile
    def f(x):
        return x * 2

    leaf = torch.nn.Parameter(torch.randn(1))
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(f(leaf.expand(6)), leaf.expand(6) * 2)
    assert count(f) == 1
    base = torch.randn(2, 3)
    view = base[0]
    assert not f(view).requires_grad
    base.requires_grad_()
    assert view.requires_grad and f(view).requires_grad
