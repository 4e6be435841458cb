"""Tensors computed from constants alone are data while capturing: programs may branch on them, index by them and count
with them."""

import pytest
import torch
from frame_harness import Cases

import jit

cases = Cases()
X = torch.arange(300.0).reshape(3, 100)


@cases(X)
def masks(x):
    mask = torch.ones(3, 100, dtype=torch.bool)
    mask[0, 50:] = False
    copy = x.clone()
    copy[mask[:, 0]] = torch.zeros(3, 100)
    return x[mask], x[0][mask[0]], x[mask[:, 1], 2:4], x[:, mask[1]].sum(), copy


@cases(X)
def sizes(x):
    n = torch.tensor([2, 3])
    h, w = n
    return (torch.arange(0, h) + torch.arange(w)[1], x.repeat(n.max(), 1), x[:h], x.view(-1, n.prod() * 10),
            torch.zeros(h, w), [4, 5, 6][h], [4, 5, 6][:h])


@cases(X)
def branches(x):
    n = torch.tensor([2, 3])
    if (n > 1).all():
        x = x + 1
    if n.sum().item() == 5 and not torch.equal(n, n + 1):
        x = x * 2
    return x, n.tolist(), int(n[0]), float(n[1]), bool(n[0]), range(n[1])[2]


@cases(X)
def positions(x):
    n = torch.tensor([[0, 3], [4, 0]])
    return n.nonzero(), torch.unique(n), x[n.nonzero()[0]], x.split([n.argmax().item(), 1])


@cases(X)
def repeats(x):
    n = torch.tensor([1, 2])
    return torch.repeat_interleave(n, n), x.repeat_interleave(n.sum(), 0)


@cases(X)
def numbers(x):
    k = torch.div(x.shape[1], 50, rounding_mode="floor")
    return k, x.reshape(3, k, 50), x.new_zeros(k), x.clone().as_strided((k, 2), (1, k)), torch.add(1, 2)


test_captured_whole = cases.test()


@pytest.mark.parametrize("read", [lambda x: x * len(range(x.long().sum().item())), lambda x: x[x > 1] + 1,
                                  lambda x: x[: x.long()[0, 1]] + 1, lambda x: torch.rand(3)[torch.rand(3) > 0.5] + 1,
                                  lambda x: [x * 2] if torch.rand(1) > 2 else x])
def test_inputs_and_random_numbers_are_not_known(read):
    with pytest.raises(jit.errors.Unsupported):
        jit.compile(read, backend="eager", fullgraph=True)(torch.arange(6.0).reshape(2, 3))


def test_a_size_that_changes_is_not_known():
    def f(x):
        mask = torch.ones(x.shape[0], dtype=torch.bool)
        mask[0] = False
        return x[mask]

    compiled = jit.compile(f, backend="eager")
    for n in (3, 5, 7, 80):
        x = torch.arange(float(n))
        assert torch.equal(compiled(x), f(x))


def test_what_is_written_into_a_known_tensor():
    def f(x):
        flags = torch.zeros(2, dtype=torch.bool)
        before = bool(flags.any())
        flags[0] = x[0] > 0
        return before, torch.where(flags, x, -x)

    x = torch.tensor([1.0, 2.0])
    compiled = jit.compile(f, backend="eager", fullgraph=True)
    for x in (x, -x):
        assert compiled(x)[0] is False and torch.equal(compiled(x)[1], f(x)[1])
