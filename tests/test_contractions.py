"""einsum, tensordot and inner: written out as PyTorch composes them, so that values, strides, gradients and autocast
are those of eager, and products without a sum join the kernels around them."""

import random

import pytest
import torch

import jit

LABELS = "abcde"


def alike(ours, theirs, strides=True):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if strides:
        assert all(m == n for m, n, size in zip(ours.stride(), theirs.stride(), ours.shape) if size > 1)


def both(fn, *tensors):
    """Results and gradients of leaves in eager and compiled, two layouts of them in one entry's life."""
    compiled = jit.compile(fn, fullgraph=True)
    for lay_out in (lambda t: t, lambda t: t.t().contiguous().t() if t.dim() == 2 else t):
        results = []
        for run in (fn, compiled):
            leaves = [lay_out(t).detach().requires_grad_() for t in tensors]
            out = run(*leaves)
            out.sin().sum().backward()
            results.append((out.detach(), [t.grad for t in leaves]))
        (theirs, wanted), (ours, found) = results
        alike(ours, theirs)
        for a, b in zip(found, wanted):
            alike(a, b)


def random_equation(rng):
    """An equation and the shapes of its operands: sums, products, diagonals, sizes that are broadcast, ellipses."""
    sizes = {c: rng.choice([1, 2, 3, 5]) for c in LABELS}
    terms = ["".join(rng.sample(LABELS, rng.randint(1, 3))) for _ in range(rng.choice([1, 2, 2, 2, 3]))]
    if rng.random() < 0.15:
        terms[0] += terms[0][0]
    dots, used = rng.random() < 0.2, sorted(set("".join(terms)))
    kept = "".join(rng.sample(used, rng.randint(0, len(used))))
    right = rng.choice([f"->{'...' * dots}{kept}", f"->{kept}", ""])
    narrow = [{c for c in t if rng.random() < 0.1} for t in terms]
    shapes = [(*[rng.choice([1, 4])] * dots, *(1 if c in one else sizes[c] for c in t))
              for t, one in zip(terms, narrow)]
    return ",".join("..." * dots + t for t in terms) + right, shapes


@pytest.mark.parametrize("seed", range(24))
def test_einsum(seed):
    equation, shapes = random_equation(random.Random(seed))
    torch.manual_seed(seed)
    both(lambda *xs: torch.einsum(equation, *xs), *[torch.randn(s) for s in shapes])


@pytest.mark.parametrize("first, second, dims", [
    ((3, 4), (4, 5), 1), ((3, 4, 5), (4, 5, 6), 2), ((3, 4, 5), (5, 4, 2), ([1, 2], [1, 0])), ((3, 4), (3, 4), 2),
    ((2, 3), (4, 5), 0), ((3, 1), (4, 5), ([1], [0])), ((2, 3, 4), (4,), 1), ((0, 3), (3, 2), 1)])
def test_tensordot(first, second, dims):
    both(lambda x, y: torch.tensordot(x, y, dims), torch.randn(first), torch.randn(second))


@pytest.mark.parametrize("first, second", [((3, 4), (5, 4)), ((4,), (4,)), ((), (3, 4)), ((2, 3, 4), (4,))])
def test_inner(first, second):
    both(torch.inner, torch.randn(first), torch.randn(second))


def test_operands_by_numbers_of_dimensions():
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for fn in (lambda x, y: torch.einsum(x, [0, 1], y, [1, 2], [2, 0]),
               lambda x, y: torch.einsum(x, [..., 1], y, [1, 2]),
               lambda x, y: torch.einsum("ij,jk", [x, y])):
        alike(jit.compile(fn, fullgraph=True)(x, y), fn(x, y))


def test_sizes_vary_in_one_entry():
    def fn(x, w):
        return torch.einsum("...d,kd->...k", x, w).relu()

    compiled, w = jit.compile(fn, fullgraph=True), torch.randn(6, 4)
    for k, n in enumerate((5, 7, 9, 2, 33)):
        x = torch.randn(n, 3, 4)
        with jit.config.patch(error_on_recompile=k > 1):
            alike(compiled(x, w), fn(x, w))


def test_an_outer_product_joins_the_kernel_around_it():
    fn = lambda x, y: torch.einsum("i,j->ij", x * 2, y.sin()).exp()  # noqa: E731
    told = jit.explain(fn)(torch.randn(4), torch.randn(5))
    assert len(told.kernels) == 1 and "einsum" not in "".join(told.graphs)


@pytest.mark.parametrize("call", [
    lambda x, y: torch.einsum("ij,jk->ik", x, y), lambda x, y: torch.einsum("ij,kl->ik", x, y),
    lambda x, y: torch.inner(x, y.t()), lambda x, y: torch.tensordot(x, y, 1)])
def test_under_autocast(call):
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(x, y)

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    ours, theirs = jit.compile(fn, fullgraph=True)(x, y), fn(x, y)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("equation", ["ij,jk->il", "ij,jk->ii", "ij", "ij,jk,kl", "i.,jk", "ij,jk->i>", "ijk,jk"])
def test_what_einsum_refuses_raises_its_error(equation):
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    with pytest.raises(RuntimeError) as theirs:
        torch.einsum(equation, x, y)
    with pytest.raises(RuntimeError) as ours:
        jit.compile(lambda x, y: torch.einsum(equation, x, y))(x, y)
    assert str(ours.value) == str(theirs.value)


def test_sizes_that_do_not_match():
    x, y = torch.randn(3, 4), torch.randn(5, 6)
    for fn in (lambda x, y: torch.einsum("ij,jk", x, y), lambda x, y: torch.tensordot(x, y, 1), torch.inner):
        with pytest.raises(RuntimeError) as theirs:
            fn(x, y)
        with pytest.raises(RuntimeError) as ours:
            jit.compile(fn)(x, y)
        assert str(ours.value) == str(theirs.value)
