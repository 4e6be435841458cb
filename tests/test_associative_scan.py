"""``associative_scan``: eager's results, layouts, gradients and errors; lengths that vary are few programs."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import jit


def state_space(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]


def named(a, b):
    return {"sum": a["sum"] + b["sum"], "most": torch.maximum(a["most"], b["most"])}


def sums(x):
    return associative_scan(torch.add, x, 0, combine_mode="generic")


def states(x):
    return associative_scan(state_space, (x.sigmoid(), x), 1, combine_mode="generic")


def products(x):
    return associative_scan(torch.matmul, x[:, :, None] * torch.eye(4), 0, reverse=True, combine_mode="generic")


def from_behind(x):
    return associative_scan(named, {"sum": x, "most": x * 2}, -2, reverse=True, combine_mode="generic")


PROGRAMS = [sums, states, products, from_behind]


def flat(result):
    return torch.utils._pytree.tree_leaves(result)


def check(fn, compiled, x):
    want, got = fn(x), compiled(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert [t.stride() for t in flat(got)] == [t.stride() for t in flat(want)]
    if x.requires_grad:
        grads = [torch.autograd.grad(sum(t.square().sum() for t in flat(r)), x)[0] for r in (want, got)]
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_lengths_that_vary(fn):
    torch.manual_seed(0)
    compiled = jit.compile(fn)
    for n in range(20, 33):
        check(fn, compiled, (torch.rand(n, 4) if fn is not states else torch.rand(3, n)).requires_grad_())
    captures = compiled.on_miss.captures
    assert len(captures) <= 3 and not any(c.breaks for c in captures)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("lengths", [(70, 65, 80, 100, 127, 64), (2, 3, 1, 5, 4), (300, 400, 257)], ids=str)
def test_long_and_short_ones(fn, lengths):
    torch.manual_seed(0)
    compiled = jit.compile(fn)
    for n in lengths:
        check(fn, compiled, torch.rand(n, 4) if fn is not states else torch.rand(3, n))


def test_layouts():
    torch.manual_seed(0)
    compiled = jit.compile(sums)
    for n in (9, 12, 14, 15):
        for x in (torch.randn(2 * n, 3)[::2], torch.randn(3, n).t(), torch.randn(1, 3).expand(n, 3)):
            check(sums, compiled, x)


def test_what_is_refused():
    def unknown(x):
        return associative_scan(torch.add, x, 0, combine_mode="other")

    for n in (4, 5, 6):
        for fn, x in ((sums, torch.ones(0, 3)), (sums, torch.ones(n + 3, 0)), (unknown, torch.ones(n)),
                      (states, torch.ones(3))):
            compiled = jit.compile(fn)
            for _ in range(2):
                with pytest.raises(Exception) as want:
                    fn(x)
                with pytest.raises(type(want.value)) as got:
                    compiled(x)
                assert str(got.value) == str(want.value)
