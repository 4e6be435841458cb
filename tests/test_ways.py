"""Branches on values of tensors: which way the program goes is learned; and what goes on after breaks in a loop is
shared by all its rounds."""

import contextlib

import pytest
import torch

import jit
from jit.frame import ways

CALLS = ways.CALLS


def total():
    return jit.compile_count()


def validated(x, limit):
    y, more = x * 2, 0  # ways that leave other numbers are no step of the graph
    if y.sum() > limit:
        y, more = y.sin(), 1
    z = y + 1
    if (z < -100).any() or z.isnan().any():
        z, more = z - 1, 2
    return z.cos() + more


def same(compiled, fn, *arguments):
    torch.testing.assert_close(compiled(*arguments), fn(*arguments), equal_nan=True)


def test_what_is_learned_of_a_branch_is_told():
    said, compiled, x = [], jit.compile(validated), torch.arange(5.0)
    jit.logs.channel("recompiles").listener = said.append
    try:
        for _ in range(CALLS + 2):
            compiled(x, torch.tensor(1e6))
    finally:
        jit.logs.channel("recompiles").listener = None
    line = validated.__code__.co_firstlineno + 2
    told = f"the branch at {__file__}:{line} has gone one way at all of {CALLS} calls"
    assert any(told in text for text in said), said


def test_a_branch_that_always_goes_one_way_is_no_break():
    compiled, x = jit.compile(validated), torch.arange(5.0)
    for _ in range(CALLS + 1):
        same(compiled, validated, x, torch.tensor(1e6))
    before = total()
    for _ in range(5):
        same(compiled, validated, x, torch.tensor(1e6))
    assert total() == before
    (entry,) = compiled.entries
    same(compiled, validated, x, torch.tensor(-1.0))  # the assumption does not hold
    same(compiled, validated, x * torch.nan, torch.tensor(1e6))
    same(compiled, validated, x, torch.tensor(1e6))
    assert compiled.entries == (entry,)


def test_both_ways_break():
    compiled, x, before = jit.compile(validated), torch.arange(5.0), total()
    for i in range(3 * CALLS):
        same(compiled, validated, x, torch.tensor(1e6 if i % 2 else -1.0))
    counted = total() - before
    for i in range(2 * CALLS):
        same(compiled, validated, x, torch.tensor(1e6 if i % 2 else -1.0))
    assert total() - before == counted <= 10


def test_a_program_that_comes_to_go_the_other_way():
    compiled, x = jit.compile(validated), torch.arange(5.0)
    for limit in (1e6, -1.0, 1e6, -1.0):
        for _ in range(CALLS + 10):
            same(compiled, validated, x, torch.tensor(limit))
    before = total()
    for limit in (1e6, -1.0, 1e6):
        for _ in range(10):
            same(compiled, validated, x, torch.tensor(limit))
    assert total() - before <= 8


def test_what_cannot_be_done_twice_is_not_assumed():
    def fn(x, seen):
        seen.add_(1)
        if x.sum() > 0:
            seen.mul_(2)
        return x * seen

    compiled, ours, theirs = jit.compile(fn), torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for i in range(2 * CALLS):
        x = torch.ones(2, dtype=torch.float64) * (-1 if i in (CALLS + 3, CALLS + 4) else 1)
        ours.remainder_(7)
        theirs.remainder_(7)
        torch.testing.assert_close(compiled(x, ours), fn(x, theirs))
        torch.testing.assert_close(ours, theirs)


def counting(x, seen):
    seen.add_(1)
    if x.sum() < 0:
        seen.mul_(2)
    return x * seen


def test_a_way_is_assumed_where_inputs_are_changed():
    compiled, ours, theirs = jit.compile(counting), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for i in range(3 * CALLS):
        if i == CALLS + 2:
            before = total()
        sign = -1 if i in (CALLS + 3, CALLS + 9) else 1
        x = torch.arange(1.0, 3.0) * sign
        torch.testing.assert_close(compiled(x, ours), counting(x, theirs))
        torch.testing.assert_close(ours, theirs)
    assert total() == before and len(compiled.entries) == 1
    assert jit.explain(compiled)(x, ours).graph_break_count == 1  # a capture that has learned nothing


def test_a_way_that_is_left_where_inputs_are_changed():
    compiled, ours, theirs = jit.compile(counting), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    before = total()
    for i in range(8 * CALLS):
        x = torch.arange(1.0, 3.0) * (-1 if i > CALLS + 3 and i % 2 else 1)
        torch.testing.assert_close(compiled(x, ours), counting(x, theirs))
        torch.testing.assert_close(ours, theirs)
        ours.remainder_(7), theirs.remainder_(7)
    assert total() - before <= 8


def test_a_way_that_is_no_use_is_learned_once():
    """Where the capture cannot go on along the way, the function is not compiled again and again for it."""
    def fn(x):
        if x.sum() > 1e6:
            x = x + 1
        return x.sin()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jit.frame.assumptions._learned", lambda *args: None)
        compiled, x = jit.compile(fn), torch.ones(3)
        before = total()
        for _ in range(6 * CALLS):
            same(compiled, fn, x)
    assert total() - before <= 4


def test_random_numbers_are_drawn_once():
    def fn(x):
        y = x + torch.rand(3)
        if y.sum() > 1e6:
            y = y + 1
        return y + torch.rand(3)

    compiled = jit.compile(fn)
    for i in range(CALLS + 5):
        torch.manual_seed(i)
        a = compiled(torch.ones(3) * (1e9 if i == CALLS + 3 else 1)), torch.rand(1)
        torch.manual_seed(i)
        b = fn(torch.ones(3) * (1e9 if i == CALLS + 3 else 1)), torch.rand(1)
        torch.testing.assert_close(a, b)


def test_gradients_on_either_side():
    weight = torch.nn.Parameter(torch.arange(1.0, 4.0))

    def fn(x):
        y = x * weight
        if y.norm() > 100:
            y = y / 10
        return (y * weight).sum()

    compiled = jit.compile(fn)
    for i in range(CALLS + 6):
        x = torch.ones(3) * (100.0 if i in (CALLS + 2, CALLS + 4) else 1.0)
        found = []
        for f in (compiled, fn):
            weight.grad = None
            f(x).backward()
            found.append(weight.grad)
        torch.testing.assert_close(*found)


def test_nothing_is_compiled_again_where_that_is_forbidden():
    compiled, x = jit.compile(validated), torch.arange(5.0)
    with contextlib.ExitStack() as stack:
        for i in range(2 * CALLS):
            same(compiled, validated, x, torch.tensor(1e6))
            if i == CALLS - 1:
                stack.enter_context(jit.set_stance("fail_on_recompile"))
    before = total()
    same(compiled, validated, x, torch.tensor(1e6))
    assert total() == before + 1


# loops


def step(x):
    if x.sum() > 50:
        return x / 2
    return x + 1


def inner(x, n):
    for i in range(n):
        x = step(x) * 1.5
    return x


def outer(x, n):
    return inner(x, n).sin()


def in_a_context(x, n):
    with torch.no_grad():
        for i in range(n):
            x = step(x)
            with torch.enable_grad():
                x = step(x) * (i + 1)
    return x - 1


def until(x, n):
    steps = 0
    while x.norm() < 10 * n:
        x = inner(x, 2) + steps
        steps += 1
    return x, steps


def caught(x, n):
    for i in range(n):
        try:
            x = step(x)
            if i == 3:
                raise ValueError(i)
        except ValueError as error:
            x = step(x * 2) + error.args[0]
    return x


class Holder:
    def __init__(self):
        self.seen = []

    def round(self, x, k):
        def note(y):
            self.seen.append(k)
            return step(y) + k
        return note(step(x))

    def __call__(self, x, n):
        for k in range(n):
            x = self.round(x, k)
        return x, list(self.seen), self.seen.clear()


@pytest.mark.parametrize("make", [lambda: outer, lambda: in_a_context, lambda: until, lambda: caught,
                                  lambda: Holder().__call__])
def test_rounds_of_a_loop_share_what_goes_on(make):
    fn, other = make(), make()
    compiled, before = jit.compile(fn), total()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jit.config.eager_where_faster", False)
        for n in (3, 12, 5, 12, 0, 1, 12):
            for size in (4, 4, 7):
                torch.testing.assert_close(compiled(torch.ones(size), n), other(torch.ones(size), n))
        rounds = total() - before
        for n in (25, 30):
            torch.testing.assert_close(compiled(torch.ones(4), n), other(torch.ones(4), n))
    assert total() - before - rounds <= 8  # and not some for each round
    assert rounds <= 60


def test_what_goes_on_does_not_grow_with_the_rounds():
    def deep(x, n):
        if n == 0:
            return step(x)
        return step(deep(step(x), n - 1)) + n

    compiled = jit.compile(deep)
    for n in (0, 1, 2, 3):
        torch.testing.assert_close(compiled(torch.ones(3), n), deep(torch.ones(3), n))
