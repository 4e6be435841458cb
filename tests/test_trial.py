"""Entries that break their graph are left to eager where timed calls tell that it is faster, and only there."""

import re
import textwrap
import time

import pytest
import torch

import jit
from jit.frame import trial

CALLS = 12
PAUSE = 0.02


@pytest.fixture(autouse=True)
def tried():
    with jit.config.patch(eager_where_faster=True):
        yield


def slow_compiled(x, pause=PAUSE):
    y = x + 1
    jit.graph_break()
    if jit.is_compiling():
        time.sleep(pause)
    return y * 2


def slow_eager(x):
    y = x + 1
    jit.graph_break()
    if not jit.is_compiling():
        time.sleep(PAUSE)
    return y * 2


def _calls(compiled, *args):
    return [compiled(*args) for _ in range(CALLS)]


def _entry(compiled):
    (entry,) = compiled.entries
    return entry


def test_a_timed_call_takes_no_longer():
    """A look at the states of all generators, before and behind it, is a matter of microseconds."""
    took = []
    for _ in range(20):
        start = time.perf_counter()
        trial._random_states()
        took.append(time.perf_counter() - start)
    assert min(took) < 2e-3


def test_left_to_eager():
    compiled, x = jit.compile(slow_compiled), torch.randn(4)
    for found in _calls(compiled, x):
        torch.testing.assert_close(found, (x + 1) * 2)
    assert _entry(compiled).target is None and _entry(compiled).trial is None


@pytest.mark.parametrize("made", [tuple, list, lambda parts: dict(enumerate(parts))])
def test_results_of_any_kind(made):
    def several(x):
        y = slow_compiled(x)
        return made((y, x + 2))

    compiled, x = jit.compile(several), torch.randn(4)
    for found in _calls(compiled, x):
        torch.testing.assert_close(found, made(((x + 1) * 2, x + 2)))
    assert all(e.target is None and e.trial is None for e in compiled.entries)


def test_stays_compiled():
    compiled, x = jit.compile(slow_eager), torch.randn(4)
    for found in _calls(compiled, x):
        torch.testing.assert_close(found, (x + 1) * 2)
    assert _entry(compiled).target is not None and _entry(compiled).trial is None


def test_other_arguments_are_tried_on_their_own():
    compiled = jit.compile(slow_compiled)
    _calls(compiled, torch.randn(4))
    compiled(torch.randn(4, 3))
    assert [e.target is None for e in compiled.entries] == [True, False]
    _calls(compiled, torch.randn(4, 3))
    assert [e.target is None for e in compiled.entries] == [True, True]


def test_said_in_the_log(python):
    done = python(textwrap.dedent(f"""
        import time, torch, jit
        @jit.compile
        def f(x):
            y = x + 1
            jit.graph_break()
            if jit.is_compiling():
                time.sleep({PAUSE})
            return y * 2
        for _ in range({CALLS}):
            f(torch.ones(3))
        """), JIT_LOGS="graph_breaks")
    said = r" f \(<string>:\d+\) is left to eager for arguments like these: it breaks its graph \(1 times"
    assert re.search(said, done.stderr), done.stderr


def draws(x):
    y = x + torch.rand(4)
    jit.graph_break()
    if jit.is_compiling():
        time.sleep(PAUSE)
    return y * 2


def test_random_numbers_are_those_of_one_seed():
    compiled, found = jit.compile(draws), []
    for _ in range(CALLS):
        torch.manual_seed(0)
        found.append(compiled(torch.zeros(4)))
    assert all(torch.equal(f, found[0]) for f in found)
    assert _entry(compiled).target is not None and _entry(compiled).trial is None


def test_not_where_results_have_to_be_the_same():
    compiled, x = jit.compile(slow_compiled), torch.randn(4)
    torch.use_deterministic_algorithms(True)
    try:
        _calls(compiled, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert _entry(compiled).target is not None


def test_a_trial_ends_where_nothing_can_be_timed():
    from jit.frame import trial

    compiled, x = jit.compile(slow_eager), torch.randn(4)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(trial.MOST_CALLS + 2):
            compiled(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert _entry(compiled).target is not None and _entry(compiled).trial is None


def test_not_in_one_process_of_several(monkeypatch):
    """Each process has to issue the collectives of the others, whatever its clock says."""
    compiled, x = jit.compile(slow_compiled), torch.randn(4)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    _calls(compiled, x)
    assert _entry(compiled).target is not None


def test_switched_off():
    compiled, x = jit.compile(slow_compiled), torch.randn(4)
    with jit.config.patch(eager_where_faster=False):
        _calls(compiled, x)
    assert _entry(compiled).target is not None and _entry(compiled).trial is None


def test_what_does_not_break_is_not_tried():
    compiled = jit.compile(lambda x: x + 1)
    compiled(torch.randn(4))
    assert _entry(compiled).trial is None


def raises(x, bad):
    y = x + 1
    jit.graph_break()
    if bad[0]:
        raise ValueError("bad")
    if jit.is_compiling():
        time.sleep(PAUSE)
    return y * 2


def test_calls_that_raise_are_not_counted():
    compiled, x = jit.compile(raises), torch.randn(4)
    compiled(x, [False])
    for _ in range(CALLS):
        with pytest.raises(ValueError, match="bad"):
            compiled(x, [True])
    assert all(e.target is not None for e in compiled.entries)


def recursive(x, n):
    y = x + 1
    jit.graph_break()
    if jit.is_compiling():
        time.sleep(PAUSE / 4)
    return y if n[0] == 0 else _again(y, n)


def _again(y, n):
    n[0] -= 1
    return again(y, n)


again = jit.compile(recursive)


def test_a_function_that_calls_itself():
    x = torch.randn(4)
    for _ in range(CALLS):
        torch.testing.assert_close(again(x, [3]), x + 4)


def test_inner_functions_stay_compiled():
    seen = []

    @jit.compile
    def inner(x):
        return (x * 2).sin() if jit.is_compiling() else None

    def outer(x):
        y = x + 1
        jit.graph_break()
        if jit.is_compiling():
            time.sleep(PAUSE)
        seen.append(inner(y))
        return y

    compiled, x = jit.compile(outer), torch.randn(4)
    _calls(compiled, x)
    assert _entry(compiled).target is None
    for found in seen:
        torch.testing.assert_close(found, (2 * (x + 1)).sin())


def test_a_backward_that_is_to_come_counts():
    """Eager's forward alone is a little faster: that decides nothing."""
    from jit.frame.trial import Trial

    class Entry:
        trial, left = "on", False

        def leave_to_eager(self):
            self.left = True

    for grad, left in ((False, True), (True, False)):
        trial = Trial(Entry(), "f", 1, lambda: 0)
        trial.grad = grad
        trial.times = {False: [1.0, 1.0, 1.1], True: [0.8, 0.9, 0.9]}
        trial.judge()
        assert trial.entry.left is left and trial.entry.trial is None
