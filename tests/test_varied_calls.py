"""One compiled function called with arguments of many kinds, one after the other: results, strides, gradients and
errors are eager's at each call."""

import pytest
import torch
import torch.nn.functional as F

import jit


def same(got, want):
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    torch.testing.assert_close(got, want)


def alike(fn, calls, gradients=()):
    """Whether ``fn`` does the same compiled, by default and with gradients of the arguments at these places."""
    compiled = jit.compile(fn)
    for arguments in calls:
        mine, theirs = ([a.detach().clone().requires_grad_(i in gradients) if isinstance(a, torch.Tensor) else a
                         for i, a in enumerate(arguments)] for _ in range(2))
        try:
            want = fn(*theirs)
        except Exception as error:
            with pytest.raises(type(error)) as caught:
                compiled(*mine)
            assert str(caught.value) == str(error)
            continue
        got = compiled(*mine)
        same(got, want)
        if gradients and want.requires_grad:
            g = torch.randn_like(want)
            wanted, found = (torch.autograd.grad(out, [a[i] for i in gradients], g, allow_unused=True)
                             for out, a in ((want, theirs), (got, mine)))
            for a, b in zip(found, wanted):
                assert (a is None) == (b is None)
                if b is not None:
                    same(a, b)


def test_lists_of_indices_that_change():
    x, before = torch.randn(6, 5, 4), jit.compile_count()
    alike(lambda x, i: x[i], [(x, i) for i in (
        ([0, 0, 3], [1, 1, 3], [0, 0, 2]), ([1, 0, 3], [1, 2, 3], [0, 3, 2]), ([2, -1, 3], [1, 2, 0], [0, 3, 2]),
        ([2, 9, 3], [1, 2, 0], [0, 3, 2]), [1, 2], [3, 4, 5], [-1, 0])], gradients=(0,))
    assert jit.compile_count() - before <= 10  # of 14 without sharing: forward and backward, lists of other lengths

    def put(x, a, b):
        x = x.clone()
        x[[a, b]] = 7
        return x

    alike(put, [(x, a, b) for a, b in ((0, 1), (2, 3), (4, -1), (5, 0), (1, 2))])


def test_sizes_to_expand_to():
    """A size of 1 that stays 1 keeps its stride, though it was another one before."""
    alike(lambda x, sizes: x.expand(sizes), [(torch.randn(shape), sizes) for shape, sizes in (
        ((5,), (3, 5)), ((1, 5), (4, 1, 5)), ((1, 5), (1, 1, 5)), ((1, 6), (1, 1, 6)), ((1, 6), (2, 3, 6)))])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_padding_rows_of_bags_from_the_end(mode):
    at, offsets = torch.tensor([4, 1, 1, 0, 4, 4]), torch.tensor([0, 3])
    for padding in (-1, -5, 4, 2, None):
        alike(lambda w, at, offsets, padding=padding: F.embedding_bag(at, w, offsets, padding_idx=padding, mode=mode),
              [(torch.randn(5, 3), at, offsets)], gradients=(0,))


@pytest.mark.parametrize("fn", [torch.scatter, torch.scatter_add, lambda x, d, i, v: torch.gather(x, d, i) * v])
def test_places_in_tensors_without_dimensions(fn):
    one = torch.tensor(0)
    alike(fn, [(torch.randn(4, 5), 1, torch.randint(0, 5, (4, 5)), torch.randn(4, 5)),
               (torch.randn(5), 0, torch.randint(0, 5, (5,)), torch.randn(5)),
               (torch.randn(()), 0, one, torch.randn(())), (torch.randn(()), -1, one, torch.randn(()))],
          gradients=(0, 3))


def test_weights_of_numbers_below_zero():
    alike(F.prelu, [(torch.randn(2, 3), torch.randn(3)), (torch.randn(2, 3), torch.randn(1)),
                    (torch.tensor(-1.5), torch.randn(1)), (torch.tensor(1.5), torch.randn(1)),
                    (torch.tensor(-1.5), torch.randn(3)), (torch.randn(4), torch.randn(1))], gradients=(0, 1))


def test_identities():
    alike(lambda n, m: torch.eye(n, m), [(3, 4), (0, 1), (1, 0), (0, 0), (5, 5)])
