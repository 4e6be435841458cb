"""``torch.cond`` and the loops of ``torch._higher_order_ops`` in compiled functions. What is expected is written out in
Python, since in eager PyTorch's own compiler is called for each of them."""

import types

import pytest
import torch
from torch._higher_order_ops import map as map_, scan, while_loop
from torch.utils import _pytree as pytree

import jit

torch.manual_seed(0)
X, V = torch.randn(5, 4), torch.randn(4)


OPERATORS = types.SimpleNamespace(map=map_, scan=scan, while_loop=while_loop)


def stacked(results):
    leaves, specs = zip(*map(pytree.tree_flatten, results))
    return pytree.tree_unflatten([torch.stack(found) for found in zip(*leaves)], specs[0])


def slices(xs, dim):
    leaves, spec = pytree.tree_flatten(xs)
    return [pytree.tree_unflatten(of, spec) for of in zip(*[x.unbind(dim) for x in leaves])]


def expected_scan(combine, carry, xs, dim=0, reverse=False):
    results = []
    for x in slices(xs, dim)[::-1 if reverse else 1]:
        carry, out = combine(carry, x)
        results.append(out)
    out = stacked(results[::-1] if reverse else results)
    return carry, pytree.tree_map(lambda t: t.movedim(0, dim), out)


def expected_while_loop(condition, body, carried):
    while condition(*carried):
        carried = body(*carried)
    return carried


EXPECTED = types.SimpleNamespace(map=lambda f, xs, *others: stacked([f(x, *others) for x in slices(xs, 0)]),
                                 scan=expected_scan, while_loop=expected_while_loop)


def agree(fn, *args, **options):
    expected = fn(EXPECTED, *args)
    compiled = jit.compile(fn, **options)
    for _ in range(2):
        torch.testing.assert_close(compiled(OPERATORS, *args), expected)


def outer(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin() + V, lambda a: (a * 2).cos(), (x,))


def test_cond_takes_the_side_that_the_data_say():
    compiled = jit.compile(outer)
    for x in (X, -X, X * 2, X.abs(), -X.abs()):
        torch.testing.assert_close(compiled(x), x.sin() + V if x.sum() > 0 else (x * 2).cos())
    found = jit.explain(outer)(X)
    assert found.graph_count == 1 and found.graph_break_count == 0


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
    "map": lambda ops, x: ops.map(lambda r: r.sin() * 2, x),
    "map by name": lambda ops, x: ops.map(f=lambda r: r.cos(), xs=x),
    "map with others": lambda ops, x: ops.map(lambda r, w: (r * w).sum(), x, V),
    "map of several": lambda ops, x: ops.map(lambda d: {"a": d["x"] + d["y"], "b": d["x"].sum()}, {"x": x, "y": x * 2}),
    "scan": lambda ops, x: ops.scan(lambda c, r: (c + r, c * 2), torch.zeros(4), x),
    "scan from behind": lambda ops, x: ops.scan(lambda c, r: (c * 0.5 + r, c.sin()), torch.zeros(4), x, reverse=True),
    "scan along another dimension": lambda ops, x: ops.scan(lambda c, r: (c + r, c + 1), torch.zeros(5), x, dim=1),
    "scan of several": lambda ops, x: ops.scan(lambda c, r: ((c[0] + r["a"], c[1] * r["b"]), c[0] - c[1]),
                                      (torch.zeros(4), torch.ones(4)), {"a": x, "b": x * 2}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    fn = LOOPS[name]
    agree(fn, X, fullgraph=True)
    found = []
    for ops, run in ((EXPECTED, fn), (OPERATORS, jit.compile(fn, fullgraph=True))):
        x = X.clone().requires_grad_()
        leaves = pytree.tree_leaves(run(ops, x))
        sum((t * t).sum() for t in leaves if t.requires_grad).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_while_loops():
    def fn(ops, x):
        return ops.while_loop(lambda i, a: a.norm() < 100, lambda i, a: (i + 1, a * 1.7), (torch.tensor(0), x))

    for x in (X, X * 30, X * 1000):
        agree(fn, x)


def test_cond_in_callees_and_lists():
    """Where a break can be resumed inside, and where it cannot."""

    def inner(x):
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)) * 2

    def fn(x):
        y = inner(x)
        for k in range(2):
            y = torch.cond(y[0, k] > 0, torch.sin, torch.cos, (y,))
        return y, [torch.cond(v.sum() > 0, torch.exp, torch.neg, (v,)) for v in (x, -x)]

    def expected(x):
        y = (x + 1 if x.sum() > 0 else x - 1) * 2
        for k in range(2):
            y = y.sin() if y[0, k] > 0 else y.cos()
        return y, [v.exp() if v.sum() > 0 else -v for v in (x, -x)]

    compiled = jit.compile(fn)
    for x in (X, -X, X * 3):
        torch.testing.assert_close(compiled(x), expected(x))


def _taken(pred, true_fn, false_fn, operands=()):
    return true_fn(*operands) if pred else false_fn(*operands)


BRANCHES = {
    "of data": lambda cond, x, y: cond(x.sum() > 0, lambda a: a.sin() + V, lambda a: (a * 2).cos(), (x,)),
    "nested": lambda cond, x, y: cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: cond(
        b.sum() > 0, lambda a, b: a - b, lambda a, b: a * b, (a, b)), (x, y)),
    "no operands": lambda cond, x, y: cond(x.mean(), lambda: y + 2, lambda: y * x) + 1,
    "trees": lambda cond, x, y: cond((x > 0).any(), lambda a: {"a": [a + 1, a.sum()], "b": a},
                                     lambda a: {"a": [a - 1, a.max()], "b": a * 2}, [x]),
    "products": lambda cond, x, y: cond(x.sum() > y.sum(), lambda a: a @ a.t(), lambda a: (a @ a.t()).relu(), (x,)),
    "a number that fits neither": lambda cond, x, y: cond(x.sum() > 0, lambda a: a.log(), lambda a: (-a).log(), (x,)),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_both_branches_are_in_the_graph(name):
    fn = BRANCHES[name]
    compiled = jit.compile(lambda x, y: fn(torch.cond, x, y), fullgraph=True)
    for seed in range(6):
        torch.manual_seed(seed)
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(compiled(x, y), fn(_taken, x, y), equal_nan=True)
    assert len(compiled.entries) == 1


def test_gradients_come_from_one_branch_alone():
    def fn(cond, x):
        return cond(x.detach().sum() > 0, lambda a: a.sqrt(), lambda a: a * 2, (x,)).sum()

    compiled = jit.compile(lambda x: fn(torch.cond, x))
    for value in (0.0, 4.0, 0.0):
        grads = []
        for f in (lambda x: fn(_taken, x), compiled):
            x = torch.full((3,), value, requires_grad=True)
            f(x).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_a_predicate_that_is_an_argument_is_read_first():
    compiled = jit.compile(lambda p, x: torch.cond(p, lambda a: a.sin(), lambda a: a.cos(), (x,)), fullgraph=True)
    for p in (True, False, True):
        x = torch.randn(3, requires_grad=True)
        torch.testing.assert_close(compiled(torch.tensor(p), x), x.sin() if p else x.cos())
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("value", [1.0, -1.0])
@pytest.mark.parametrize("backend", ["jit", "eager"])
def test_a_branch_that_raises_is_none_if_it_is_not_taken(value, backend):
    def fn(cond, x):
        try:
            return cond(x.sum() > 0, lambda a: a.sin(), lambda a: a + torch.ones(7), (x,))
        except RuntimeError as error:
            return str(error)

    x = torch.full((3,), value)
    expected, compiled = fn(_taken, x), jit.compile(lambda x: fn(torch.cond, x), backend=backend)
    for _ in range(2):
        found = compiled(x)
        assert found == expected if isinstance(expected, str) else torch.allclose(found, expected)


class Kind(torch.Tensor):
    pass


@pytest.mark.parametrize("predicate", [lambda x: x.sum() > 0, lambda x: x.any(), lambda x: (x > 0)[0],
                                       lambda x: x[:1] > 0])
def test_results_have_not_the_class_of_the_predicate(predicate):
    fn = jit.compile(lambda x: torch.cond(predicate(x), torch.sin, torch.cos, (V,)), fullgraph=True)
    for x in (torch.ones(2).as_subclass(Kind), -torch.ones(2).as_subclass(Kind)):
        found = fn(x)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, torch.sin(V) if predicate(x) else torch.cos(V))


@pytest.mark.parametrize("change", [{"init": 1}, {"init": ()}, {"reverse": 1}, {"reverse": "x"}, {"xs": [1.0, 2.0]},
                                    {"dim": 5}, {"dim": "0"}, {"combine_fn": 3}, {"xs": torch.ones(0, 3)}])
def test_what_scan_refuses_raises_its_error(change):
    given = {"combine_fn": lambda c, x: (c + x, c * x), "init": torch.zeros(4), "xs": X, "dim": 0, "reverse": False}
    given |= change

    def fn():
        return scan(**given)

    raised = []
    for run in (fn, jit.compile(fn)):
        with pytest.raises(Exception) as error:
            run()
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def test_what_both_sides_of_cond_give_is_chosen_from():
    """Nothing waits for the predicate, as it would on a GPU."""
    (graph,) = jit.explain(outer)(X).graphs
    assert "run_branch" not in graph and "where" in graph
