"""Lists, loops and scans whose lengths are others at each call: compiled a few times, and as eager at every length."""

import random

import pytest
import torch
from torch import nn

import jit
from jit.frame import dispatch

LENGTHS = (10, 10, 12, 14, 9, 30, 1, 2, 17, 16, 40, 5, 11, 12)


def compiles():
    """The most of any one function."""
    return max((len(d.on_miss.captures) for d in list(dispatch._dispatchers) if hasattr(d.on_miss, "captures")),
               default=0)


@pytest.fixture(autouse=True)
def apart():
    jit.reset()
    yield
    jit.reset()


def same(fn, make, lengths=LENGTHS, most=4):
    """``fn`` compiled against eager, with gradients of all tensors that require one."""
    compiled = jit.compile(fn)
    for n in lengths:
        results = []
        for f in (fn, compiled):
            torch.manual_seed(n)
            random.seed(n)
            args, leaves = make(n)
            out = f(*args)
            total = sum(t.sum() for t in torch.utils._pytree.tree_leaves(out)
                        if isinstance(t, torch.Tensor) and t.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()
            results.append((out, [t.grad for t in leaves], args))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert compiles() <= most, compiles()
    return compiled


def leaves_of(n, *shape):
    made = [torch.randn(shape, requires_grad=True) for _ in range(n)]
    return made, made


def test_stack_cat_sum_and_len_of_lists():
    def fn(xs, w):
        if not xs:
            return w * 2
        return torch.stack(xs).sin() * w, torch.cat(xs).sum() + len(xs)

    def make(n):
        xs, leaves = leaves_of(n, 3)
        return (xs, torch.ones(3)), leaves

    same(fn, make, (*LENGTHS, 0))


def test_discounted_rewards():
    def fn(logarithms, rewards):
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        return -(torch.stack(logarithms) * (returns - returns.mean())).sum(), total

    def make(n):
        leaves = [torch.randn((), requires_grad=True) for _ in range(n)]
        return ([v * 2 for v in leaves], [random.random() for _ in range(n)]), leaves

    same(fn, make)


def test_cells_in_a_loop():
    cell = nn.GRUCell(4, 8)

    def fn(x, h):
        out = []
        for t in range(x.shape[0]):
            h = cell(x[t], h)
            out.append(h)
        return (torch.stack(out) if out else x), h

    def make(n):
        x = torch.randn(n, 2, 4, requires_grad=True)
        return (x, torch.zeros(2, 8)), [x]

    same(fn, make, (*LENGTHS, 0), most=5)  # 0 and 1 apart


def test_loops_over_lists_and_what_is_bound_behind_them():
    def fn(xs, h):
        for i, x in enumerate(xs):
            h = torch.tanh(x * h) + i
            last = x
        return h, (last if xs else None)

    def make(n):
        xs, leaves = leaves_of(n, 3)
        return (xs, torch.ones(3)), leaves

    same(fn, make, (*LENGTHS, 0))


def test_a_loop_that_is_left_early():
    def fn(xs):
        total = 0.0
        for x in xs:
            if x > 0.9:
                break
            total = total + x
        else:
            total = -total
        return torch.full((2,), 1.0) * total

    same(fn, lambda n: (([random.random() * 1.05 for _ in range(n)],), []), most=8)


def test_changed_shared_and_mixed_lists():
    def fn(xs, ys):
        xs.append(ys[0] * 2 if ys else torch.ones(3))
        same_list = xs is ys
        total = torch.stack([x.float() for x in xs]).sum(0)
        ys[:1] = []
        return total, len(xs), len(ys), same_list

    def alike(n):
        xs = [torch.randn(3) for _ in range(n)]
        return (xs, xs), []

    def mixed(n):
        shared = torch.randn(3)
        xs = [shared if i % 3 else torch.randn(3).double() for i in range(n)]
        return (xs, [shared, *xs]), []

    same(fn, alike, most=6)
    jit.reset()
    same(fn, mixed, most=6)


def test_subclasses_of_list_keep_their_own_methods():
    class Odd(list):
        def __iter__(self):
            return iter([x + 1 for x in list.__iter__(self)])

    def fn(xs):
        total = torch.zeros(3)
        for x in xs:
            total = total + x
        return total

    def make(n):
        return ((Odd if n % 2 else list)([torch.randn(3) for _ in range(n)]),), []

    same(fn, make, most=8)


def test_elements_that_are_other_inputs():
    def fn(xs, x):
        return torch.stack(xs).sum(0) * x

    def make(n):
        x = torch.randn(3, requires_grad=True)
        return ([x if i % 2 else x * 2 for i in range(n)], x), [x]

    same(fn, make)


def test_scan_of_many_lengths():
    def fn(first, xs):
        from torch._higher_order_ops.scan import scan

        return scan(lambda carry, x: (carry * 0.9 + x, carry.tanh()), first, xs, dim=0)

    def eager(first, xs):
        out = []
        for x in xs:
            first, y = first * 0.9 + x, first.tanh()
            out.append(y)
        return first, torch.stack(out)

    compiled = jit.compile(fn)
    for n in LENGTHS:
        first, xs = torch.randn(4), torch.randn(n, 4)
        torch.testing.assert_close(compiled(first, xs), eager(first, xs))
    assert compiles() <= 5, compiles()  # 1 apart


def test_floats_of_a_list_are_data():
    @jit.compile
    def f(xs, scale):
        return torch.tensor(xs) * scale, torch.tensor(xs, dtype=torch.float64)

    for i in range(8):
        xs = [0.5] * 10
        xs[i] = i + 0.1
        found, wide = f(xs, 2.0)
        assert torch.equal(found, torch.tensor(xs) * 2.0) and torch.equal(wide, torch.tensor(xs, dtype=torch.float64))
    assert len(f.on_miss.captures) == 1


def test_lengths_in_one_graph():
    """With ``fullgraph`` each length is written out, as it was."""
    f = jit.compile(lambda xs: torch.stack(xs).sum(0), fullgraph=True)
    for n in (6, 7, 8, 9):
        xs = [torch.randn(3) for _ in range(n)]
        torch.testing.assert_close(f(xs), torch.stack(xs).sum(0))


def test_an_exception_in_a_loop_of_varying_length():
    def fn(xs, seen):
        for x in xs:
            seen.append(len(seen))
            if x < 0:
                raise ValueError("negative")
        return torch.ones(1) * len(seen)

    f = jit.compile(fn)
    for n in LENGTHS:
        xs, ours, theirs = [1.0] * n, [], []
        if n % 2:
            xs[n // 2] = -1.0
            with pytest.raises(ValueError, match="negative"):
                f(xs, ours)
            with pytest.raises(ValueError):
                fn(xs, theirs)
        else:
            assert torch.equal(f(xs, ours), fn(xs, theirs))
        assert ours == theirs
