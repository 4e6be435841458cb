"""``torch.cond`` and the loops of ``torch._higher_order_ops`` in compiled functions."""

import pytest
import torch
from torch._higher_order_ops import map as map_, scan, while_loop

import jit

torch.manual_seed(0)
X, V = torch.randn(5, 4), torch.randn(4)


def agree(fn, *args, **options):
    expected = fn(*args)
    compiled = jit.compile(fn, **options)
    for _ in range(2):
        found = compiled(*args)
        torch.testing.assert_close(found, expected)
    return compiled


def outer(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin() + V, lambda a: (a * 2).cos(), (x,))


def test_cond_takes_the_side_that_the_data_say():
    compiled = jit.compile(outer)
    for x in (X, -X, X * 2, X.abs(), -X.abs()):
        torch.testing.assert_close(compiled(x), x.sin() + V if x.sum() > 0 else (x * 2).cos())
    found = jit.explain(outer)(X)
    assert found.graph_count == 2 and found.graph_break_count == 1


def test_cond_on_what_is_known():
    def fn(x):
        y = torch.cond(x.shape[0] > 3, lambda a: a + 1, lambda a: a - 1, (x,))
        y = torch.cond(0.5, lambda a: a, lambda a: a * 7, (y,))
        return torch.cond(y.dim() > 5, lambda a, b: a, lambda a, b: a * b, (y, x))

    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(X), (X + 1) * X)


def test_gradients_go_through_the_side_that_was_taken():
    compiled = jit.compile(outer)
    for x in (X.abs(), -X.abs()):
        x = x.clone().requires_grad_()
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.cos() if x.sum() > 0 else -2 * (x * 2).sin())


@pytest.mark.parametrize("fn", [lambda x: torch.cond(x, lambda a: a, lambda a: a, (x,)),
                                lambda x: torch.cond(x.sum() > 0, lambda a: x, lambda a: x, (3,))])
def test_errors_are_eagers(fn):
    with pytest.raises(RuntimeError) as expected:
        fn(X)
    with pytest.raises(RuntimeError) as found:
        jit.compile(fn)(X)
    assert str(found.value)[:60] == str(expected.value)[:60]


LOOPS = {
    "map": lambda x: map_(lambda r: r.sin() * 2, x),
    "map with others": lambda x: map_(lambda r, w: (r * w).sum(), x, V),
    "map of several": lambda x: map_(lambda d: {"a": d["x"] + d["y"], "b": d["x"].sum()}, {"x": x, "y": x * 2}),
    "scan": lambda x: scan(lambda c, r: (c + r, c * 2), torch.zeros(4), x),
    "scan from behind": lambda x: scan(lambda c, r: (c * 0.5 + r, c.sin()), torch.zeros(4), x, reverse=True),
    "scan along another dimension": lambda x: scan(lambda c, r: (c + r, c + 1), torch.zeros(5), x, dim=1),
    "scan of several": lambda x: scan(lambda c, r: ((c[0] + r["a"], c[1] * r["b"]), c[0] - c[1]),
                                      (torch.zeros(4), torch.ones(4)), {"a": x, "b": x * 2}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    fn = LOOPS[name]
    agree(fn, X, fullgraph=True)
    found = []
    for run in (fn, jit.compile(fn, fullgraph=True)):
        x = X.clone().requires_grad_()
        leaves = torch.utils._pytree.tree_leaves(run(x))
        sum((t * t).sum() for t in leaves if t.requires_grad).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_while_loops():
    def fn(x):
        return while_loop(lambda i, a: a.norm() < 100, lambda i, a: (i + 1, a * 1.7), (torch.tensor(0), x))

    for x in (X, X * 30, X * 1000):
        agree(fn, x)
