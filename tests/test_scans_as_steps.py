"""scan and map of torch._higher_order_ops as one step of the graph, where they are long or of a length that varies."""

import pytest
import torch
from test_control_flow import expected_scan, stacked
from torch._higher_order_ops import map as map_, scan
from torch.utils import _pytree as pytree

import jit

torch.manual_seed(0)


def expected_map(f, xs, *others):
    leaves, spec = pytree.tree_flatten(xs)
    return stacked([f(pytree.tree_unflatten([x[k] for x in leaves], spec), *others) for k in range(len(leaves[0]))])


def agree(fn, eager, ours, *inputs, compiles=2, step=True, **options):
    compiled = jit.compile(lambda *args: fn(ours, *args), fullgraph=True, **options)
    for args in inputs * 2:
        expected, got = (pytree.tree_flatten(f)[0] for f in (fn(eager, *args), compiled(*args)))
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            torch.testing.assert_close(g, e)
            assert g.stride() == e.stride()
    assert len(compiled.on_miss.captures) <= compiles
    captured = [c.graph for c in compiled.on_miss.captures]
    if step and not isinstance(captured[-1], bool):
        assert "run_scan" in captured[-1].python()
    return compiled


LENGTHS = (5, 7, 300, 2, 31)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_any_length(reverse):
    def fn(scan, first, xs):
        return scan(lambda carry, x: (carry * 0.9 + x, carry.tanh()), first, xs, dim=0, reverse=reverse)

    agree(fn, expected_scan, scan, *[(torch.randn(16), torch.randn(n, 16)) for n in LENGTHS])
    agree(fn, expected_scan, scan, *[(torch.randn(16), torch.randn(n, 16)) for n in (400, 401)])
    agree(fn, expected_scan, scan, *[(torch.randn(3), torch.randn(n, 3)) for n in (400, 5, 7)], backend="eager",
          compiles=3)


def test_other_dimensions_and_layouts():
    def fn(scan, first, xs):
        return scan(lambda c, x: (c + x, c * 2 + x), first, xs, dim=1)

    for lay in (lambda t: t, lambda t: t.transpose(0, 2).contiguous().transpose(0, 2), lambda t: t[::2, :, ::2]):
        agree(fn, expected_scan, scan, *[(lay(torch.randn(6, 1, 8))[:, 0], lay(torch.randn(6, n, 8)))
                                         for n in (3, 300, 4, 9)], compiles=3)


def test_trees_views_and_unchanged():
    weight = torch.randn(4, 4) * 0.3

    def fn(scan, x, y):
        def combine(c, r):
            state, count = c
            new = torch.tanh(state @ weight + r["a"])
            return (new, count + r["b"].sum().to(count.dtype)), {"out": (new, state.t(), r["a"][0]), "count": count}
        return scan(combine, (torch.zeros(4, 4), torch.zeros(())), {"a": x, "b": y})

    agree(fn, expected_scan, scan, *[(torch.randn(n, 4, 4), torch.randint(0, 5, (n, 3))) for n in (3, 5, 300, 9)])

    def kept(scan, x):
        return scan(lambda c, r: (c, r.sin() + c), torch.ones(3), x)

    agree(kept, expected_scan, scan, *[(torch.randn(n, 3),) for n in (3, 5, 300)])


def test_what_is_around_reads_and_writes():
    def fn(scan, x):
        y = x.sin()
        scale = y.mean() + x.shape[0]
        carry, out = scan(lambda c, r: (c + r * scale, c.exp()), torch.zeros(3), y)
        out = out.clone()
        out[0].add_(1)
        return carry * 2, out, y

    agree(fn, expected_scan, scan, *[(torch.randn(n, 3) * 0.01,) for n in (3, 5, 300)])


def test_maps():
    def fn(map_, x, y):
        return map_(lambda r, b: (r.cumsum(0) * b, (r - b).sum()), x, y)

    agree(fn, expected_map, map_, *[(torch.randn(n, 3), torch.randn(3)) for n in (3, 5, 300, 9)])


def test_long_ones_with_gradients_are_refused_as_before():
    def fn(x):
        return scan(lambda c, r: (c + r, c * r), torch.zeros(3), x)[1].sum()

    x = torch.randn(4, 3, requires_grad=True)
    compiled = jit.compile(fn, fullgraph=True)
    (got,) = torch.autograd.grad(compiled(x), x)
    (expected,) = torch.autograd.grad(expected_scan(lambda c, r: (c + r, c * r), torch.zeros(3), x)[1].sum(), x)
    torch.testing.assert_close(got, expected)


def test_random_numbers_are_drawn_in_each_step():
    def fn(x):
        return scan(lambda c, r: (c, torch.rand(3)), torch.zeros(3), x)[1]

    out = jit.compile(fn, fullgraph=True)(torch.randn(5, 3))
    assert len(torch.unique(out, dim=0)) == 5


def test_indices_out_of_range_raise():
    table = torch.arange(10.0)

    def fn(x):
        return scan(lambda c, k: (c + 1, table.index_select(0, k.reshape(1))), torch.zeros(()), x)[1]

    compiled = jit.compile(fn, fullgraph=True)
    for n in (4, 5, 300):
        places = torch.randint(0, 10, (n,))
        torch.testing.assert_close(compiled(places)[:, 0], table[places])
        if n == 4:  # written out
            continue
        with pytest.raises(IndexError):
            compiled(places + 7)
