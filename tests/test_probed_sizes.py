"""Library calls without a type rule compile once for all sizes: what they give is learned by calls at several sizes."""

import collections
import functools

import pytest
import torch

import jit

Pair = collections.namedtuple("Pair", "a b")


def compiles(fn, make, sizes=(5, 6, 7, 9, 12), grad=False):
    """How many graphs are compiled for inputs of several sizes, compared with eager each time."""
    compiled, before = jit.compile(fn), jit.compile_count()
    for n in sizes:
        torch.manual_seed(n)
        ours = make(n)
        theirs = [t.clone() for t in ours]
        if grad:
            for t in (*ours, *theirs):
                t.requires_grad_(t.is_floating_point())
        a, b = compiled(*ours), fn(*theirs)
        assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        if grad:
            a.square().sum().backward()
            b.square().sum().backward()
            for s, t in zip(ours, theirs):
                torch.testing.assert_close(s.grad, t.grad, rtol=1e-3, atol=1e-3)
    return jit.compile_count() - before


R = torch.randn
PROGRAMS = {
    "all of a mask": (lambda x: torch._is_all_true(x > -9) * x, lambda n: (R(n, 3),), False),
    "distances": (lambda x, y: torch.cdist(x, y) + 1, lambda n: (R(n, 3), R(n + 2, 3)), True),
    "a solution": (lambda a, b: torch.linalg.solve(a + torch.eye(a.shape[0]) * 9, b) * 2,
                   lambda n: (R(n, n), R(n, 3)), True),
    "a factor": (lambda a: torch.linalg.cholesky(a @ a.T + torch.eye(a.shape[0])) * 2, lambda n: (R(n, n),), True),
    "a transform": (lambda a: torch.fft.fft2(a).real, lambda n: (R(3, n, n + 3),), False),
    "a search": (lambda a, v: torch.searchsorted(a.sort().values, v) + 1, lambda n: (R(n), R(n, 2)), False),
    "eigenvalues": (lambda a: torch.linalg.eigh(a + a.T)[0] + 1, lambda n: (R(n, n),), True),
    "rows by a mask": (lambda x, m: x[m.any(1)], lambda n: (R(n, 3), R(n, 3) > 0), False),
    "a log density": (lambda m, x: torch.distributions.Normal(m, 0.5).log_prob(x).sum(-1),
                      lambda n: (R(n, 5), R(n, 5)), True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_for_all_sizes(name):
    fn, make, grad = PROGRAMS[name]
    assert compiles(fn, make, grad=grad) == 2  # for the first size, then for any


@pytest.mark.parametrize("name, fn, make", [
    ("half of a transform", lambda a: torch.fft.rfft(a).abs(), lambda n: (R(3, n),)),
    ("all pairs", lambda a: torch.pdist(a) * 2, lambda n: (R(n, 3),)),
    ("windows", lambda a: torch.nn.functional.unfold(a, 3) * 2, lambda n: (R(2, 3, n, n + 1),)),
])
def test_other_sizes_are_compiled_for_anew(name, fn, make):
    assert compiles(fn, make) >= 2


def test_masks_of_another_length_are_refused_as_in_eager():
    def f(x, m):
        return x[m]

    compiled = jit.compile(f)
    for n in (4, 5, 6):
        x, m = R(n, 2), R(n) > 0
        assert torch.equal(compiled(x, m), f(x, m))
    with pytest.raises(IndexError):
        compiled(R(7, 2), R(6) > 0)
    with pytest.raises(IndexError):
        compiled(R(6, 2), R(7) > 0)


def test_a_tuple_backwards():
    class Sevens(tuple):
        def __getitem__(self, i):
            return 7

    class Short(tuple):
        def __len__(self):
            return 1

    def f(x):
        return (x + list(reversed(Pair(1, 2)))[0] + list(reversed(x.shape))[0]
                + sum(reversed(Sevens((1, 2)))) + len(list(reversed(Short((1, 2))))))

    x = R(4, 3)
    assert torch.equal(jit.compile(f, fullgraph=True)(x), f(x))


@functools.lru_cache(64)
def cached_plan(shape, k):
    return [n * k for n in shape], {0: shape[0]}


def kept(x):
    return x + 1, cached_plan(x.shape, 2)[0]


def changed(x):
    sizes, _ = cached_plan(x.shape, 2)
    sizes.append(1)
    return x + len(sizes)


def only_read(x):
    sizes, first = cached_plan(x.shape, 2)
    return x.repeat(2, 2).reshape(sizes[0], -1) + first[0]


def test_a_cached_function_of_sizes_is_followed():
    def make(n):
        cached_plan.cache_clear()
        return (R(n, 3),)

    assert compiles(only_read, make) == 2


def test_what_a_cached_function_gives_is_one_object():
    compiled = jit.compile(kept)
    for n in (4, 5, 6):
        assert compiled(R(n, 3))[1] is cached_plan((n, 3), 2)[0]
    ours, theirs = [], []
    compiled = jit.compile(changed)
    for fn, results in ((compiled, ours), (changed, theirs)):
        cached_plan.cache_clear()
        for n in (4, 5, 6, 6, 5):
            results.append(fn(torch.ones(n, 3)))
    assert all(map(torch.equal, ours, theirs))


def test_sizes_of_which_one_has_to_be_larger():
    def check(fn):
        compiled, before = jit.compile(fn), jit.compile_count()
        for n in range(6, 14):
            x = torch.randn(n)
            torch.testing.assert_close(compiled(x, n - 2), fn(x, n - 2))
        assert jit.compile_count() - before == 2

    check(lambda x, k: x.topk(k)[0] * 2)
    check(lambda x, k: x.topk(k)[1] + 1 if k <= x.size(0) else x)
