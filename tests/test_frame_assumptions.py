"""Checks on tensor values that only raise: captured whole, eager's exceptions where they fail. Texts with tensors in
them.

PYTEST_DONT_REWRITE: the assertions of the programs are to stay as they are written.
"""

import pytest
import torch
from frame_harness import Cases, check, observe, same

import jit
from jit.backends import from_callable
from jit.frame import dispatch
from jit.graph.interpret import compile_python

cases = Cases()


@cases()
def guarded(x):
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    assert x.sum() < 1e9, "too large"
    y = x * 2
    if (y != x + x).any():
        bad = y.abs().max()
        raise ValueError(f"differs by {bad}")
    else:
        return y + 1


@cases()
def checked(x):
    torch._check_tensor_all(x == x)
    torch._assert(x.sum() == x.sum(), "message")
    return x + 1


def holds(condition):
    return bool(condition)


@cases()
def checked_by_a_function(x):
    if not holds(torch.isfinite(x).all()):
        raise ValueError("not finite")
    valid = bool((x < 1e9).all())
    y = x * 2
    assert valid, "too large"
    return y, bool(y.sum() > 0)


@cases()
def text_that_is_not_used(x):
    n = (x > 0).sum()
    message = f"tokens: {n}, {x!r:>20} of {x.numel()}" + "" if False else f"{n}"
    return x + 1, isinstance(message, str), callable(message)


@cases()
def text_that_is_returned(x):
    y = x * 2
    before = f"sum {y.sum()} mean {y.mean():.3f} {y!r}"
    y += 1
    return before, str(y), y


test_captured_whole = cases.test()


def program(x, log):
    log.append("started")
    y = x.log()
    if torch.isnan(y).any():
        log.append("never")
        raise ValueError(f"bad {x.min()}")
    log.append("went on")
    return y


@pytest.mark.parametrize("backend", ["eager", None])
def test_a_failed_check_is_done_in_eager(backend):
    compiled = jit.compile(program, backend=backend, fullgraph=True)
    for values in ([1.0, 2.0], [1.0, -2.0], [3.0, 4.0], [-1.0, -1.0]):
        ours, theirs = observe(compiled, (torch.tensor(values), [])), observe(program, (torch.tensor(values), []))
        assert ours[1] == theirs[1]
        same(theirs[3], ours[3])
        if theirs[0] is not None:
            torch.testing.assert_close(ours[0], theirs[0])


def test_a_check_may_fail_at_the_first_call():
    compiled = jit.compile(program, backend="eager")
    with pytest.raises(ValueError, match="bad -2"):
        compiled(torch.tensor([1.0, -2.0]), [])
    assert torch.equal(compiled(torch.ones(2), []), torch.zeros(2))


def test_caught_exceptions():
    def make():
        def f(x):
            try:
                if x.sum() > 0:
                    raise KeyError("positive")
                return x - 1
            except KeyError as error:
                return x + 1, str(error)

        return f

    for value in (1.0, -1.0):
        check(make, lambda: (torch.full((3,), value),))


def test_changed_inputs_are_not_changed_twice():
    def f(x, y):
        x.add_(1)
        if (y < 0).any():
            raise ValueError("negative")
        return x * y

    for bad in (1.0, -1.0):
        ours, theirs = torch.zeros(2), torch.zeros(2)
        compiled = jit.compile(f, backend="eager")
        for _ in range(2):
            y = torch.full((2,), bad)
            assert observe(f, (theirs, y))[1] == observe(compiled, (ours, y))[1]
            assert torch.equal(ours, theirs)


def test_gradients_go_through():
    def f(x):
        if not (x > 0).all():
            raise ValueError("not positive")
        assert x.sum() > 0
        return (x.log() * x).sum()

    x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 2.0], requires_grad=True)
    jit.compile(f, fullgraph=True)(x).backward()
    f(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_breaks_before_and_after():
    def make():
        def f(x, log):
            if (x < 0).any():
                raise ValueError("negative")
            log.append(1)
            print("here")
            y = x + 1
            assert (y < 10).all(), f"large {y}"
            log.append(2)
            return y

        return f

    for value in (1.0, -1.0, 20.0):
        check(make, lambda: (torch.full((3,), value), []), fullgraph=False)


def test_an_assumption_that_fails_often_is_given_up():
    runs = []

    def counted(x):
        y = x.log()
        if torch.isnan(y).any():
            raise ValueError("bad")
        return y

    def backend(graph, examples):
        run = compile_python(graph)

        def call(*tensors):
            runs.append(len(graph.nodes))
            return run(*tensors)

        return call

    good, bad = torch.ones(2), -torch.ones(2)
    compiled = jit.compile(counted, backend=backend)
    compiled(good)
    for _ in range(6):
        with pytest.raises(ValueError, match="bad"):
            compiled(bad)
    assert jit.explain(counted)(good).graph_break_count == 0
    records = []
    compiled = dispatch.make_dispatcher(counted, dispatch.Settings(from_callable(backend), on_capture=records.append))
    for _ in range(5):
        with pytest.raises(ValueError, match="bad"):
            compiled(bad)
    assert [b.kind for r in records for b in r.breaks][:1] == ["data-dependent-branch"]
    assert torch.equal(compiled(good), good.log())
    runs.clear()
    compiled(good)
    assert runs, "the rest is compiled"


def test_an_assumption_that_fails_seldom_is_kept():
    compiled = jit.compile(program, backend="eager")
    before = jit.compile_count()
    for i in range(60):
        if i % 10 == 9:
            with pytest.raises(ValueError):
                compiled(torch.tensor([1.0, -2.0]), [])
        else:
            compiled(torch.ones(2), [])
    assert jit.compile_count() == before + 1


def test_with_fullgraph_an_assumption_is_kept():
    compiled = jit.compile(program, backend="eager", fullgraph=True)
    for _ in range(10):
        with pytest.raises(ValueError, match="bad -2"):
            compiled(torch.tensor([1.0, -2.0]), [])
    assert torch.equal(compiled(torch.ones(2), []), torch.zeros(2))
