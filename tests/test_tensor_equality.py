"""``torch.equal`` in compiled functions: with what eager answers, and whole where the answer is clear."""

import pytest
import torch

import jit

NAN = torch.tensor([1.0, float("nan")])


def branch(a, b):
    return a + 1 if torch.equal(a, b) else a - 1


def of_the_same(a, b):
    x, y = (a / 2).sin(), (a / 2).sin()
    return x * 2 if x.equal(y) and torch.equal(a, a) else b


def told(a, b):
    return a * 2, torch.equal(a, b), a.equal(b * 1)


def changed(a, b):
    x = a.clone()
    before = x * 1
    x[0] = b.flatten()[0]
    return x if torch.equal(x, before) else -x


ROWS = torch.arange(12.0).view(3, 4)
CALLS = [(ROWS, ROWS), (ROWS, ROWS.clone()), (ROWS, ROWS + 1), (ROWS, ROWS[:2]), (ROWS.t(), ROWS), (ROWS, ROWS.t().t()),
         (ROWS[:, ::2], ROWS[:, ::2].clone()), (ROWS[0].expand(3, 4), ROWS[0].repeat(3, 1)), (NAN, NAN),
         (NAN, NAN.clone()), (ROWS.long(), ROWS.long()), (ROWS, ROWS), (torch.empty(0, 3), torch.empty(0, 3))]


def outcome(fn, a, b):
    try:
        return fn(a, b)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("fn", [branch, of_the_same, told, changed])
def test_as_eager(fn):
    with jit.config.patch(cache_limit=64):
        compiled = jit.compile(fn)
        for a, b in [*CALLS, (ROWS, ROWS.double()), *CALLS]:
            want, got = outcome(fn, a, b), outcome(compiled, a, b)
            if isinstance(want, tuple) and isinstance(want[0], type):
                assert got == want
            else:
                torch.testing.assert_close(got, want, equal_nan=True)


def test_gradients():
    for fn in (branch, of_the_same):
        compiled = jit.compile(fn)
        for b in (ROWS, ROWS + 1):
            mine, theirs = (ROWS.clone().requires_grad_() for _ in range(2))
            torch.autograd.backward([fn(theirs, b).sum()])
            torch.autograd.backward([compiled(mine, b).sum()])
            torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("fn, calls", [(branch, [(ROWS, ROWS)]), (of_the_same, [(ROWS, ROWS)]),
                                       (branch, [(ROWS, ROWS[:2])]), (branch, [(ROWS, ROWS[0])])])
def test_whole(fn, calls):
    for a, b in calls:
        assert jit.explain(jit.compile(fn))(a, b).graph_break_count == 0


def test_sizes_that_vary_are_compiled_for_twice():
    compiled, before = jit.compile(branch), jit.compile_count()
    for n in range(3, 9):
        a, b = torch.randn(n, 2), torch.randn(2, 2)
        assert torch.equal(compiled(a, b), a - 1)
    assert jit.compile_count() - before <= 2


def test_a_nan_among_what_was_the_same():
    compiled = jit.compile(of_the_same)
    for a in (ROWS[0], NAN, ROWS[0], NAN.repeat(2), ROWS[1]):
        torch.testing.assert_close(compiled(a, ROWS), of_the_same(a, ROWS), equal_nan=True)
